"""Release steps that need no account: compare the places that state the version, build the sdist and the wheels.

python -m tools.release check    # `make release-check`
python -m tools.release build    # `make dist`: dist/*.tar.gz, and dist/*.whl for x86_64 and aarch64
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from pcaplake.common import VERSION
from tools import ROOMS

ROOT = Path(__file__).resolve().parent.parent
MACHINES = ("x86_64", "aarch64")
_GLIBC = "2.28"  # of Debian 10, RHEL 8, Amazon Linux 2023, and all newer ones
_PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def build_sdist(folder: Path) -> Path:
    """Build the sdist in `folder` from a copy of the sources, so that nothing is written to their folder."""
    source = folder / "source"
    for name in (*ROOMS, "core", "tools/kernels", "docs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "target", "*.so"))
    shutil.copytree(ROOT / "src", source / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "tools/__init__.py"):
        shutil.copy(ROOT / name, source / name)
    code = f"from setuptools import build_meta; build_meta.build_sdist({os.fspath(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    shutil.rmtree(source)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def build_wheel(folder: Path, machine: str | None = None) -> Path:
    """Build the sdist and, from it, the wheel in `folder`, as `python -m build` does. Asks no package index.

    machine: x86_64 or aarch64, for a wheel that any Linux with glibc 2.28 or newer can install; None: for this machine.
    """
    environment = {**os.environ}
    if machine is not None:
        environment["CC"] = f"{sys.executable} -m ziglang cc -target {machine}-linux-gnu.{_GLIBC}"
        environment["KERNELS_PLATFORM"] = f"manylinux_{_GLIBC.replace('.', '_')}_{machine}"
    options = ("--no-deps", "--no-build-isolation", "--wheel-dir", folder)
    before = set(folder.glob("*.whl"))
    subprocess.run([*_PIP, "wheel", *options, build_sdist(folder)], check=True, env=environment)
    (wheel,) = set(folder.glob("*.whl")) - before
    return wheel


def stated_versions() -> dict[str, str]:
    """The version in each file that states it; the build reads that of common/__init__.py."""
    chart = yaml.safe_load((ROOT / "helm" / "pcaplake" / "Chart.yaml").read_text())
    released = re.search(r"^## (?!Unreleased)\[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    pom = (ROOT / "spark_jobs" / "logstore" / "pom.xml").read_text()
    logstore = re.search(r"<artifactId>logstore</artifactId><version>([^<]+)</version>", pom)
    return {
        "common/__init__.py (VERSION)": VERSION,
        "helm/pcaplake/Chart.yaml (version)": chart["version"],
        "helm/pcaplake/Chart.yaml (appVersion)": chart["appVersion"],
        "spark_jobs/logstore/pom.xml": logstore[1] if logstore else "none",
        "CHANGELOG.md (first heading below Unreleased)": released[1] if released else "none",
    }


def check() -> int:
    """Print what must be corrected before a release; the exit code is 1 if there is anything."""
    problems = [
        f"{place}: {version}, not {VERSION}" for place, version in stated_versions().items() if version != VERSION
    ]
    changes = subprocess.run(
        ["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    problems += ["there are changes that are not committed"] if changes else []
    for problem in problems:
        print(problem)
    print(f"{VERSION}: {len(problems)} problems" if problems else f"{VERSION}: every file states this version")
    return 1 if problems else 0


def main(command: str) -> int:
    if command == "check":
        return check()
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for machine in MACHINES:
        build_wheel(folder, machine)
    for path in sorted(folder.iterdir()):
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
