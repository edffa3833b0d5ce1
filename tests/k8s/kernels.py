"""Compiled kernels as the image has them: in a folder of their own, found by NUMBA_CACHE_DIR."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.k8s.plane import ROOT


def made(folder: Path) -> Path:
    """The folder, full. What `make setup` has compiled is copied to where numba looks; the rest is compiled."""
    for package in (ROOT / "src" / "pcaplake" / "parser", ROOT / "src" / "pcaplake" / "worker"):
        for cache in package.rglob("__pycache__"):
            for image in cache.glob("*.image"):
                shutil.copy2(image, folder)
            files = [file for file in cache.iterdir() if file.suffix in (".nbi", ".nbc")]
            if files:
                at = str(cache.parent)
                to = folder / f"{cache.parent.name}_{hashlib.sha1(at.encode()).hexdigest()}"
                to.mkdir(parents=True, exist_ok=True)
                for file in files:
                    shutil.copy2(file, to)
    env = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    subprocess.run([sys.executable, "-m", "pcaplake.worker.warm"], env=env, cwd=ROOT, check=True, capture_output=True)
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder
