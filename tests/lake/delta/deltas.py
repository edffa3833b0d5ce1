"""What tests and benchmarks of the Delta log share: files to add, logs to look into, checkpoints of any size."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pcaplake.lake.delta import AddFile, LogStore, Txn
from pcaplake.lake.delta.actions import decode_path, parse_json_lines
from pcaplake.lake.delta.schema import to_arrow_schema, to_delta_struct
from pcaplake.lake.parquet import ParquetSink
from tests.worker.adapters.faults import Faults, Killed, Kind
from tests.worker.adapters.memory_store import MemoryStore

APP = "app"
SCHEMA = pa.schema([("n", pa.int64()), ("date", pa.string())])
_TEXTS = pa.map_(pa.string(), pa.string())
CHECKPOINT = pa.schema(
    {
        "txn": pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]),
        "add": pa.struct(
            [
                ("path", pa.string()), ("partitionValues", _TEXTS), ("size", pa.int64()),
                ("modificationTime", pa.int64()), ("dataChange", pa.bool_()), ("stats", pa.string()),
            ]
        ),
        "remove": pa.struct([("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_())]),
        "metaData": pa.struct(
            [
                ("id", pa.string()), ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                ("schemaString", pa.string()), ("partitionColumns", pa.list_(pa.string())),
                ("configuration", _TEXTS), ("createdTime", pa.int64()),
            ]
        ),
        "protocol": pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())]),
    }
)  # fmt: skip


def add(name: object, *, rows: int = 1, date: str = "2026-11-21") -> AddFile:
    """An Add of a file that nobody has to read."""
    stats = json.dumps({"numRecords": rows, "minValues": {"n": 0}, "maxValues": {"n": rows}, "nullCount": {"n": 0}})
    path = f"date={date}/{name}.zstd.parquet"
    return AddFile(path=path, size=100, partition_values={"date": date}, modification_time=0, stats=stats)


def parse_add(action: Mapping[str, Any]) -> AddFile:
    """The Add of a log's line."""
    return AddFile(
        path=decode_path(action["path"]),
        size=action["size"],
        partition_values=dict(action["partitionValues"]),
        modification_time=action["modificationTime"],
        stats=action.get("stats") or "",
        data_change=action["dataChange"],
    )


def write(folder: Path, name: object, values: list[int], *, date: str = "2026-11-21") -> AddFile:
    """A file that readers read, and its Add."""
    path = folder / f"date={date}" / f"{name}.zstd.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(values, pa.int64())}), path)
    low, high = min(values, default=None), max(values, default=None)
    stats = {"numRecords": len(values), "minValues": {"n": low}, "maxValues": {"n": high}, "nullCount": {"n": 0}}
    return AddFile(
        path=f"date={date}/{path.name}", size=path.stat().st_size, partition_values={"date": date},
        modification_time=0, stats=json.dumps(stats),
    )  # fmt: skip


def folder_versions(table: Path) -> list[bytes]:
    """N.json from 0 on; AssertionError where one is missing."""
    names = sorted(path.name for path in (table / "_delta_log").glob("*.json"))
    assert names == [f"{number:020d}.json" for number in range(len(names))], "a gap in the versions"
    return [(table / "_delta_log" / name).read_bytes() for name in names]


def versions(store: MemoryStore, table: str) -> list[bytes]:
    prefix = f"{table}/_delta_log/"
    names = sorted(name for name in store.objects if name.startswith(prefix) and name.endswith(".json"))
    assert names == [f"{prefix}{number:020d}.json" for number in range(len(names))], "a gap in the versions"
    return [store.objects[name][0] for name in names]


def txn(version: int) -> Txn:
    return Txn(app_id=APP, version=version)


async def once(log: LogStore) -> object:
    return await log.commit("t", [add("a")], txn=txn(1))


async def without_txn(log: LogStore) -> object:
    return await log.commit("t", [add("a")])


async def evolving(log: LogStore) -> object:
    return await log.commit("t", [add("a")], txn=txn(1), schema=SCHEMA.append(pa.field("new", pa.int8())))


async def overwriting(log: LogStore) -> object:
    return await log.commit("t", [add("a")], txn=txn(1), overwrite=True)


async def act_with_fault(
    log: LogStore,
    act: Callable[[LogStore], Awaitable[object]],
    faults: Faults,
    requests: list[str],
    kind: Kind,
    times: int,
) -> bool:
    """Act with a fault at the last of these requests, which are the first that the act makes -> whether the fault killed it."""
    *before, last = requests
    faults.inject_fault(last, "nothing", before.count(last))  # the same request may come more than once
    faults.inject_fault(last, kind, times)
    killed = False
    try:
        await act(log)
    except Killed:
        killed = True
    assert killed == kind.startswith("dead")
    return killed


def added(log: list[bytes]) -> Counter[str]:
    """How often each file was added in these versions."""
    return Counter(line["add"]["path"] for data in log for line in parse_json_lines(data) if "add" in line)


def live(log: list[bytes]) -> set[str]:
    files: set[str] = set()
    for data in log:
        lines = parse_json_lines(data)
        files -= {line["remove"]["path"] for line in lines if "remove" in line}
        files |= {line["add"]["path"] for line in lines if "add" in line}
    return files


def foreign(store: MemoryStore, table: str, *actions: Mapping[str, Any], version: int | None = None) -> None:
    """Somebody else's commit: it knows nothing of ours."""
    number = len(versions(store, table)) if version is None else version
    lines = "".join(json.dumps(action) + "\n" for action in ({"commitInfo": {"operation": "MANUAL"}}, *actions))
    store.put_past_faults(f"{table}/_delta_log/{number:020d}.json", lines.encode())


def metadata(store: MemoryStore, table: str) -> dict[str, Any]:
    """The newest metaData in the JSON of a log."""
    found = [
        line["metaData"] for data in versions(store, table) for line in parse_json_lines(data) if "metaData" in line
    ]
    return dict(found[-1])


async def read_schema(log: LogStore, table: str) -> pa.Schema:
    """The schema of a table as its log store knows it."""
    struct = await log.read_schema_struct(table)
    assert struct is not None
    return to_arrow_schema(struct)


def checkpoint_bytes(
    files: Iterator[AddFile] | list[AddFile] = [],  # noqa: B006 -- never written to
    *,
    table_id: str = "0",
    txns: Mapping[str, int] | None = None,
    schema: pa.Schema = SCHEMA,
    partition_columns: tuple[str, ...] = ("date",),
    configuration: Mapping[str, str] | None = None,
    batch: int = 50_000,
    protocol: tuple[int, int] | None = (1, 2),
) -> bytes:
    """A classic checkpoint, as Spark lays it out: protocol and metaData first, `txn` after them, then the files."""
    described = {
        "id": table_id, "format": {"provider": "parquet", "options": []}, "schemaString": json.dumps(to_delta_struct(schema)),
        "partitionColumns": list(partition_columns), "configuration": list((configuration or {}).items()),
        "createdTime": 0,
    }  # fmt: skip
    rows: list[dict[str, Any]] = [{"txn": {"appId": app, "version": last}} for app, last in (txns or {}).items()]
    if protocol is not None:
        rows = [
            {"protocol": {"minReaderVersion": protocol[0], "minWriterVersion": protocol[1]}},
            {"metaData": described},
            *rows,
        ]
    target = io.BytesIO()
    with pq.ParquetWriter(target, CHECKPOINT, compression="snappy") as writer:
        for each in files:
            if len(rows) >= batch:
                writer.write_table(pa.Table.from_pylist(rows, CHECKPOINT))
                rows = []
            action = {**each.to_json(), "partitionValues": list(each.partition_values.items())}
            rows.append({"add": action})
        writer.write_table(pa.Table.from_pylist(rows, CHECKPOINT))
    return target.getvalue()


def checkpoint(store: MemoryStore, table: str, version: int, data: bytes, *, clean_up: bool = False) -> None:
    """Put a checkpoint and name it in `_last_checkpoint`; `clean_up`: everything below it goes, oldest first."""
    prefix = f"{table}/_delta_log/"
    store.put_past_faults(f"{prefix}{version:020d}.checkpoint.parquet", data)
    store.put_past_faults(f"{prefix}_last_checkpoint", json.dumps({"version": version, "size": 1}).encode())
    if clean_up:
        for name in sorted(name for name in store.objects if name.startswith(f"{prefix}0")):
            if int(name.removeprefix(prefix)[:20]) < version:
                del store.objects[name]


def write_file(table: Path, name: str, rows: pa.Table) -> AddFile:
    """Write a file of an unpartitioned table as the lake does, with its statistics."""
    out = bytearray()
    sink = ParquetSink(rows.schema, out.extend)
    for batch in rows.to_batches():
        sink.write_batch(batch)
    summary = sink.close()
    (table / f"{name}.parquet").write_bytes(out)
    return AddFile(
        path=f"{name}.parquet", size=summary.size, partition_values={}, modification_time=0, stats=summary.stats
    )
