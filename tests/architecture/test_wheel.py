"""The wheel where only what it asks for is installed, in another folder than this, by a user without a home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import wheels
from tools import ROOMS


def run(venv: Path, here: Path, *command: str, code: int = 0, **environment: str) -> str:
    """-> what it says, in both streams."""
    variables = {"PATH": f"{venv / 'bin'}:/usr/bin:/bin", "HOME": "/nowhere", "LANG": "C.UTF-8", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=here, env=variables | environment, capture_output=True, text=True)
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def test_the_wheel_has_every_source_and_nothing_else(wheel: Path) -> None:
    """It is built from the sdist: what is missing there is missing in it."""
    files = subprocess.run(["git", "ls-files", "core", *ROOMS], capture_output=True, text=True)
    sources = {f"pcaplake/{name}" for name in files.stdout.splitlines()} | {"pcaplake/py.typed"}
    sources |= {f"pcaplake/{path.name}" for path in Path("src", "pcaplake").glob("*.py")}
    sources |= {f"pcaplake/docs/{path.name}" for path in Path("docs").glob("*.md")}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert sources - names == {name for name in sources if "/src/test/" in name}, "only the tests in Java stay out"
    compiled = {f"pcaplake/core/{name}.abi3.so" for name in ("engine", "parquet", "someip", "walk")}
    assert names - sources == compiled
    assert wheel.name.split("-")[2:4] == ["cp311", "abi3"], "one wheel for Python 3.11 and later"


@pytest.mark.slow
def test_one_machine_needs_no_extra(wheel: Path, tmp_path: Path) -> None:
    venv = wheels.install(wheel, tmp_path / "venv")
    wheels.link(venv, wheels.locked())
    missing = (
        "import importlib.util as u; print([n for n in ('boto3', 'pyspark', 'pandas', 'pytest') if u.find_spec(n)])"
    )
    assert run(venv, tmp_path, "python", "-c", missing).strip() == "[]", "the environment is no bare one"
    assert "Usage" in run(venv, tmp_path, "pcaplake", "--help")
    assert "PCAPLAKE_QUEUE" in run(venv, tmp_path, "pcaplake", "docs", "settings")
    run(venv, tmp_path, "pcaplake", "sample", "drive", "--mix", "drive", "--seconds", "0.2")
    ingest = ("pcaplake", "ingest", "drive", "--lake", "lake", "--profile", "drive/profile.yaml")
    assert "captures read" in run(venv, tmp_path, *ingest)
    assert "can_frames" in run(venv, tmp_path, "pcaplake", "tables", "--lake", "lake")
    capture = next(path for path in sorted((tmp_path / "drive").rglob("*.pcapng")))
    assert "protocols" in run(venv, tmp_path, "pcaplake", "inspect", os.fspath(capture))
    run(venv, tmp_path, "pcaplake", "maintain", "--lake", "lake")
    assert json.loads(run(venv, tmp_path, "pcaplake", "doctor", "--lake", "lake", "--json"))["healthy"]
    lines = run(venv, tmp_path, "pcaplake", "doctor", "--lake", "lake").splitlines()
    assert not [line for line in lines if line != line.rstrip()], "no line is blank but for its indentation"

    fleet = {"PCAPLAKE_QUEUE": "q", "PCAPLAKE_LAKE": "s3://lakes/a", "AWS_REGION": "eu-central-1"}
    for command in ("run", "redrive", "reconcile s3://a/", "replay s3://a/b"):
        assert "pip install 'pcaplake[aws]'" in run(venv, tmp_path, "pcaplake", *command.split(), code=3, **fleet)
    said = run(venv, tmp_path, "pcaplake", "operator", "--jobs", "jobs.yaml", code=3)
    assert "pip install 'pcaplake[aws,cluster]'" in said
    for job in ("compact --lake lake", ""):
        assert "pip install 'pcaplake[spark]'" in run(
            venv, tmp_path, "python", "-m", "pcaplake.spark_jobs", *job.split(), code=3
        )


@pytest.mark.slow
def test_a_type_checker_reads_the_types_of_the_wheel(wheel: Path, tmp_path: Path) -> None:
    venv = wheels.install(wheel, tmp_path / "venv")
    script = tmp_path / "script.py"
    script.write_text(
        "from pcaplake import Lake, open_capture\n"
        "reveal_type(open_capture('a.pcap', 'can_frames'))\n"
        "Lake.nothing\n"
        "open_capture(3)\n"
    )
    options = (
        "--strict",
        "--config-file=",
        "--cache-dir",
        tmp_path / "cache",
        "--python-executable",
        venv / "bin" / "python",
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, script], cwd=tmp_path, capture_output=True, text=True
    )
    note, *errors = [line.partition(": ")[2] for line in done.stdout.splitlines()[:-1]]
    assert note == 'note: Revealed type is "pcaplake.parser.capture.reader.Capture"', done.stdout + done.stderr
    assert [line.rpartition("  ")[2] for line in errors] == ["[attr-defined]", "[arg-type]"], done.stdout


@pytest.mark.slow
def test_each_extra_has_all_that_its_commands_import(wheel: Path, tmp_path: Path) -> None:
    """Without a service they end there, or by telling which other extra they need."""
    fleet = {"PCAPLAKE_QUEUE": "q", "PCAPLAKE_LAKE": "s3://lakes/a", "AWS_REGION": "eu-central-1"}
    nobody = {"AWS_ENDPOINT_URL": "http://localhost:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    imports = {
        "aws": "pcaplake.worker.service.run, pcaplake.worker.admin.aws_clients, pcaplake.ingest.captures.objects_signed",
        "aws otel": "pcaplake.worker.service.run, opentelemetry.sdk.trace, opentelemetry.exporter.otlp.proto.http.trace_exporter",
        "aws cluster": "pcaplake.worker.kubernetes, pcaplake.worker.kubernetes.operator",
    }
    for number, (extras, modules) in enumerate(imports.items()):
        venv = wheels.install(wheel, tmp_path / f"venv-{number}")
        wheels.link(venv, wheels.locked(*extras.split()))
        run(venv, tmp_path, "python", "-c", f"import {modules}")
        said = run(venv, tmp_path, "pcaplake", "redrive", code=3, **fleet, **nobody)
        assert "Could not connect" in said
