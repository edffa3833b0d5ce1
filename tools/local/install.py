"""Installs an engine: pinned packages into its own virtual environment, jars with Maven, packages of npm, a binary from Go
modules. Only this module uses registries.

A marker file records the pins of an installation; changed pins install again. The marker is written last, so that an interrupted
installation is not mistaken for a complete one.
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

from .engines import HERE, Engine, azurite_path, dynamodb_jars_path, engine_venv_path, minio_path


class CannotInstall(Exception):
    """An engine cannot be installed. The message says what is missing and what to do."""


@contextmanager
def hold_exclusive_lock(path: Path) -> Iterator[None]:
    """Hold a lock that one process at a time can hold. The lock ends with the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install_engine(engine: Engine, state: Path) -> None:
    """Install the engine unless it is installed. Raises `CannotInstall` if this fails."""
    with hold_exclusive_lock(state / f"{engine}.lock"):
        if engine == "azurite":
            _install_azurite(state)
        elif engine == "minio":
            _build_minio(state)
        else:
            _install_environment(engine, state)
        if engine == "localstack":
            _install_dynamodb(state)


def is_installed(engine: Engine, state: Path) -> bool:
    """Whether this engine was installed, maybe with other pins."""
    return (state / engine / ".installed").exists()


def _install_environment(engine: Engine, state: Path) -> None:
    pins = HERE / "requirements" / f"{engine}.txt"
    venv = engine_venv_path(engine, state)
    mark = venv / ".installed"
    if mark.exists() and mark.read_text() == pins.read_text():
        return
    print(f"installing {engine} into {venv}, once", file=sys.stderr)
    python = _find_python313() if engine == "localstack" else sys.executable
    shutil.rmtree(venv, ignore_errors=True)
    _run_install_command([python, "-m", "venv", str(venv)], "no venv: on Debian install python3-venv")
    pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run_install_command(
        [*pip, "--require-hashes", "-r", str(pins)], "it needs the package index that pip is set up for"
    )
    mark.write_text(pins.read_text())


def _install_dynamodb(state: Path) -> None:
    pom, source, jars = HERE / "pom.xml", HERE / "DynamoLoopback.java", dynamodb_jars_path(state)
    install_recipe = pom.read_text() + source.read_text()
    mark = jars / ".installed"
    if mark.exists() and mark.read_text() == install_recipe:
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
    _run_install_command(
        ["mvn", "-q", "-B", "-f", str(pom), *copy], "Maven needs the repository that its settings name"
    )
    compile_it = ["javac", "-cp", f"{jars}/*", "-d", str(jars), str(source)]
    _run_install_command(compile_it, "it needs a JDK of version 17 or newer, first on PATH")
    mark.write_text(install_recipe)


def _install_azurite(state: Path) -> None:
    folder, pins = azurite_path(state), [HERE / "azurite" / name for name in ("package.json", "package-lock.json")]
    mark, install_recipe = folder / ".installed", "".join(pin.read_text() for pin in pins)
    if mark.exists() and mark.read_text() == install_recipe:
        return
    if missing := [tool for tool in ("node", "npm") if shutil.which(tool) is None]:
        raise CannotInstall(f"Azurite needs {' and '.join(missing)}: install Node.js (20 or newer)")
    print(f"installing Azurite into {folder}, once", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for pin in pins:
        shutil.copy(pin, folder)
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder)]
    _run_install_command(["npm", "ci", *options], "it needs the registry that npm is set up for")
    mark.write_text(install_recipe)


def _build_minio(state: Path) -> None:
    binary, source = minio_path(state), HERE / "minio"
    mark = binary.parent / ".installed"
    install_recipe = "".join((source / name).read_text() for name in ("main.go", "go.mod", "go.sum"))
    if mark.exists() and mark.read_text() == install_recipe:
        return
    if shutil.which("go") is None:
        raise CannotInstall("MinIO needs Go (1.25 or newer)")
    print(f"building MinIO into {binary.parent}, once; this takes minutes", file=sys.stderr)
    shutil.rmtree(binary.parent, ignore_errors=True)
    options = ["-trimpath", "-ldflags=-s -w", "-buildvcs=false", "-o", str(binary)]
    command = ["env", "CGO_ENABLED=0", "GOTOOLCHAIN=local", "go", "-C", str(source), "build", *options, "."]
    _run_install_command(command, "it needs the module proxy that Go is set up for")
    mark.write_text(install_recipe)


def _find_python313() -> str:
    """LocalStack claims to support 3.10 but needs 3.13. A pyenv shim of that name may fail, so each candidate is run once."""
    name = "python3.13"
    roots = [os.environ.get("PYENV_ROOT", "~/.pyenv") + "/versions", "~/.local/share/uv/python"]
    candidates = [path for root in roots for path in sorted(glob.glob(f"{os.path.expanduser(root)}/*/bin/{name}"))]
    for candidate in (os.environ.get("LOCAL_AWS_PYTHON"), shutil.which(name), *reversed(candidates)):
        if candidate and _is_python313(candidate):
            return candidate
    raise CannotInstall(
        "LocalStack needs Python 3.13 exactly: run pyenv install 3.13 or uv python install 3.13, or set "
        "LOCAL_AWS_PYTHON to its path; --engine ministack runs on the present Python"
    )


def _is_python313(python: str) -> bool:
    check = "import sys, venv, ssl; sys.exit(sys.version_info[:2] != (3, 13))"
    try:
        return subprocess.run([python, "-c", check], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _run_install_command(command: Sequence[str], advice: str) -> None:
    """Run a command with its output on stderr, because a shell evaluates stdout."""
    try:
        subprocess.run(command, check=True, stdout=sys.stderr.fileno(), stdin=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotInstall(f"{' '.join(command[:3])} ... failed ({error}): {advice}") from error
