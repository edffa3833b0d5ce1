"""One running engine: start, stop, and whether it is there. Everything it holds is in memory and ends with it.

A server's pid file is locked by the server itself, through a descriptor it inherits: the kernel lets go of the lock
when the process is dead, so a pid that was given to another program is never taken for ours.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from .engines import LOOPBACK, Engine, Server, servers_of
from .install import exclusive, install

REGION = "us-east-1"
START_SECONDS = 90.0
STOP_SECONDS = 15.0
_POLL_SECONDS = 0.05
_LOG_TAIL = 3000
_SIGNED = (  # of nobody: the servers do not look, but DynamoDB Local wants to see one
    "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"
)


class CannotStart(Exception):
    """The message holds the end of the servers' logs, or says what is in the way."""


class Stack:
    """An engine on `port` (LocalStack's DynamoDB on `dynamodb_port`, the next one if not given), installed in `state`.

    With `tethered` the servers end with this process, whatever kills it; else they stay until `stop`.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        port: int,
        dynamodb_port: int | None = None,
        state: Path,
        run: Path | None = None,
        tethered: bool = False,
    ) -> None:
        if engine == "ministack":
            dynamodb_port = port
        self.engine = engine
        self.port, self.dynamodb_port = port, dynamodb_port or port + 1
        self.state = state.absolute()
        self.run = (run or state / f"run-{engine}-{port}").absolute()
        self.servers = servers_of(engine, port=port, dynamodb_port=self.dynamodb_port, state=self.state, run=self.run)
        self._tethered = tethered
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def endpoint(self) -> str:
        """Of S3 and SQS."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def dynamodb_endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.dynamodb_port}"

    @property
    def environment(self) -> dict[str, str]:
        """What connects every AWS SDK and pcaplake to it; no setting is needed beside it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ENDPOINT_URL_DYNAMODB": self.dynamodb_endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self) -> None:
        """Install if needed, start what is not running, wait until all answer. A failed start leaves nothing behind."""
        install(self.engine, self.state)
        with self._alone():
            missing = [server for server in self.servers if self.pid(server) is None]
            taken = [server.port for server in missing if _listens(server.port)]
            if taken:
                raise CannotStart(
                    f"another program listens on port {', '.join(map(str, taken))}: stop it, or choose with --port"
                )
            try:
                for server in missing:
                    self._spawn(server)
                self._wait()
            except BaseException:
                self._kill()
                raise

    def stop(self) -> None:
        """Kill what runs and forget what it held; nothing happens when nothing runs."""
        if self.run.exists():
            with self._alone():
                self._kill()

    def down(self) -> list[str]:
        """The names of the servers that are dead or do not answer."""
        return [server.name for server in self.servers if self.pid(server) is None or not self._answers(server)]

    def pid(self, server: Server) -> int | None:
        """None when it is dead."""
        try:
            file = self._pid_file(server).open()
        except FileNotFoundError:
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0) or None  # locked and still empty: being started
        return None

    def _alone(self) -> AbstractContextManager[None]:
        """No other process starts or stops servers of this folder meanwhile."""
        return exclusive(self.run.parent / "run.lock")

    def _pid_file(self, server: Server) -> Path:
        return self.run / f"{server.name}.pid"

    def _log(self, server: Server) -> Path:
        return self.run / f"{server.name}.log"

    def _spawn(self, server: Server) -> None:
        (self.run / "tmp").mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **server.environment}
        if self._tethered:
            environment["LOCAL_AWS_TETHERED"] = "1"
        with self._log(server).open("wb") as log, self._pid_file(server).open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            child = subprocess.Popen(
                server.command,
                env=environment,
                cwd=self.run,
                stdin=subprocess.PIPE if self._tethered else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[held.fileno()],
                start_new_session=True,
            )
            self._children[server.name] = child
            held.write(str(child.pid))

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while waiting := [server for server in self.servers if not self._answers(server)]:
            dead = [server for server in waiting if self.pid(server) is None]
            if dead or time.monotonic() > end:
                logs = "".join(
                    f"--- {server.name}\n{self._log(server).read_text(errors='replace')[-_LOG_TAIL:]}\n"
                    for server in dead or waiting
                )
                raise CannotStart(f"{logs}{self.engine} did not start; the end of its log is above")
            time.sleep(_POLL_SECONDS)

    def _answers(self, server: Server) -> bool:
        try:
            if server.health and _status(server.port, "GET", "/_localstack/health") != 200:
                return False
            return not server.dynamodb or _list_tables(server.port) == 200
        except (OSError, http.client.HTTPException):
            return False

    def _kill(self) -> None:
        """At once: there is nothing to save, and LocalStack's own shutdown takes seconds."""
        for server in self.servers:
            pid = self.pid(server)
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        for child in self._children.values():
            if child.stdin is not None:
                child.stdin.close()
            child.wait(STOP_SECONDS)
        self._children.clear()
        end = time.monotonic() + STOP_SECONDS
        while left := [server.name for server in self.servers if self.pid(server) is not None]:
            if time.monotonic() > end:
                raise CannotStart(f"{', '.join(left)} cannot be killed; see {self.run}")
            time.sleep(_POLL_SECONDS)
        shutil.rmtree(self.run, ignore_errors=True)


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on; another may take one before it is used."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def _list_tables(port: int) -> int:
    headers = {
        "X-Amz-Target": "DynamoDB_20120810.ListTables",
        "Content-Type": "application/x-amz-json-1.0",
        "Authorization": _SIGNED,
    }
    return _status(port, "POST", "/", b"{}", headers)


def _status(port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)  # no proxy of the environment in between
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()
