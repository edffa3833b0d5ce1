"""The merge window: which rows land in which file, when it closes, what it says of itself."""

from __future__ import annotations

import errno
import json
import os
import re
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.common.errors import Retryable
from pcaplake.common.runtime import Runtime
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.records import Capture, Stage
from pcaplake.lake.staging.window import MAX_CAPTURES, Window
from pcaplake.lake.store import durable
from pcaplake.lake.store.store import Store
from tests.worker.adapters.memory_store import MemoryStore
from tests.worker.lakes import small_disk

SCHEMA = pa.schema(
    [
        pa.field("capture_id", pa.string(), nullable=False),
        pa.field("vehicle_id", pa.string()),
        pa.field("date", pa.date32()),
        pa.field("packet_no", pa.int64(), nullable=False),
    ]
)
SCHEMAS = {"packets": SCHEMA, "captures": pa.schema([SCHEMA.field("capture_id"), SCHEMA.field("date")])}
DAY = date(2026, 1, 2)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def capture(name: str, size: int = 10) -> Capture:
    return Capture(capture_id=name, uri=f"file:///{name}", etag="e", size=size)


def rows(name: str, dates: list[date | None], vehicle: list[str | None] | None = None) -> pa.RecordBatch:
    count = len(dates)
    vehicles = pa.array(vehicle or [None] * count, pa.string()).dictionary_encode()
    columns = [pa.array([name] * count).dictionary_encode(), vehicles, pa.array(dates, pa.date32())]
    return pa.RecordBatch.from_arrays([*columns, pa.array(range(count), pa.int64())], names=SCHEMA.names)


class NamedStage(Runtime):
    def new_id(self) -> str:
        return "stage-1"


def window(
    store: Store, clock: Clock | None = None, partitions: tuple[str, ...] = ("date",), **lake_config: object
) -> Window:
    return Window(
        store,
        SCHEMAS,
        lake_config=LakeConfig(**lake_config),  # type: ignore[arg-type]
        generation=3,
        decoder_version="7",
        partition_columns=partitions,
        runtime=NamedStage(clock=clock or Clock()),
    )


def put(
    into: Window, name: str, dates: list[date | None], size: int = 10, vehicle: list[str | None] | None = None
) -> None:
    into.begin(capture(name, size))
    into.write("packets", rows(name, dates, vehicle))
    into.end()


def closed(of: Window) -> Stage:
    stage = of.close()
    assert stage is not None
    return stage


def test_captures_share_files_and_each_date_has_its_own(tmp_path: Path) -> None:
    store = Store.open(tmp_path)
    merged = window(store)
    put(merged, "a", [DAY, DAY, None, date(2026, 1, 3)])
    put(merged, "b", [DAY])
    stage = closed(merged)
    assert (stage.stage_id, stage.generation, stage.decoder_version) == ("stage-1", 3, "7")
    assert [(c.capture_id, c.rows, c.outcome) for c in stage.captures] == [("a", 4, "ok"), ("b", 1, "ok")]
    files = {add.partition_values["date"]: add for add in stage.adds["packets"]}
    assert set(files) == {"2026-01-02", "2026-01-03", None}
    assert files["2026-01-02"].path.startswith("date=2026-01-02/stage-1-")
    assert files[None].path.startswith("date=__HIVE_DEFAULT_PARTITION__/stage-1-")
    assert all(re.fullmatch(r"[A-Za-z0-9=_./-]+\.zstd\.parquet", path) for path in stage.file_paths)
    shared = files["2026-01-02"]
    read = pq.ParquetFile(tmp_path / "packets" / shared.path).read()
    assert read["capture_id"].to_pylist() == ["a", "a", "b"]
    assert "date" not in read.column_names
    assert json.loads(shared.stats)["numRecords"] == shared.num_records == 3
    assert shared.size == (tmp_path / "packets" / shared.path).stat().st_size
    assert [field["name"] for field in stage.schemas["packets"]["fields"]] == SCHEMA.names
    assert list(stage.schemas) == ["packets"]
    assert Stage.from_json(stage.to_json()) == stage


@pytest.mark.slow
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from([DAY, date(2026, 1, 3), None]), st.sampled_from(["v1", "v/2", "", None]))),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([("date",), ("date", "vehicle_id"), ("vehicle_id",), ()]),
    st.integers(1, 5000),
)
def test_every_row_lands_once_in_the_file_of_its_partition(
    captures: list[list[tuple[date | None, str | None]]], partitions: tuple[str, ...], target: int
) -> None:
    store = MemoryStore()
    merged = window(store, None, partitions, target_file_size=target)
    expected = defaultdict(list)
    for number, content in enumerate(captures):
        merged.begin(capture(f"c{number}"))
        merged.write("packets", rows(f"c{number}", [day for day, _ in content], [who for _, who in content]))
        merged.write(
            "captures", pa.RecordBatch.from_pylist([{"capture_id": f"c{number}", "date": None}], SCHEMAS["captures"])
        )
        for packet, (day, who) in enumerate(content):
            values = {"date": day.isoformat() if day else None, "vehicle_id": who or None}
            expected[tuple(values[name] for name in partitions)].append((f"c{number}", packet))
        merged.end()
    found = defaultdict(list)
    stage = closed(merged)
    for add in stage.adds.get("packets", ()):
        table = pq.read_table(pa.BufferReader(store.objects[f"packets/{add.path}"][0]), partitioning=None)
        keys = zip(table["capture_id"].to_pylist(), table["packet_no"].to_pylist(), strict=True)
        found[tuple(add.partition_values[name] for name in partitions)] += keys
        assert table.num_rows == add.num_records
    assert {values: sorted(keys) for values, keys in found.items()} == expected
    assert (
        len(set(stage.file_paths))
        == len(stage.file_paths)
        == len([name for name in store.objects if "parquet" in name])
    )
    assert [c.rows for c in stage.captures] == [len(content) + 1 for content in captures]


def test_it_is_due_by_time_rows_size_and_number() -> None:
    store, clock = MemoryStore(), Clock()
    by_time = window(store, clock, flush_interval=10)
    clock.now = 100
    assert not by_time.is_due
    put(by_time, "a", [DAY])
    clock.now = 109.9
    assert not by_time.is_due
    clock.now = 110
    assert by_time.is_due

    by_rows = window(store, Clock(), max_records=3)
    put(by_rows, "a", [DAY] * 2)
    assert not by_rows.is_due
    put(by_rows, "b", [DAY])
    assert by_rows.is_due

    by_size = window(store, Clock(), target_file_size=2_000)
    put(by_size, "a", [DAY] * 10_000)
    assert by_size.is_due

    by_number = window(store, Clock())
    for number in range(MAX_CAPTURES):
        assert not by_number.is_due
        put(by_number, f"c{number}", [DAY])
    assert by_number.is_due


def test_a_large_capture_is_staged_alone_and_in_several_files() -> None:
    store = MemoryStore()
    small = window(store, target_file_size=20_000)
    assert small.can_take_capture(1_000_000)
    put(small, "a", [DAY], size=20_000)
    assert small.can_take_capture(20_000)
    assert not small.can_take_capture(20_001)
    put(small, "b", [DAY], size=20_001)
    assert small.is_due

    alone = window(store.as_process(store._faults), target_file_size=5_000, row_group_rows=1_000)
    alone.stage_id = "stage-2"
    alone.begin(capture("c", 1_000_000))
    for _ in range(50):
        alone.write("packets", rows("c", [DAY] * 1_000))
    alone.end()
    stage = closed(alone)
    assert len(stage.adds["packets"]) > 1
    assert sum(add.num_records or 0 for add in stage.adds["packets"]) == 50_000


def test_written_at_is_the_stores_time_of_the_first_file() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)

    def store_clock() -> float:
        nonlocal now
        now += timedelta(days=1)
        return now.timestamp()

    several = window(MemoryStore(clock=store_clock))
    put(several, "a", [DAY, None, date(2026, 1, 3)])
    stage = closed(several)
    modified = sorted(add.modification_time for add in stage.adds["packets"])
    assert stage.written_at == modified[0] == datetime(2026, 1, 2, tzinfo=UTC).timestamp() * 1000
    assert modified[-1] > modified[0]


def test_a_failure_names_the_captures_to_decode_again() -> None:
    store = MemoryStore()
    merged = window(store)
    put(merged, "a", [DAY])
    merged.begin(capture("b"))
    with pytest.raises(KeyError):
        merged.write("unheard_of", rows("b", [DAY]))
    with pytest.raises(ValueError, match="has not ended"):
        merged.close()
    assert [c.capture_id for c in merged.abandon()] == ["a"]
    assert store.objects == {}


def test_an_upload_that_fails_comes_out_of_close() -> None:
    class Full(MemoryStore):
        def upload(self, path: str) -> object:  # type: ignore[override]
            raise Retryable("no space left on device")

    merged = window(Full())
    merged.begin(capture("a"))
    with pytest.raises(Retryable, match="no space"):
        merged.write("packets", rows("a", [DAY]))
    assert merged.abandon() == ()


def test_a_full_disk_leaves_no_file_open_and_none_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows reach the disk with their row group: at the latest when the window closes."""
    with small_disk(tmp_path / "disk") as real:
        store, before = Store.open(tmp_path / "disk" / "lake"), len(os.listdir("/proc/self/fd"))
        first = window(store)  # makes the folders
        put(first, "a", [DAY])
        first.abandon()
        if real:
            with suppress(OSError), (tmp_path / "disk" / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
        else:

            def full(*_: object) -> int:
                raise OSError(errno.ENOSPC, "No space left on device")

            monkeypatch.setattr(durable.os, "write", full)
        for _ in range(20):
            merged = window(store)
            put(merged, "a", [DAY])
            with pytest.raises(Retryable, match="No space left on device: free space"):
                merged.close()
            merged.abandon()
        monkeypatch.undo()
        assert len(os.listdir("/proc/self/fd")) <= before
        assert not list((tmp_path / "disk").rglob("*.tmp"))


def test_a_thread_that_writes_into_an_abandoned_window_is_told(tmp_path: Path) -> None:
    merged = window(Store.open(tmp_path))
    merged.begin(capture("a"))
    merged.write("packets", rows("a", [DAY]))
    merged.abandon()
    with pytest.raises(Retryable, match="abandoned"):
        merged.write("packets", rows("a", [date(2026, 1, 3)]))
    assert not list(tmp_path.rglob("*.tmp"))


def test_one_entry_per_capture_and_one_row_at_the_least() -> None:
    merged = window(MemoryStore())
    assert merged.close() is None
    put(merged, "a", [DAY])
    assert "a" in merged
    with pytest.raises(ValueError, match="already"):
        merged.begin(capture("a"))
    merged.begin(capture("b"))
    assert "b" in merged
    assert merged.rows_by_table == {}
    with pytest.raises(ValueError, match="has rows"):
        merged.end()
    with pytest.raises(ValueError, match="already"):
        merged.begin(capture("c"))


def test_rows_need_a_capture() -> None:
    with pytest.raises(ValueError, match="no capture has begun"):
        window(MemoryStore()).write("packets", rows("a", [DAY]))


def test_a_column_of_nulls_only_may_be_a_partition() -> None:
    store = MemoryStore()
    merged = window(store, None, ("date", "vehicle_id"))
    merged.begin(capture("a"))
    columns = [pa.array(["a"] * 2), pa.nulls(2), pa.array([DAY, None], pa.date32()), pa.array([1, 2], pa.int64())]
    merged.write("packets", pa.RecordBatch.from_arrays(columns, names=SCHEMA.names))
    merged.end("quarantined")
    stage = closed(merged)
    assert stage.captures[0].outcome == "quarantined"
    assert {tuple(add.partition_values.values()) for add in stage.adds["packets"]} == {
        ("2026-01-02", None),
        (None, None),
    }
