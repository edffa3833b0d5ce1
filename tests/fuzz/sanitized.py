"""Kernels whose every access is checked, and whose branches guide the fuzzer: clang's sanitizers, by ziglang and atheris."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = "SANITIZED_KERNELS"
"""The variable that names the folder of `pcaplake.core` for `python -m tests.fuzz`."""


def build(folder: Path) -> Mapping[str, str]:
    """Compile the kernels in `folder`, in about two minutes -> the environment of a process that uses them."""
    import atheris

    environment = {**os.environ, "CC": f"{sys.executable} -m ziglang cc", "KERNELS_SANITIZE": "1"}
    options = ["build", "--build-base", folder, "build_ext", "--build-lib", folder, "--parallel", "2"]
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", *options],
        cwd=ROOT,
        env=environment,
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return {
        **os.environ,
        FOLDER: os.fspath(folder / "pcaplake" / "core"),
        "LD_PRELOAD": os.path.join(atheris.path(), "asan_with_fuzzer.so"),
        "ASAN_OPTIONS": "detect_leaks=0:halt_on_error=1",
    }


def use(folder: str) -> None:
    """From now on, `pcaplake.core` is that of the folder; must come before anything imports it."""
    import pcaplake.core

    assert not [name for name in sys.modules if name.startswith("pcaplake.core.")]
    pcaplake.core.__path__ = [folder]
