"""Checks whether the files of a stage still exist, and copies those that a VACUUM may delete soon.

Ages are measured with the store's clock only.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import replace

from pcaplake.common.errors import Retryable
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.records import Stage
from pcaplake.lake.store.store import Store

CLOCK = "_pcaplake/clock"  # put to read the store's time
HOUR_MS = 3_600_000
CHECK_AFTER_MS = 24 * HOUR_MS  # older: check that every file still exists
COPY_AFTER_MS = 5 * 24 * HOUR_MS  # older: a VACUUM may have listed the files already, so copies are committed
_HEADS_AT_ONCE = 64
_PART_BYTES = 8 << 20


class StageFiles:
    """The Parquet files of stages in one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._copies: dict[str, AddFile] = {}  # path of the original -> copy, for a commit that is tried again

    async def read_store_clock(self) -> int:
        """The store's clock, epoch ms."""
        # Object stores have no request for the time. With a wrong clock of this machine, files would seem younger than they are.
        await self.store.put(CLOCK, b"")
        meta = await self.store.head(CLOCK)
        if meta is None:
            raise Retryable(f"another program deleted {CLOCK}")
        return round(meta.last_modified.timestamp() * 1000)

    def needs_existence_check(self, stage: Stage, now: int) -> bool:
        """Whether the stage is so old that its files may be gone. `now`: the store's time, epoch ms."""
        return now - stage.written_at > CHECK_AFTER_MS

    def needs_copy(self, stage: Stage, now: int) -> bool:
        """Whether the stage is so old that a running VACUUM may delete its files after they were committed."""
        return now - stage.written_at > COPY_AFTER_MS

    async def copy_files(self, table: str, adds: Sequence[AddFile], now: int) -> list[AddFile]:
        """New copies of files. Raises Retryable when one of the files is gone.

        Copies that are not committed are orphans, which VACUUM deletes.
        """
        self._copies = {
            path: copied for path, copied in self._copies.items() if now - copied.modification_time < CHECK_AFTER_MS
        }
        new_adds = []
        for add in adds:
            path = f"{table}/{add.path}"
            if path not in self._copies:
                self._copies[path] = await self.copy_file(table, add, f"{add.path.rpartition('/')[0]}/".lstrip("/"))
            new_adds.append(self._copies[path])
        return new_adds

    async def copy_file(self, table: str, add: AddFile, folder: str) -> AddFile:
        """A copy of a file with a new name, in a folder of the table ("" or with a slash at the end).

        Raises Retryable when the file is gone.
        """
        original, name = f"{table}/{add.path}", add.path.rpartition("/")[2]
        path = f"{folder}{uuid.uuid4().hex}-{name.partition('-')[2] or name}"
        original_meta = await self.store.head(original)
        if original_meta is None:
            raise Retryable(f"{original} was deleted before it was copied")
        upload = await asyncio.to_thread(self.store.upload, f"{table}/{path}")
        try:
            for start in range(0, original_meta.size, _PART_BYTES):
                part = await self.store.get_range(original, start, min(_PART_BYTES, original_meta.size - start))
                await asyncio.to_thread(upload.write, part)
            meta = await asyncio.to_thread(upload.finish)
        except FileNotFoundError as error:
            raise Retryable(f"{original} was deleted while it was copied") from error
        finally:
            upload.abort()
        # A file that is cut off would make every reader of the table fail.
        if meta.size != original_meta.size:
            raise Retryable(f"{original} has {original_meta.size} bytes, and its copy {meta.size}")
        return replace(add, path=path, modification_time=round(meta.last_modified.timestamp() * 1000))

    async def find_missing(self, paths: Sequence[str]) -> list[str]:
        """The paths that no longer exist."""
        gone: list[str] = []
        for start in range(0, len(paths), _HEADS_AT_ONCE):
            some = paths[start : start + _HEADS_AT_ONCE]
            metas = await asyncio.gather(*(self.store.head(path) for path in some))
            gone += [path for path, meta in zip(some, metas, strict=True) if meta is None]
        return gone
