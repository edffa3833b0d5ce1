"""Keeps what was read from large database files, by their content, in the folder `.cache/pcaplake/databases` of the user.

An entry is used only if its file is whole and nobody else can write it, because it is a pickle. Without a home folder, or
if it cannot be written, nothing is kept.
"""

from __future__ import annotations

import functools
import os
import pickle
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import blake3

WORTH_KEEPING = 1 << 20
"""Smaller files are read again each time, bytes."""
_MOST_ENTRIES = 32
_PARSERS = ("autosar-data", "cantools")
_DIGEST = 32  # bytes

T = TypeVar("T")


def load_once(path: Path, read: Callable[[Path], T], what: str, folder: Path | None = None) -> T:
    """`read(path)`, or its result of an earlier time for the same content. `what`: what is read from it, as part of the key.

    `folder`: where entries are; by default that of the user. Raises what `read` raises.
    """
    if path.stat().st_size < WORTH_KEEPING or (place := _usable_folder(folder)) is None:
        return read(path)
    before = _state(path)
    entry = place / f"{_content_hash(path, what)}.pickle"
    found = _load_entry(entry)
    if found is not None:
        result: T = found[0]
        return result
    result = read(path)
    if _state(path) == before:  # else the result may be of another content than the entry says
        _keep_entry(entry, result)
    return result


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _content_hash(path: Path, what: str) -> str:
    content = blake3.blake3(f"{what}\0{_readers_hash()}\0{path.name}\0".encode())
    with path.open("rb") as file:
        while chunk := file.read(1 << 22):
            content.update(chunk)
    return content.hexdigest()[:40]


@functools.cache
def _readers_hash() -> str:
    """Changes with the code of this package and the libraries that parse, so that no entry outlives the reader that wrote it."""
    code = blake3.blake3()
    for library in _PARSERS:
        with suppress(metadata.PackageNotFoundError):
            code.update(f"{library} {metadata.version(library)}\0".encode())
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        code.update(source.read_bytes())
    return code.hexdigest()


def _usable_folder(folder: Path | None) -> Path | None:
    try:
        place = Path.home() / ".cache" / "pcaplake" / "databases" if folder is None else folder
        if not place.is_absolute():
            return None
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = place.lstat()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder
        return None
    mine = not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
    return place if stat.S_ISDIR(found.st_mode) and mine and not found.st_mode & 0o022 else None


def _load_entry(entry: Path) -> tuple[Any] | None:
    try:
        data = entry.read_bytes()
        if len(data) < _DIGEST or blake3.blake3(data[_DIGEST:]).digest() != data[:_DIGEST]:
            return None  # cut off or damaged
        os.utime(entry)  # the least recently used entries are removed first
        return (pickle.loads(data[_DIGEST:]),)
    except Exception:  # noqa: BLE001  a pickle may raise anything; the file is read again then
        return None


def _keep_entry(entry: Path, result: Any) -> None:
    with suppress(OSError):
        data = pickle.dumps(result, protocol=5)
        handle, name = tempfile.mkstemp(dir=entry.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(blake3.blake3(data).digest() + data)
            os.replace(name, entry)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
        entries = sorted(entry.parent.glob("*.pickle"), key=lambda path: path.stat().st_mtime)
        for oldest in entries[:-_MOST_ENTRIES]:
            oldest.unlink(missing_ok=True)
