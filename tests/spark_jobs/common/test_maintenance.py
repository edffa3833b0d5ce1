"""What the maintenance jobs share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pcaplake.lake.store.object_store import ObjectStore
from pcaplake.lake.store.store import Store
from pcaplake.spark_jobs.common import maintenance as upkeep
from tests.spark_jobs.conftest import Site


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
