"""Runs in the engine's own interpreter, which has nothing of ours: `serve.py ministack|localstack`.

Does what the engine's settings cannot: LocalStack on loopback only, and a server that ends with whoever started it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def end_with_parent() -> None:
    """When the other end of stdin is gone, however that came, so is this process group."""
    os.read(0, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def loopback_only() -> None:
    """LocalStack drops the host part of GATEWAY_LISTEN and would listen on every interface."""
    from twisted.internet.endpoints import TCP4ServerEndpoint  # type: ignore[import-not-found]

    original = TCP4ServerEndpoint.__init__

    def init(self, reactor, port, backlog=50, interface=""):  # type: ignore[no-untyped-def]
        original(self, reactor, port, backlog, interface or "127.0.0.1")

    TCP4ServerEndpoint.__init__ = init


def main(engine: str) -> None:
    if os.environ.get("LOCAL_AWS_TETHERED"):
        threading.Thread(target=end_with_parent, daemon=True).start()
    if engine == "localstack":
        loopback_only()
    module = {"localstack": "localstack.runtime.main", "ministack": "ministack"}[engine]
    sys.argv = [engine]
    sys.path.pop(0)  # this folder: its modules are not the engine's
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
