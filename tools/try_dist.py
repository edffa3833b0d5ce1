"""Try what `make dist` made as strangers do: `make try-dist PYTHONS="python3.11 python3.12"`.

Each Python gets an empty environment with the wheel for this machine and runs the first commands, as a user without a home, where
only the working directory can be written. Every Python must decode the same rows. One more environment, where no compiler is,
builds and tries the sdist: pip gets ziglang for it. This file needs only the standard library.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

COMMANDS = (
    "pcaplake --help",
    "pcaplake sample drive --mix drive --seconds 1",
    "pcaplake ingest drive --lake lake --profile drive/profile.yaml",
    "pcaplake signals --lake lake --databases drive/databases.yaml",
    "pcaplake tables --lake lake",
    "pcaplake maintain --lake lake",
    "pcaplake doctor --lake lake",
)
DIGEST = """
import hashlib, pathlib, pcaplake
digest = hashlib.sha256()
for path in sorted(pathlib.Path("drive").rglob("*.pcap*")):
    with pcaplake.open_capture(path) as capture:
        for table, batch in capture.batches():
            rows = batch.to_pydict()
            rows.pop("capture_id", None)  # a hash of the path
            digest.update(repr((table, rows)).encode())
print(digest.hexdigest())
"""


def run_alone(command: list[str], here: Path, programs: Path) -> str:
    """Run a command of a stranger, who can write to `here` only -> what it prints."""
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "HOME": "/nowhere",
        "LANG": "C.UTF-8",
        "TMPDIR": os.fspath(here),
    }
    if os.geteuid() == 0:  # only root may mount; for others, permissions do most of it
        mount = f"mount --bind {here} {here} && mount -o remount,bind,ro / && cd {here}"
        command = ["unshare", "--mount", "sh", "-c", f"{mount} && exec {shlex.join(command)}"]
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def try_package(package: Path, python: str, folder: Path, pip_path: str) -> str:
    """Install `package` in a new environment, run COMMANDS -> a digest of the rows."""
    venv, here = folder / "venv", folder / "here"
    here.mkdir(parents=True)
    subprocess.run([python, "-m", "venv", venv], check=True)
    install = [
        venv / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        f"{package}[signals]",
    ]
    subprocess.run(install, check=True, env={**os.environ, "PATH": pip_path})
    for command in COMMANDS:
        run_alone(shlex.split(command), here, venv / "bin")
    return run_alone(["python", "-c", DIGEST], here, venv / "bin").strip()


def main(pythons: list[str]) -> int:
    (sdist,) = (ROOT / "dist").glob("*.tar.gz")
    (wheel,) = (ROOT / "dist").glob(f"*_{platform.machine()}.whl")
    digests = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, python in enumerate(pythons):
            digests[python] = try_package(wheel, python, Path(folder, str(number)), os.environ["PATH"])
            print(f"{wheel.name} on {python}: {digests[python]}", flush=True)
        digests["sdist"] = try_package(sdist, sys.executable, Path(folder, "sdist"), os.fspath(Path(folder, "nothing")))
        print(f"{sdist.name} without a compiler: {digests['sdist']}")
    return 0 if len(set(digests.values())) == 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
