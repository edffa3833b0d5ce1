"""What every queue does, whatever the time: the suite that the one in memory and the one in SQS pass alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from pcaplake.worker.service.queue import BatchResult, Delivery, Queue

Send = Callable[[str], None]
Check = Callable[[Queue, Send], Awaitable[None]]


def bodies(deliveries: Sequence[Delivery]) -> set[str]:
    return {one.body for one in deliveries}


async def receive_all(queue: Queue, count: int) -> list[Delivery]:
    """So many deliveries, in however many answers; a queue that has fewer hangs up the test."""
    found: list[Delivery] = []
    while len(found) < count:
        found += await queue.receive(10, 20)
    assert len(found) == count
    return found


async def a_message_is_delivered_and_hidden(queue: Queue, send: Send) -> None:
    assert await queue.receive(10, 0) == []
    send('{"a": "ü€ \\u0001"}')
    (one,) = await queue.receive(10, 20)
    assert one.body == '{"a": "ü€ \\u0001"}'
    assert one.receive_count == 1
    assert one.message_id
    assert await queue.receive(10, 0) == []
    assert await queue.delete([one]) == BatchResult(done=(one,))


async def a_limit_is_kept(queue: Queue, send: Send) -> None:
    for number in range(13):
        send(str(number))
    assert len(await queue.receive(1, 20)) == 1
    assert len(await queue.receive(100, 20)) <= 10


async def released_messages_come_again_with_another_receipt(queue: Queue, send: Send) -> None:
    send("a")
    (first,) = await queue.receive(1, 20)
    await queue.release_message(first, 0)
    (second,) = await queue.receive(1, 20)
    assert (second.message_id, second.receive_count) == (first.message_id, 2)
    assert second.receipt_handle != first.receipt_handle
    assert second.sent_at == first.sent_at
    await queue.release_message(second, 600)
    assert await queue.receive(1, 0) == []


async def batches_of_any_size(queue: Queue, send: Send) -> None:
    names = {f"message {number}" for number in range(37)}
    for name in names:
        send(name)
    deliveries = await receive_all(queue, len(names))
    assert bodies(deliveries) == names
    extended = await queue.change_visibility_timeout(deliveries, 600)
    assert (set(extended.done), extended.lost, extended.failed) == (set(deliveries), (), ())
    attributes = await queue.read_attributes()
    assert (attributes.visible, attributes.in_flight, attributes.delayed) == (0, len(names), 0)
    deleted = await queue.delete(deliveries[:30])
    assert (set(deleted.done), deleted.lost, deleted.failed) == (set(deliveries[:30]), (), ())
    again = await queue.change_visibility_timeout(deliveries[30:], 0)
    assert set(again.done) == set(deliveries[30:])
    assert bodies(await receive_all(queue, 7)) == bodies(deliveries[30:])
    assert await queue.delete([]) == await queue.change_visibility_timeout([], 5) == BatchResult()


async def a_stale_receipt_is_lost_and_the_others_of_its_batch_are_not(queue: Queue, send: Send) -> None:
    for name in "abc":
        send(name)
    old = sorted(await receive_all(queue, 3), key=lambda one: one.body)
    await queue.release_message(old[1], 0)
    (new,) = await queue.receive(1, 20)
    assert new.body == "b"
    extended = await queue.change_visibility_timeout(old, 600)
    assert (set(extended.done), extended.lost, extended.failed) == ({old[0], old[2]}, (old[1],), ())
    deleted = await queue.delete(old)
    assert (set(deleted.done), deleted.lost, deleted.failed) == ({old[0], old[2]}, (old[1],), ())
    assert await queue.delete([new]) == BatchResult(done=(new,))
    assert await queue.receive(10, 0) == []


async def nonsense_is_lost(queue: Queue, send: Send) -> None:
    send("a")
    (good,) = await queue.receive(1, 20)
    bad = Delivery(message_id="none", receipt_handle="bm9uZQ==", receive_count=1, sent_at=0, body="")
    result = await queue.change_visibility_timeout([bad, good], 60)
    assert (result.done, result.lost, result.failed) == ((good,), (bad,), ())


async def what_is_sent_is_delivered(queue: Queue, send: Send) -> None:
    await queue.send([])
    assert await queue.receive(10, 0) == []
    names = [f"message {number} ü€" for number in range(23)]
    await queue.send(names)
    assert bodies(await receive_all(queue, len(names))) == set(names)


EVERY: list[Check] = [
    what_is_sent_is_delivered,
    a_message_is_delivered_and_hidden,
    a_limit_is_kept,
    released_messages_come_again_with_another_receipt,
    batches_of_any_size,
    a_stale_receipt_is_lost_and_the_others_of_its_batch_are_not,
    nonsense_is_lost,
]
