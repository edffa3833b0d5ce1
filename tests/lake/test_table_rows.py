"""Rows of our own tables after other programs have rewritten their files: our readers find the same ones."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pcaplake.derived.signals.frames import FrameTable
from pcaplake.ingest.reread import _have_raw_bytes
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store
from pcaplake.lake.table_rows import TableRows
from pcaplake.lake.tables import count_tables, read_decodings
from pcaplake.parser.schemas import TABLES
from pcaplake.signals.sources import COLUMNS, SOURCES
from tests.drives import Drive
from tests.worker.foreign_files import REWRITES

NAMES = ("captures", "packets", "can_frames", "lin_frames", "quarantine")


def sorted_rows(batches: list[pa.RecordBatch]) -> list[str]:
    return sorted(str(row) for batch in batches for row in batch.to_pylist())


async def read_everything(lake: Path) -> dict[str, object]:
    """What each of our readers finds: rows by table, those of one capture, decodings, frames as `signals` reads them."""
    store, found = Store.open(str(lake)), dict[str, object]()
    ids = sorted(DeltaTable(lake / "captures").to_pyarrow_table(columns=["capture_id"])["capture_id"].to_pylist())
    for name in NAMES:
        rows = TableRows(store, name)
        one = pc.field("capture_id").isin(pa.array(ids[:1], pa.string()))
        assert rows.schema.field("capture_id").type == pa.string()
        found[name] = sorted_rows(list(rows.read(TABLES[name].columns)))
        found[f"{name} of one"] = sorted_rows(list(rows.read(["capture_id", "vehicle_id", "date"], one)))
    found["decodings"] = await read_decodings(store, ids)
    found["raw"] = await asyncio.to_thread(_have_raw_bytes, store, ids)
    found["counts"] = {name: counts.rows for name, counts in (await count_tables(store)).items()}
    for kind in ("can", "lin"):
        frames = FrameTable(store, kind)
        live = await frames.list_live(await LogStore(store).read_version(SOURCES[kind]))
        batches = [batch for file in live for batch in frames.read(file, COLUMNS[kind])]
        schema = TABLES[SOURCES[kind]].schema
        assert all(batch.schema.types == [schema.field(name).type for name in COLUMNS[kind]] for batch in batches)
        found[f"frames of {kind}"] = sorted_rows(batches)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("rewrite", REWRITES)
async def test_each_reader_finds_the_same_rows(rewrite: str, bus_drive: Drive, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    shutil.copytree(bus_drive.lake, lake)
    before = await read_everything(lake)
    for name in NAMES:
        REWRITES[rewrite](lake / name)
    assert await read_everything(lake) == before


def with_views(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.string_view()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(with_views(field.type)) for field in kind])
    return kind


@pytest.mark.slow
async def test_a_checkpoint_may_have_views(bus_drive: Drive, tmp_path: Path) -> None:
    table = tmp_path / "captures"
    shutil.copytree(bus_drive.lake / "captures", table)
    DeltaTable(table).create_checkpoint()
    (path,) = (table / "_delta_log").glob("*.checkpoint.parquet")
    rows = pq.ParquetFile(path).read()
    schema = pa.schema([field.with_type(with_views(field.type)) for field in rows.schema])
    assert schema != rows.schema
    pq.write_table(rows.cast(schema), path)
    newest = (await LogStore(Store.open(str(tmp_path))).read_version("captures"), DeltaTable(table).version())
    assert newest[0] == newest[1]
    snapshot = await LogStore(Store.open(str(tmp_path))).read_snapshot("captures")
    assert snapshot is not None
    assert snapshot.files.live.keys() == {uri.rpartition("/captures/")[2] for uri in DeltaTable(table).file_uris()}
    assert snapshot.txns["pcaplake"] >= 0
