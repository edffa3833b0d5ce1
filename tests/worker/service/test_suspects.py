"""A capture that ends every process that reads it takes no other with it into the dead letters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from pcaplake.ingest.captures.source import Sources
from pcaplake.worker.service.queue import Delivery
from pcaplake.worker.service.suspects import FRESH, REMEMBERED, Suspects
from tests.worker.adapters.queue import MemoryQueue
from tests.worker.fleets import Fleet, can_capture

BAD = "bad.pcap"
RECEIPTS = 5


class MortalQueue(MemoryQueue):
    """The messages of another queue, as a process has them that may end: it asks for nothing any more then."""

    def __init__(self, shared: MemoryQueue, over: asyncio.Event) -> None:
        self.__dict__.update(shared.__dict__)
        self.ended, self.over = asyncio.Event(), over

    def _deliver_messages(self, limit: int) -> list[Delivery]:
        return [] if self.ended.is_set() else super()._deliver_messages(limit)

    async def _apply_to_each(self, *arguments: Any) -> Any:
        if self.ended.is_set():
            await self.over.wait()
        return await super()._apply_to_each(*arguments)

    async def receive(self, limit: int, wait: float) -> list[Delivery]:
        found = await super().receive(limit, wait)
        if self.ended.is_set():
            await self.over.wait()
        return found


class Deadly:
    """A reader that ends its process with BAD: the thread never comes back."""

    def __init__(self, reader: Any, end: Callable[[], object], over: threading.Event) -> None:
        self.reader, self.end, self.over = reader, end, over

    def read(self, file: Any, capture: Any, *more: Any) -> Any:
        if capture.uri.endswith(BAD):
            self.end()
            self.over.wait()
            raise RuntimeError("the test is over")
        return self.reader.read(file, capture, *more)


class MortalFleet(Fleet):
    """`parts` are those of the process at hand."""

    def __init__(self) -> None:
        super().__init__(visibility_timeout=60.0, max_receives=RECEIPTS)
        self.over, self.test_over = threading.Event(), asyncio.Event()
        self.shared = self.queue

    def begin(self) -> MortalQueue:
        """Another process."""
        self.queue = queue = MortalQueue(self.shared, self.test_over)
        return queue

    def parts(self) -> tuple[dict[str, Any], Sources]:
        readers, sources = super().parts()
        loop, queue = asyncio.get_running_loop(), self.queue
        assert isinstance(queue, MortalQueue)

        def end() -> None:
            loop.call_soon_threadsafe(queue.ended.set)

        return {"all": Deadly(readers["all"], end, self.over)}, sources


async def until_all_are_gone(fleet: MortalFleet, stack: AsyncExitStack) -> int:
    """Processes one after the other, each until it is ended -> how many there were."""
    processes = list[tuple[Any, asyncio.Task[None]]]()
    while len(fleet.shared) and len(processes) < 20:
        queue = fleet.begin()
        lake = await stack.enter_async_context(await fleet.lake())
        service = fleet.service(lake, drain_timeout=0.01)
        task = asyncio.create_task(service.run())
        processes.append((service, task))
        while len(fleet.shared) and not queue.ended.is_set():
            await asyncio.sleep(0.002)
            fleet.clock.advance_time(0.25)
        fleet.clock.advance_time(10_000.0)  # what the process held comes again
    fleet.over.set()
    fleet.test_over.set()
    for service, _ in processes:
        service.stop()
    tasks = [task for _, task in processes]
    while not all(task.done() for task in tasks):
        fleet.clock.advance_time(2.0)
        await asyncio.sleep(0.01)
    await asyncio.gather(*tasks)
    return len(processes)


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 40, 120])
async def test_only_the_capture_that_ends_processes_is_a_dead_letter(
    monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    monkeypatch.setattr("pcaplake.worker.service.service.GIVING_BACK", 0.01)

    fleet = MortalFleet()
    bodies = {}
    for i in range(149):
        name = BAD if i == place else f"{i}.pcap"
        bodies[name] = fleet.upload(name, can_capture(10, i))
    async with AsyncExitStack() as stack:
        assert await until_all_are_gone(fleet, stack) == RECEIPTS + 1
    assert fleet.shared.dead == [bodies[BAD]]


# -- whose turn it is -----------------------------------------------------------------------------------------------
class _Held:
    def __init__(self, name: str, count: int, luck: int = 0) -> None:
        self.delivery = Delivery(message_id=name, receipt_handle=name, receive_count=count, sent_at=0.0, body="")
        self.suspect, self.luck = count > 1, luck


def test_a_suspect_begins_when_nothing_else_is_under_way_and_who_came_most_often_is_the_last() -> None:
    new, often, oftener, lucky = _Held("a", 1), _Held("b", 2, 5), _Held("c", 3, 1), _Held("d", 2, 2)
    held = [new, often, oftener, lucky]

    def begin(asked: int = 0) -> list[str]:
        return [one.delivery.message_id for one in held if Suspects.may_begin_work(one, held, asked)]

    assert begin() == ["a"]
    held.remove(new)
    assert begin() == ["d"]
    assert begin(asked=1) == [], "another message may come while it is being read"
    held.remove(lucky)
    assert begin() == ["b"]
    held.remove(often)
    assert begin() == ["c"]


def test_what_a_process_gave_back_itself_is_no_suspect() -> None:
    suspects = Suspects()
    for n in range(FRESH):
        assert suspects.is_receiving_singly, "its forerunner may have died"
        suspects.classify_delivery(_Held(f"new {n}", 1).delivery)
    first = _Held("a", 1).delivery
    assert not suspects.classify_delivery(first)[0]
    suspects.note_given_back(first)
    assert not suspects.classify_delivery(_Held("a", 2).delivery)[0]
    assert not suspects.is_receiving_singly
    assert suspects.classify_delivery(_Held("a", 3).delivery)[0], "somebody else had it in between"
    for n in range(FRESH):
        assert suspects.is_receiving_singly, "those that a dead process held come again together"
        suspects.classify_delivery(_Held(f"newer {n}", 1).delivery)
    assert not suspects.is_receiving_singly, "however short the time was"
    for n in range(REMEMBERED + 1):
        suspects.note_given_back(_Held(str(n), 1).delivery)
    assert suspects.classify_delivery(_Held("0", 2).delivery)[0], "memory is bounded"
    assert not suspects.classify_delivery(_Held("1", 2).delivery)[0]
