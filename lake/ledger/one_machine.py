"""Notices that two machines share the SQLite file of a ledger, for example on NFS, where SQLite's own locks do not protect it.

Each process that has the ledger open holds a shared lock on `<ledger>-machine`, and the file has the boot id of its machine.
The lock ends with the process, so nothing has to be cleaned up after a kill, and the time does not matter. The boot id is that of
the running kernel: containers of one machine share it, and a machine that is renamed keeps it. A file system whose locks do
not reach other machines hides them; then nothing is noticed.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from pcaplake.common.errors import Fatal

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PAUSE = 0.02


class OneMachine:
    """The lock of one process. `enter` blocks."""

    def __init__(self, ledger: Path) -> None:
        self._ledger, self._path, self._lock = ledger, Path(f"{ledger}-machine"), -1

    def enter(self, timeout: float) -> None:
        """Take the lock. Raises Fatal while processes of another machine have the ledger open.

        Nothing is checked where there is no boot id, or where the file system has no locks. `timeout`: seconds to wait for
        a process that is taking the lock.
        """
        try:
            mine = BOOT_ID.read_bytes().strip()
            self._lock = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError:
            return  # SQLite reports a folder that cannot be written
        until = time.monotonic() + timeout
        try:
            while (theirs := self._try_lock(mine)) != mine:
                if theirs or time.monotonic() > until:
                    self.leave()
                    raise Fatal(
                        f"the ledger {self._ledger} is in use on another machine: only one machine may write to a lake with "
                        "a local ledger. Stop pcaplake on the other machine, or run it only there; several machines need a "
                        "ledger in DynamoDB (`pcaplake run`)"
                    )
                time.sleep(_PAUSE)
        except OSError:
            self.leave()

    def leave(self) -> None:
        """Release the lock. Harmless without one."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _try_lock(self, mine: bytes) -> bytes:
        """Take the lock, and return the boot id in the file; b"" if another process is just taking it."""
        with suppress(BlockingIOError):
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._lock, mine, 0)  # boot ids have one length
        try:
            fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # from exclusive to shared, another may come between
        except BlockingIOError:
            return b""
        return os.pread(self._lock, len(mine), 0)
