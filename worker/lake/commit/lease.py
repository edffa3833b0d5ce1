"""Who composes now. Liveness only: two leaders do the same work, never harm.

Knows a beat and its own monotonic clock. A follower takes over when the beat has not moved for `timeout` seconds of it.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable

from ..errors import Retryable
from .ledger import Lease, Ledger

BEATS_PER_TIMEOUT = 4


class Leadership:
    """One candidate."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        owner: str | None = None,
        timeout: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.owner = owner or uuid.uuid4().hex
        self.leading = False
        self._ledger, self._timeout, self._clock = ledger, timeout, clock
        self._seen = Lease()
        self._seen_at = float("-inf")

    @property
    def patience(self) -> float:
        """Seconds between two looks of a follower: who is silent for `timeout` is found out soon after it."""
        return self._timeout / BEATS_PER_TIMEOUT

    async def lead(self, on_taken: Callable[[], Awaitable[None]]) -> bool:
        """Do we lead? Takes a lease that nobody holds or beats, and calls `on_taken` before saying so."""
        if self.leading:
            return True
        lease, now = await self._ledger.lease(), self._clock()
        if lease != self._seen:
            self._seen, self._seen_at = lease, now
        if lease.owner and lease.owner != self.owner and now - self._seen_at < self._timeout:
            return False
        if not await self._ledger.take(lease, self.owner):
            return False
        self._seen, self._seen_at = Lease(owner=self.owner, beat=lease.beat + 1), now
        await on_taken()
        self.leading = True
        return True

    async def keep(self) -> None:
        """Beat while leading, until cancelled."""
        while True:
            await asyncio.sleep(self.patience)
            if self.leading:
                try:
                    await self._beat()
                except Retryable:
                    continue  # a beat that fails is one beat fewer

    async def _beat(self) -> None:
        lease = await self._ledger.lease()
        if lease.owner != self.owner or not await self._ledger.take(lease, self.owner):
            self.leading = False

    async def release(self) -> None:
        """Let the next one lead at once, if it can be said."""
        if not self.leading:
            return
        self.leading = False
        try:
            lease = await self._ledger.lease()
            if lease.owner == self.owner:
                await self._ledger.take(lease, "")
        except Retryable:
            return  # it runs out by itself
