"""`pcaplake signals` on lakes of several sizes: rows per second and peak memory.

`python -m bench.signals --lake 1000000 10000000` prints the section. The CAN frames of a sample drive are repeated, as
captures of their own, until there are enough. A DBC file describes all of their bytes as signals of 16 bits. Each size has a new
lake, and each run is a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake

from pcaplake.worker.sample import write_sample_captures

PCAPLAKE = (sys.executable, "-m", "pcaplake.worker")
SECONDS = 90.0
"""Of the drive: about 350,000 CAN frames with data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeRun:
    """`peak`: bytes of resident memory; `written`: bytes of the table `signals`; `cpu`: seconds, of all threads."""

    frames: int
    rows: int
    seconds: float
    cpu: float
    peak: int
    written: int


def lake_section(sizes: Sequence[int], threads: int = 1) -> str:
    """The section in Markdown."""
    lines = [
        f"{threads} decoder threads; one run of each size; load {os.getloadavg()[0]:.1f} before the first one",
        "",
        "| frames | rows | seconds | CPU seconds | rows per CPU second | peak memory | table `signals` |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {run.frames:,} | {run.rows:,} | {run.seconds:.1f} | {run.cpu:.1f} | {run.rows / run.cpu / 1e6:.2f} M | "
        f"{run.peak / 1e6:,.0f} MB | {run.written / 1e6:,.0f} MB |"
        for run in measure_lakes(sizes, threads)
    ]
    return "\n".join(lines)


def measure_lakes(sizes: Sequence[int], threads: int) -> Iterator[LakeRun]:
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="pcaplake-bench-") as name:
            folder = Path(name)
            # in a process of its own: a process that is started counts the memory of the one that starts it as its peak
            with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
                frames = pool.submit(_build_lake, folder, size).result()
            yield _run(folder, frames, threads)


def _build_lake(folder: Path, size: int) -> int:
    """A lake `lake` with at least so many CAN frames, and `car.dbc` -> the number of frames."""
    write_sample_captures(folder / "drive", "drive", SECONDS, vehicles=1)
    profile = str(folder / "drive" / "profile.yaml")
    command = [*PCAPLAKE, "ingest", str(folder / "drive"), "--lake", str(folder / "lake"), "--profile", profile]
    subprocess.run(command, check=True, capture_output=True)
    path = str(folder / "lake" / "can_frames")
    table = DeltaTable(path).to_pyarrow_table()
    table = table.filter(pc.field("payload").is_valid() & ~pc.field("error")).combine_chunks()
    (folder / "car.dbc").write_text(_describe(table), encoding="utf-8")
    write_deltalake(path, table.slice(0, 0), mode="overwrite")
    place, written = table.schema.get_field_index("capture_id"), 0
    while written < size:
        part = table.slice(0, size - written)
        capture = pa.repeat(pa.scalar(f"{written:032x}"), part.num_rows)
        write_deltalake(path, part.set_column(place, table.schema.field(place), capture), mode="append")
        written += part.num_rows
    return written


def _describe(frames: pa.Table) -> str:
    """A DBC file with signals of 16 bits in all bytes of each id."""
    lengths = frames.append_column("bytes", pc.binary_length(frames["payload"]))
    lines = ['VERSION ""', "BU_: A"]
    for row in lengths.group_by(["can_id", "extended"]).aggregate([("bytes", "max")]).to_pylist():
        number = row["can_id"] | row["extended"] << 31
        lines.append(f"BO_ {number} Message{number}: {row['bytes_max']} A")
        places = range(row["bytes_max"] // 2)
        lines += [f' SG_ Signal{n} : {16 * n}|16@1+ (0.1,0) [0|0] "km/h" A' for n in places]
    return "\n".join([*lines, ""])


def _run(folder: Path, frames: int, threads: int) -> LakeRun:
    command = [*PCAPLAKE, "signals", "--lake", str(folder / "lake")]
    command += ["--databases", str(folder / "car.dbc"), "--threads", str(threads), "--json"]
    with (folder / "report").open("wb") as out:
        process = subprocess.Popen(command, stdout=out)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    report = json.loads((folder / "report").read_text(encoding="utf-8"))
    return LakeRun(
        frames=frames,
        rows=report["rows"],
        seconds=report["seconds"],
        cpu=used.ru_utime + used.ru_stime,
        peak=used.ru_maxrss << 10,
        written=sum(path.stat().st_size for path in (folder / "lake" / "signals").rglob("*.parquet")),
    )
