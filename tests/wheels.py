"""Wheels in virtual environments that have no more than they are given.

Asks no package index: what the wheel depends on is linked from the environment of the tests, by requirements.lock.
"""

from __future__ import annotations

import fcntl
import functools
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

from tools import release

ROOT = Path(__file__).resolve().parent.parent
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def build_once(session: Path) -> Path:
    """The wheel of these sources. The first of the processes that share the folder `session` builds it, for half a minute."""
    folder = session / "wheel"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for wheel in folder.glob("*.whl"):
            return wheel
        return release.build_wheel(folder)


def install(wheel: Path, venv: Path) -> Path:
    """A new virtual environment with the wheel and nothing else -> `venv`."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    subprocess.run([*_PIP, "--python", venv / "bin" / "python", "install", "--no-deps", wheel], check=True)
    return venv


def site_packages(venv: Path) -> Path:
    (site,) = (venv / "lib").glob("python*/site-packages")
    return site


def link(venv: Path, packages: Iterable[str]) -> None:
    """These packages of this environment, file by file, and no others."""
    site = site_packages(venv)
    for package in packages:
        for path in importlib.metadata.files(package) or ():
            if ".." in path.parts or "__pycache__" in path.parts:  # programs; what Python makes itself
                continue
            target = site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(path.locate())


def locked(*extras: str) -> list[str]:
    """Names of all packages that the project needs with these extras, by requirements.lock."""
    done = subprocess.run(
        [sys.executable, "deploy/docker/needed.py", *extras], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [
        re.split(r"[=\[]", line)[0] for line in done.stdout.splitlines() if "==" in line and not line.startswith(" ")
    ]


@functools.cache
def required(*extras: str, of: str = "pcaplake") -> frozenset[str]:
    """All distributions that `of` requires with these extras, by pyproject.toml and what is installed."""
    done: set[tuple[str, str]] = set()
    todo = [(of, extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in done:
            continue
        done.add((name, extra))
        for requirement in _requirements(name, extra):
            child = re.sub(r"[-_.]+", "-", requirement.name).lower()
            todo += [(child, each) for each in ("", *requirement.extras)]
    return frozenset(name for name, _ in done) - {of}


def _requirements(name: str, extra: str) -> list[Requirement]:
    if name == "pcaplake":  # its installed metadata may be older than the file
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        return [
            Requirement(one) for one in (project["optional-dependencies"][extra] if extra else project["dependencies"])
        ]
    found = [Requirement(one) for one in importlib.metadata.requires(name) or ()]
    return [one for one in found if one.marker is None or one.marker.evaluate({"extra": extra})]
