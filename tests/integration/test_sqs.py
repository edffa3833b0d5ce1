"""From a real bucket through a real queue to the bytes of a capture, also when answers are lost, cut and refused."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.ingest.captures.objects import Changed, Gone
from pcaplake.ingest.captures.range_reader import Budget, FetchConfig
from pcaplake.ingest.captures.reference import UNKNOWN_SIZE, ObjectRef, capture_from_reference
from pcaplake.ingest.captures.source import Sources
from pcaplake.worker.service import notification
from pcaplake.worker.service.notification import TEST_EVENT
from pcaplake.worker.service.queue import Delivery
from pcaplake.worker.service.queue.heartbeat import Heartbeats
from pcaplake.worker.service.queue.sqs import SqsQueue
from tests.worker.service.queue import queues

from .conftest import Aws
from .fault_proxy import FaultProxy

DATA = random.Random(1).randbytes(3_000_000)
HTTP = {"allow_http": "true"}
KEYS = ["drives/a.pcap", "a b+ü%20=1&x~(2)'*#?.pcap", "%2B%25/🚗 +.pcapng", "a=1/b:2,c;d@e$f!.gz"]
ODD_KEYS = ["/a", "a//b", "a/", "//"]
CONTROL_KEYS = ["tab\there", "two\nlines", "\x1b[2J", "del\x7f", "\x01/\x1f"]


def name_of(url: str) -> str:
    return url.rpartition("/")[2]


def with_queue(aws: Aws, main: Callable[[SqsQueue, str], Awaitable[None]], **attributes: str) -> None:
    """A new queue, opened by its name; `main` gets its URL too."""
    url = aws.queue(**{"VisibilityTimeout": "60", **attributes})

    async def run() -> None:
        queue = await SqsQueue.open(name_of(url))
        try:
            await main(queue, url)
        finally:
            await queue.close()

    asyncio.run(run())


def sender(aws: Aws, url: str) -> queues.Send:
    def send(body: str) -> None:
        aws.client("sqs").send_message(QueueUrl=url, MessageBody=body)

    return send


@pytest.mark.parametrize("check", queues.EVERY, ids=lambda check: check.__name__)
def test_what_every_queue_does(aws: Aws, check: queues.Check) -> None:
    if aws.engine == "localstack" and "stale" in check.__name__:
        pytest.skip("LocalStack deletes by a stale receipt")
    with_queue(aws, lambda queue, url: check(queue, sender(aws, url)))


def test_a_queue_is_found_by_its_name_or_refused(aws: Aws) -> None:
    async def main(queue: SqsQueue, url: str) -> None:
        assert queue.visibility_timeout == 45
        aws.client("sqs").set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "50"})
        attributes = await queue.read_attributes()
        assert (attributes.visible, queue.visibility_timeout) == (0, 50)
        with pytest.raises(Fatal, match=r"none-at-all.*pcaplake setup"):
            await SqsQueue.open("none-at-all")

    with_queue(aws, main, VisibilityTimeout="45")


async def test_without_a_region(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(Fatal, match="AWS_REGION"):
        await SqsQueue.open("captures")


def test_a_queue_that_is_deleted_under_our_feet(aws: Aws) -> None:
    async def main(queue: SqsQueue, url: str) -> None:
        aws.client("sqs").delete_queue(QueueUrl=url)
        with pytest.raises(Fatal):
            await queue.receive(1, 0)
        with pytest.raises(Fatal):
            await queue.read_attributes()

    with_queue(aws, main)


def test_heartbeats_keep_a_message_hidden(aws: Aws) -> None:
    async def main(queue: SqsQueue, url: str) -> None:
        sender(aws, url)("a")
        (one,) = await queue.receive(1, 20)
        heartbeats = Heartbeats(queue)
        lost: list[Delivery] = []
        heartbeats.watch_delivery(one, lost.append)
        task = asyncio.create_task(heartbeats.run())
        assert await queue.receive(1, 6) == []
        task.cancel()
        (again,) = await queue.receive(1, 20)
        assert (again.message_id, again.receive_count, lost) == (one.message_id, 2, [])
        assert await heartbeats.send_heartbeats()
        assert lost == [one]

    with_queue(aws, main, VisibilityTimeout="3")


async def test_lost_and_refused_answers_of_the_queue(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    url = aws.queue(VisibilityTimeout="1")
    send = sender(aws, url)

    async with FaultProxy(aws.sqs) as proxy, AsyncExitStack() as stack:
        monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", proxy.url)
        queue = await SqsQueue.open(name_of(url))
        stack.push_async_callback(queue.close)
        send("a")
        lost = proxy.add("ReceiveMessage", "drop_response")
        (one,) = await queue.receive(1, 20)  # hidden by the answer that was lost, until the timeout was over
        assert (lost.hits, one.receive_count) == (1, 2)
        proxy.add("ChangeMessageVisibilityBatch", "error", status=503, code="ServiceUnavailable")
        assert (await queue.change_visibility_timeout([one], 60)).done == (one,)
        proxy.add("DeleteMessageBatch", "drop_response")
        result = await queue.delete([one])  # the second time it is gone already, which engines call either way
        assert result.failed == ()
        assert (await queue.read_attributes()).in_flight == 0

        refused = proxy.add("*", "error", times=None, status=503, code="ServiceUnavailable")
        with pytest.raises(Retryable):
            await queue.receive(1, 0)
        with pytest.raises(Retryable):
            await queue.read_attributes()
        assert (await queue.change_visibility_timeout([one], 5)).failed == (one,)
        assert (await queue.delete([one])).failed == (one,)
        assert refused.hits >= 12  # each of them was tried three times
        proxy.clear()
        proxy.add("ReceiveMessage", "error", status=400, code="AccessDenied")
        with pytest.raises(Fatal, match="pcaplake setup"):
            await queue.receive(1, 0)


# -- notifications and captures ---------------------------------------------------------------------------------------
def notified(aws: Aws, bucket: str, *events: str) -> str:
    """The URL of a new queue that the bucket sends its events to."""
    url = aws.queue(VisibilityTimeout="60")
    configuration = {"QueueArn": aws.queue_arn(url), "Events": list(events)}
    aws.client("s3").put_bucket_notification_configuration(
        Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [configuration]}
    )
    return url


async def notifications(url: str, count: int) -> list[notification.Notification]:
    """So many of them, without those of the test."""
    queue = await SqsQueue.open(name_of(url))
    found: list[notification.Notification] = []
    try:
        while len(found) < count:
            deliveries = await queue.receive(10, 20)
            parsed = [notification.parse_notification(one.body) for one in deliveries]
            found += [one for one in parsed if TEST_EVENT not in one.ignored]
            await queue.delete(deliveries)
    finally:
        await queue.close()
    assert len(found) == count
    return found


async def read(sources: Sources, ref: ObjectRef, **given: Any) -> bytes:
    async with await sources.open_range_reader(ref, **given) as body:
        return await asyncio.to_thread(body.read)


async def test_from_the_bucket_to_the_bytes(aws: Aws) -> None:
    bucket = aws.bucket()
    url = notified(aws, bucket, "s3:ObjectCreated:*")
    etags = {}
    for number, key in enumerate(KEYS):
        put = aws.client("s3").put_object(Bucket=bucket, Key=key, Body=DATA[: 1000 * number])
        etags[f"s3://{bucket}/{key}"] = put["ETag"].strip('"')

    sources, budget = Sources(HTTP), Budget(1 << 20)
    refs = [ref for one in await notifications(url, len(KEYS)) for ref in one.objects]
    assert {ref.uri: ref.etag for ref in refs} == etags
    for ref in refs:
        number = KEYS.index(ref.uri.removeprefix(f"s3://{bucket}/"))
        assert await read(sources, ref, budget=budget) == DATA[: 1000 * number]
        unknown = ObjectRef(uri=ref.uri, size=UNKNOWN_SIZE, explicit=True)
        resolved = capture_from_reference(await sources.resolve_reference(unknown))
        assert resolved.modified is not None
        # a HEAD knows whole seconds and no sequencer
        announced = replace(capture_from_reference(ref), modified=resolved.modified, sequencer=None)
        assert resolved == announced
    assert budget.used == 0


async def test_keys_that_obstore_cannot_name(aws: Aws) -> None:
    """`a` is another object than `/a` and `a/`, and so is `a//b` than `a/b`."""
    bucket, s3 = aws.bucket(), aws.client("s3")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    url = notified(aws, bucket, "s3:ObjectCreated:*")
    for number, key in enumerate(ODD_KEYS, 1):
        s3.put_object(Bucket=bucket, Key=key, Body=DATA[: 1000 * number])
    for key in ("a", "a/b"):
        s3.put_object(Bucket=bucket, Key=key, Body=b"another")

    refs = {r.uri: r for one in await notifications(url, len(ODD_KEYS) + 2) for r in one.objects}
    for number, key in enumerate(ODD_KEYS, 1):
        ref = refs[f"s3://{bucket}/{key}"]
        assert await read(Sources(HTTP), ref, fetch_config=FetchConfig(chunk_bytes=700)) == DATA[: 1000 * number]
        unknown = ObjectRef(uri=ref.uri, size=UNKNOWN_SIZE, explicit=True)
        assert (
            capture_from_reference(await Sources(HTTP).resolve_reference(unknown)).capture_id
            == capture_from_reference(ref).capture_id
        )
    ref = refs[f"s3://{bucket}/{ODD_KEYS[0]}"]
    s3.put_object(Bucket=bucket, Key=ODD_KEYS[0], Body=b"overwritten")
    plain = ObjectRef(uri=ref.uri, size=ref.size, explicit=True, etag=ref.etag)
    with pytest.raises(Changed):
        await read(Sources(HTTP), plain)
    assert await read(Sources(HTTP), ref) == DATA[:1000]
    s3.delete_object(Bucket=bucket, Key=ODD_KEYS[0])
    with pytest.raises(Gone):
        await read(Sources(HTTP), plain)
    nowhere = ObjectRef(uri="s3://no-such-bucket-at-all//a", size=10, explicit=True, etag="x")
    with pytest.raises(Retryable):
        await read(Sources(HTTP), nowhere, fetch_config=FetchConfig(attempts=1))


async def test_keys_with_control_characters(aws: Aws) -> None:
    """S3 allows them, obstore does not."""
    bucket = aws.bucket()
    for number, key in enumerate(CONTROL_KEYS, 1):
        aws.client("s3").put_object(Bucket=bucket, Key=key, Body=DATA[: 1000 * number])

    for number, key in enumerate(CONTROL_KEYS, 1):
        ref = ObjectRef(uri=f"s3://{bucket}/{key}", size=UNKNOWN_SIZE, explicit=True)
        assert await read(Sources(HTTP), ref, fetch_config=FetchConfig(chunk_bytes=700)) == DATA[: 1000 * number]


async def test_removed_and_wrapped_by_sns(aws: Aws) -> None:
    bucket = aws.bucket()
    url = notified(aws, bucket, "s3:ObjectCreated:*", "s3:ObjectRemoved:*")
    aws.client("s3").put_object(Bucket=bucket, Key="a", Body=b"x")
    aws.client("s3").delete_object(Bucket=bucket, Key="a")
    found = await notifications(url, 2)
    assert sorted(len(one.objects) for one in found) == [0, 1]
    assert {"ObjectRemoved:Delete": 1} in [one.ignored for one in found]

    sns = aws.client("sns", endpoint=aws.sqs)
    body = json.dumps({"Records": [{"eventName": "ObjectRemoved:Delete"}]})
    for raw in ("false", "true"):
        topic = sns.create_topic(Name=aws.name("topic"))["TopicArn"]
        wrapped = aws.queue()
        sns.subscribe(
            TopicArn=topic,
            Protocol="sqs",
            Endpoint=aws.queue_arn(wrapped),
            Attributes={"RawMessageDelivery": raw},
        )
        sns.publish(TopicArn=topic, Message=body)
        (one,) = await notifications(wrapped, 1)
        assert one.ignored == {"ObjectRemoved:Delete": 1}


async def test_versioned_overwritten_and_vanished(aws: Aws) -> None:
    bucket, s3 = aws.bucket(), aws.client("s3")
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    url = notified(aws, bucket, "s3:ObjectCreated:*")
    s3.put_object(Bucket=bucket, Key="a", Body=DATA)
    (one,) = await notifications(url, 1)
    (ref,) = one.objects
    assert ref.version_id
    s3.put_object(Bucket=bucket, Key="a", Body=DATA[::-1])
    s3.delete_object(Bucket=bucket, Key="a")
    sources = Sources(HTTP)

    async def main() -> None:
        given = FetchConfig(chunk_bytes=1 << 20)
        assert await read(sources, ref, fetch_config=given) == DATA
        plain = ObjectRef(uri=ref.uri, size=ref.size, explicit=True, etag=ref.etag)
        with pytest.raises(Gone):
            await read(sources, plain, fetch_config=given)
        s3.put_object(Bucket=bucket, Key="a", Body=DATA[::-1])
        with pytest.raises(Changed):
            await read(sources, plain, fetch_config=given)
        again = s3.put_object(Bucket=bucket, Key="a", Body=DATA)
        s3.delete_object(Bucket=bucket, Key="a", VersionId=ref.version_id)
        assert await read(sources, ref, fetch_config=given) == DATA  # it is there once more, and nobody else reads that
        s3.delete_object(Bucket=bucket, Key="a", VersionId=again["VersionId"])
        with pytest.raises(Gone):
            await read(sources, ref, fetch_config=given)
        with pytest.raises(Gone):
            await sources.resolve_reference(ObjectRef(uri=f"s3://{bucket}/none", size=UNKNOWN_SIZE, explicit=True))
        nowhere = ObjectRef(uri="s3://no-such-bucket-at-all/a", size=10, explicit=True, etag="x")
        with pytest.raises(Retryable, match="does not say that the object is missing"):
            await read(sources, nowhere, fetch_config=FetchConfig(attempts=1))

    await main()


async def test_cut_lost_and_refused_answers_of_the_bucket(aws: Aws) -> None:
    bucket = aws.bucket()
    put = aws.client("s3").put_object(Bucket=bucket, Key="a", Body=DATA)
    ref = ObjectRef(uri=f"s3://{bucket}/a", size=len(DATA), explicit=True, etag=put["ETag"].strip('"'))

    async with FaultProxy(aws.s3) as proxy:
        sources = Sources({**HTTP, "endpoint": proxy.url})
        given = FetchConfig(chunk_bytes=1 << 20, first_pause=0.01)
        rules = [
            proxy.add("GetObject", "truncate", times=5),
            proxy.add("GetObject", "drop_response", times=3),
            proxy.add("GetObject", "error", times=2, status=503, code="SlowDown"),
            proxy.add("GetObject", "drop_request", times=3),
        ]
        assert await read(sources, ref, fetch_config=given) == DATA
        assert [rule.hits for rule in rules] == [5, 3, 2, 3]
        proxy.clear()
        proxy.add("GetObject", "error", times=None, status=403, code="AccessDenied")
        with pytest.raises(Retryable):  # of one object: says nothing about the others
            await read(sources, ref, fetch_config=FetchConfig(attempts=1))
