"""Checkpoints that readers cannot open: found, told with what to do, and mended, as readers of the table see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Fatal
from pcaplake.lake.delta.checkpoint_repair import repair_checkpoints
from pcaplake.lake.delta.log_state import read_log_state
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store
from pcaplake.worker.admin.doctor.checks_checkpoints import check_checkpoints
from tests.lake.delta.deltas import SCHEMA, txn, write

HINT = "_last_checkpoint"


async def table(folder: Path) -> tuple[Store, Path]:
    """A table with five versions, and checkpoints of 2 and 4."""
    log = LogStore(store := Store.open(folder))
    await log.create("t", SCHEMA, partition_columns=["date"])
    for number in range(5):
        await log.commit("t", [write(folder / "t", number, [number])], txn=txn(number))
        if number in (1, 3):
            DeltaTable(folder / "t").create_checkpoint()
    return store, folder / "t/_delta_log"


def name(version: int) -> str:
    return f"{version:020d}.checkpoint.parquet"


def hint(log: Path, **changed: object) -> None:
    (log / HINT).write_text(json.dumps({**json.loads((log / HINT).read_text()), **changed}))


def rows(log: Path) -> int | None:
    """As a reader with Delta's kernel counts them; None: it does not open the table."""
    try:
        return DeltaTable(log.parent).to_pyarrow_dataset().count_rows()
    except Exception:  # noqa: BLE001 -- whatever it raises
        return None


def parts(log: Path) -> None:
    """A checkpoint of two parts, as Spark writes it, of which one is missing."""
    (log / name(4)).rename(log / f"{4:020d}.checkpoint.{1:010d}.{2:010d}.parquet")
    hint(log, parts=2)


def cut(log: Path) -> None:
    (log / name(4)).write_bytes((log / name(4)).read_bytes()[:-100])


def both_cut(log: Path) -> None:
    cut(log)
    (log / name(2)).write_bytes(b"PAR1")


def bad_list_of_files(log: Path) -> None:
    """The bytes of one column are zeros, and the footer is whole."""
    data = bytearray((log / name(4)).read_bytes())
    group = pq.ParquetFile(log / name(4)).metadata.row_group(0)
    (chunk,) = [
        one for number in range(group.num_columns) if (one := group.column(number)).path_in_schema == "add.path"
    ]
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    data[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    (log / name(4)).write_bytes(data)


def no_rows(log: Path) -> None:
    pq.write_table(pq.read_table(log / name(4))[:0], log / name(4))


def no_files(log: Path) -> None:
    """Readers open it, as an empty table."""
    content = pq.read_table(log / name(4))
    pq.write_table(content.filter(content["add"].is_null()), log / name(4))


DAMAGES: dict[str, tuple[Callable[[Path], object], str, str, str]] = {  # what is done, level, what is said, afterwards
    "a checkpoint that is gone": (lambda log: (log / name(4)).unlink(), "error", f"{name(4)} is missing", "checkpoint 2"),
    "one that never was": (lambda log: hint(log, version=9), "error", f"{name(9)} is missing", "checkpoint 4"),
    "parts that never were": (lambda log: hint(log, parts=2), "error", "2.parquet is missing", "checkpoint 4"),
    "a part that is gone": (parts, "error", f"{2:010d}.{2:010d}.parquet is missing", "checkpoint 2"),
    "all checkpoints gone": (
        lambda log: [(log / name(version)).unlink() for version in (2, 4)], "error", "is missing", "the log"
    ),
    "an empty hint": (lambda log: (log / HINT).write_bytes(b""), "warning", "is damaged", "checkpoint 4"),
    "a hint that is no JSON": (lambda log: (log / HINT).write_bytes(b"{"), "warning", "is damaged", "checkpoint 4"),
    "a hint without a version": (lambda log: (log / HINT).write_bytes(b"[]"), "warning", "is damaged", "checkpoint 4"),
    "an older hint": (lambda log: hint(log, version=2), "warning", "checkpoint 4 exists", "checkpoint 4"),
    "a cut checkpoint": (cut, "error", f"{name(4)} is damaged", "checkpoint 2"),
    "an empty checkpoint": (lambda log: (log / name(4)).write_bytes(b""), "error", f"{name(4)} is damaged", "checkpoint 2"),
    "a damaged list of files": (bad_list_of_files, "error", f"{name(4)} is damaged", "checkpoint 2"),
    "a checkpoint without rows": (no_rows, "error", f"{name(4)} is damaged", "checkpoint 2"),
    "a checkpoint without files": (no_files, "error", "it lists no file, but the table has ", "checkpoint 2"),
    "cut checkpoints": (both_cut, "error", f"{name(2)} is damaged", "the log"),
    "a cut checkpoint without hint": (
        lambda log: (cut(log), (log / HINT).unlink()), "error", f"{name(4)} is damaged", "checkpoint 2"
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_table_that_readers_cannot_open_is_mended(damage: str, tmp_path: Path) -> None:
    do, level, says, begins = DAMAGES[damage]
    store, log = await table(tmp_path)
    assert (await check_checkpoints(store, "t"), rows(log)) == ([], 5)
    do(log)
    if damage == "a checkpoint without files":
        assert rows(log) == 1, "only the file of the version after it"
    # deltalake takes the whole checkpoint of parts that never were, DuckDB does not
    elif level == "error" and damage != "parts that never were":
        assert rows(log) is None, "nothing would be wrong for readers"
    before = {path: path.read_bytes() for path in log.iterdir()}
    (found,) = await check_checkpoints(store, "t")
    assert {path: path.read_bytes() for path in log.iterdir()} == before, "looking changes nothing"
    assert (found.level, found.table) == (level, "t")
    assert says in found.what
    assert "--repair" in found.do
    assert found.repair is not None
    assert f"readers now begin with {begins}" in await found.repair.make()
    assert (await check_checkpoints(store, "t"), rows(log)) == ([], 5)
    assert "nothing to repair" in await found.repair.make()
    assert (await read_log_state(store, "t")).version == 5
    assert await LogStore(store).checkpoint("t") == 5
    assert (await check_checkpoints(store, "t"), rows(log)) == ([], 5)


@pytest.mark.slow
async def test_the_next_checkpoint_also_mends_the_hint(tmp_path: Path) -> None:
    store, log = await table(tmp_path)
    hint(log, version=9)
    assert rows(log) is None
    assert await LogStore(store).checkpoint("t") == 5
    assert (json.loads((log / HINT).read_text())["version"], rows(log)) == (5, 5)


async def test_a_checkpoint_that_alone_has_its_versions_stays(tmp_path: Path) -> None:
    store, log = await table(tmp_path)
    cut(log)
    for path in (log / name(2), *(log / f"{number:020d}.json" for number in range(4))):
        path.unlink()
    before = sorted(log.iterdir())
    (found,) = await check_checkpoints(store, "t")
    assert (found.level, found.repair) == ("error", None)
    assert "restore the file in t/_delta_log: the versions before it were cleaned up" in found.do
    with pytest.raises(Fatal, match="were cleaned up"):
        await repair_checkpoints(store, "t")
    assert sorted(log.iterdir()) == before


async def test_a_checkpoint_of_an_empty_table_is_whole(tmp_path: Path) -> None:
    store, log = await table(tmp_path)
    DeltaTable(tmp_path / "t").delete()
    DeltaTable(tmp_path / "t").create_checkpoint()
    assert (await check_checkpoints(store, "t"), rows(log)) == ([], 0)
    for number in range(4):  # versions that were cleaned up
        (log / f"{number:020d}.json").unlink()
    assert await check_checkpoints(store, "t") == []


async def test_a_v2_checkpoint_is_nobody_elses_damage(tmp_path: Path) -> None:
    store, log = await table(tmp_path)
    (log / f"{5:020d}.checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.parquet").write_bytes(b"")
    hint(log, version=5)
    assert await check_checkpoints(store, "t") == []
