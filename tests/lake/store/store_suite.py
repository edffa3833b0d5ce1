"""What every store must do: a class of tests for whoever has the fixture `store`."""

from __future__ import annotations

import asyncio

import pytest

from pcaplake.lake.store.store import Store


class StoreSuite:
    """`store` is empty, and nobody else uses it."""

    async def test_an_object_is_made_once(self, store: Store) -> None:
        assert await store.put_if_absent("a/b", b"one")
        assert not await store.put_if_absent("a/b", b"two")
        found = await store.get("a/b")
        assert found is not None
        assert (found[0], found[1].path, found[1].size) == (b"one", "a/b", 3)
        assert found[1] == await store.head("a/b")

    async def test_of_many_that_make_one_object_one_wins(self, store: Store) -> None:
        made = await asyncio.gather(*(store.put_if_absent("a/b", str(i).encode()) for i in range(32)))
        assert made.count(True) == 1
        found = await store.get("a/b")
        assert found is not None
        assert found[0] == str(made.index(True)).encode()

    async def test_replace_only_what_was_seen(self, store: Store) -> None:
        await store.put("x", b"1")
        first = await store.head("x")
        assert first is not None
        assert await store.replace("x", b"2", first)
        assert not await store.replace("x", b"3", first)
        assert not await store.replace("absent", b"3", first)
        assert await store.head("absent") is None
        found = await store.get("x")
        assert found is not None
        assert found[0] == b"2"
        await store.put("x", b"4")
        assert not await store.replace("x", b"5", found[1])
        again = await store.get("x")
        assert again is not None
        assert again[0] == b"4"
        assert (again[1].etag, again[1].version) != (found[1].etag, found[1].version)
        await store.delete("x")
        assert not await store.replace("x", b"6", again[1])
        assert await store.get("x") is None

    async def test_of_many_that_replace_one_content_one_wins(self, store: Store) -> None:
        await store.put("x", b"before")
        seen = await store.head("x")
        assert seen is not None
        done = await asyncio.gather(*(store.replace("x", str(i).encode(), seen) for i in range(16)))
        assert done.count(True) == 1
        found = await store.get("x")
        assert found is not None
        assert found[0] == str(done.index(True)).encode()

    async def test_absent_is_none_and_ranges_end_with_the_object(self, store: Store) -> None:
        assert await store.get("a/none") is None
        assert await store.head("none") is None
        await store.delete("none/at/all")
        with pytest.raises(FileNotFoundError):
            await store.get_range("none", 0, 4)
        await store.put("x", b"0123456789")
        assert await store.get_range("x", 2, 3) == b"234"
        assert await store.get_range("x", 8, 100) == b"89"
        await store.delete("x")
        assert await store.get("x") is None
        assert await store.put_if_absent("x", b"again")

    async def test_a_list_is_sorted_below_a_folder_and_begins_after_a_path(self, store: Store) -> None:
        for path in ("t/b", "t/a", "t/c/d", "tt/x", "u"):
            await store.put(path, b"")
        assert [meta.path for meta in await store.list("t")] == ["t/a", "t/b", "t/c/d"]
        assert [meta.path for meta in await store.list("t/", start_after="t/a")] == ["t/b", "t/c/d"]
        assert [meta.path for meta in await store.list("t", start_after="t/aa")] == ["t/b", "t/c/d"]
        assert [meta.path for meta in await store.list("")] == ["t/a", "t/b", "t/c/d", "tt/x", "u"]
        assert await store.list("nothing") == []
