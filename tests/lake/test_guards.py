"""What keeps a lake from being read or begun wrongly: one short scene for each rule, which finds it if it is left out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import obstore
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Fatal, WrongChoice
from pcaplake.ingest.pipeline import Reader
from pcaplake.ingest.rebuild_files import _require_same_reading
from pcaplake.lake.commit.capture_source import ReadDifferently
from pcaplake.lake.commit.history import SWAPPED, accept_removed_rows, opening_version
from pcaplake.lake.delta.actions import Txn
from pcaplake.lake.delta.checkpoint_repair import read_checkpoint_state
from pcaplake.lake.delta.commit_content import Commit
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import refuse_deleted_lake
from pcaplake.lake.ledger import Ledger
from pcaplake.lake.records import Capture
from pcaplake.lake.store.place import refuse_ambiguous_folder, refuse_ambiguous_uri
from pcaplake.lake.store.store import Store
from pcaplake.parser import Profile
from tests.lake.delta.deltas import SCHEMA, txn, write
from tests.lake.guard_mutants import MUTANTS
from tests.worker.adapters.memory_store import MemoryStore

Scene = Callable[[Path, pytest.MonkeyPatch], Awaitable[None]]


async def a_folder_with_an_escape(_: Path, __: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongChoice, match="rename that folder"):
        refuse_ambiguous_folder(Path("/lakes/L%20x"))


async def a_uri_with_a_fragment(_: Path, __: pytest.MonkeyPatch) -> None:
    with pytest.raises(WrongChoice, match="has '#'"):
        refuse_ambiguous_uri("s3://bucket/k#x")


async def a_ledger_without_its_lake(_: Path, __: pytest.MonkeyPatch) -> None:
    class Books:
        name, kind = "books", "sqlite"

        async def find_lake_at(self, uri: str) -> str:
            return "the lake"

    with pytest.raises(Fatal, match="objects were deleted"):
        await refuse_deleted_lake(MemoryStore(), cast(Ledger, Books()))


async def a_stage_of_another_profile(_: Path, __: pytest.MonkeyPatch) -> None:
    reader = Reader(profile=Profile.default(), decoder_version="1", now=lambda: 0.0)
    capture = Capture(uri="file:///c.pcap", capture_id="c", etag="e", size=1)
    for profile, version in (("other@0", "1"), (None, "0.0.1")):
        with pytest.raises(ReadDifferently, match="would read now"):
            _require_same_reading(reader, profile, version, capture)
    _require_same_reading(reader, str(reader.profile), "1", capture)


async def a_service_that_ignores_where_to_begin(_: Path, patch: pytest.MonkeyPatch) -> None:
    theirs = obstore.list
    patch.setattr(obstore, "list", lambda store, prefix=None, **_: theirs(store, prefix))
    store = Store.open("memory:///guards")
    for name in ("t/a", "t/b", "t/c"):
        await store.put_if_absent(name, b"x")
    assert [meta.path for meta in await store.list("t", start_after="t/a")] == ["t/b", "t/c"]


async def a_checkpoint_that_lost_its_files(folder: Path, _: pytest.MonkeyPatch) -> None:
    log = LogStore(store := Store.open(folder))
    await log.create("t", SCHEMA, partition_columns=["date"])
    await log.commit("t", [write(folder / "t", 0, [0])], txn=txn(0))
    DeltaTable(folder / "t").create_checkpoint()
    (path,) = (folder / "t/_delta_log").glob("*.checkpoint.parquet")
    content = pq.read_table(path)
    pq.write_table(content.filter(content["add"].is_null()), path)
    assert DeltaTable(folder / "t").file_uris() == [], "readers notice nothing"
    assert list((await read_checkpoint_state(store, "t")).unreadable.values()) != []


async def an_overwrite_while_swaps_begin_again(folder: Path, _: pytest.MonkeyPatch) -> None:
    log = LogStore(store := Store.open(folder))
    await log.create("t", SCHEMA, partition_columns=["date"])
    await log.commit("t", [], txn=txn(0), other_txns=[Txn(app_id=SWAPPED, version=opening_version(0) + 3)])

    class Slow(LogStore):
        async def record_judged(self, *given: Any, **named: Any) -> Commit:
            if not overwritten:
                overwritten.append(True)
                await log.commit_transaction("t", Txn(app_id=SWAPPED, version=opening_version(1)), "WRITE")
            return await super().record_judged(*given, **named)

    overwritten = list[bool]()
    await accept_removed_rows(Slow(store), "t", 0)
    assert overwritten
    assert await LogStore(store).read_transaction("t", SWAPPED) == opening_version(1)


SCENES: Mapping[str, Scene] = {
    "a folder has two spellings": a_folder_with_an_escape,
    "a URI has two spellings": a_uri_with_a_fragment,
    "a lake that was deleted begins again": a_ledger_without_its_lake,
    "another profile rebuilds files": a_stage_of_another_profile,
    "swaps of a generation that was overwritten begin again": an_overwrite_while_swaps_begin_again,
    "a list begins where the service likes": a_service_that_ignores_where_to_begin,
    "an empty checkpoint is believed": a_checkpoint_that_lost_its_files,
}


@pytest.mark.parametrize("name", SCENES)
async def test_a_rule_holds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await SCENES[name](tmp_path, monkeypatch)


@pytest.mark.parametrize("name", MUTANTS)
async def test_a_mutant_is_told_apart(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await SCENES[name](tmp_path, monkeypatch)
