"""Every byte once and in order, whatever is cut, refused or closed; never more in memory than was reserved."""

from __future__ import annotations

import asyncio
import gzip
import random
import re
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore import put

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.ingest.captures import range_reader as fetch
from pcaplake.ingest.captures.objects import Changed, Content, Gone, Refused, StoredObjects
from pcaplake.ingest.captures.objects_signed import SignedObjects
from pcaplake.ingest.captures.range_reader import Budget, FetchConfig, RangeReader
from pcaplake.ingest.captures.reference import UNKNOWN_SIZE, ObjectRef, capture_from_reference
from pcaplake.ingest.captures.source import RemoteFile, Sources
from pcaplake.lake.store.object_store import ObjectStore
from pcaplake.lake.store.store import Store
from pcaplake.parser.capture.compression import DecompressedStream
from pcaplake.worker.service import notification
from tests.worker.adapters.faults import Faults
from tests.worker.adapters.queue import MemoryBucket

DATA = bytes(n * 7 % 251 for n in range(10_000))


class Pauses:
    """A `sleep` that takes no time."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


def fetch_config(**given: Any) -> FetchConfig:
    return FetchConfig(**{"chunk_bytes": 1000, "ahead": 3, "sleep": Pauses(), **given})


class Gated:
    """A bucket of one object whose answers wait for `open`; it counts what is asked for and not read yet."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.content = Content(key="a", size=len(data), etag="e")
        self.asked: list[int] = []
        self.ended: list[int] = []
        self.open = asyncio.Event()

    async def head_object(self, key: str, version_id: str | None = None) -> Content:
        return self.content

    async def read_range(self, content: Content, start: int, end: int) -> AsyncIterator[memoryview]:
        self.asked.append(start)
        try:
            await self.open.wait()
            yield memoryview(self.data[start:end])
        finally:
            self.ended.append(start)


class Failing(Gated):
    """Gives what `plan` says, one entry for a request: an exception to raise, or the bytes to give at most."""

    def __init__(self, *plan: BaseException | int, data: bytes = DATA) -> None:
        super().__init__(data)
        self.plan = list(plan)

    async def read_range(self, content: Content, start: int, end: int) -> AsyncIterator[memoryview]:
        self.asked.append(start)
        step = self.plan.pop(0) if self.plan else end - start
        if isinstance(step, BaseException):
            raise step
        yield memoryview(self.data[start : start + step])


async def turns(times: int = 20) -> None:
    """Let everybody who can go on do so."""
    for _ in range(times):
        await asyncio.sleep(0)


async def nothing_runs() -> bool:
    await turns()
    return asyncio.all_tasks() == {asyncio.current_task()}


# -- bodies -----------------------------------------------------------------------------------------------------------
@pytest.mark.slow
@settings(max_examples=40)
@given(
    st.integers(0, 5000),
    st.integers(1, 2000),
    st.integers(1, 5),
    st.booleans(),
    st.lists(st.integers(1, 3000), min_size=1, max_size=5),
    st.lists(st.sampled_from(["error", "lost"]), max_size=6),
)
def test_all_bytes_in_order(
    size: int, chunk_bytes: int, ahead: int, eager: bool, reads: list[int], kinds: list[Any]
) -> None:
    """Whatever the sizes are; answers are refused or cut here and there."""
    faults = Faults()
    bucket = MemoryBucket(faults=faults)
    bucket.put_object("a", DATA[:size])
    for kind in kinds:
        faults.inject_fault("bucket.read *", kind)

    def read(body: RangeReader) -> bytes:
        got, turn = b"", 0
        while part := body.read(reads[turn % len(reads)]):
            got, turn = got + part, turn + 1
        return got

    async def run() -> None:
        budget = Budget(100)
        given = fetch_config(chunk_bytes=chunk_bytes, ahead=ahead, eager=eager, attempts=10)
        content = await bucket.head_object("a")
        async with await RangeReader.open(bucket, content, fetch_config=given, budget=budget) as body:
            assert budget.used == min(size, chunk_bytes * ahead)
            assert await asyncio.to_thread(read, body) == DATA[:size]
        assert budget.used == 0
        assert await nothing_runs()

    asyncio.run(run())


async def test_as_many_ranges_at_once_as_may_be_in_memory() -> None:
    objects = Gated()
    async with await RangeReader.open(objects, objects.content, fetch_config=fetch_config()) as body:
        await turns()
        assert objects.asked == [0, 1000, 2000]
        objects.open.set()
        await body.wait_until_ready()
        assert await asyncio.to_thread(body.read, 999) == DATA[:999]
        await turns()
        assert objects.asked == [0, 1000, 2000]
        assert await asyncio.to_thread(body.read, 10) == DATA[999:1000]
        await turns()
        assert objects.asked == [0, 1000, 2000]  # of the first chunk there may be something left
        assert await asyncio.to_thread(body.read, 10) == DATA[1000:1010]
        await turns()
        assert objects.asked == [0, 1000, 2000, 3000]


async def test_who_only_looks_at_the_beginning_fetches_no_more() -> None:
    objects = Gated()
    objects.open.set()
    async with await RangeReader.open(objects, objects.content, fetch_config=fetch_config(eager=False)) as body:
        assert await asyncio.to_thread(body.read, 4) == DATA[:4]
        await turns()
        assert objects.asked == [0]
        body.rewind()
        for _ in range(2):
            assert len(await asyncio.to_thread(body.read, 1000)) == 1000
        await turns()
        assert objects.asked == [0, 1000, 2000]  # twice as many as before
        body.rewind()
        assert await asyncio.to_thread(body.read) == DATA
        assert sorted(set(objects.asked)) == list(range(0, 10_000, 1000))


@pytest.mark.parametrize("first", [0, 1, 1000, 1001, 4500, 10_000, 20_000])
@pytest.mark.parametrize("size", [300, 1000, 10_000])
async def test_rewind_from_anywhere(first: int, size: int) -> None:
    objects = Gated(DATA[:size])
    objects.open.set()
    async with await RangeReader.open(objects, objects.content, fetch_config=fetch_config(eager=False)) as body:

        def twice() -> tuple[bytes, bytes]:
            got = b""
            while len(got) < first and (part := body.read(first - len(got))):
                got += part
            body.rewind()
            return got, body.readall()

        assert await asyncio.to_thread(twice) == (DATA[: min(first, size)], DATA[:size])
    assert await nothing_runs()


async def test_what_is_missing_after_a_cut_is_asked_for_again_and_only_that() -> None:
    objects = Failing(600, 0, Retryable("cut"), 300)
    async with await RangeReader.open(objects, objects.content, fetch_config=fetch_config(ahead=1)) as body:
        assert await asyncio.to_thread(body.read) == DATA
        assert objects.asked == [0, 600, 600, 600, 900, *range(1000, 10_000, 1000)]


async def test_every_byte_that_comes_is_a_new_chance() -> None:
    cut = Retryable("cut")
    objects = Failing(*[cut] * 4, 100, *[cut] * 3, 100, *[cut] * 3)
    async with await RangeReader.open(objects, objects.content, fetch_config=fetch_config(ahead=1, attempts=5)) as body:
        assert await asyncio.to_thread(body.read) == DATA
        assert objects.plan == []


async def test_pauses_grow_and_end() -> None:
    objects = Failing(*[Retryable("cut")] * 6)
    pauses = Pauses()
    given = fetch_config(ahead=1, attempts=6, first_pause=1.0, longest_pause=4.0, sleep=pauses)
    async with await RangeReader.open(objects, objects.content, fetch_config=given) as body:
        for _ in range(2):  # and once refused it stays refused
            with pytest.raises(Retryable, match="cannot fetch bytes 0 to 1000 of 10000: cut"):
                await asyncio.to_thread(body.read, 10)
        with pytest.raises(Retryable, match="cannot fetch"):
            await body.wait_until_ready()
        assert len(objects.asked) == 6
    assert len(pauses.taken) == 5
    assert all(0 <= taken <= most for taken, most in zip(pauses.taken, [1, 2, 4, 4, 4], strict=True))


async def test_more_than_was_asked_for_is_refused() -> None:
    objects = Failing(1001)
    async with await RangeReader.open(objects, objects.content, fetch_config=fetch_config(ahead=1)) as body:
        with pytest.raises(Retryable, match="cannot fetch"):
            await asyncio.to_thread(body.read, 10)


async def test_a_refusal_is_told_as_one() -> None:
    objects = Failing(*[Refused("not you")] * 3)
    async with await RangeReader.open(objects, objects.content, fetch_config=fetch_config(ahead=1, attempts=3)) as body:
        with pytest.raises(Refused, match=r"cannot fetch .*: not you"):
            await body.wait_until_ready()


@pytest.mark.parametrize("error", [Gone("gone"), Changed("changed")])
async def test_gone_and_changed_are_told_at_once_and_again(error: Exception) -> None:
    objects = Failing(1000, error)
    async with await RangeReader.open(objects, objects.content, fetch_config=fetch_config(ahead=1)) as body:
        await body.wait_until_ready()
        assert await asyncio.to_thread(body.read, 1000) == DATA[:1000]
        for _ in range(3):
            with pytest.raises(type(error), match=str(error)):
                await asyncio.to_thread(body.read, 1000)
        assert objects.asked == [0, 1000]


@pytest.mark.parametrize("error", [RuntimeError("x"), EOFError("x"), TimeoutError("x"), OSError("x"), KeyError("x")])
async def test_an_unknown_error_is_no_end_of_the_capture(error: Exception) -> None:
    """A decoder takes EOFError and RuntimeError of what unpacks for the end of a packed stream."""

    packed = gzip.compress(random.Random(1).randbytes(9000), mtime=0)
    objects = Failing(1000, error, data=packed)
    async with await RangeReader.open(objects, objects.content, fetch_config=fetch_config(ahead=1)) as body:
        stream = await asyncio.to_thread(DecompressedStream, body)  # type: ignore[arg-type]
        with pytest.raises(Retryable, match="x"):
            await asyncio.to_thread(stream.fill_buffer, memoryview(bytearray(9000)))
        assert stream.broken is None


async def test_closing_leaves_nothing_running() -> None:
    objects, budget = Gated(), Budget(10_000)
    body = await RangeReader.open(objects, objects.content, fetch_config=fetch_config(), budget=budget)
    reading = asyncio.create_task(asyncio.to_thread(body.read, 10))
    await turns()
    assert (budget.used, len(objects.asked)) == (3000, 3)
    await body.aclose()
    assert (budget.used, sorted(objects.ended)) == (0, [0, 1000, 2000])
    with pytest.raises(Retryable, match="was ended"):
        await reading
    with pytest.raises(Retryable, match="was ended"):
        await body.wait_until_ready()
    with pytest.raises(ValueError, match="closed"):
        body.read(1)
    await body.aclose()
    assert budget.used == 0
    assert await nothing_runs()


async def test_memory_is_given_back_when_nobody_can_write_to_it_any_more() -> None:
    class Slow(Gated):
        async def read_range(self, content: Content, start: int, end: int) -> AsyncIterator[memoryview]:
            try:
                await asyncio.Event().wait()
            finally:
                await self.open.wait()
            yield memoryview(b"")

    objects, budget = Slow(), Budget(10_000)
    body = await RangeReader.open(objects, objects.content, fetch_config=fetch_config(), budget=budget)
    await turns()
    body.close()
    await turns()
    assert budget.used == 3000
    closing = asyncio.create_task(body.aclose())
    await turns()
    assert not closing.done()
    objects.open.set()
    await closing
    assert budget.used == 0


async def test_closed_by_its_reader_and_before_it_began() -> None:
    objects, budget = Gated(), Budget(10_000)
    body = await RangeReader.open(objects, objects.content, fetch_config=fetch_config(), budget=budget)
    await body.aclose()
    assert (objects.asked, budget.used) == ([], 0)
    body = await RangeReader.open(objects, objects.content, fetch_config=fetch_config(), budget=budget)
    await turns()
    await asyncio.to_thread(body.close)
    await turns()
    assert (budget.used, len(objects.ended)) == (0, 3)
    assert await nothing_runs()


def test_a_reader_outlives_its_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_LOOP_CHECK", 0.01)

    async def opened() -> RangeReader:
        objects = Gated()
        objects.open.set()
        body = await RangeReader.open(objects, objects.content, fetch_config=fetch_config(ahead=1))
        await body.wait_until_ready()
        return body

    body = asyncio.run(opened())
    assert body.read(1000) == DATA[:1000]
    with pytest.raises(Retryable, match="the event loop that fetches it is closed"):
        body.read(1)
    body.close()


async def test_who_is_cancelled_while_it_waits_for_memory_takes_none() -> None:
    objects, budget = Gated(), Budget(3000)
    async with await RangeReader.open(objects, objects.content, fetch_config=fetch_config(), budget=budget):
        waiting = asyncio.create_task(
            RangeReader.open(objects, objects.content, fetch_config=fetch_config(), budget=budget)
        )
        await turns()
        assert (budget.waiting_count, len(objects.asked)) == (1, 3)
        waiting.cancel()
        await turns()
        assert (budget.waiting_count, budget.used, len(objects.asked)) == (0, 3000, 3)


# -- the budget -------------------------------------------------------------------------------------------------------
async def test_first_come_first_served() -> None:
    budget, order = Budget(10), list[str]()

    async def take(name: str, size: int) -> None:
        await budget.acquire_bytes(size)
        order.append(name)

    await budget.acquire_bytes(6)
    tasks = [asyncio.create_task(take(name, size)) for name, size in (("large", 8), ("small", 1), ("other", 1))]
    await turns()
    assert (order, budget.waiting_count) == ([], 3)  # the small ones would fit, and wait for their turn
    budget.release_bytes(6)
    await turns()
    assert (order, budget.used) == (["large", "small", "other"], 10)
    await asyncio.gather(*tasks)


async def test_what_is_larger_than_everything_goes_alone() -> None:
    budget = Budget(10)
    await budget.acquire_bytes(1)
    large = asyncio.create_task(budget.acquire_bytes(50))
    behind = asyncio.create_task(budget.acquire_bytes(1))
    await turns()
    assert not large.done()
    budget.release_bytes(1)
    await turns()
    assert (large.done(), behind.done(), budget.used) == (True, False, 50)
    budget.release_bytes(50)
    await behind
    assert budget.used == 1


@pytest.mark.parametrize("granted", [False, True])
async def test_cancelled_in_the_queue(granted: bool) -> None:
    """Also in the moment in which its turn has come and it does not know yet."""

    budget = Budget(10)
    await budget.acquire_bytes(5)
    first = asyncio.create_task(budget.acquire_bytes(10))
    behind = asyncio.create_task(budget.acquire_bytes(2))
    await turns()
    if granted:
        budget.release_bytes(5)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await behind
    assert (budget.used, budget.waiting_count) == (2 if granted else 7, 0)


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 3), st.booleans()), max_size=30), st.integers(1, 10))
def test_never_more_than_there_is(jobs: list[tuple[int, int, bool]], limit: int) -> None:
    async def run() -> None:
        budget, running = Budget(limit), list[int]()

        async def job(size: int, length: int) -> None:
            await budget.acquire_bytes(size)
            try:
                running.append(size)
                assert sum(running) <= limit or [one for one in running if one] == [max(running)]
                await turns(length)
            finally:
                running.remove(size)
                budget.release_bytes(size)

        tasks = [asyncio.create_task(job(size, length)) for size, length, _ in jobs]
        await turns(1)
        for task, (_, _, cancel) in zip(tasks, jobs, strict=True):
            if cancel:
                task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends)
        assert (budget.used, budget.waiting_count) == (0, 0)

    asyncio.run(run())


# -- sources ----------------------------------------------------------------------------------------------------------
async def test_from_a_message_to_its_bytes() -> None:
    faults = Faults()
    bucket = MemoryBucket(faults=faults)
    message = bucket.put_object("drives/a b+ü%.pcap", DATA)
    (ref,) = notification.parse_notification(message).objects
    sources = Sources(buckets={"s3://raw": bucket})
    assert await sources.resolve_reference(ref) is ref
    async with await sources.open_range_reader(ref, fetch_config=fetch_config()) as body:
        assert await asyncio.to_thread(body.read) == DATA
    assert not any("head" in point for point in faults.seen)
    named = capture_from_reference(ref)
    assert (named.uri, named.etag, named.size) == ("s3://raw/drives/a b+ü%.pcap", ref.etag, len(DATA))


async def test_what_the_message_did_not_say_is_asked_for() -> None:
    bucket = MemoryBucket()
    (known,) = notification.parse_notification(bucket.put_object("a", DATA)).objects
    sources = Sources(buckets={"s3://raw": bucket})
    for unknown in (
        ObjectRef(uri=known.uri, size=UNKNOWN_SIZE, explicit=True, etag=known.etag),
        ObjectRef(uri=known.uri, size=0, explicit=True, etag=known.etag),
        ObjectRef(uri=known.uri, size=len(DATA), explicit=True),
    ):
        resolved = await sources.resolve_reference(unknown)
        assert (resolved.size, resolved.etag) == (len(DATA), known.etag)
        async with await sources.open_range_reader(unknown) as body:
            assert await asyncio.to_thread(body.read) == DATA
    with pytest.raises(Gone):
        await sources.resolve_reference(ObjectRef(uri="s3://raw/none", size=UNKNOWN_SIZE, explicit=True))
    with pytest.raises(Changed):
        await sources.resolve_reference(ObjectRef(uri=known.uri, size=UNKNOWN_SIZE, explicit=True, etag="other"))


async def test_overwritten_and_deleted_objects() -> None:
    """A version is read as long as it is there; without one only the content that was meant."""

    bucket = MemoryBucket()
    (first,) = notification.parse_notification(bucket.put_object("a", DATA)).objects
    bucket.put_object("a", DATA[::-1])
    sources = Sources(buckets={"s3://raw": bucket})
    async with await sources.open_range_reader(first) as body:
        assert await asyncio.to_thread(body.read) == DATA
    unversioned = ObjectRef(uri=first.uri, size=first.size, explicit=True, etag=first.etag)
    async with await sources.open_range_reader(unversioned) as body:
        with pytest.raises(Changed):
            await body.wait_until_ready()
    bucket.delete_object("a")
    async with await sources.open_range_reader(first) as body:
        with pytest.raises(Gone):
            await asyncio.to_thread(body.read)


def test_a_local_file_is_no_object() -> None:
    with pytest.raises(Fatal, match="not in an object store"):
        Sources().open_objects("file:///tmp/a")


async def test_errors_of_one_capture_say_nothing_about_the_lake() -> None:
    faults = Faults()
    bucket = MemoryBucket(faults=faults)
    bucket.put_object("a", DATA)
    loop = asyncio.get_running_loop()
    sources = Sources(buckets={"s3://raw": bucket})

    with await asyncio.to_thread(sources.open_blocking, "s3://raw/a", loop) as file:
        assert isinstance(file, RemoteFile)
        assert file.identify_capture().size == len(DATA)
        assert await asyncio.to_thread(file.read) == DATA
        file.rewind()
        file.require_unchanged()
        assert await asyncio.to_thread(file.read) == DATA
    with pytest.raises(FileNotFoundError):
        await asyncio.to_thread(sources.open_blocking, "s3://raw/b", loop)
    faults.inject_fault("bucket.head a", "error")
    with pytest.raises(OSError, match="did not happen"):
        await asyncio.to_thread(sources.open_blocking, "s3://raw/a", loop)
    sources = Sources(buckets={"s3://raw": Failing(Changed("another one"))})
    file = await asyncio.to_thread(sources.open_blocking, "s3://raw/a", loop)
    with file, pytest.raises(OSError, match="another one"):
        await asyncio.to_thread(file.read)
    assert await nothing_runs()


# -- obstore ----------------------------------------------------------------------------------------------------------
def memory_objects() -> tuple[StoredObjects, ObjectStore]:
    store = Store.open(f"memory:///{uuid.uuid4().hex}")
    assert isinstance(store, ObjectStore)
    return StoredObjects(store.uri, store.obstore_client), store


async def everything(objects: Any, content: Content, start: int, end: int) -> bytes:
    return b"".join([bytes(part) async for part in objects.read_range(content, start, end)])


async def test_stored_objects_in_memory() -> None:
    objects, store = memory_objects()
    put(store.obstore_client, "a b/ü%20#?.pcap", DATA)
    content = await objects.head_object("a b/ü%20#?.pcap")
    assert content.size == len(DATA)
    assert await everything(objects, content, 0, len(DATA)) == DATA
    assert await everything(objects, content, 10, 5000) == DATA[10:5000]
    put(store.obstore_client, "a b/ü%20#?.pcap", DATA)
    with pytest.raises(Changed):
        await everything(objects, content, 0, 10)
    with pytest.raises(Gone):
        await objects.head_object("none")
    with pytest.raises(Gone):
        await everything(objects, Content(key="none", size=10, etag="0"), 0, 10)


@pytest.mark.parametrize("key", ["/a", "a/", "a//b", "a/../a", "./a", "a\tb"])
async def test_names_that_would_be_read_as_others_are_refused(key: str) -> None:
    objects, store = memory_objects()
    put(store.obstore_client, "a", DATA)
    put(store.obstore_client, "a/b", DATA)
    with pytest.raises(Retryable, match="this key cannot be read"):
        await objects.head_object(key)


async def test_a_key_is_asked_for_as_it_is_or_not_at_all() -> None:
    """Random keys of what URLs, file systems and stores read in their own ways."""
    wire, rng, refused = Wire(), random.Random(38), 0
    letters = [
        *"ab/.%#?+ ~:@=&;,*\\\t\n\x7f\u200b",
        "..",
        "//",
        "%2e",
        "%2F",
        "ü",
        "u\u0308",
        "\U0001f697",
        "s3://",
        "$'",
    ]
    async with wire.objects() as objects:
        for _ in range(500):
            key = "".join(rng.choices(letters, k=rng.randint(1, 8)))
            wire.paths.clear()
            try:
                await everything(objects, Content(key=key, size=len(DATA), etag="e1"), 0, 100)
            except Retryable:
                refused += 1
                assert wire.paths == []
            else:
                assert wire.paths == [f"/raw/{key}"]
    assert 50 < refused < 450


Answer = Callable[[asyncio.StreamWriter, int, int], Awaitable[None]]


@dataclass
class Wire:
    """An S3 of one object, byte for byte on the wire; `plan` has one answer for each request that is not to be plain."""

    data: bytes = DATA
    etag: str = "e1"
    plan: list[Answer] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := (await reader.readuntil(b"\r\n\r\n")).decode():
                found = re.search(r"(?i)^range: bytes=(\d+)-(\d+)", head, re.MULTILINE)
                start, end = (int(found[1]), int(found[2]) + 1) if found else (0, len(self.data))
                self.asked.append(f"{head.split()[0]} {start}-{end}")
                self.paths.append(unquote(urlsplit(head.split()[1]).path, errors="surrogateescape"))
                answer = self.plan.pop(0) if self.plan else (self.partial if found else self.whole)
                await answer(writer, start, end)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client is gone, we are to cut it off, or the test is over
        finally:
            writer.close()

    def headers(self, status: int, length: int, *more: str) -> bytes:
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {length}", f'ETag: "{self.etag}"', *more]
        return "\r\n".join([*lines, "Last-Modified: Sun, 01 Mar 2026 12:00:00 GMT", "", ""]).encode()

    async def whole(self, writer: asyncio.StreamWriter, start: int, end: int) -> None:
        writer.write(self.headers(200, len(self.data)) + self.data)

    async def partial(self, writer: asyncio.StreamWriter, start: int, end: int) -> None:
        self.range(writer, start, end, self.data[start:end])

    def range(self, writer: asyncio.StreamWriter, start: int, end: int, body: bytes) -> None:
        there = f"Content-Range: bytes {start}-{end - 1}/{len(self.data)}"
        writer.write(self.headers(206, end - start, there) + body)

    def cut(self, after: int) -> Answer:
        async def answer(writer: asyncio.StreamWriter, start: int, end: int) -> None:
            self.range(writer, start, end, self.data[start:end][:after])
            await writer.drain()
            raise ConnectionError

        return answer

    def shorter(self, by: int) -> Answer:
        async def answer(writer: asyncio.StreamWriter, start: int, end: int) -> None:
            self.range(writer, start, end - by, self.data[start : end - by])

        return answer

    def error(self, status: int, code: str) -> Answer:
        async def answer(writer: asyncio.StreamWriter, start: int, end: int) -> None:
            body = f"<Error><Code>{code}</Code></Error>".encode() if code else b""
            writer.write(self.headers(status, len(body)) + body)

        return answer

    @asynccontextmanager
    async def objects(self) -> AsyncIterator[StoredObjects]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        options = {
            "endpoint": f"http://{host}:{port}",
            "allow_http": "true",
            "region": "x",
            "skip_signature": "true",
        }
        store = Store.open("s3://raw", options)
        assert isinstance(store, ObjectStore)
        try:
            yield StoredObjects(store.uri, store.obstore_client)
        finally:
            server.close()
            await turns()


def content_of(wire: Wire) -> Content:
    return Content(key="a", size=len(wire.data), etag="e1")


@pytest.mark.slow
async def test_cut_connections_on_the_wire() -> None:
    """More often than the store's client mends by itself."""

    wire = Wire()
    wire.plan = [wire.cut(0)] * 6 + [wire.cut(500), wire.cut(10)]
    async with wire.objects() as objects:
        given = fetch_config(chunk_bytes=5000, ahead=1)
        async with await RangeReader.open(objects, content_of(wire), fetch_config=given) as body:
            assert await asyncio.to_thread(body.read) == DATA
    assert wire.plan == []
    assert "GET 500-5000" in wire.asked
    assert wire.asked[-1] == "GET 5000-10000"


async def test_an_answer_that_is_shorter_than_it_should_be() -> None:
    wire = Wire()
    wire.plan = [wire.shorter(100)]
    async with wire.objects() as objects:
        given = fetch_config(chunk_bytes=5000, ahead=1)
        async with await RangeReader.open(objects, content_of(wire), fetch_config=given) as body:
            assert await asyncio.to_thread(body.read) == DATA
    assert wire.asked == ["GET 0-5000", "GET 0-5000", "GET 5000-10000"]


async def test_a_small_capture_is_one_plain_request() -> None:
    wire = Wire()
    async with wire.objects() as objects, await RangeReader.open(objects, content_of(wire)) as body:
        assert await asyncio.to_thread(body.read) == DATA
    assert wire.asked == ["GET 0-10000"]


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (404, "NoSuchKey", Gone),
        (404, "NoSuchVersion", Gone),
        (404, "NoSuchBucket", Refused),
        (404, "", Retryable),
        (412, "PreconditionFailed", Changed),
        (403, "AccessDenied", Refused),
        (403, "InvalidAccessKeyId", Retryable),
        (401, "Unauthorized", Retryable),
        (400, "InvalidArgument", Retryable),
        (405, "MethodNotAllowed", Retryable),
        (416, "InvalidRange", Retryable),
    ],
)
async def test_what_a_refusal_means(status: int, code: str, expected: type[Exception]) -> None:
    """A bucket that is not there is no object that is gone: a wrong setting must not cost a single message."""

    wire = Wire()
    wire.plan = [wire.error(status, code)]
    async with wire.objects() as objects:
        with pytest.raises(expected, match="s3://raw/a") as met:
            await everything(objects, content_of(wire), 0, 100)
        assert isinstance(met.value, Refused) == (expected is Refused)
        wire.plan = [wire.error(status, ""), wire.error(status, code)]
        with pytest.raises(Retryable if expected is Refused else expected, match="s3://raw/a"):
            await objects.head_object("a")


async def test_a_key_that_obstore_cannot_name_has_the_size_that_was_said_or_is_refused() -> None:
    wire = Wire()
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    keys = {"region": "x", "access_key_id": "a", "secret_access_key": "b"}
    objects = SignedObjects("s3://raw", {"endpoint": f"http://{host}:{port}", **keys})
    try:
        content = Content(key="in//a", size=len(DATA), etag="e1")
        assert await everything(objects, content, 100, 200) == DATA[100:200]
        with pytest.raises(Refused, match="announced with 9999 bytes, but has 10000"):
            await everything(objects, replace(content, size=9999), 100, 200)
    finally:
        server.close()
        await turns()


async def test_answers_that_are_not_what_was_asked_for() -> None:
    wire = Wire()
    async with wire.objects() as objects:
        wire.plan = [wire.whole]
        with pytest.raises(Retryable, match="s3://raw/a"):
            await everything(objects, content_of(wire), 100, 200)
        with pytest.raises(Refused, match="of 9999, the store gave them from 0 of 10000"):
            await everything(objects, Content(key="a", size=9999, etag="e1"), 0, 9999)
        wire.etag = "e2"  # a store that does not mind If-Match
        with pytest.raises(Changed, match="has the eTag e2, not e1"):
            await everything(objects, content_of(wire), 0, 100)
        wire.etag = ""
        assert await everything(objects, content_of(wire), 0, 100) == DATA[:100]
