"""Every store keeps the promises of the port; what they raise is one of three words."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import obstore
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore import exceptions as obstore_errors

from pcaplake.common.errors import Fatal, OutcomeUnknown, Retryable
from pcaplake.lake.store import object_store as stores
from pcaplake.lake.store.local_store import LocalStore
from pcaplake.lake.store.object_store import ObjectStore
from pcaplake.lake.store.store import ObjectMeta, Store, checked_path
from tests.lake.store.object_servers import CREATE, GENERATION, KINDS, MATCH, serving
from tests.lake.store.store_suite import StoreSuite
from tests.worker.adapters.memory_store import MemoryStore

MakeStore = Callable[[], Store]


@pytest.fixture(params=["local", "memory", "testing", *KINDS])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param in KINDS:
        with serving(request.param) as (_, remote):
            yield remote
    elif request.param == "local":
        yield Store.open(tmp_path / "lake")
    else:
        yield Store.open(f"memory:///{uuid.uuid4().hex}") if request.param == "memory" else MemoryStore()


class TestStore(StoreSuite):
    """In a folder, in memory, and over HTTP."""


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_conditional_write_asks_for(kind: str) -> None:
    """As each store documents it: see object_servers."""

    with serving(kind) as (bucket, store):
        await store.put_if_absent("x", b"1")
        seen = await store.head("x")
        assert seen is not None
        assert await store.replace("x", b"2", seen)
        await store.put("x", b"3")
        create = {GENERATION: "0"} if kind == "gs" else {CREATE: "*"}
        match = {GENERATION: seen.version} if kind == "gs" else {MATCH: seen.etag}
        assert bucket.seen == [create, match, {}]


async def test_without_an_etag_nothing_is_replaced() -> None:
    store = Store.open(f"memory:///{uuid.uuid4().hex}")
    await store.put("x", b"1")
    seen = await store.head("x")
    assert seen is not None
    with pytest.raises(Fatal, match="returns no eTag for x"):
        await store.replace("x", b"2", replace(seen, etag=None))


async def test_an_upload_appears_whole_at_its_end_or_not_at_all(store: Store) -> None:
    upload = store.upload("t/file")
    upload.write(b"one")
    assert await store.head("t/file") is None
    upload.write(memoryview(bytearray(b"two")))
    meta = upload.finish()
    upload.abort()
    found = await store.get("t/file")
    assert found is not None
    assert (found[0], found[1].size, meta.path) == (b"onetwo", 6, "t/file")
    dropped = store.upload("t/dropped")
    dropped.write(b"x")
    dropped.abort()
    assert [each.path for each in await store.list("t")] == ["t/file"]


async def test_uploads_of_a_minute_share_one_time_that_is_not_after_any_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A HEAD for every file would be a quarter of the requests of a stage."""
    asked = list[str]()
    real = obstore.head

    def head(inner: object, path: str) -> object:
        asked.append(path)
        return real(inner, path)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "head", head)
    store = Store.open(f"memory:///{uuid.uuid4().hex}")

    async def upload(path: str) -> tuple[ObjectMeta, ObjectMeta]:
        begun = store.upload(path)
        begun.write(b"one")
        begun.write(b"two")
        told, real = begun.finish(), await store.head(path)
        assert real is not None
        assert (told.path, told.size) == (path, 6)
        return told, real

    first = await upload("a")
    assert first[0] == first[1]
    second, third = await upload("b"), await upload("c")
    assert asked == ["a"]
    for told, real_meta in (second, third):
        assert told.last_modified == first[0].last_modified <= real_meta.last_modified
    before = store.upload("d")  # its object may have this time, however long it takes
    monkeypatch.setattr(stores, "_CLOCK_SECONDS", 0.0)
    fourth = await upload("e")
    assert fourth[0] == fourth[1]
    assert before.finish().last_modified == first[0].last_modified
    assert asked == ["a", "e"]


@pytest.mark.parametrize("path", ["", "/", "/abs", "a//b", "a/../b", "..", "a/.", "a/\0", "a/"])
async def test_a_path_stays_inside_the_store(store: Store, path: str) -> None:
    with pytest.raises(ValueError, match="not a path"):
        checked_path(path)
    with pytest.raises(ValueError, match="not a path"):
        await store.put_if_absent(path, b"")


PARTS = st.text(st.characters(blacklist_categories=["Cs", "Cc"], blacklist_characters="/"), min_size=1, max_size=20)


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(
    parts=st.lists(
        PARTS.filter(lambda part: part not in (".", "..") and not part.endswith(".tmp")), min_size=1, max_size=3
    ),
    data=st.binary(),
)
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_names_and_bytes_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, kind: str, parts: list[str], data: bytes
) -> None:
    async def run() -> None:
        store = Store.open(tmp_path_factory.mktemp("s") if kind == "local" else f"memory:///{uuid.uuid4().hex}")
        path = "/".join(parts)
        assert await store.put_if_absent(path, data)
        found = await store.get(path)
        assert found is not None
        assert (found[0], found[1].path) == (data, path)
        assert [meta.path for meta in await store.list("")] == [path]

    asyncio.run(run())


async def test_what_a_dead_writer_left_is_not_listed(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    upload = store.upload("t/file")
    upload.write(b"half")
    assert [path.name.endswith(".tmp") for path in (tmp_path / "t").iterdir()] == [True]
    assert await store.list("t") == []
    upload.abort()
    assert list((tmp_path / "t").iterdir()) == []


def test_a_file_is_written_once(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    first, second = store.upload("t/file"), store.upload("t/file")
    first.write(b"1")
    second.write(b"2")
    first.finish()
    with pytest.raises(Fatal, match="names of files are unique"):
        second.finish()
    assert (tmp_path / "t/file").read_bytes() == b"1"


def test_what_open_understands(tmp_path: Path) -> None:
    assert Store.open(str(tmp_path)).local == tmp_path
    assert Store.open(f"file://{tmp_path}").uri == f"file://{tmp_path}"
    assert Store.open("memory:///one").local is None
    remote = {"aws_region": "eu-central-1", "AWS_ALLOW_HTTP": "true", "timeout": "3s"}
    opened = [Store.open(f"{scheme}://bucket/lake/", remote) for scheme in ("s3", "s3a", "s3n")]
    assert {one.uri for one in opened} == {"s3://bucket/lake"}
    assert opened[0].options == remote
    for uri, message in (("ftp://host/x", "no store for ftp"), ("s3://", "'' is not a bucket")):
        with pytest.raises(Fatal, match=message):
            Store.open(uri)
    with pytest.raises(Fatal):
        Store.open("s3://bucket", {"no_such_option": "1"})


async def test_stores_of_memory_with_one_name_are_one() -> None:
    await Store.open("memory:///shared-name").put("x", b"1")
    assert await Store.open("memory:///shared-name").get("x") is not None
    assert await Store.open("memory:///another-name").get("x") is None


async def test_disk_errors_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Fatal, match="Not a directory"):
        await store.put_if_absent("file/below", b"")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(Retryable, match="No space left") as caught:
            await store.put_if_absent("t/x", b"1")
    assert not isinstance(caught.value, OutcomeUnknown)
    assert list((tmp_path / "t").iterdir()) == []
    assert await store.put_if_absent("t/x", b"1")


async def test_errors_of_a_remote_store_become_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectStore("memory:///x", stores.MemoryStore(), None)

    def failing(error: BaseException) -> Callable[..., object]:
        async def call(*_: object, **__: object) -> object:
            raise error

        return call

    lost = obstore_errors.GenericError("connection reset")
    for error, when_reading, when_writing in (
        (lost, Retryable, OutcomeUnknown),
        (obstore_errors.PermissionDeniedError("403"), Fatal, Fatal),
        (obstore_errors.UnauthenticatedError("401"), Fatal, Fatal),
        (FileNotFoundError("NoSuchBucket"), None, Fatal),
    ):
        with monkeypatch.context() as patch:
            for name in ("put_async", "get_async", "head_async"):
                patch.setattr(stores.obstore, name, failing(error))
            with pytest.raises(when_writing):
                await store.put_if_absent("x", b"")
            if when_reading is None:
                assert await store.get("x") is None
            else:
                with pytest.raises(when_reading) as caught:
                    await store.get("x")
                assert not isinstance(caught.value, OutcomeUnknown)
