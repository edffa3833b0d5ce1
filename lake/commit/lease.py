"""The lease: which process leads and composes batches. Two leaders do the same work twice, without harm.

The leader increments a number in the ledger, its heartbeat. A follower takes over when that number has not changed for
`timeout` seconds of the follower's own monotonic clock.

A fleet has one leader and perhaps a thousand followers for each lake, and each look at the lease is a request. So a
follower that stages nothing looks less and less often; one that stages something looks often, because its rows wait for
a leader. A process looks at the leases of all its lakes at the same moments, so that one request can serve them all;
these moments differ between processes, so that a fleet does not look all at once.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable

from pcaplake.common.errors import Retryable
from pcaplake.lake.ledger import Lease, Ledger

BEATS_PER_TIMEOUT = 4
log = logging.getLogger(__name__)
LONGEST_LOOK = 4  # timeouts between two looks of a follower that stages nothing, at most


class Leadership:
    """The lease of one lake as one process sees it.

    `closely`: look often even without staging, in a process that only commits.
    """

    phase = random.uniform(0, 3600)
    """Seconds by which the looks of this process are shifted."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        lake: str = "",
        owner: str | None = None,
        timeout: float = 2.0,
        closely: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.owner = owner or uuid.uuid4().hex
        self.is_leading = False
        self._ledger, self._lake, self._timeout, self._closely = ledger, lake, timeout, closely
        self._clock = clock
        self._interval = self.beat_interval  # between two looks of a follower
        self._seen = Lease()
        self._seen_at = float("-inf")

    @property
    def beat_interval(self) -> float:
        """Seconds between two heartbeats, and between two looks of a follower whose rows wait for a leader."""
        return self._timeout / BEATS_PER_TIMEOUT

    def seconds_to_next_look(self, *, rows_wait: bool) -> float:
        """Seconds until a follower looks again. `rows_wait`: it has just staged something."""
        if rows_wait:
            self._interval = self.beat_interval
        seconds = self._interval - (self._clock() + self.phase) % self._interval
        if not self._closely:
            self._interval = min(2 * self._interval, LONGEST_LOOK * self._timeout)
        return seconds

    async def try_to_lead(self, on_taken: Callable[[], Awaitable[None]]) -> bool:
        """Take the lease if it is free or has stalled, and then call `on_taken`. Returns whether this process leads."""
        if self.is_leading:
            return True
        # Clocks of machines differ, so only this one's is read: for how long the number has not changed.
        lease, now = await self._ledger.read_lease(), self._clock()
        if lease != self._seen:
            self._seen, self._seen_at = lease, now
        if lease.owner and lease.owner != self.owner and now - self._seen_at < self._timeout:
            if now - self._seen_at > self.beat_interval:
                self._interval = self.beat_interval  # its heartbeat has stalled, perhaps permanently
            return False
        if not await self._ledger.take_lease(lease, self.owner):
            return False
        self._seen, self._seen_at = Lease(owner=self.owner, beat=lease.beat + 1), now
        await on_taken()
        self.is_leading = True
        log.info("leadership won", extra={"lake": self._lake, "owner": self.owner, "previous": lease.owner})
        return True

    async def send_heartbeats(self) -> None:
        """Send heartbeats while leading, until canceled."""
        while True:
            await asyncio.sleep(self.beat_interval)
            if self.is_leading:
                try:
                    await self._send_heartbeat()
                except Retryable:
                    continue  # one missed heartbeat does no harm

    async def _send_heartbeat(self) -> None:
        lease = await self._ledger.read_lease()
        # This process may have been suspended for longer than the timeout. What it still commits does no harm.
        if lease.owner != self.owner or not await self._ledger.take_lease(lease, self.owner):
            self.is_leading = False
            log.info("leadership lost", extra={"lake": self._lake, "owner": self.owner, "leader": lease.owner})

    async def release_lease(self) -> None:
        """Release the lease so that another process can lead at once; best effort."""
        if not self.is_leading:
            return
        self.is_leading = False
        try:
            lease = await self._ledger.read_lease()
            if lease.owner == self.owner:
                await self._ledger.take_lease(lease, "")
                log.info("leadership released", extra={"lake": self._lake, "owner": self.owner})
        except Retryable:
            return  # it expires by itself
