"""The Parquet writer compared with pyarrow's, on the batches that the decoder makes from the sample mixes.

    python -m bench.parquet [--folder bench-data] [--runs 5] [--megabytes 60]

Both write the same batches of the full schemas to memory that is thrown away, in one thread, CPU time, in turn. pyarrow
has its best settings: zstd-1, required fields, the dictionaries of the batches, DELTA_BINARY_PACKED for rising numbers, no
statistics on payloads. A file of pcaplake's writer is also read back and compared.
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pcaplake.lake.parquet import ParquetSink
from pcaplake.parser import TABLES, open_capture
from pcaplake.parser.capture.reader import DECODED

from .ingest import list_captures, make_captures

RISING = {"ts", "ts_ns", "packet_no", "sub_no", "bus_time_ns", "session_id", "tcp_seq"}
Batches = Sequence[pa.RecordBatch]
Writer = Callable[[str, Batches], bytes]


def ours(table: str, batches: Batches) -> bytes:
    out: list[bytes] = []
    sink = ParquetSink(schema_of_batches(table, batches), out.append)
    for batch in batches:
        sink.write_batch(batch)
    sink.close()
    return b"".join(out)


def pyarrows(table: str, batches: Batches) -> bytes:
    file_fields = [field for field in schema_of_batches(table, batches) if field.name != "date"]
    names = [field.name for field in file_fields]
    held = batches[0].schema
    fields = [field.with_type(held.field(field.name).type) for field in file_fields]
    schema = pa.schema(
        [f.with_type(TABLES[table].schema.field(f.name).type) if f.type == pa.null() else f for f in fields]
    )
    out = io.BytesIO()
    with pq.ParquetWriter(
        out,
        schema,
        compression="zstd",
        compression_level=1,
        store_schema=False,
        use_dictionary=[name for name in names if name not in RISING | {"payload", "raw"}],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name in RISING},
        write_statistics=[name for name in names if name not in ("payload", "raw")],
    ) as writer:
        for batch in batches:
            chosen = batch.select(names)
            arrays = [array.cast(f.type) for array, f in zip(chosen.columns, schema, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return out.getvalue()


def schema_of_batches(table: str, batches: Batches) -> pa.Schema:
    return pa.schema([TABLES[table].schema.field(name) for name in batches[0].schema.names])


def measure_write_seconds(write: Writer, table: str, batches: Batches) -> tuple[float, int]:
    start = time.thread_time()
    size = len(write(table, batches))
    return time.thread_time() - start, size


def check_files_agree(table: str, batches: Batches) -> None:
    got = pq.read_table(pa.BufferReader(ours(table, batches)), use_threads=False)
    for field in schema_of_batches(table, batches):
        if field.name != "date":
            want = pa.concat_arrays([batch.column(field.name).cast(field.type) for batch in batches])
            assert got[field.name].combine_chunks().cast(field.type).equals(want), (table, field.name)


def measure_thread_speedup(tables: Mapping[str, Batches]) -> float:
    """The speedup of two threads over one, when each batch is written twice."""

    def write_all_tables(times: int = 1) -> None:
        for _ in range(times):
            for table, batches in tables.items():
                ours(table, batches)

    start = time.perf_counter()
    write_all_tables(2)
    one_thread_seconds = time.perf_counter() - start
    threads = [threading.Thread(target=write_all_tables) for _ in range(2)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return one_thread_seconds / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("bench-data"), help="folder for the generated captures")
    parser.add_argument("--runs", type=int, default=5, help="n")
    parser.add_argument("--megabytes", type=int, default=60, help="size of a capture")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    pa.set_cpu_count(1)
    load = os.getloadavg()[0]
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}")
    print(f"ns/row: best (median) of {options.runs}; pyarrow {pa.__version__}")
    captures: dict[str, Path] = {}
    for mix in ("a", "b", "c", "noise"):
        captures |= list_captures(make_captures(options.folder, mix, options.megabytes))
    for mix, path in captures.items():
        tables: dict[str, list[pa.RecordBatch]] = {}
        for table, batch in open_capture(path, tables=DECODED, profile=path.parents[1] / "profile.yaml").batches():
            tables.setdefault(table, []).append(batch)
        spent: dict[Writer, float] = {ours: 0.0, pyarrows: 0.0}
        all_rows = 0
        for table, batches in tables.items():
            check_files_agree(table, batches)
            rows, line = sum(batch.num_rows for batch in batches), ""
            runs: dict[Writer, list[float]] = {ours: [], pyarrows: []}
            for _ in range(options.runs):
                for write, times in runs.items():
                    took, size = measure_write_seconds(write, table, batches)
                    times.append(took)
                    if len(times) == options.runs:
                        spent[write] += min(times)
                        best, middle = (value(times) / rows * 1e9 for value in (min, statistics.median))
                        line += f"   {write.__name__} {best:4.0f} ({middle:4.0f}) ns/row {size / rows:5.1f} B/row"
            all_rows += rows
            print(f"{mix:7s} {table:18s} {rows:10,} rows{line}", flush=True)
        each = {write.__name__: seconds / all_rows * 1e9 for write, seconds in spent.items()}
        print(
            f"{mix:7s} all {' ' * 15}{all_rows:10,} rows   ours {each['ours']:.0f}, pyarrow {each['pyarrows']:.0f} ns/row,",
            end="",
        )
        print(
            f" {each['pyarrows'] / each['ours']:.1f} times; two threads {measure_thread_speedup(tables):.2f} times one",
            flush=True,
        )


if __name__ == "__main__":
    main()
