"""Getting an engine: pins with hashes into an environment of its own, jars by Maven. Needs the registries only here.

What is installed is marked with the pins it came from; other pins install again. The mark is written last, so that an
interrupted installation is not taken for a whole one.
"""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from .engines import HERE, Engine, jars_of, venv_of


class CannotInstall(Exception):
    """The message says what is missing and what to do."""


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """One process at a time; the lock ends with its process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install(engine: Engine, state: Path) -> None:
    """Nothing is done when it is there already. `CannotInstall` when it cannot be."""
    with exclusive(state / f"{engine}.lock"):
        _environment(engine, state)
        if engine == "localstack":
            _dynamodb(state)


def _environment(engine: Engine, state: Path) -> None:
    pins = HERE / "requirements" / f"{engine}.txt"
    venv = venv_of(engine, state)
    mark = venv / ".installed"
    if mark.exists() and mark.read_text() == pins.read_text():
        return
    print(f"installing {engine} into {venv}, once", file=sys.stderr)
    python = _python313() if engine == "localstack" else sys.executable
    shutil.rmtree(venv, ignore_errors=True)
    _run([python, "-m", "venv", str(venv)], "no venv: on Debian install python3-venv")
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run([*pip, "--require-hashes", "-r", str(pins)], "it needs the package index that pip is set up for")
    mark.write_text(pins.read_text())


def _dynamodb(state: Path) -> None:
    pom, source, jars = HERE / "pom.xml", HERE / "DynamoLoopback.java", jars_of(state)
    wanted = pom.read_text() + source.read_text()
    mark = jars / ".installed"
    if mark.exists() and mark.read_text() == wanted:
        return
    missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
    if missing:
        raise CannotInstall(
            f"DynamoDB Local needs {', '.join(missing)}: install a JDK (17 or newer) and Maven (on Debian "
            "openjdk-17-jdk-headless and maven), or take --engine ministack, which needs neither"
        )
    print(f"installing DynamoDB Local into {jars}, once", file=sys.stderr)
    shutil.rmtree(jars, ignore_errors=True)
    copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    _run(["mvn", "-q", "-B", "-f", str(pom), *copy], "Maven needs the repository that its settings name")
    compile_it = ["javac", "-cp", f"{jars}/*", "-d", str(jars), str(source)]
    _run(compile_it, "it needs a JDK of version 17 or newer, first on PATH")
    mark.write_text(wanted)


def _python313() -> str:
    """LocalStack says 3.10 and needs 3.13. A pyenv shim of that name may refuse to run, so each candidate is tried."""
    name = "python3.13"
    roots = [os.environ.get("PYENV_ROOT", "~/.pyenv") + "/versions", "~/.local/share/uv/python"]
    found = [path for root in roots for path in sorted(glob.glob(f"{os.path.expanduser(root)}/*/bin/{name}"))]
    for candidate in (os.environ.get("LOCAL_AWS_PYTHON"), shutil.which(name), *reversed(found)):
        if candidate and _is_313(candidate):
            return candidate
    raise CannotInstall(
        "LocalStack needs Python 3.13, no other: pyenv install 3.13, or uv python install 3.13, or name one with "
        "LOCAL_AWS_PYTHON; --engine ministack runs on this one"
    )


def _is_313(python: str) -> bool:
    check = "import sys, venv, ssl; sys.exit(sys.version_info[:2] != (3, 13))"
    try:
        return subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _run(command: Sequence[str], advice: str) -> None:
    """Output of the command goes to stderr: stdout is for the shell that evaluates it."""
    try:
        subprocess.run(command, check=True, stdout=sys.stderr.fileno(), stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotInstall(f"{' '.join(command[:3])} ... failed ({error}): {advice}") from error
