"""What tests of the arbiter share: the rules that every one keeps, and a writer that does as Java's log store does."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from worker.lake.delta.arbiter import Arbiter, Entry, TablePath
from worker.testing_arbiter import MemoryArbiter, MemoryBucket

JAVA = {
    "tablePath": "s3a://bucket/lake/t",
    "fileName": "00000000000000000042.json",
    "tempPath": ".tmp/00000000000000000042.json.5f9a9c3c-6f0b-4e64-9d1d-7a0c0f2f8a11",
    "complete": "false",
}
ONE, OTHER = TablePath.of("s3://bucket/lake", "one"), TablePath.of("s3://bucket/lake", "one-more")


async def puts_an_entry_once(arbiter: Arbiter) -> None:
    mine, theirs = Entry.new(ONE, 7), Entry.new(ONE, 7)
    assert await arbiter.newest(ONE) is None
    assert await arbiter.put(mine) is None
    assert await arbiter.put(theirs) == mine
    assert await arbiter.put(mine) == mine, "its own, when the request was repeated"
    assert await arbiter.newest(ONE) == mine
    assert await arbiter.newest(OTHER) is None


async def completes_only_the_entry_that_is_there(arbiter: Arbiter) -> None:
    mine, theirs = Entry.new(ONE, 7), Entry.new(ONE, 7)
    assert await arbiter.complete(mine.completed(1.5e9)) is None, "gone, or never there: not made anew"
    assert await arbiter.newest(ONE) is None
    await arbiter.put(mine)
    assert await arbiter.complete(theirs.completed(1.5e9)) == mine
    assert await arbiter.newest(ONE) == mine
    done = mine.completed(1.8e9)
    assert (done.complete, done.expires) == (True, 1_800_086_400)
    for _ in range(2):
        assert await arbiter.complete(done) is None
        assert await arbiter.newest(ONE) == done


async def lists_what_is_incomplete_in_order(arbiter: Arbiter) -> None:
    entries = [Entry.new(ONE, version) for version in (100, 9, 11, 2, 10)]
    for entry in entries:
        await arbiter.put(entry)
    await arbiter.put(Entry.new(OTHER, 1000))
    await arbiter.complete(entries[1].completed(1.8e9))
    assert [entry.version for entry in await arbiter.incomplete(ONE)] == [2, 10, 11, 100]
    assert [entry.version for entry in await arbiter.incomplete(ONE, above=10)] == [11, 100]
    assert list(await arbiter.incomplete(ONE, above=100)) == []
    newest = await arbiter.newest(ONE)
    assert newest is not None
    assert newest.version == 100
    await arbiter.put(Entry.new(ONE, 0))
    assert [entry.version for entry in await arbiter.incomplete(ONE)] == [0, 2, 10, 11, 100]


async def knows_other_spellings(arbiter: Arbiter) -> None:
    await arbiter.put(Entry.new(TablePath("s3://bucket/lake/one"), 3))
    assert await arbiter.newest(ONE) is None
    assert [spelling for spelling in ONE.misspelled() if await arbiter.knows(spelling)] == ["s3://bucket/lake/one"]


RULES: list[Callable[[Arbiter], Awaitable[None]]] = [
    puts_an_entry_once,
    completes_only_the_entry_that_is_there,
    lists_what_is_incomplete_in_order,
    knows_other_spellings,
]


class Java:
    """`S3DynamoDBLogStore` by its documented layout, on S3 without conditional puts: it looks, then it writes.

    Its completions are unconditional, as the original's. `now` is what its clock says.
    """

    def __init__(self, store: MemoryBucket, arbiter: MemoryArbiter, table: str, now: Callable[[], float]) -> None:
        self._objects, self._store, self._arbiter, self._now = store.objects, store, arbiter, now
        self.uri = f"s3a://bucket/lake/{table}"
        self._log = f"{table}/_delta_log"

    def write(self, version: int, data: bytes) -> Iterator[str]:
        """The steps of a commit, to be stopped after each; FileExistsError when somebody else has the version."""
        name = f"{version:020d}.json"
        before = f"{version - 1:020d}.json"
        if f"{self._log}/{name}" in self._objects:
            raise FileExistsError(name)
        if version:
            earlier = self._arbiter.items.get((self.uri, before))
            if earlier is not None and earlier["complete"] != "true":
                self.fix(earlier)
            elif f"{self._log}/{before}" not in self._objects:
                raise FileNotFoundError(before)
        item = {
            "tablePath": self.uri, "fileName": name, "tempPath": f".tmp/{name}.{uuid.uuid4()}", "complete": "false",
        }  # fmt: skip
        self._store.write(f"{self._log}/{item['tempPath']}", data)
        yield "temp object"
        if (self.uri, name) in self._arbiter.items:
            raise FileExistsError(name)
        self._arbiter.write(item)
        yield "entry"
        self._copy(item)
        yield "version"
        self._complete(item)
        yield "completed"

    def list_from(self) -> None:
        """What every reader does first."""
        found = sorted(name for uri, name in self._arbiter.items if uri == self.uri)
        if found and self._arbiter.items[self.uri, found[-1]]["complete"] != "true":
            self.fix(self._arbiter.items[self.uri, found[-1]])

    def fix(self, item: dict[str, Any]) -> None:
        self._copy(item)
        self._complete(item)

    def _copy(self, item: dict[str, Any]) -> None:
        if f"{self._log}/{item['fileName']}" not in self._objects:
            self._store.write(f"{self._log}/{item['fileName']}", self._objects[f"{self._log}/{item['tempPath']}"][0])

    def _complete(self, item: dict[str, Any]) -> None:
        self._arbiter.write({**item, "complete": "true", "expireTime": int(self._now()) + 86_400})
