"""Announces captures that no lake has to the queue, as if they had just been uploaded, or only lists them.

Limits the number of messages in the queue. Announcing a capture twice does no harm, because the ledger knows its captures.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from pcaplake.common.retry import outlast_outage
from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.worker.admin.capture_status import CaptureStatusReader, Standing
from pcaplake.worker.service.notification import build_s3_event
from pcaplake.worker.service.queue import Queue

from .listing import Found, Page

log = logging.getLogger(__name__)

WAVE = 5_000
SETTLE = 5.0  # seconds: SQS counts new messages with a delay
_AT_ONCE = 500  # messages between two updates of the tally

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[object]]


@dataclass(slots=True, kw_only=True)
class Tally:
    """Counts of the listed objects by kind. All objects up to `last_key` are handled. `filtered`: by reason."""

    listed: int = 0
    filtered: dict[str, int] = field(default_factory=dict)
    folders: int = 0
    archived: int = 0
    no_route: int = 0
    absent: int = 0
    staged: int = 0
    committed: int = 0
    announced: int = 0
    last_key: str = ""

    def add(self, standings: Sequence[Standing]) -> None:
        self.no_route += standings.count("no_route")
        self.absent += standings.count("absent")
        self.staged += standings.count("staged")
        self.committed += standings.count("committed")


class Announcer:
    """Sends messages while fewer than `wave` are in the queue, visible, in flight or delayed; otherwise it waits."""

    def __init__(self, queue: Queue, *, wave: int = WAVE, settle: float = SETTLE, sleep: Sleep = asyncio.sleep) -> None:
        self._queue, self._wave, self._settle, self._sleep = queue, wave, settle, sleep
        self._room = 0
        self._asked = False

    async def send(self, refs: Sequence[ObjectRef]) -> AsyncIterator[int]:
        """Sends all, and yields the size of each part sent. Raises Retryable and Fatal from the queue."""
        at = 0
        while at < len(refs):
            while self._room <= 0:
                await self._look()
            part = refs[at : at + min(self._room, _AT_ONCE)]
            bodies = [build_s3_event(ref) for ref in part]
            await outlast_outage(partial(self._queue.send, bodies), self._sleep)
            self._room -= len(part)
            at += len(part)
            yield len(part)

    async def _look(self) -> None:
        if self._asked:
            await self._sleep(self._settle)
        self._asked = True
        attributes = await outlast_outage(self._queue.read_attributes, self._sleep)
        self._room = self._wave - attributes.visible - attributes.in_flight - attributes.delayed


async def go_through(
    pages: AsyncIterator[Page],
    known: CaptureStatusReader,
    tally: Tally,
    *,
    why_not: Callable[[Found], str | None],
    announcer: Announcer | None,
    absent: Callable[[ObjectRef], None] = lambda ref: None,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Go through all pages. Captures that no lake has are passed to `absent` and, with an `announcer`, announced.

    `why_not` returns the reason why an object is filtered out, or None.
    `tally` is up to date at any time, also if this is canceled or raises.
    """
    async for page in pages:
        tally.listed += len(page)
        chosen = [listed for listed in page if _chosen(listed, why_not, tally)]
        standings = await outlast_outage(partial(known.find_standings, [listed.ref for listed in chosen]), sleep)
        missing = [listed for listed, standing in zip(chosen, standings, strict=True) if standing == "absent"]
        tally.add(standings)
        for listed in missing:
            absent(listed.ref)
        if announcer is not None:
            at = 0
            async for sent in announcer.send([listed.ref for listed in missing]):
                at += sent
                tally.announced += sent
                tally.last_key = missing[at - 1].key
        if page:
            tally.last_key = page[-1].key


def _chosen(found: Found, why_not: Callable[[Found], str | None], tally: Tally) -> bool:
    if found.folder:
        tally.folders += 1
    elif reason := why_not(found):
        tally.filtered[reason] = tally.filtered.get(reason, 0) + 1
    elif found.archived:
        tally.archived += 1
    else:
        return True
    return False
