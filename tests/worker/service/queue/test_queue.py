"""The queue in memory keeps the promises of the port; heartbeats keep messages hidden for as long as they may."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from pcaplake.common.errors import Fatal, OutcomeUnknown, Retryable
from pcaplake.worker.service.queue import LONGEST_VISIBILITY, Attributes, BatchResult, Delivery
from pcaplake.worker.service.queue.heartbeat import CAP, Heartbeats
from tests.worker.adapters.faults import Faults, Killed
from tests.worker.adapters.queue import FakeClock, MemoryQueue
from tests.worker.service.queue import queues


async def turns(times: int = 20) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


async def delivered(queue: MemoryQueue, *names: str) -> list[Delivery]:
    for name in names:
        queue.put_message(name)
    return await queues.receive_all(queue, len(names))


# -- in memory --------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@pytest.mark.parametrize("check", queues.EVERY, ids=lambda check: check.__name__)
async def test_what_every_queue_does(check: queues.Check) -> None:
    queue = MemoryQueue(FakeClock(1000.0))
    await check(queue, lambda body: str(queue.put_message(body)) and None)


async def test_what_is_not_deleted_comes_again() -> None:
    clock = FakeClock()
    queue = MemoryQueue(clock, visibility_timeout=30)
    (first,) = await delivered(queue, "a")
    clock.advance_time(29.5)
    assert await queue.receive(1, 0) == []
    assert await queue.change_visibility_timeout([first], 30) == BatchResult(done=(first,))
    clock.advance_time(29.5)
    assert await queue.receive(1, 0) == []
    clock.advance_time(0.5)
    assert await queue.change_visibility_timeout([first], 30) == BatchResult(
        lost=(first,)
    )  # too late, though nobody has it yet
    assert await queue.read_attributes() == Attributes(visible=1, in_flight=0, delayed=0)
    (second,) = await queue.receive(1, 0)
    assert (second.receive_count, second.sent_at) == (2, 0)
    assert await queue.delete([first]) == BatchResult(lost=(first,))
    assert len(queue) == 1
    assert await queue.delete([second, second]) == BatchResult(done=(second, second))
    assert len(queue) == 0


async def test_a_long_poll_waits_for_a_message_or_its_time() -> None:
    clock = FakeClock()
    queue = MemoryQueue(clock)
    poll = asyncio.create_task(queue.receive(10, 20))
    await turns()
    assert not poll.done()
    queue.put_message("a")
    assert queues.bodies(await poll) == {"a"}
    poll = asyncio.create_task(queue.receive(10, 20))
    queue.put_message("late", delay=19)
    await turns()
    clock.advance_time(19)
    assert queues.bodies(await poll) == {"late"}
    poll = asyncio.create_task(queue.receive(10, 10))
    await turns()
    clock.advance_time(9.9)
    await turns()
    assert not poll.done()
    clock.advance_time(0.1)
    assert await poll == []
    assert await queue.read_attributes() == Attributes(visible=0, in_flight=2, delayed=0)


async def test_dead_letters_and_their_return() -> None:
    clock = FakeClock()
    queue = MemoryQueue(clock, max_receives=2)
    queue.put_message("a")
    for count in (1, 2):
        (one,) = await queue.receive(1, 0)
        assert one.receive_count == count
        clock.advance_time(30)
    assert await queue.receive(1, 0) == []
    assert (queue.dead, len(queue)) == (["a"], 0)
    queue.redrive_dead_letters()
    (again,) = await queue.receive(1, 0)
    assert (again.body, again.receive_count, again.sent_at) == ("a", 1, 60)
    assert again.message_id != one.message_id
    assert queue.dead == []


async def test_faults() -> None:
    clock, faults = FakeClock(), Faults()
    queue = MemoryQueue(clock, faults=faults)
    queue.put_message("a")
    faults.inject_fault("queue.receive", "error")
    with pytest.raises(Retryable):
        await queue.receive(1, 0)
    faults.inject_fault("queue.receive", "lost")
    with pytest.raises(OutcomeUnknown):
        await queue.receive(1, 0)
    assert await queue.receive(1, 0) == []  # it was on its way to us
    clock.advance_time(30)
    (one,) = await queue.receive(1, 0)
    assert one.receive_count == 2
    faults.inject_fault(f"queue.delete {one.message_id}", "error")
    assert await queue.delete([one]) == BatchResult(failed=(one,))
    assert len(queue) == 1
    faults.inject_fault(f"queue.delete {one.message_id}", "lost")
    assert await queue.delete([one]) == BatchResult(failed=(one,))
    assert len(queue) == 0
    others = await delivered(queue, "b", "c")
    crashing = Faults()
    crashing.inject_fault(f"queue.delete {others[1].message_id}", "dead before")
    with pytest.raises(Killed):
        await queue.as_process(crashing).delete(others)
    assert len(queue) == 1
    assert faults.seen.count("queue.receive") == 5


async def test_some_of_what_is_sent_may_be_there_when_sending_fails() -> None:
    faults = Faults()
    queue = MemoryQueue(FakeClock(), faults=faults)
    crashing = Faults()
    crashing.inject_fault("queue.send", "dead after")
    with pytest.raises(Killed):
        await queue.as_process(crashing).send([str(number) for number in range(20)])
    assert len(queue) == 10
    faults.inject_fault("queue.send", "error")
    with pytest.raises(Retryable):
        await queue.send(["x"])
    assert len(queue) == 10
    faults.inject_fault("queue.send", "lost")
    with pytest.raises(OutcomeUnknown):
        await queue.send(["x"])
    assert len(queue) == 11


async def test_processes_share_messages_and_their_numbers() -> None:
    queue = MemoryQueue(FakeClock())
    other = queue.as_process(Faults())
    ids = {queue.put_message("a"), other.put_message("b"), queue.put_message("c")}
    assert len(ids) == 3
    assert len(await other.receive(10, 0)) == 3
    assert await queue.receive(10, 0) == []


# -- heartbeats -------------------------------------------------------------------------------------------------------
def beating(queue: MemoryQueue, clock: FakeClock, **given: Any) -> Heartbeats:
    return Heartbeats(queue, clock=clock.time, sleep=clock.sleep, **{"uniform": lambda low, high: 1.0, **given})


async def test_messages_stay_hidden_as_long_as_they_are_watched() -> None:
    clock = FakeClock()
    queue = MemoryQueue(clock, visibility_timeout=30)
    heartbeats = beating(queue, clock)
    lost: list[Delivery] = []
    deliveries = await delivered(queue, *map(str, range(25)))
    for one in deliveries:
        heartbeats.watch_delivery(one, lost.append)
    task = asyncio.create_task(heartbeats.run())
    for _ in range(100):
        await turns()
        clock.advance_time(9)
        assert await queue.receive(10, 0) == []
    heartbeats.forget_delivery(deliveries[0])
    heartbeats.forget_delivery(deliveries[0])
    assert len(heartbeats) == 24
    for _ in range(3):
        await turns()
        clock.advance_time(10)
    assert queues.bodies(await queue.receive(10, 0)) == {deliveries[0].body}
    assert lost == []
    task.cancel()


async def test_every_third_of_the_timeout_with_jitter() -> None:
    asked: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return high

    clock, slept = FakeClock(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 4:
            raise asyncio.CancelledError
        clock.advance_time(seconds)

    faults = Faults()
    queue = MemoryQueue(clock, visibility_timeout=60, faults=faults)
    heartbeats = Heartbeats(queue, clock=clock.time, sleep=sleep, uniform=uniform)
    (one,) = await delivered(queue, "a")
    heartbeats.watch_delivery(one, lambda _: None)
    faults.inject_fault("queue.extend *", "error")
    with pytest.raises(asyncio.CancelledError):
        await heartbeats.run()
    assert set(asked) == {(0.9, 1.1)}
    assert slept == pytest.approx([22, 5.5, 22, 22])  # sooner after one that failed


async def test_who_lost_a_message_is_told_once() -> None:
    clock = FakeClock()
    queue = MemoryQueue(clock, visibility_timeout=30)
    heartbeats = beating(queue, clock)
    lost: Counter[str] = Counter()
    kept, gone, deleted = await delivered(queue, "kept", "gone", "deleted")
    for one in (kept, gone, deleted):
        heartbeats.watch_delivery(one, lambda one: lost.update([one.body]))
    await queue.release_message(gone, 0)
    await queue.receive(1, 0)
    await queue.delete([deleted])
    assert await heartbeats.send_heartbeats()
    assert await heartbeats.send_heartbeats()
    assert lost == {"gone": 1, "deleted": 1}
    assert len(heartbeats) == 1


async def test_frozen_for_longer_than_the_timeout() -> None:
    clock = FakeClock()
    queue = MemoryQueue(clock, visibility_timeout=30)
    heartbeats = beating(queue, clock)
    lost: list[Delivery] = []
    (one,) = await delivered(queue, "a")
    heartbeats.watch_delivery(one, lost.append)
    task = asyncio.create_task(heartbeats.run())
    await turns()
    clock.advance_time(3600)
    await turns()
    assert lost == [one]
    task.cancel()


async def test_finished_while_its_heartbeat_was_on_its_way() -> None:
    clock = FakeClock()
    lost: list[Delivery] = []

    class Slow(MemoryQueue):
        async def change_visibility_timeout(self, deliveries: Any, seconds: float) -> BatchResult:
            await self.delete(deliveries)
            heartbeats.forget_delivery(deliveries[0])
            return await super().change_visibility_timeout(deliveries, seconds)

    queue = Slow(clock)
    heartbeats = beating(queue, clock)
    (one,) = await delivered(queue, "a")
    heartbeats.watch_delivery(one, lost.append)
    assert await heartbeats.send_heartbeats()
    assert (lost, len(heartbeats)) == ([], 0)


@pytest.mark.parametrize(("cap", "visibility"), [(100.0, 30), (3600.0, 7200), (10**9, 6 * 3600), (CAP, 30)])
async def test_no_longer_than_the_cap(cap: float, visibility: float) -> None:
    """Up to the cap it is hidden, and never beyond what the queue allows: no extension of it is refused."""

    clock = FakeClock()

    class Exact(MemoryQueue):
        async def change_visibility_timeout(self, deliveries: Any, seconds: float) -> BatchResult:
            assert 0 < seconds <= visibility
            return await super().change_visibility_timeout(deliveries, seconds)

    queue = Exact(clock, visibility_timeout=visibility)
    heartbeats = beating(queue, clock, cap=cap)
    lost: list[float] = []
    (one,) = await delivered(queue, "a")
    heartbeats.watch_delivery(one, lambda _: lost.append(clock.now))
    task = asyncio.create_task(heartbeats.run())
    most = min(cap, CAP)
    while clock.now < most - visibility / 3:
        await turns(3)
        clock.advance_time(visibility / 3)
        assert lost == []
        assert await queue.receive(1, 0) == []
    while not lost:
        await turns(3)
        clock.advance_time(visibility / 3)
        await turns(3)
    assert most <= lost[0] <= most + visibility / 3 + 1
    assert len(heartbeats) == 0
    assert len(await queue.receive(1, visibility)) == 1
    assert most < LONGEST_VISIBILITY
    task.cancel()


async def test_no_permission_ends_the_heartbeats() -> None:
    clock = FakeClock()

    class Forbidden(MemoryQueue):
        async def change_visibility_timeout(self, deliveries: Any, seconds: float) -> BatchResult:
            raise Fatal("not allowed")

    queue = Forbidden(clock)
    heartbeats = beating(queue, clock)
    (one,) = await delivered(queue, "a")
    heartbeats.watch_delivery(one, lambda _: None)
    task = asyncio.create_task(heartbeats.run())
    await turns()
    clock.advance_time(10)
    with pytest.raises(Fatal):
        await task
