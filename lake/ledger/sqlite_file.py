"""Access to a SQLite file: requests in one thread, bounded waits for locks, and errors sorted into damaged and temporary.

sqlite.py defines the tables in the file.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from pcaplake.common.errors import Fatal, OutcomeUnknown, Retryable
from pcaplake.lake.store.local_store import MAKE_ROOM

from .one_machine import OneMachine

LOCK_TIMEOUT = 30.0
WARN_AFTER = 5.0
"""Seconds for which the ledger is locked before a warning is logged."""
_LOCKED = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL})
_DAMAGED = frozenset(
    {
        sqlite3.SQLITE_ERROR,  # a statement that does not fit the tables
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_FORMAT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_NOTADB,
    }
)
_LOCK_BYTES = {"-shm": range(120, 123), "": range(0x40000000, 0x40000200)}
"""Bytes that SQLite locks for writing: in the shared memory of the WAL, or in the file itself without a WAL."""
log = logging.getLogger(__name__)
T = TypeVar("T")
File = TypeVar("File", bound="SqliteFile")
P = ParamSpec("P")


def in_thread(method: Callable[Concatenate[File, P], T]) -> Callable[Concatenate[File, P], Coroutine[Any, Any, T]]:
    """Makes a method that reads the database asynchronous: it runs in the file's thread."""

    @functools.wraps(method)
    async def run_method(self: File, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run_in_thread(lambda: method(self, *args, **kwargs))

    return run_method


def in_transaction(method: Callable[Concatenate[File, P], T]) -> Callable[Concatenate[File, P], Coroutine[Any, Any, T]]:
    """Makes a method that writes to the database asynchronous: it runs in the file's thread, in one transaction."""

    @functools.wraps(method)
    async def run_method(self: File, /, *args: P.args, **kwargs: P.kwargs) -> T:
        def run_in_transaction() -> T:
            with self._write_transaction():
                return method(self, *args, **kwargs)

        return await self._run_in_thread(run_in_transaction, writes=True)

    return run_method


class LedgerDamaged(Fatal):
    """The file at `path` is not a ledger, or is damaged."""

    def __init__(self, path: Path, why: object) -> None:
        super().__init__(
            f"the ledger {path} is damaged or is not a ledger ({why}). Name the right file with --ledger, or restore a copy. "
            "Without one: stop all processes on this lake and run `pcaplake doctor --lake LAKE --repair --adopt`, which keeps "
            "this file under another name and builds a new ledger from the lake's manifests"
        )
        self.path = path

    def move_aside(self) -> Path:
        """Rename the file, and return its new name. Its journal is renamed first: SQLite would apply it to a new file."""
        number = 1
        while (kept := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                os.rename(f"{self.path}{suffix}", f"{kept}{suffix}")
        return kept


class SqliteFile:
    """A SQLite file. `lock_timeout`: seconds that a request waits for a lock before it raises Retryable."""

    def __init__(self, path: Path, *, lock_timeout: float = LOCK_TIMEOUT) -> None:
        self.path = path.absolute()  # lake.json names it, for processes in other working directories
        self._lock_timeout = lock_timeout
        self._slice = min(WARN_AFTER, max(lock_timeout, 0.1))
        self._locked_since: float | None = None
        self._warned = False
        self._machine = OneMachine(self.path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._db: sqlite3.Connection

    def _open_database(self, create: bool, prepare: Callable[[], None]) -> None:
        """`prepare` runs in a transaction of its own."""
        if not create and not self.path.exists():
            raise Fatal(
                f"the ledger {self.path} does not exist, but the lake has one: put it back, name the right one with "
                "--ledger, or build a new one from the lake's manifests with --adopt"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Fatal(
                f"the folder {self.path.parent} cannot be created: {error.strerror}; name another --lake"
            ) from error
        self._machine.enter(self._lock_timeout)
        self._db = sqlite3.connect(self.path, isolation_level=None, timeout=self._slice)
        try:
            self._refuse_newer_format()
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            with self._write_transaction():
                prepare()
        except BaseException:
            self._db.close()
            self._machine.leave()
            raise
        folder = os.open(self.path.parent, os.O_RDONLY)  # the names of the new files are durable too
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _refuse_newer_format(self) -> None:
        """Raises Fatal for a file with a format that this version does not know."""

    async def check_integrity(self) -> None:
        """Raises LedgerDamaged when SQLite's quick_check finds damage; reads the whole file."""

        result = await self._run_in_thread(lambda: self._db.execute("PRAGMA quick_check(1)").fetchone()[0])
        if result != "ok":
            raise LedgerDamaged(self.path, result)

    async def _run_in_thread(self, work: Callable[[], T], *, writes: bool = False) -> T:
        while True:
            began = time.monotonic()
            try:
                result = await asyncio.get_running_loop().run_in_executor(self._thread, work)
            except (sqlite3.DatabaseError, zlib.error) as error:
                code = getattr(error, "sqlite_errorcode", None)
                kind = None if code is None else code & 0xFF
                if kind in _LOCKED:
                    self._check_lock_wait(began, error)
                    await asyncio.sleep(0.05)  # SQLite does not wait for each lock: not for the switch to WAL
                    continue
                if kind in _DAMAGED or isinstance(error, zlib.error):
                    raise LedgerDamaged(self.path, error) from error
                if kind is None:
                    raise
                room = f": {MAKE_ROOM}" if kind == sqlite3.SQLITE_FULL else ""
                raise OutcomeUnknown(f"the ledger {self.path} could not be written or read: {error}{room}") from error
            if writes:  # a writer does not block reads
                self._locked_since, self._warned = None, False
            return result

    def _check_lock_wait(self, began: float, error: Exception) -> None:
        """Raises Retryable when the file has been locked for too long; logs once, before that, which process has the lock."""
        self._locked_since = since = began if self._locked_since is None else self._locked_since
        seconds = time.monotonic() - since
        if seconds < min(self._lock_timeout, WARN_AFTER):
            return
        holder = describe_lock_holder(self.path)
        if not self._warned:
            self._warned = True
            log.warning("the ledger %s has been locked for %.0f s: %s", self.path, seconds, holder)
        if seconds >= self._lock_timeout:
            raise Retryable(f"the ledger {self.path} has been locked for {seconds:.0f} s: {holder}") from error

    @contextmanager
    def _write_transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        try:
            self._db.execute("COMMIT")
        except sqlite3.OperationalError:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    async def close(self) -> None:
        await self._run_in_thread(self._db.close)
        self._machine.leave()
        self._thread.shutdown()


def describe_lock_holder(path: Path) -> str:
    """Which process holds the write lock, and what to do about it.

    Read from /proc: opening and closing one of the files would drop the locks of this process.
    """
    pid = _find_lock_holder(path)
    if pid is None:
        return "another process holds its lock: let it continue or end it; no data is lost"
    command, state = "?", ""
    with suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    shown = "".join(character if character.isprintable() else "?" for character in command[:120])
    who = f"process {pid} ({shown}) holds its lock"
    if state in ("T", "t"):
        return f"{who} and is stopped: `kill -CONT {pid}` continues it, `kill -KILL {pid}` ends it; no data is lost"
    return f"{who}: let it continue, or end it with `kill {pid}`; no data is lost"


def _find_lock_holder(path: Path) -> int | None:
    """The pid of the process with the write lock, from /proc/locks; None also for a process in another container."""
    try:
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    for suffix, lock_bytes in _LOCK_BYTES.items():
        with suppress(OSError):
            inode = Path(f"{path}{suffix}").stat().st_ino
            for line in locks:
                fields = line.replace("->", "").split()
                if len(fields) < 8 or fields[3] != "WRITE" or fields[5].rpartition(":")[2] != str(inode):
                    continue
                start, pid = int(fields[6]), int(fields[4])
                end = start if fields[7] == "EOF" else int(fields[7])
                if pid > 0 and pid != os.getpid() and start < lock_bytes.stop and end >= lock_bytes.start:
                    return pid
    return None
