"""What the maintenance jobs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delta.exceptions import ConcurrentAppendException, ConcurrentDeleteReadException

from pcaplake.common.errors import Retryable
from pcaplake.lake.store.object_store import ObjectStore
from pcaplake.lake.store.store import Store
from pcaplake.spark_jobs.common import maintenance as upkeep
from pcaplake.spark_jobs.common.delta_writes import retry_on_conflict
from tests.retries import hardly_wait
from tests.spark_jobs.conftest import Site


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hardly_wait(monkeypatch)


def test_a_write_goes_past_conflicts() -> None:
    left: list[Exception] = [ConcurrentAppendException("somebody appended"), ConcurrentDeleteReadException("optimized")]

    def write() -> None:
        if left:
            raise left.pop()

    retry_on_conflict("signals", write)
    assert not left


def test_conflicts_without_end_and_every_other_error_are_raised() -> None:
    tries = []

    def conflict() -> None:
        tries.append(None)
        raise ConcurrentAppendException("somebody appended")

    with pytest.raises(Retryable, match="signals conflicts in every attempt"):
        retry_on_conflict("signals", conflict)
    assert len(tries) == 8

    def fail() -> None:
        tries.append(None)
        raise ValueError("rows")

    with pytest.raises(ValueError, match="rows"):
        retry_on_conflict("signals", fail)
    assert len(tries) == 9


@pytest.mark.parametrize("kind", ["folder", "memory", "s3"])
async def test_tables_of_messages_are_found_by_their_folders(kind: str, tmp_path: Path, site: Site) -> None:
    uri = {"folder": tmp_path / "lake", "memory": "memory:///wide/lake", "s3": site.lake()}[kind]
    store = Store.open(uri, {"allow_http": "true"} if kind == "s3" else None)
    assert upkeep.list_table_names(store) == upkeep.TABLE_NAMES
    for path in ("signals_Speed/_delta_log/0.json", "signals/_delta_log/0.json", "other/signals_x/0", "signals_file"):
        await store.put(path, b"")
    assert upkeep.list_table_names(store) == (*upkeep.TABLE_NAMES, "signals_Speed")


def test_a_table_is_read_with_the_credentials_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    class Table:
        def __init__(self, uri: str, *, storage_options: Any) -> None:
            given.append(storage_options)
            raise upkeep.TableNotFoundError

    monkeypatch.setattr(upkeep, "DeltaTable", Table)
    monkeypatch.setattr(ObjectStore, "current_options", lambda self: {**self.options, "token": "of now"})
    store = Store.open("s3://lake/drives", {"region": "eu-west-3"})
    assert upkeep.read_snapshot(store, "packets") is None
    assert given == [{"region": "eu-west-3", "token": "of now"}]
