"""Runs in the engine's own interpreter, which has nothing of ours: `serve.py ministack|localstack`.

Does what no setting of the engines does: LocalStack on loopback only, MiniStack with ranges of old versions, and a
server that ends with whoever started it.
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


def ranges_of_versions() -> None:
    """MiniStack forgets the Range of a GET that names a version, and sends all of it."""
    from ministack.services import s3  # type: ignore[import-not-found]

    original = s3._get_object

    def get_object(bucket_name, key, headers, query_params=None):  # type: ignore[no-untyped-def]
        status, answered, body = original(bucket_name, key, headers, query_params)
        asked = headers.get("range") if query_params and "versionId" in query_params else None
        if status != 200 or not asked or "Content-Range" in answered:
            return status, answered, body
        found = s3._parse_range(asked, len(body))
        if found is None:
            return 416, {"Content-Range": f"bytes */{len(body)}"}, b""
        first, last = found
        kept = {
            name: value for name, value in answered.items() if not name.startswith("x-amz-checksum")
        }  # of the whole
        part = {"Content-Range": f"bytes {first}-{last}/{len(body)}", "Content-Length": str(last + 1 - first)}
        return 206, kept | part, body[first : last + 1]

    s3._get_object = get_object


def main(engine: str) -> None:
    sys.path.pop(0)  # this folder: its modules are not the engine's
    if os.environ.get("LOCAL_AWS_TETHERED"):
        threading.Thread(target=end_with_parent, daemon=True).start()
    if engine == "localstack":
        loopback_only()
    else:
        ranges_of_versions()
    module = {"localstack": "localstack.runtime.main", "ministack": "ministack"}[engine]
    sys.argv = [engine]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
