"""Local files that are on disk before anything says they are.

Knows POSIX files and the order that survives a loss of power: write a temporary file, fsync it, link it to its name
if nobody has that name, unlink the temporary name, fsync the folder. Must not know stores, tables or asyncio.

A temporary file is `<name>.<uuid>.tmp` beside its target. A process that dies leaves it there: no reader takes it for
data, and VACUUM counts it as an orphan.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from worker.errors import OutcomeUnknown

TEMPORARY = ".tmp"

Buffer = bytes | bytearray | memoryview

# Folders whose entries, up to the root, this process has made durable, with the inode they had then. A folder that
# somebody removed and made again has another inode and is made durable again.
_durable: dict[str, int] = {}


def etag(stat: os.stat_result) -> str:
    """Changes with every replacement: each is a new inode at a new time."""
    return f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"


def sync_folder(folder: Path) -> None:
    """fsync of a folder: the names in it are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """fsync of a file that somebody else wrote."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, root: Path) -> None:
    """Make `folder` and what is missing above it; every new name up to `root` is on disk when this returns.

    The first use in a process syncs the whole chain even where the folders are there: another process may have made
    them a moment ago and not have synced them yet.
    """
    with contextlib.suppress(FileNotFoundError):
        if _durable.get(str(folder)) == folder.stat().st_ino:
            return
    chain = [folder, *folder.parents]
    inside = chain[: chain.index(root) + 1]
    missing = [level for level in chain[len(inside) :] if not level.exists()]
    root_was_there = root.exists()
    for level in reversed([*inside, *missing]):
        with contextlib.suppress(FileExistsError):
            level.mkdir()
        try:
            sync_folder(level.parent)
        except PermissionError:
            if not (level == root and root_was_there):
                raise
    _durable[str(folder)] = folder.stat().st_ino


class NewFile:
    """A file that appears under its name, whole and durable, when `finish` returns; never before, never in part."""

    def __init__(self, path: Path, root: Path) -> None:
        self.path = path
        self._temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
        make_folder(path.parent, root)
        self._handle = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)

    def write(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(self._handle, view) :]

    def finish(self) -> bool:
        """True: the file is there under its name; False: the name was taken, and what has it is untouched.

        Both are on disk: who lost goes by what the winner wrote. Raises OutcomeUnknown when that could not be done.
        """
        made = True
        try:
            os.fsync(self._handle)
            os.link(self._temporary, self.path)
        except FileExistsError:
            made = False
        finally:
            self.abort()
        self._settle()
        return made

    def replace(self) -> None:
        """Like `finish`, but whatever has the name gives way."""
        try:
            os.fsync(self._handle)
            os.rename(self._temporary, self.path)
        finally:
            self.abort()
        self._settle()

    def abort(self) -> None:
        """Forget the file; harmless after `finish`."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
            self._temporary.unlink(missing_ok=True)

    def _settle(self) -> None:
        try:
            sync_folder(self.path.parent)
        except OSError as error:
            raise OutcomeUnknown(f"{self.path} is there, but its folder could not be synced: {error}") from error


def create(path: Path, root: Path, data: bytes) -> bool:
    """True: made; False: the name is taken."""
    file = NewFile(path, root)
    try:
        file.write(data)
        return file.finish()
    finally:
        file.abort()


def replace(path: Path, root: Path, data: bytes, expected: str | None = None) -> bool:
    """Put `data` at `path`; with `expected` only if the file there has this etag, else False.

    Compare and rename happen under an exclusive flock of the folder, which every `replace` and `delete` takes.
    """
    file = NewFile(path, root)
    try:
        file.write(data)
        with _locked(path.parent):
            if expected is not None and (not path.exists() or etag(path.stat()) != expected):
                return False
            file.replace()
        return True
    finally:
        file.abort()


def read(path: Path) -> tuple[bytes, os.stat_result]:
    """All of a file whose name is on disk by then: its writer may have died before he could sync it."""
    with path.open("rb") as file:
        data, stat = file.read(), os.fstat(file.fileno())
    sync_folder(path.parent)
    return data, stat


def delete(path: Path) -> None:
    """An absent file is fine."""
    if path.parent.is_dir():
        with _locked(path.parent):
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
