"""Wheels in virtual environments that have no more than they are given.

Asks no package index: what the wheel depends on is linked from the environment of the tests, by requirements.lock.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


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
    return [line.partition("==")[0] for line in done.stdout.splitlines() if "==" in line and not line.startswith(" ")]
