"""Starts an engine: `serve.py ministack|localstack` in the engine's own interpreter, which has no pcaplake modules, or
`serve.py azurite|minio COMMAND...`.

Adds what the engines have no setting for: LocalStack listens on loopback only, MiniStack supports ranges of old
versions, and a server ends with the process that started it.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence


def exit_with_parent() -> None:
    """Kill this process group as soon as the other end of stdin is closed, for whatever reason."""
    os.read(0, 1)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def listen_on_loopback_only() -> None:
    """LocalStack ignores the host in GATEWAY_LISTEN and would listen on all interfaces."""
    from twisted.internet.endpoints import TCP4ServerEndpoint  # type: ignore[import-not-found]

    original = TCP4ServerEndpoint.__init__

    def init(self, reactor, port, backlog=50, interface=""):  # type: ignore[no-untyped-def]
        original(self, reactor, port, backlog, interface or "127.0.0.1")

    TCP4ServerEndpoint.__init__ = init


def patch_ranges_of_versions() -> None:
    """MiniStack ignores the Range of a GET with a version id, and sends the whole object."""
    from ministack.services import s3  # type: ignore[import-not-found]

    original = s3._get_object

    def get_object(bucket_name, key, headers, query_params=None):  # type: ignore[no-untyped-def]
        status, answered, body = original(bucket_name, key, headers, query_params)
        range_header = headers.get("range") if query_params and "versionId" in query_params else None
        if status != 200 or not range_header or "Content-Range" in answered:
            return status, answered, body
        byte_range = s3._parse_range(range_header, len(body))
        if byte_range is None:
            return 416, {"Content-Range": f"bytes */{len(body)}"}, b""
        first, last = byte_range
        kept = {
            name: value for name, value in answered.items() if not name.startswith("x-amz-checksum")
        }  # of the whole
        part = {"Content-Range": f"bytes {first}-{last}/{len(body)}", "Content-Length": str(last + 1 - first)}
        return 206, kept | part, body[first : last + 1]

    s3._get_object = get_object


def main(engine: str, command: Sequence[str]) -> None:
    sys.path.pop(0)  # this folder: its modules are not the engine's
    if os.environ.get("LOCAL_AWS_TETHERED"):
        threading.Thread(target=exit_with_parent, daemon=True).start()
    if command:
        sys.exit(subprocess.call(command))
    if engine == "localstack":
        listen_on_loopback_only()
    else:
        patch_ranges_of_versions()
    module = {"localstack": "localstack.runtime.main", "ministack": "ministack"}[engine]
    sys.argv = [engine]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
