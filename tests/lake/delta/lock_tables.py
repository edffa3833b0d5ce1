"""What tests of the lock table share: the rules that every one keeps, and a writer that does as Java's log store does."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from pcaplake.lake.delta.lock_table import Entry, LockTable, TablePath
from tests.worker.adapters.lock_table import MemoryLockTable, MemoryS3Store

JAVA = {
    "tablePath": "s3a://bucket/lake/t",
    "fileName": "00000000000000000042.json",
    "tempPath": ".tmp/00000000000000000042.json.5f9a9c3c-6f0b-4e64-9d1d-7a0c0f2f8a11",
    "complete": "false",
}
ONE, OTHER = TablePath.for_table("s3://bucket/lake", "one"), TablePath.for_table("s3://bucket/lake", "one-more")


async def puts_an_entry_once(lock_table: LockTable) -> None:
    mine, theirs = Entry.for_new_version(ONE, 7), Entry.for_new_version(ONE, 7)
    assert await lock_table.get_newest_entry(ONE) is None
    assert await lock_table.put_entry_if_absent(mine) is None
    assert await lock_table.put_entry_if_absent(theirs) == mine
    assert await lock_table.put_entry_if_absent(mine) == mine, "its own, when the request was repeated"
    assert await lock_table.get_newest_entry(ONE) == mine
    assert await lock_table.get_newest_entry(OTHER) is None


async def completes_only_the_entry_that_is_there(lock_table: LockTable) -> None:
    mine, theirs = Entry.for_new_version(ONE, 7), Entry.for_new_version(ONE, 7)
    assert await lock_table.complete_entry(mine.as_completed(1.5e9)) is None, "gone, or never there: not made anew"
    assert await lock_table.get_newest_entry(ONE) is None
    await lock_table.put_entry_if_absent(mine)
    assert await lock_table.complete_entry(theirs.as_completed(1.5e9)) == mine
    assert await lock_table.get_newest_entry(ONE) == mine
    done = mine.as_completed(1.8e9)
    assert (done.complete, done.expires) == (True, 1_800_086_400)
    for _ in range(2):
        assert await lock_table.complete_entry(done) is None
        assert await lock_table.get_newest_entry(ONE) == done


async def lists_what_is_incomplete_in_order(lock_table: LockTable) -> None:
    entries = [Entry.for_new_version(ONE, version) for version in (100, 9, 11, 2, 10)]
    for entry in entries:
        await lock_table.put_entry_if_absent(entry)
    await lock_table.put_entry_if_absent(Entry.for_new_version(OTHER, 1000))
    await lock_table.complete_entry(entries[1].as_completed(1.8e9))
    assert [entry.version for entry in await lock_table.list_incomplete_entries(ONE)] == [2, 10, 11, 100]
    assert [entry.version for entry in await lock_table.list_incomplete_entries(ONE, above=10)] == [11, 100]
    assert list(await lock_table.list_incomplete_entries(ONE, above=100)) == []
    newest = await lock_table.get_newest_entry(ONE)
    assert newest is not None
    assert newest.version == 100
    await lock_table.put_entry_if_absent(Entry.for_new_version(ONE, 0))
    assert [entry.version for entry in await lock_table.list_incomplete_entries(ONE)] == [0, 2, 10, 11, 100]


async def knows_other_spellings(lock_table: LockTable) -> None:
    await lock_table.put_entry_if_absent(Entry.for_new_version(TablePath("s3://bucket/lake/one"), 3))
    assert await lock_table.get_newest_entry(ONE) is None
    assert [spelling for spelling in ONE.other_spellings() if await lock_table.has_entries_for(spelling)] == [
        "s3://bucket/lake/one"
    ]


async def deletes_only_the_entry_that_is_there(lock_table: LockTable) -> None:
    old, new, other = Entry.for_new_version(ONE, 7), Entry.for_new_version(ONE, 7), Entry.for_new_version(OTHER, 7)
    for entry in (new, other):
        await lock_table.put_entry_if_absent(entry)
    assert sorted(await lock_table.list_entries_below("s3a://bucket/lake/one"), key=str) == sorted(
        [new, other], key=str
    )
    assert await lock_table.list_entries_below("s3a://bucket/lake/one-") == [other]
    await lock_table.delete_entry(old)
    assert await lock_table.get_newest_entry(ONE) == new
    for _ in range(2):
        await lock_table.delete_entry(new)
        assert await lock_table.get_newest_entry(ONE) is None
    assert await lock_table.get_newest_entry(OTHER) == other


RULES: list[Callable[[LockTable], Awaitable[None]]] = [
    puts_an_entry_once,
    completes_only_the_entry_that_is_there,
    lists_what_is_incomplete_in_order,
    knows_other_spellings,
    deletes_only_the_entry_that_is_there,
]


class Java:
    """`S3DynamoDBLogStore` by its documented layout, on S3 without conditional puts: it looks, then it writes.

    Its completions are unconditional, as the original's. `now` is what its clock says.
    """

    def __init__(self, store: MemoryS3Store, lock_table: MemoryLockTable, table: str, now: Callable[[], float]) -> None:
        self._objects, self._store, self._lock_table, self._now = store.objects, store, lock_table, now
        self.uri = f"s3a://bucket/lake/{table}"
        self._log = f"{table}/_delta_log"

    def write(self, version: int, data: bytes) -> Iterator[str]:
        """The steps of a commit, to be stopped after each; FileExistsError when somebody else has the version."""
        name = f"{version:020d}.json"
        before = f"{version - 1:020d}.json"
        if f"{self._log}/{name}" in self._objects:
            raise FileExistsError(name)
        if version:
            earlier = self._lock_table.items.get((self.uri, before))
            if earlier is not None and earlier["complete"] != "true":
                self.fix(earlier)
            elif f"{self._log}/{before}" not in self._objects:
                raise FileNotFoundError(before)
        item = {
            "tablePath": self.uri, "fileName": name, "tempPath": f".tmp/{name}.{uuid.uuid4()}", "complete": "false",
        }  # fmt: skip
        self._store.put_past_faults(f"{self._log}/{item['tempPath']}", data)
        yield "temp object"
        if (self.uri, name) in self._lock_table.items:
            raise FileExistsError(name)
        self._lock_table.put_item(item)
        yield "entry"
        self._copy(item)
        yield "version"
        self._complete(item)
        yield "completed"

    def list_from(self) -> None:
        """What every reader does first."""
        found = sorted(name for uri, name in self._lock_table.items if uri == self.uri)
        if found and self._lock_table.items[self.uri, found[-1]]["complete"] != "true":
            self.fix(self._lock_table.items[self.uri, found[-1]])

    def fix(self, item: dict[str, Any]) -> None:
        self._copy(item)
        self._complete(item)

    def _copy(self, item: dict[str, Any]) -> None:
        if f"{self._log}/{item['fileName']}" not in self._objects:
            self._store.put_past_faults(
                f"{self._log}/{item['fileName']}", self._objects[f"{self._log}/{item['tempPath']}"][0]
            )

    def _complete(self, item: dict[str, Any]) -> None:
        self._lock_table.put_item({**item, "complete": "true", "expireTime": int(self._now()) + 86_400})
