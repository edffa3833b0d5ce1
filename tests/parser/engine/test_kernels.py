"""Kernels on disk are those of the source as it is, also if a constant or a helper in another file changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pcaplake.parser.engine.kernel import Helper
from pcaplake.worker import warm

KERNEL = """
from pcaplake.parser.engine.kernels import kernel
from .values import *

@kernel
def answer():
    return ANSWER
"""


def answer(folder: Path, value: int) -> tuple[str, str]:
    """What the kernel returns in a new process, and how many times it was loaded from disk."""
    (folder / "package" / "values.py").write_text(f"ANSWER = {value}\n")
    script = "from package.kernels import answer as a; print(a(), sum(a.dispatcher.stats.cache_hits.values()))"
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    value_text, hits = done.stdout.split()
    return value_text, hits


@pytest.mark.slow
def test_a_changed_neighbour_compiles_a_kernel_again(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "kernels.py").write_text(KERNEL)
    assert answer(tmp_path, 1) == ("1", "0")
    assert answer(tmp_path, 1) == ("1", "1")
    assert answer(tmp_path, 22) == ("22", "0")


def test_a_kernel_counts_no_references() -> None:
    """numba would count each array that a row passes to a helper, on counters that threads share."""
    for kernel in warm.kernels():
        assert kernel.dispatcher.targetoptions["_nrt"] is False, kernel
        helpers = [value.dispatcher for value in kernel.py_func.__globals__.values() if isinstance(value, Helper)]
        assert [value for value in helpers if value.targetoptions.get("_nrt") is not False] == [], kernel
