"""Creates and replaces local files so that they survive a loss of power.

The order of the steps ensures that: write a temporary file, fsync it, link it to its name if that is free, unlink the
temporary name, fsync the folder.

A temporary file is `<name>.<uuid>.tmp` in the folder of its target, and its writer holds an flock on it. A process that
dies leaves it without the lock. Readers ignore it, and `delete_abandoned_files` deletes it.
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

from pcaplake.common.errors import OutcomeUnknown

TEMPORARY = ".tmp"
_OURS = re.compile(rf"\.[0-9a-f]{{32}}{re.escape(TEMPORARY)}$")

Buffer = bytes | bytearray | memoryview

# Folders whose entries, up to the root, this process has synced -> the inode. A folder that was deleted and created again
# has another inode and is synced again.
_durable: dict[str, int] = {}


def file_etag(stat: os.stat_result) -> str:
    """A tag that changes with every replacement, because each creates a new inode at a new time."""
    return f"{stat.st_ino:x}-{stat.st_mtime_ns:x}-{stat.st_size:x}"


def sync_folder(folder: Path) -> None:
    """fsync a folder, so that the names in it are on disk."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """fsync a file that another program wrote."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_durable_folder(folder: Path, root: Path) -> None:
    """Create `folder` and its missing parents. When this returns, every new name up to `root` is on disk.

    The first call in a process syncs existing folders too: another process may have just created them and not synced them
    yet.
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
    """A new file that gets its name only in `finish`, when it is complete and durable."""

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
        """Append data. Raises OSError as `os.write`, with EBADF after `abort`."""
        view = memoryview(data).cast("B")
        while view:
            with self._lock:
                view = view[os.write(self._handle, view) :]

    def finish(self) -> bool:
        """Give the file its name. False: a file with this name exists, and is unchanged.

        In both cases the file with this name is then on disk. Raises OutcomeUnknown when that is uncertain.
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
        """Like `finish`, but replaces an existing file."""
        try:
            os.fsync(self._handle)
            os.rename(self._temporary, self.path)
        finally:
            self.abort()
        self._sync_parent_folder()

    def abort(self) -> None:
        """Discard the file; harmless after `finish`. `delete_abandoned_files` deletes a file that cannot be deleted now."""
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
            raise OutcomeUnknown(f"{self.path} exists, but its folder could not be synced: {error}") from error


def create_file(path: Path, root: Path, data: bytes) -> bool:
    """Create a file. False: a file with this name exists."""
    file = NewFile(path, root)
    try:
        file.write(data)
        return file.finish()
    finally:
        file.abort()


def replace_file(path: Path, root: Path, data: bytes, expected: str | None = None) -> bool:
    """Write `data` to `path`. With `expected`, only if the existing file has this etag; else returns False.

    An exclusive flock of the folder covers the comparison and the rename; every `replace_file` and `delete_file` takes it.
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
    """Read a whole file, and sync its folder: its writer may have died before that."""
    with path.open("rb") as file:
        data, stat = file.read(), os.fstat(file.fileno())
    sync_folder(path.parent)
    return data, stat


def delete_file(path: Path) -> None:
    """Delete a file, if it exists."""
    if path.parent.is_dir():
        with _lock_folder(path.parent):
            path.unlink(missing_ok=True)


def delete_abandoned_files(root: Path) -> int:
    """Delete the temporary files below `root` whose writers are dead, and return how many.

    Correctness does not depend on the lock: a writer whose temporary file is gone gets an error when it links the file.
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
