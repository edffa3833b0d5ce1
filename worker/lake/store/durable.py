"""Local files that are on disk before anything says they are.

Knows POSIX files and the order that survives a loss of power: write a temporary file, fsync it, link it to its name
if nobody has that name, unlink the temporary name, fsync the folder. Must not know stores, tables or asyncio.

A temporary file is `<name>.<uuid>.tmp` beside its target, and its writer holds an flock on it. A process that dies leaves
it there without the lock: no reader takes it for data, and `delete_abandoned_files` deletes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path

from pcaplake.worker.errors import OutcomeUnknown

TEMPORARY = ".tmp"
_OURS = re.compile(rf"\.[0-9a-f]{{32}}{re.escape(TEMPORARY)}$")

Buffer = bytes | bytearray | memoryview

# Folders whose entries, up to the root, this process has made durable, with the inode they had then. A folder that
# somebody removed and made again has another inode and is made durable again.
_durable: dict[str, int] = {}


def file_etag(stat: os.stat_result) -> str:
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


def make_durable_folder(folder: Path, root: Path) -> None:
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
        make_durable_folder(path.parent, root)
        self._lock = threading.Lock()  # `abort` may come from another thread, and the descriptor's number is reused
        self._handle = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        # a file system without locks: `delete_abandoned_files` leaves everything there
        with contextlib.suppress(OSError):
            fcntl.flock(self._handle, fcntl.LOCK_EX)

    def write(self, data: Buffer) -> None:
        """OSError as `os.write` raises it, EBADF after `abort`."""
        view = memoryview(data).cast("B")
        while view:
            with self._lock:
                view = view[os.write(self._handle, view) :]

    def finish(self) -> bool:
        """True: the file is there under its name; False: the name was taken, and what has it is untouched.

        Both are on disk: who lost goes by what the winner wrote. Raises OutcomeUnknown when that could not be done.
        """
        created = True
        try:
            os.fsync(self._handle)
            os.link(self._temporary, self.path)
        except FileExistsError:
            created = False
        finally:
            self.abort()
        self._sync_parent_folder()
        return created

    def replace(self) -> None:
        """Like `finish`, but whatever has the name gives way."""
        try:
            os.fsync(self._handle)
            os.rename(self._temporary, self.path)
        finally:
            self.abort()
        self._sync_parent_folder()

    def abort(self) -> None:
        """Forget the file; harmless after `finish`. What cannot be deleted now is left to `delete_abandoned_files`."""
        with self._lock:
            if self._handle < 0:
                return
            handle, self._handle = self._handle, -1
            with contextlib.suppress(OSError):
                self._temporary.unlink()
            os.close(handle)

    def _sync_parent_folder(self) -> None:
        try:
            sync_folder(self.path.parent)
        except OSError as error:
            raise OutcomeUnknown(f"{self.path} is there, but its folder could not be synced: {error}") from error


def create_file(path: Path, root: Path, data: bytes) -> bool:
    """True: made; False: the name is taken."""
    file = NewFile(path, root)
    try:
        file.write(data)
        return file.finish()
    finally:
        file.abort()


def replace_file(path: Path, root: Path, data: bytes, expected: str | None = None) -> bool:
    """Put `data` at `path`; with `expected` only if the file there has this etag, else False.

    Compare and rename happen under an exclusive flock of the folder, which every `replace_file` and `delete_file` takes.
    """
    file = NewFile(path, root)
    try:
        file.write(data)
        with _lock_folder(path.parent):
            if expected is not None and (not path.exists() or file_etag(path.stat()) != expected):
                return False
            file.replace()
        return True
    finally:
        file.abort()


def read_durable_file(path: Path) -> tuple[bytes, os.stat_result]:
    """All of a file whose name is on disk by then: its writer may have died before he could sync it."""
    with path.open("rb") as file:
        data, stat = file.read(), os.fstat(file.fileno())
    sync_folder(path.parent)
    return data, stat


def delete_file(path: Path) -> None:
    """An absent file is fine."""
    if path.parent.is_dir():
        with _lock_folder(path.parent):
            path.unlink(missing_ok=True)


def delete_abandoned_files(root: Path) -> int:
    """Delete the temporary files below `root` whose writers are dead -> how many.

    Nothing rests on the lock: a writer whose temporary file is gone cannot link it, and is told so.
    """
    deleted = 0
    for folder, _, names in os.walk(root):
        for name in names:
            if _OURS.search(name):
                with contextlib.suppress(OSError):
                    deleted += _delete_unlocked(Path(folder, name))
    return deleted


def _delete_unlocked(path: Path) -> bool:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
