"""Which Parquet files of a lake a query opens, whatever reads them: inotify reports each open, also by another process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Iterator
from pathlib import Path

IN_OPEN = 0x20
EVENT = struct.Struct("iIII")  # watch, mask, cookie, length of the name
LIBC = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[set[Path]]:
    """The data files below `folder` that were opened meanwhile, relative to it; filled at the end."""
    found: set[Path] = set()
    events = LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    watches = {}
    for path, folders, _ in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith("_")]  # the log, and the lake's records
        watch = LIBC.inotify_add_watch(events, os.fsencode(path), IN_OPEN)
        assert watch >= 0, os.strerror(ctypes.get_errno())
        watches[watch] = Path(path).relative_to(folder)
    try:
        yield found
        with contextlib.suppress(BlockingIOError):
            while data := os.read(events, 1 << 20):
                at = 0
                while at < len(data):
                    watch, _, _, length = EVENT.unpack_from(data, at)
                    at += EVENT.size + length
                    assert watch in watches, "the queue of events was full"
                    name = os.fsdecode(data[at - length : at].rstrip(b"\0"))
                    if name.endswith(".parquet"):
                        found.add(watches[watch] / name)
    finally:
        os.close(events)
