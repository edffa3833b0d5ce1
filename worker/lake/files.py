"""How old the files of a stage are, and whether they are still there. Ages are the store's clock, never ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ..errors import Retryable
from .manifest import Stage
from .store import Store

CLOCK = "_pcaplake/clock"  # put to learn the store's time
HOUR_MS = 3_600_000
CHECK_AFTER_MS = 24 * HOUR_MS  # older: every file must still be there
RETURN_AFTER_MS = 5 * 24 * HOUR_MS  # older: a VACUUM may be near; its captures are decoded again
_HEADS_AT_ONCE = 64


class Files:
    """Questions about Parquet files that are in no table yet."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def now(self) -> int:
        """The store's clock, epoch ms."""
        await self._store.put(CLOCK, b"")
        meta = await self._store.head(CLOCK)
        if meta is None:
            raise Retryable(f"{CLOCK} was deleted under us")
        return round(meta.last_modified.timestamp() * 1000)

    def to_check(self, stage: Stage, now: int) -> bool:
        """Is the stage so old that its files may be gone?"""
        return now - stage.written_at > CHECK_AFTER_MS

    async def missing(self, paths: Sequence[str]) -> list[str]:
        """Those that are not there any more."""
        gone: list[str] = []
        for start in range(0, len(paths), _HEADS_AT_ONCE):
            some = paths[start : start + _HEADS_AT_ONCE]
            found = await asyncio.gather(*(self._store.head(path) for path in some))
            gone += [path for path, meta in zip(some, found, strict=True) if meta is None]
        return gone
