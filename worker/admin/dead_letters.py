"""Dead letters: what they are about, and back to the queue with those that are chosen.

Knows two queues and notifications. Each letter is sent first and deleted after: a crash in between doubles a message,
which the ledger finds out, and loses none. What is only looked at is hidden while this runs, and not longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from ..notification import BadNotification, parse
from ..queue import Delivery, Queue
from ..queue.heartbeat import Heartbeats

_WAIT = 2.0  # seconds of a long poll: a short one may find nothing where there is something


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """A message that was received too often. `uris`: of the captures it announces.

    `unreadable`: why it says nothing; `partly`: why one of its records says nothing.
    """

    delivery: Delivery
    uris: tuple[str, ...] = ()
    unreadable: str = ""
    partly: str = ""

    def matches(self, pattern: str | None) -> bool:
        return not self.unreadable and (pattern is None or any(fnmatchcase(uri, pattern) for uri in self.uris))


@dataclass(slots=True, kw_only=True)
class Moved:
    """Letters `found` in all; `matched` of them, and `moved`. `doubled`: moved, but not deleted for sure."""

    found: int = 0
    matched: int = 0
    unreadable: int = 0
    moved: int = 0
    doubled: int = 0


def read(delivery: Delivery) -> Letter:
    try:
        said = parse(delivery.body)
    except BadNotification as error:
        return Letter(delivery=delivery, unreadable=str(error))
    return Letter(delivery=delivery, uris=tuple(ref.uri for ref in said.objects), partly=str(said.bad or ""))


async def redrive(
    dead: Queue,
    queue: Queue,
    tally: Moved,
    *,
    match: str | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    show: Callable[[Letter], None] = lambda letter: None,
    heartbeats: Heartbeats | None = None,
) -> None:
    """Every letter that matches the glob, up to `limit`. `show` is told of each before it is moved, and of unreadable ones.

    `heartbeats`: of `dead`. A letter that nobody can read stays: it would come back. Retryable, Fatal as the queues
    raise them; `tally` says how far it came.
    """
    seen: dict[str, Delivery] = {}
    kept: dict[str, Delivery] = {}
    beats = Heartbeats(dead) if heartbeats is None else heartbeats
    beating = asyncio.create_task(beats.run())
    try:
        while limit is None or tally.matched < limit:
            deliveries = await dead.receive(10, _WAIT)
            new = [one for one in deliveries if one.message_id not in seen]
            for one in deliveries:
                seen[one.message_id] = kept[one.message_id] = replace(one, body="")
                beats.watch(kept[one.message_id], lambda delivery: None)
            if not new:
                return  # there is none, or all were seen
            for one in new:
                letter = read(one)
                tally.found += 1
                if letter.unreadable:
                    tally.unreadable += 1
                    show(letter)
                if not letter.matches(match) or tally.matched == limit:
                    continue
                tally.matched += 1
                show(letter)
                if dry_run:
                    continue
                await queue.send([one.body])
                gone = await dead.delete([one])
                tally.moved += 1
                tally.doubled += not gone.done
                beats.forget(kept.pop(one.message_id))
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await dead.extend(list(kept.values()), 0)
