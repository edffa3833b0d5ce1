"""Counts that do not depend on the machine, held to a recorded list, so that a regression is seen at once.

    python -m bench.guard            # compare with bench/guard.json; exit code 1 if a count has grown
    python -m bench.guard --record   # write the counts of today, with the change that explains them

For a sample of each mix: bytes of Parquet per row of each table, and calls of Python functions per thousand rows, in decoding
and in writing. Calls are compared only on the Python that recorded them, because versions differ in what they call.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from pcaplake.lake.parquet import ParquetSink
from pcaplake.parser import TABLES, open_capture
from pcaplake.parser.capture.reader import DECODED

from .ingest import list_captures
from .mixes import write_captures

RECORDED = Path(__file__).with_suffix(".json")
SECONDS = {"a": 4.0, "b": 4.0, "c": 4.0, "noise": 4.0, "drive": 20.0}  # of traffic, by mix
LEAST_ROWS = 1000  # of a table that is compared
TOLERANCE = {"bytes": 0.01, "calls": 0.03}
Counts = dict[str, float]


@contextmanager
def count_calls(counts: Counter[str], kind: str) -> Iterator[None]:
    """Add the calls of Python functions in the body to counts[kind]."""

    def note(frame: object, event: str, argument: object) -> None:
        counts[kind] += event == "call"

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def count_capture(path: Path, profile: Path) -> Counts:
    """`bytes of <table>` per row, and `calls of decode` and `calls of write` per thousand rows."""
    calls, rows, sizes = Counter[str](), Counter[str](), Counter[str]()
    sinks: dict[str, ParquetSink] = {}
    with open_capture(path, tables=DECODED, profile=profile) as capture:
        batches = capture.batches()
        while True:
            with count_calls(calls, "decode"):
                item = next(batches, None)
            if item is None:
                break
            table, batch = item
            rows[table] += batch.num_rows
            if table not in sinks:
                schema = pa.schema([TABLES[table].schema.field(name) for name in batch.schema.names])
                sinks[table] = ParquetSink(schema, lambda data: None)
            with count_calls(calls, "write"):
                sinks[table].write_batch(batch)
    for table, sink in sinks.items():
        with count_calls(calls, "write"):
            sizes[table] = sink.close().size
    total = rows.total()
    found = {f"bytes of {table}": sizes[table] / rows[table] for table in rows if rows[table] >= LEAST_ROWS}
    return found | {f"calls of {kind}": 1000 * count / total for kind, count in calls.items()}


def count_samples(folder: Path) -> dict[str, Counts]:
    """The counts of a sample of each mix: `a`, `noise-b`, ... -> counts."""
    found: dict[str, Counts] = {}
    *small, profile = write_captures(folder / "first", "drive", 0.05, vehicles=1)
    count_capture(small[0], profile)  # imports what is imported on first use
    for mix, seconds in SECONDS.items():
        *_, profile = write_captures(folder / mix, mix, seconds, vehicles=1)
        for name, path in list_captures(folder / mix).items():
            found[name] = count_capture(path, profile)
    return found


def find_changes(recorded: Mapping[str, Any], found: Mapping[str, Counts]) -> tuple[list[str], list[str]]:
    """What is worse than recorded, and what is better: lines to show."""
    worse, better = list[str](), list[str]()
    same_python = recorded["python"] == platform.python_version_tuple()[1]
    for name, counts in recorded["samples"].items():
        for what, before in counts.items():
            kind = what.partition(" ")[0]
            now = found.get(name, {}).get(what)
            if now is None:
                worse.append(f"{name}: {what}: recorded {before:.2f}, not counted now")
            elif (kind != "calls" or same_python) and abs(now - before) > TOLERANCE[kind] * before:
                (worse if now > before else better).append(f"{name}: {what}: {before:.2f} -> {now:.2f}")
    for name, counts in found.items():
        known = recorded["samples"].get(name, {})
        worse += [f"{name}: {what}: {now:.2f}, not recorded" for what, now in counts.items() if what not in known]
    return worse, better


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the counts to bench/guard.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = count_samples(Path(folder))
    if options.record:
        samples = {name: {what: round(count, 3) for what, count in counts.items()} for name, counts in found.items()}
        record = {"python": platform.python_version_tuple()[1], "samples": samples}
        RECORDED.write_text(json.dumps(record, indent=1) + "\n")
        return
    recorded = json.loads(RECORDED.read_text())
    worse, better = find_changes(recorded, found)
    if recorded["python"] != platform.python_version_tuple()[1]:
        print(f"calls are not compared: they were recorded on Python 3.{recorded['python']}")
    for line in worse:
        print(f"worse: {line}")
    for line in better:
        print(f"better: {line}; record it with --record")
    print(f"{len(worse)} worse, {len(better)} better, {sum(map(len, found.values()))} counted")
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
