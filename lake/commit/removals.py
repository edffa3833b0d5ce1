"""Removes contents from the lake of a fleet, while its workers may see them again (docs/exactly-once.md, section 6).

    begin     the ledger marks captures as leaving, in one transaction. From then on, no worker stages them, and none
              deletes a message that says that an object has such a content: it is delivered again
    record    a swap without new rows, with the id of the removal (`swaps`)
    swap      the rows go, table by table
    forget    the captures leave the ledger, and another removal can begin: a content that comes back is read again

Whoever comes finishes: the ledger has the removal until the end, and the record is all that the other steps need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.lake.current_captures import Content
from pcaplake.lake.identity import read_identity
from pcaplake.lake.ledger import COMMITTED, CaptureItem, Ledger, Removal, Removals
from pcaplake.lake.records import manifest_path
from pcaplake.lake.store.store import Store

from .swap_records import RowSwap, newest_swap, put_swap, read_swaps
from .swaps import Swaps, read_swap_numbers

_OK = "ok"


@dataclass(slots=True, kw_only=True)
class OlderContents:
    """By URI: `current`: the capture to keep; `older`: those to remove. `kept`: URIs whose current content is no capture."""

    current: dict[str, str] = field(default_factory=dict)
    older: dict[str, list[CaptureItem]] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(item.capture.rows for items in self.older.values() for item in items)


async def find_older_contents(
    ledger: Ledger, generation: int, contents: Mapping[str, Collection[Content]]
) -> OlderContents:
    """The older ones of these contents (`find_contents`) that can be removed, by the ledger as it is now.

    Left out are contents that wait for a batch, that leave already, or of which a sighting waits for its batch.
    """
    ids = {content.capture_id for some in contents.values() if len(some) > 1 for content in some}
    head, items = await ledger.read_head(), await ledger.get_capture_items(generation, ids)
    # up to head: a slower leader puts captures of later batches into the ledger again
    committed = {
        capture_id: item
        for capture_id, item in items.items()
        if item.state == COMMITTED and not item.leaving and (item.batch or 0) <= head
    }
    plan = OlderContents()
    for uri, (now, *others) in contents.items():
        # rule: a content is removed only if a later one is in every table
        if now.capture_id not in committed:
            continue
        older = list[CaptureItem]()
        for item in (committed[one.capture_id] for one in others if one.capture_id in committed):
            # rule: a content that was seen again later than the current one is not removed
            if item.seen and item.seen >= now.seen:
                continue
            older.append(item)
        if older and now.outcome != _OK:
            plan.kept.append(uri)
        elif older:
            plan.current[uri], plan.older[uri] = now.capture_id, older
    return plan


async def remove_captures(swaps: Swaps, items: Collection[CaptureItem]) -> set[str]:
    """Remove committed captures from the lake, some at a time -> capture_ids; those that have changed since stay.

    Raises Fatal and Retryable as `Swaps.finish`, and Fatal if a table waits until it is repaired: the next process goes on.
    """
    ledger, left, done = swaps.ledger, {item.capture.capture_id: item for item in items}, set[str]()
    assert isinstance(ledger, Removals)
    while left:
        await finish_removals(swaps)
        # its sightings may be in later batches than the capture
        until = max(await ledger.read_head(), *(item.batch or 0 for item in left.values()))
        removal = await ledger.begin_removal(swaps.generation, left.values(), until)
        swaps.runtime.step("after removal begins")
        if removal is None:
            if await ledger.read_removal() is not None:
                continue  # of another process
            return done
        await finish_removals(swaps)
        done |= removal.captures.keys()
        left = {capture_id: item for capture_id, item in left.items() if capture_id not in done}
    return done


async def finish_removals(swaps: Swaps) -> None:
    """Finish all swaps, also the removal that a process has begun. Raises as `Swaps.finish`; Fatal if a table waits."""
    ledger = swaps.ledger
    removal = await ledger.read_removal() if isinstance(ledger, Removals) else None
    if removal is None or removal.generation > swaps.generation:
        await swaps.finish()
        return
    assert isinstance(ledger, Removals)
    if removal.generation < swaps.generation:  # its rows went with those that an overwrite has replaced
        await ledger.end_removal(removal.removal_id)
        await swaps.finish()
        return
    number = await _record(swaps.store, ledger, removal)
    swaps.runtime.step("after swap record")
    done = await swaps.finish()
    if number > done:
        identity = await read_identity(swaps.store)
        if identity is None or identity[0].generation == swaps.generation:
            raise Fatal(
                f"the rows of {counted(len(removal.captures), 'older content')} are removed from some tables only, because "
                "others cannot be written: see `pcaplake doctor`. The rest is removed when that is repaired"
            )
        return
    swaps.runtime.step("after swap")
    await ledger.end_removal(removal.removal_id)


async def restore_removals(swaps: Swaps) -> None:
    """Make captures leave a ledger that was rebuilt, as their records say. All other processes must be stopped."""
    ledger, done = swaps.ledger, min((await read_swap_numbers(swaps.log_store, swaps.generation)).values())
    for swap in await read_swaps(swaps.store, range(1, await newest_swap(swaps.store) + 1)):
        if not swap.removes or swap.generation != swaps.generation:
            continue
        stages = await swaps.find_stages(swap)
        if swap.number <= done:
            await ledger.forget_captures(swaps.generation, stages, last_swap=swap.number)
        elif isinstance(ledger, Removals):
            until = max(swap.captures.values())
            removal_id = swap.removal_id or f"swap {swap.number}"
            await ledger.restore_removal(
                Removal(removal_id=removal_id, generation=swaps.generation, captures=stages, until=until)
            )


async def find_last_batch(store: Store, head: int) -> int:
    """The number of the last manifest. `head`: of the ledger."""
    while await store.head(manifest_path(head + 1)) is not None:
        head += 1
    return head


async def _record(store: Store, ledger: Ledger, removal: Removal) -> int:
    """The number of the record of a removal, which is put if there is none."""
    while True:
        last = await ledger.read_last_swap()
        newest = await newest_swap(store, last)
        for swap in await read_swaps(store, range(max(last, 1), newest + 1)):
            if swap.removal_id == removal.removal_id:
                return swap.number
        swap = RowSwap(
            number=newest + 1,
            generation=removal.generation,
            captures=dict.fromkeys(removal.captures, removal.until),
            removal_id=removal.removal_id,
        )
        if await put_swap(store, swap):
            return swap.number
