"""cantools' own test databases (MIT license), from its source distribution on PyPI: pinned, kept outside the tree.

pip fetches it once, by hash, into the user's cache; a test that needs it is skipped where that is not possible.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

VERSION = "45.1.0"
SHA256 = "ea1619f3d6108a1c3ecd0f81c952ff2dffd023b244704f6f7a17c4f4dca75f73"
KINDS = ("dbc", "kcd", "sym", "arxml")


@functools.cache
def fetch() -> Path | str:
    """The folder with dbc/, kcd/, sym/ and arxml/, or why there is none."""
    cache = Path.home() / ".cache" / "pcaplake"
    folder = cache / f"cantools-{VERSION}-files"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        wanted = Path(scratch) / "wanted.txt"
        wanted.write_text(f"cantools=={VERSION} --hash=sha256:{SHA256}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--no-binary", "cantools", "--require-hashes", "-r", str(wanted), "-d", scratch]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        if done.returncode:
            return f"pip cannot fetch cantools' source: {done.stderr.strip()[-300:]}"
        made = Path(scratch) / "files"
        made.mkdir()
        with tarfile.open(Path(scratch) / f"cantools-{VERSION}.tar.gz") as archive:
            for one in archive.getmembers():
                _, _, inside = one.name.partition("/tests/files/")
                kind, _, name = inside.partition("/")
                if one.isfile() and kind in KINDS and name and "/" not in name:
                    (made / kind).mkdir(exist_ok=True)
                    data = archive.extractfile(one)
                    assert data is not None
                    (made / kind / name).write_bytes(data.read())
        try:
            os.rename(made, folder)
        except OSError:  # another run was first
            if not folder.is_dir():
                raise
    return folder


def databases() -> list[Path]:
    """Every database file, sorted; skips the test where there are none."""
    folder = fetch()
    if isinstance(folder, str):
        pytest.skip(folder)
    return sorted(path for path in folder.glob("*/*") if path.suffix.lower() in {f".{kind}" for kind in KINDS})
