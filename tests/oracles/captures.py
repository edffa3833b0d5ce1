"""Where the real captures are: beside the repository, or in the folder PCAPLAKE_CAPTURES.

They are not part of the project, so a machine without them skips their tests; where CI is set they must be there.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("PCAPLAKE_CAPTURES") or Path(__file__).resolve().parents[3] / "shared" / "captures")
SUFFIXES = {".pcap", ".pcapng", ".gz", ".zst"}


def paths() -> list[Path]:
    """Every capture, sorted; empty where the folder is absent."""
    return sorted(path for path in FOLDER.rglob("*") if path.suffix in SUFFIXES)


def require() -> Path:
    """The folder; skips the test when it is absent, fails when CI is set."""
    if not paths():
        assert not os.environ.get("CI"), f"no captures in {FOLDER}: set PCAPLAKE_CAPTURES"
        pytest.skip(f"no captures in {FOLDER}: set PCAPLAKE_CAPTURES")
    return FOLDER
