"""Lists dead letters, moves selected ones back to the queue, and deletes unreadable ones on request.

Each letter is sent first and then deleted: a crash in between can duplicate a message, which does no harm because the
ledger knows its captures, but loses none. Letters that are only listed stay invisible while this runs, and no longer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from pcaplake.worker.service.notification import BadNotification, parse_notification
from pcaplake.worker.service.queue import Delivery, Queue
from pcaplake.worker.service.queue.heartbeat import Heartbeats

_WAIT = 2.0  # seconds of a long poll: a short poll may miss messages


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was received too often. `uris` are the captures that it announces.

    `unreadable` says why the message cannot be parsed, and `partly` why one of its records cannot be parsed.
    """

    delivery: Delivery
    uris: tuple[str, ...] = ()
    unreadable: str = ""
    partly: str = ""

    def matches_pattern(self, pattern: str | None) -> bool:
        return not self.unreadable and (pattern is None or any(fnmatchcase(uri, pattern) for uri in self.uris))


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which letters to move: up to `limit` that match the glob `match`. `drop_unreadable`: delete unreadable letters.

    `dry_run`: only list them.
    """

    match: str | None = None
    limit: int | None = None
    drop_unreadable: bool = False
    dry_run: bool = False


@dataclass(slots=True, kw_only=True)
class RedriveTally:
    """Counts of letters: `found`, `matched`, `moved`, and `doubled`, which were moved but possibly not deleted.

    `dropped`: unreadable letters that were deleted.
    """

    found: int = 0
    matched: int = 0
    unreadable: int = 0
    moved: int = 0
    doubled: int = 0
    dropped: int = 0


def parse_dead_letter(delivery: Delivery) -> DeadLetter:
    try:
        notification = parse_notification(delivery.body)
    except BadNotification as error:
        return DeadLetter(delivery=delivery, unreadable=str(error))
    return DeadLetter(
        delivery=delivery, uris=tuple(ref.uri for ref in notification.objects), partly=str(notification.bad or "")
    )


async def redrive_dead_letters(
    dead: Queue,
    queue: Queue,
    tally: RedriveTally,
    selection: Selection,
    *,
    show: Callable[[DeadLetter], None] = lambda letter: None,
    heartbeats: Heartbeats | None = None,
) -> None:
    """Move the selected letters. `show` gets each letter before it is moved, and unreadable ones.

    `heartbeats` are for `dead`. Unreadable letters stay, because they would become dead letters again; `drop_unreadable`
    deletes them after `show`. Raises Retryable and Fatal from the queues; `tally` counts what was done before.
    """
    seen: dict[str, Delivery] = {}
    kept: dict[str, Delivery] = {}
    beats = Heartbeats(dead) if heartbeats is None else heartbeats
    beating = asyncio.create_task(beats.run())
    try:
        while selection.limit is None or tally.matched < selection.limit:
            deliveries = await dead.receive(10, _WAIT)
            new = [delivery for delivery in deliveries if delivery.message_id not in seen]
            for delivery in deliveries:
                seen[delivery.message_id] = kept[delivery.message_id] = replace(delivery, body="")
                beats.watch_delivery(kept[delivery.message_id], lambda delivery: None)
            if not new:
                return  # the queue is empty, or all letters were seen
            for delivery in new:
                letter = parse_dead_letter(delivery)
                tally.found += 1
                if letter.unreadable:
                    tally.unreadable += 1
                    show(letter)
                    if selection.drop_unreadable and not selection.dry_run:
                        tally.dropped += len((await dead.delete([delivery])).done)
                        beats.forget_delivery(kept.pop(delivery.message_id))
                if not letter.matches_pattern(selection.match) or tally.matched == selection.limit:
                    continue
                tally.matched += 1
                show(letter)
                if selection.dry_run:
                    continue
                await queue.send([delivery.body])
                gone = await dead.delete([delivery])
                tally.moved += 1
                tally.doubled += not gone.done
                beats.forget_delivery(kept.pop(delivery.message_id))
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)
        await dead.change_visibility_timeout(list(kept.values()), 0)
