"""A test whose process ends fails, and the others go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
MODULES = {
    "test_a": "import os\ndef test_ends():\n    os._exit(1)\n",
    "test_b": "def test_one(): pass\n",
    "test_c": "def test_one(): pass\n",
    "test_d": "def test_one(): pass\n",
}


def test_modules_of_one_test_run_after_a_process_has_ended(tmp_path: Path) -> None:
    folder = tmp_path / "tests" / "some"
    folder.mkdir(parents=True)
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_xdist_make_scheduler\n")
    (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "1", "--dist", "loadscope", "tests"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
