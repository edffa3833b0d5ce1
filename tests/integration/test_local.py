"""`python -m tools.local`: what it prints, what it leaves behind, and what it says when it cannot."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from pcaplake.worker import sample
from tests.aws import ROOT, Aws
from tools.local import engines, install, stack
from tools.local.engines import EngineServer
from tools.local.install import CannotInstall
from tools.local.stack import CannotStart, EngineStack

STATE = ROOT / ".local-aws"
ANOTHER_LOOPBACK = "127.0.0.2"  # a server that listens on every interface answers there, one on 127.0.0.1 does not
HOLD = """
import sys
from pathlib import Path
from tools.local.stack import EngineStack
stack = EngineStack("ministack", port=int(sys.argv[1]), state=Path(sys.argv[2]), run=Path(sys.argv[3]), tethered=True)
stack.start()
print("up", flush=True)
sys.stdin.read()
"""


def local(command: str, port: int) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "tools.local", command, "--engine", "ministack", "--port", str(port)]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)


def listens(port: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


@pytest.fixture
def port(aws: Aws) -> Iterator[int]:
    """A port for a MiniStack of the test's own; `aws` has seen to it that one can be installed."""
    install.install_engine("ministack", STATE)
    (port,) = stack.find_free_ports(1)
    yield port
    EngineStack("ministack", port=port, state=STATE).stop()


def test_up_is_for_the_shell_and_may_be_repeated(port: int) -> None:
    first = local("up", port)
    assert first.returncode == 0, first.stderr
    exports = dict(line.removeprefix("export ").split("=", 1) for line in first.stdout.splitlines())
    assert all(line.startswith("export AWS_") for line in first.stdout.splitlines())
    assert urlsplit(exports["AWS_ENDPOINT_URL"]).port == urlsplit(exports["AWS_ENDPOINT_URL_DYNAMODB"]).port == port
    running = EngineStack("ministack", port=port, state=STATE)
    (server,) = running.servers
    pid = running.server_process_id(server)
    assert pid
    assert local("up", port).stdout == local("env", port).stdout == first.stdout
    assert running.server_process_id(server) == pid
    assert local("status", port).returncode == 0

    assert local("down", port).returncode == 0
    assert not listens(port)
    assert not running.run.exists()
    assert local("status", port).returncode == 1
    assert local("down", port).returncode == 0


def test_a_port_that_is_taken(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)):
        done = local("up", port)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"port {port}" in done.stderr
        assert listens(port)


def test_a_failed_start_leaves_nothing(port: int, tmp_path: Path) -> None:
    """A second server that dies takes the first with it, and its last words are in the message."""
    half = EngineStack("ministack", port=port, state=STATE, run=tmp_path / "run")
    (other,) = stack.find_free_ports(1)
    dies = (sys.executable, "-c", "raise SystemExit('no such thing')")
    half.servers += (
        EngineServer(name="broken", port=other, health=("/", 200), dynamodb=False, command=dies, environment={}),
    )
    try:
        with pytest.raises(CannotStart, match="no such thing"):
            half.start()
    finally:
        left = half.run.exists()
        half.stop()
    assert not left
    assert not listens(port)


def test_servers_of_a_session_end_with_it_however_it_ends(port: int, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [sys.executable, "-c", HOLD, str(port), str(STATE), str(run)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdout is not None
        assert session.stdout.readline() == "up\n"
        with (run / "ministack.pid").open() as held:
            with pytest.raises(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.kill(session.pid, signal.SIGKILL)
            fcntl.flock(held, fcntl.LOCK_SH)  # waits until the server is dead
    assert not listens(port)


def test_only_on_loopback(aws: Aws) -> None:
    for url in {aws.s3, aws.sqs, aws.dynamodb}:
        port = urlsplit(url).port
        assert port
        assert listens(port)
        assert not listens(port, ANOTHER_LOOPBACK)


def test_no_python_for_localstack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shim = tmp_path / "bin" / "python3.13"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexit 127\n")  # as pyenv's, when 3.13 is not selected
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(shim.parent), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("LOCAL_AWS_PYTHON", sys.executable)  # a Python, but not that one
    with pytest.raises(CannotInstall, match=r"3\.13.*LOCAL_AWS_PYTHON.*ministack"):
        install.install_engine("localstack", tmp_path / "state")


def test_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    venv = engines.engine_venv_path("localstack", tmp_path)
    venv.mkdir()
    pins = (engines.HERE / "requirements" / "localstack.txt").read_text()
    (venv / ".installed").write_text(pins)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotInstall, match=r"java, javac, mvn.*--engine ministack"):
        install.install_engine("localstack", tmp_path)


def test_an_unknown_engine() -> None:
    arguments = [sys.executable, "-m", "tools.local", "up"]
    environment = {**os.environ, "LOCAL_AWS_ENGINE": "cloud"}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "localstack, ministack" in done.stderr


def test_docker_too_stays_on_loopback() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    assert services["localstack"]["image"] == "localstack/localstack:4.14.0"
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service["ports"])


FLEET = """
queue: {queue}
lake: s3://{lake}/drives
ledger_table: {ledger}
lock_table: {locks}
shards: 1
"""


@pytest.mark.slow
def test_what_up_prints_is_all_that_pcaplake_needs(port: int, tmp_path: Path) -> None:
    """README's first steps, in a shell that knows nothing else."""
    import boto3

    up = local("up", port)
    assert up.returncode == 0, up.stderr
    exports = dict(line.removeprefix("export ").split("=", 1) for line in up.stdout.splitlines())
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PCAPLAKE_"))}
    environment = {**kept, **exports, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    given = {name: name for name in ("queue", "lake", "ledger", "locks")}
    (tmp_path / "fleet.yaml").write_text(FLEET.format(**given))

    def pcaplake(*arguments: str) -> str:
        command = [sys.executable, "-m", "pcaplake.worker", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    s3 = boto3.client("s3", endpoint_url=exports["AWS_ENDPOINT_URL"], region_name=exports["AWS_REGION"])
    for bucket in ("raw", "lake"):
        s3.create_bucket(Bucket=bucket)
    config = ("--config", str(tmp_path / "fleet.yaml"))
    pcaplake("setup", *config, "--bucket", "raw")
    pcaplake("doctor", *config)
    sample.write_sample_captures(tmp_path / "drive", "drive", 0.1, seed=5)
    ledger = ("--ledger", str(tmp_path / "ledger"))
    said = pcaplake("ingest", str(tmp_path / "drive"), "--lake", "s3://lake/alone", *ledger, "--json")
    assert json.loads(said.splitlines()[-1])["captures"] > 0
    s3.close()
