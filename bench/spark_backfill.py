"""Rows per second and core: `backfill` on Spark and `pcaplake ingest`, with the same captures on the same machine.

`python -m bench.spark_backfill` prints the section of docs/benchmarks-spark.md. Both write a lake in a folder; both are told to
use one core, and the time is CPU time of all their processes over rows, because the machine may be shared. Both have fixed
costs that do not grow with the captures (a process that starts; a job, and a committer that waits), so each is measured on
a short drive as well: the difference is the cost of the rows.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .spark import SparkBench

SECONDS, VEHICLES, RUNS = 300.0, 4, 3
WARM_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRun:
    """Rows of all tables, CPU seconds of all processes, and elapsed seconds."""

    rows: int
    cpu: float
    seconds: float

    @property
    def rows_per_cpu_second(self) -> float:
        return self.rows / self.cpu

    def marginal_rate(self, short: float, rows: int) -> float:
        """Rows per second of CPU, without the `rows` and the CPU seconds of a short drive."""
        return (self.rows - rows) / max(self.cpu - short, 0.01)  # of clock ticks


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRuns:
    """The runs of one program: with the captures, and with a short drive."""

    long: list[BackfillRun]
    short: list[BackfillRun]

    def marginal_rates(self) -> list[float]:
        middle = statistics.median(run.cpu for run in self.short)
        return [run.marginal_rate(middle, self.short[0].rows) for run in self.long]


def measure_ingest_run(folder: Path, lake: Path, profile: Path) -> BackfillRun:
    """Run `pcaplake ingest --threads 1` in a new process."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pcaplake.worker",
            "ingest",
            folder,
            "--lake",
            lake,
            "--profile",
            profile,
            "--threads=1",
            "--json",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    report = json.loads(done.stdout.splitlines()[-1])
    return BackfillRun(rows=sum(report["rows"].values()), cpu=report["cpu_seconds"], seconds=report["seconds"])


_CHILD = """
import json, os, sys, time
from pathlib import Path
from pcaplake.spark_jobs.backfill.job import BackfillOptions, run
from pcaplake.spark_jobs.common.session import open_session
from pcaplake.worker.config.service_settings import FleetSettings

def used(root):
    # of this process and everything below it, with what has ended there: clock ticks of /proc
    found, total = {root}, 0.0
    stats = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            stats[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])))
    grown = True
    while grown:
        more = {pid for pid, (parent, _) in stats.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return sum(stats[pid][1] for pid in found if pid in stats) / os.sysconf("SC_CLK_TCK")

folder, profile, warm, *lakes = sys.argv[1:]
settings = FleetSettings.load(profile=profile, lake=lakes[0])
spark = open_session(app="bench", settings=settings, lakes=[lakes[0]], master="local[1]",
                     conf={"spark.driver.memory": "1g"})
begun = used(os.getpid())
run(spark, lakes[0], BackfillOptions(names=(warm,)), settings=settings)  # Python workers start, kernels are loaded
out = []
for lake in lakes[1:]:
    names = (warm,) if Path(lake).name.startswith("short") else (folder,)
    before, start = used(os.getpid()), time.monotonic()
    done = run(spark, lake, BackfillOptions(names=names), settings=settings)
    out.append({"rows": sum(done.rows.values()), "cpu": used(os.getpid()) - before, "seconds": time.monotonic() - start})
print(json.dumps({"begun": begun, "runs": out}))
spark.stop()
"""


def measure_backfill_runs(
    folder: Path, warm: Path, profile: Path, lakes: list[Path]
) -> tuple[float, list[BackfillRun]]:
    """In one session, a short backfill as warm-up, then one into each lake, and return the CPU seconds of the session's
    start, and the runs.

    Lakes whose names begin with `short` get the short drive.
    """
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, folder, profile, warm, *lakes], check=True, stdout=subprocess.PIPE, text=True
    )
    report = json.loads(done.stdout.splitlines()[-1])
    return report["begun"], [BackfillRun(**run) for run in report["runs"]]


def backfill_section(seconds: float = SECONDS, vehicles: int = VEHICLES, runs: int = RUNS) -> str:
    """The section of docs/benchmarks-spark.md, in Markdown."""
    from pcaplake.worker import sample

    with tempfile.TemporaryDirectory(prefix="pcaplake-") as name:
        root = Path(name)
        *captures, profile = sample.write_sample_captures(root / "in", "drive", seconds, vehicles)
        profile = profile.rename(root / "profile.yaml")
        *_, unused = sample.write_sample_captures(root / "warm", "drive", WARM_SECONDS)
        unused.unlink()
        size = sum(path.stat().st_size for path in captures)
        measure_ingest_run(root / "warm", root / "first", profile)
        ours = BackfillRuns(
            long=[measure_ingest_run(root / "in", root / f"ingest-{number}", profile) for number in range(runs)],
            short=[
                measure_ingest_run(root / "warm", root / f"ingest-short-{number}", profile) for number in range(runs)
            ],
        )
        names = [f"{kind}-{number}" for kind in ("long", "short") for number in range(runs)]
        begun, backfill_runs = measure_backfill_runs(
            root / "in", root / "warm", profile, [root / name for name in ("begin", *names)]
        )
        theirs = BackfillRuns(long=backfill_runs[:runs], short=backfill_runs[runs:])
    assert {run.rows for run in [*ours.long, *theirs.long]} == {ours.long[0].rows}
    return _section_text(ours, theirs, begun, size, len(captures), seconds, vehicles)


def section_for_spark(bench: SparkBench) -> str:
    """The section for `bench.spark`, whose session is idle meanwhile."""
    return backfill_section(2.0, 1, 1) if bench.quick else backfill_section()


def _section_text(
    ours: BackfillRuns, theirs: BackfillRuns, begun: float, size: int, captures: int, seconds: float, vehicles: int
) -> str:
    load = os.getloadavg()[1]
    share = statistics.median(theirs.marginal_rates()) / statistics.median(ours.marginal_rates())
    return "\n".join(
        [
            "## Backfill",
            "",
            f"`python -m bench.spark_backfill`: a drive of {seconds:g} s of {vehicles} vehicles, {captures} captures, "
            f"{size / 1e6:,.0f} MB, {ours.long[0].rows:,} rows of all tables, into a lake in a folder; one core each, "
            f"{os.cpu_count()} cores in the machine, which was shared (load {load:.1f}). Median of n = {len(ours.long)} "
            f"(least to most). CPU is that of all processes: for Spark driver, JVM and Python workers, without the start "
            f"of the session and of its first Python worker (the session took {begun:.1f} s of CPU). The fixed cost is the "
            f"CPU time for a drive of {WARM_SECONDS} s.",
            "",
            "| | rows per second of CPU, without the fixed cost | rows per second of CPU, with it "
            "| fixed cost, CPU s | CPU s | s |",
            "|---|---|---|---|---|---|",
            _format_runs_row("`pcaplake ingest --threads 1`", ours),
            _format_runs_row("`backfill`, `--master local[1]`", theirs),
            "",
            f"Without the fixed cost, Spark reaches {share:.0%} of the worker's rows per second of CPU.",
            "",
        ]
    )


def _format_runs_row(name: str, runs: BackfillRuns) -> str:
    return " | ".join(
        [
            f"| {name}",
            _format_median_range(runs.marginal_rates(), 0),
            _format_median_range([run.rows_per_cpu_second for run in runs.long], 0),
            _format_median_range([run.cpu for run in runs.short], 1),
            _format_median_range([run.cpu for run in runs.long], 1),
            f"{_format_median_range([run.seconds for run in runs.long], 1)} |",
        ]
    )


def _format_median_range(values: list[float], digits: int) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:,.{digits}f} ({least:,.{digits}f} to {most:,.{digits}f})"


if __name__ == "__main__":
    start = time.monotonic()
    print(backfill_section())
    print(f"measured in {time.monotonic() - start:.0f} s", file=sys.stderr)
