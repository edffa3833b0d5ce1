"""Rows per second and core from capture file to committed Delta rows, by step, with other tools for comparison.

    python -m bench [--folder bench-data] [--runs 5] [--megabytes 1000] [--large 2000]

A row is one committed table row. CPU seconds are those of the whole process: imports, loading kernels, hashing,
decoding, Parquet, staging, committing, and the event loop. The steps are measured separately, in one thread. The lake is on
a tmpfs if there is one, so that the disk of a shared machine does not matter; the capture is in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import blake3
import pyarrow as pa

from pcaplake.lake.parquet import ParquetSink
from pcaplake.parser import TABLES, open_capture
from pcaplake.parser.capture.reader import DECODED

from .mixes import write_captures
from .peers import measure_dpkt_loop, measure_tshark_fields

PEER_PACKETS = 40_000
SAMPLE_VERSION = "2026-11-27"  # in the names of generated captures: change it if they are drawn in another way
MINIMUM, GOAL = 2.45, 4.9  # million rows a second


def make_captures(folder: Path, mix: str, megabytes: int, vehicles: int = 1) -> Path:
    """A folder with captures of about `megabytes` each, on average over the shapes of noise. The first call generates it."""
    out = folder / f"{mix}-{megabytes}x{vehicles}-{SAMPLE_VERSION}"
    if not (out / "profile.yaml").exists():
        print(f"making {out} ...", file=sys.stderr)
        *probes, _ = write_captures(folder / "probe", mix, 1.0)
        second = sum(path.stat().st_size for path in probes) / len(probes) / 1e6
        write_captures(out, mix, megabytes / second, vehicles)
    return out


def list_captures(source: Path) -> dict[str, Path]:
    """The captures of the first vehicle in a folder of `make_captures`: `a`, or `noise-a`, or `drive` -> its path.

    Of a drive it is the first one, which has every protocol.
    """
    captures = {path.name.split(".")[0][11:]: path for path in sorted(source.glob("vehicle-001/*.pcap*"))}
    return {"drive": captures["1"]} if "1" in captures else captures


def measure_ingest(source: Path, lake: Path, threads: int = 1) -> dict[str, Any]:
    """Run `pcaplake ingest` in a new process, and return its JSON, with its peak memory in MB. source: a folder or a capture."""
    shutil.rmtree(lake, ignore_errors=True)
    command = [sys.executable, "-m", "pcaplake.worker", "ingest", str(source), "--lake", str(lake), "--json"]
    profile = (source if source.is_dir() else source.parents[1]) / "profile.yaml"
    command += ["--profile", str(profile), "--threads", str(threads)]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # as people run it
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    assert process.stdout is not None
    out = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {process.returncode}")
    return {**json.loads(out.strip().splitlines()[-1]), "memory": usage.ru_maxrss / 1024}


def measure_pipeline_steps(path: Path, profile: Path) -> dict[str, float]:
    """CPU nanoseconds per row for hashing, decoding and Parquet, in one thread."""
    clock, rows, spent = time.thread_time, 0, {"hash": 0.0, "decode": 0.0, "parquet": 0.0}
    start = clock()
    hasher = blake3.blake3()
    with path.open("rb", buffering=0) as file:
        while data := file.read(1 << 20):
            hasher.update(data)
    spent["hash"] = clock() - start
    sinks: dict[str, ParquetSink] = {}
    start = clock()
    for table, batch in open_capture(path, tables=DECODED, profile=profile).batches():
        now = clock()
        spent["decode"] += now - start
        if table not in sinks:
            schema = pa.schema([TABLES[table].schema.field(name) for name in batch.schema.names])
            sinks[table] = ParquetSink(schema, lambda data: None)
        sinks[table].write_batch(batch)
        rows += batch.num_rows
        start = clock()
        spent["parquet"] += start - now
    spent["decode"] += clock() - start
    start = clock()
    for sink in sinks.values():
        sink.close()
    spent["parquet"] += clock() - start
    return {name: seconds / rows * 1e9 for name, seconds in spent.items()}


def format_spread(values: Sequence[float], digits: int = 2) -> str:
    """best (median, worst)"""
    return f"{max(values):.{digits}f} ({statistics.median(values):.{digits}f}, {min(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("bench-data"), help="folder for the generated captures")
    parser.add_argument("--runs", type=int, default=5, help="n")
    parser.add_argument("--megabytes", type=int, default=1000, help="size of a capture; of noise, on average")
    parser.add_argument("--large", type=int, default=2000, help="size of the capture for peak memory")
    parser.add_argument("--mixes", default="a,b,c,drive,noise", help="comma-separated (%(default)s)")
    parser.add_argument("--only", default="rates,threads,memory", help="comma-separated parts (%(default)s)")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as scratch:
        load = os.getloadavg()[0]
        print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {load:.1f}")
        for part in options.only.split(","):
            PARTS[part](options, Path(scratch))
        print(f"\nload at the end {os.getloadavg()[0]:.1f}")


def report_ingest_rates(options: argparse.Namespace, scratch: Path) -> None:
    write_captures(options.folder / "small", "c", 0.05)
    starts = [measure_ingest(options.folder / "small", scratch / "lake")["cpu_seconds"] for _ in range(options.runs)]
    print(f"a process that reads 120 kB: {min(starts):.2f} s of CPU, which every run below includes")
    print("\nM rows/s per core: best (median, worst) of", options.runs)
    for mix in options.mixes.split(","):
        for name, path in list_captures(make_captures(options.folder, mix, options.megabytes)).items():
            report_capture(name, path, options.runs, scratch)


def report_capture(name: str, path: Path, count_of_runs: int, scratch: Path) -> None:
    measure_ingest(path, scratch / "lake")  # fills the page cache and loads the kernels
    runs = [measure_ingest(path, scratch / "lake") for _ in range(count_of_runs)]
    rows = sum(runs[0]["rows"].values())
    size = sum(f.stat().st_size for f in (scratch / "lake").rglob("*.parquet"))
    whole = [rows / run["cpu_seconds"] / 1e6 for run in runs]
    parts = [measure_pipeline_steps(path, path.parents[1] / "profile.yaml") for _ in range(count_of_runs)]
    least = {step: min(part[step] for part in parts) for step in parts[0]}
    decoded = [1e3 / part["decode"] for part in parts]
    print(f"{name}: {rows:,} rows, {runs[0]['packets']:,} packets, {size / rows:.1f} B/row of Parquet")
    print(f"   file to committed rows   {format_spread(whole)}   minimum {MINIMUM}, goal {GOAL}")
    print(f"   decode to Arrow alone    {format_spread(decoded)}   minimum 8")
    print("   ns/row                   " + ", ".join(f"{step} {value:.0f}" for step, value in least.items()))
    if name != "drive":  # dpkt does not read most of its packets
        count, seconds = measure_dpkt_loop(path, PEER_PACKETS, scratch / "peer")
        shutil.rmtree(scratch / "peer")
        print(f"   dpkt + write_deltalake   {count / seconds / 1e6:.3f} ({count:,} rows, a third of the columns)")
    packets, shark = measure_tshark_fields(path, PEER_PACKETS)
    print(f"   tshark -T fields         {packets / shark / 1e6:.3f} M packets/s (text of 9 fields)", flush=True)


def report_thread_scaling(options: argparse.Namespace, scratch: Path) -> None:
    """Two threads, and for comparison two independent processes, which are the maximum on this machine."""
    print("\ntwo threads compared with one, wall time: best of", options.runs)
    for mix in options.mixes.split(","):
        source = make_captures(options.folder, mix, options.megabytes, 2)
        half = make_captures(options.folder, mix, options.megabytes)
        one_thread, two, alone, both = ([] for _ in range(4))  # in turns, so that they share what disturbs them
        for _ in range(options.runs):
            one_thread.append(measure_ingest(source, scratch / "lake", 1)["seconds"])
            two.append(measure_ingest(source, scratch / "lake", 2)["seconds"])
            alone.append(measure_ingest(half, scratch / "lake")["seconds"])
            with ThreadPoolExecutor(2) as pair:
                runs = pair.map(lambda name: measure_ingest(half, scratch / name), ("lake", "other"))  # noqa: B023
                both.append(max(run["seconds"] for run in runs))
            shutil.rmtree(scratch / "other")
        print(
            f"{mix}: {min(one_thread):.2f} s / {min(two):.2f} s = {min(one_thread) / min(two):.2f}x   minimum 1.6",
            end="",
        )
        print(
            f"   two processes: {2 * min(alone):.2f} s / {min(both):.2f} s = {2 * min(alone) / min(both):.2f}x",
            flush=True,
        )


def report_peak_memory(options: argparse.Namespace, scratch: Path) -> None:
    print(f"\npeak memory on {options.large} MB captures")
    source = make_captures(options.folder, "c", options.large)
    measurement = measure_ingest(source, scratch / "lake")
    print(
        f"c: {measurement['memory']:.0f} MB with one thread (at most 600), "
        f"{measurement['rows_per_second'] / 1e6:.2f} M rows/s of wall"
    )
    shutil.rmtree(scratch / "lake")
    pair = make_captures(options.folder, "c", options.large // 4, 2)
    two = [measure_ingest(pair, scratch / "lake", n)["memory"] for n in (1, 2)]
    print(
        f"c, 2 x {options.large // 4} MB: {two[0]:.0f} MB with one thread, {two[1]:.0f} MB with two (at most 150 more)"
    )


PARTS = {"rates": report_ingest_rates, "threads": report_thread_scaling, "memory": report_peak_memory}
