"""Captures that lie there are announced to the queue as if they had been uploaded now, or only looked for.

Knows pages of objects, what the ledgers know, and a queue that must not be flooded. Must not know where any of them is.
Announcing twice does no harm: the ledger finds it out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from ..errors import Retryable
from ..notification import event
from ..queue import Queue
from ..source import ObjectRef
from .known import Known, Standing
from .listing import Found, Page

log = logging.getLogger(__name__)

WAVE = 5_000
SETTLE = 5.0  # seconds: SQS counts late what was just sent
_AT_ONCE = 500  # messages after which it is known how far it came
_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)  # seconds, before what failed is asked for again: a long replay outlives a blip

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[object]]


@dataclass(slots=True, kw_only=True)
class Tally:
    """How many objects were listed, and what they were. `last_key`: all up to it are dealt with."""

    listed: int = 0
    filtered: int = 0
    folders: int = 0
    archived: int = 0
    nowhere: int = 0
    absent: int = 0
    staged: int = 0
    committed: int = 0
    announced: int = 0
    last_key: str = ""

    def add(self, standings: Sequence[Standing]) -> None:
        self.nowhere += standings.count("nowhere")
        self.absent += standings.count("absent")
        self.staged += standings.count("staged")
        self.committed += standings.count("committed")


async def patiently(request: Callable[[], Awaitable[T]], sleep: Sleep) -> T:
    """Its answer; what is Retryable is tried some times."""
    for pause in _PAUSES:
        try:
            return await request()
        except Retryable as error:
            log.warning("%s; trying again in %.0f s", error, pause)
        await sleep(pause)
    return await request()


class Announcer:
    """Sends while fewer than `wave` messages are in the queue, waiting or worked on; else it waits."""

    def __init__(
        self,
        queue: Queue,
        *,
        wave: int = WAVE,
        settle: float = SETTLE,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._queue, self._wave, self._settle, self._sleep = queue, wave, settle, sleep
        self._room = 0
        self._asked = False

    async def send(self, refs: Sequence[ObjectRef]) -> AsyncIterator[int]:
        """How many were sent, part by part. Retryable, Fatal as the queue raises them."""
        at = 0
        while at < len(refs):
            while self._room <= 0:
                await self._look()
            part = refs[at : at + min(self._room, _AT_ONCE)]
            bodies = [event(ref) for ref in part]
            await patiently(partial(self._queue.send, bodies), self._sleep)
            self._room -= len(part)
            at += len(part)
            yield len(part)

    async def _look(self) -> None:
        if self._asked:
            await self._sleep(self._settle)
        self._asked = True
        there = await patiently(self._queue.attributes, self._sleep)
        self._room = self._wave - there.visible - there.in_flight - there.delayed


async def go_through(
    pages: AsyncIterator[Page],
    known: Known,
    tally: Tally,
    *,
    wanted: Callable[[Found], bool],
    announcer: Announcer | None,
    absent: Callable[[ObjectRef], None] = lambda ref: None,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Every page; what no lake has had is told to `absent` and, with an `announcer`, announced.

    `tally` says at any time how far it is, also when this is cancelled or raises.
    """
    async for page in pages:
        tally.listed += len(page)
        chosen = [one for one in page if _chosen(one, wanted, tally)]
        standings = await patiently(partial(known.standing, [one.ref for one in chosen]), sleep)
        missing = [one for one, standing in zip(chosen, standings, strict=True) if standing == "absent"]
        tally.add(standings)
        for one in missing:
            absent(one.ref)
        if announcer is not None:
            at = 0
            async for sent in announcer.send([one.ref for one in missing]):
                at += sent
                tally.announced += sent
                tally.last_key = missing[at - 1].key
        if page:
            tally.last_key = page[-1].key


def _chosen(found: Found, wanted: Callable[[Found], bool], tally: Tally) -> bool:
    if found.folder:
        tally.folders += 1
    elif not wanted(found):
        tally.filtered += 1
    elif found.archived:
        tally.archived += 1
    else:
        return True
    return False
