"""Starts, stops and checks one engine. Its data is in memory and is lost when it stops.

Each server holds a lock on its pid file through an inherited descriptor. The kernel releases the lock when the process ends,
so a pid that another program reuses is never mistaken for the server.
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

from .engines import LOOPBACK, Engine, EngineServer, environment_of_clients, servers_of_engine
from .install import hold_exclusive_lock, install_engine

START_SECONDS = 90.0
STOP_SECONDS = 15.0
_POLL_SECONDS = 0.05
_LOG_TAIL = 3000
_SIGNED = (  # not valid: no server checks the signature, but DynamoDB Local requires one
    "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/dynamodb/aws4_request, SignedHeaders=host, Signature=0"
)


class CannotStart(Exception):
    """An engine cannot start. The message has the end of the servers' logs, or names the obstacle."""


class EngineStack:
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
        self.servers = servers_of_engine(
            engine, port=port, dynamodb_port=self.dynamodb_port, state=self.state, run=self.run
        )
        self._tethered = tethered
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def endpoint_url(self) -> str:
        """URL of S3 and SQS, or of the blobs."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def dynamodb_endpoint(self) -> str:
        return f"http://{LOOPBACK}:{self.dynamodb_port}"

    @property
    def client_environment(self) -> dict[str, str]:
        """Environment variables that connect SDKs and pcaplake to this engine."""
        return environment_of_clients(self.engine, port=self.port, dynamodb_port=self.dynamodb_port)

    def start(self) -> None:
        """Install if needed, start all servers that do not run, wait until all answer. A failed start leaves nothing running."""
        install_engine(self.engine, self.state)
        with self._hold_folder_lock():
            missing = [server for server in self.servers if self.server_process_id(server) is None]
            taken = [server.port for server in missing if _is_port_listening(server.port)]
            if taken:
                raise CannotStart(
                    f"another program listens on port {', '.join(map(str, taken))}: stop it, or choose with --port"
                )
            try:
                for server in missing:
                    self._spawn_server(server)
                self._wait_until_ready()
            except BaseException:
                self._kill_servers()
                raise

    def stop(self) -> None:
        """Kill all servers and delete their data. Does nothing if no server runs."""
        if self.run.exists():
            with self._hold_folder_lock():
                self._kill_servers()

    def servers_down(self) -> list[str]:
        """The names of the servers that do not run or do not answer."""
        return [
            server.name
            for server in self.servers
            if self.server_process_id(server) is None or not self._server_answers(server)
        ]

    def server_process_id(self, server: EngineServer) -> int | None:
        """The pid of the server, or None if it does not run."""
        try:
            file = self._pid_file_path(server).open()
        except FileNotFoundError:
            return None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read() or 0) or None  # locked and still empty: being started
        return None

    def _hold_folder_lock(self) -> AbstractContextManager[None]:
        """Prevent other processes from starting or stopping servers of this folder."""
        return hold_exclusive_lock(self.run.parent / "run.lock")

    def _pid_file_path(self, server: EngineServer) -> Path:
        return self.run / f"{server.name}.pid"

    def _log_file_path(self, server: EngineServer) -> Path:
        return self.run / f"{server.name}.log"

    def _spawn_server(self, server: EngineServer) -> None:
        (self.run / "tmp").mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **server.environment}
        if self._tethered:
            environment["LOCAL_AWS_TETHERED"] = "1"
        with self._log_file_path(server).open("wb") as log, self._pid_file_path(server).open("w") as held:
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

    def _wait_until_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while waiting := [server for server in self.servers if not self._server_answers(server)]:
            dead = [server for server in waiting if self.server_process_id(server) is None]
            if dead or time.monotonic() > end:
                logs = "".join(
                    f"--- {server.name}\n{self._log_file_path(server).read_text(errors='replace')[-_LOG_TAIL:]}\n"
                    for server in dead or waiting
                )
                raise CannotStart(f"{logs}{self.engine} did not start; the end of its log is above")
            time.sleep(_POLL_SECONDS)

    def _server_answers(self, server: EngineServer) -> bool:
        try:
            if server.health is not None:
                path, status = server.health
                if _request_status(server.port, "GET", path) != status:
                    return False
            return not server.dynamodb or _list_tables_status(server.port) == 200
        except (OSError, http.client.HTTPException):
            return False

    def _kill_servers(self) -> None:
        """Kill the server at once: it has nothing to save, and LocalStack's own shutdown takes seconds."""
        for server in self.servers:
            pid = self.server_process_id(server)
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        for child in self._children.values():
            if child.stdin is not None:
                child.stdin.close()
            child.wait(STOP_SECONDS)
        self._children.clear()
        end = time.monotonic() + STOP_SECONDS
        while left := [server.name for server in self.servers if self.server_process_id(server) is not None]:
            if time.monotonic() > end:
                raise CannotStart(f"{', '.join(left)} cannot be killed; see {self.run}")
            time.sleep(_POLL_SECONDS)
        shutil.rmtree(self.run, ignore_errors=True)


def find_free_ports(count: int) -> list[int]:
    """Free ports on loopback. Another program may take one before it is used."""
    sockets = [socket.create_server((LOOPBACK, 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _is_port_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((LOOPBACK, port)) == 0


def _list_tables_status(port: int) -> int:
    headers = {
        "X-Amz-Target": "DynamoDB_20120810.ListTables",
        "Content-Type": "application/x-amz-json-1.0",
        "Authorization": _SIGNED,
    }
    return _request_status(port, "POST", "/", b"{}", headers)


def _request_status(port: int, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)  # no proxy of the environment in between
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()
