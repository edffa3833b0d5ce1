"""Spark beside the workers on this machine: what its log store costs, and what its jobs do.

    python -m bench.spark [--quick] [--only NAMES] [--markdown FILE] [--engine ministack|localstack]

S3 and DynamoDB are started on loopback for the run, and share the cores with Spark. Each section is one function of a
`Bench` that returns its markdown: to add one, write it in a module of its own and name it in `SECTIONS`.
docs/benchmarks-spark.md has what came of it. `--quick` looks whether everything works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_jobs.session import open_session
from tests.aws import Aws
from tests.integration.soak import engine
from tests.spark.conftest import SMALL, Site

SECTIONS: Final = {  # name: where its function is
    "logstore": "bench.spark_logstore:commits",
    "opening": "bench.spark_logstore:opening",
    "compact": "bench.spark_compact:beside",
    "zorder": "bench.spark_compact:skipping",
    "backfill": "bench.spark_backfill:beside",
    "signals": "bench.spark_signals:beside",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What a section measures with. `quick`: as little as shows that it works."""

    spark: Any
    site: Site
    aws: Aws
    folder: Path
    quick: bool


def spread(values: Sequence[float], unit: str = "ms") -> str:
    """Median and the range of it."""
    return f"{statistics.median(values):.0f} {unit} ({min(values):.0f} to {max(values):.0f}, n={len(values)})"


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def run(given: argparse.Namespace) -> list[str]:
    texts = []
    with tempfile.TemporaryDirectory() as scratch, engine(given.engine, Path(scratch)) as aws:
        locks = aws.table("locks", hash_key="tablePath", range_key="fileName")
        site = Site(aws=aws, locks=locks, ledger=aws.table("ledger"))
        spark = open_session(app="bench", settings=site.settings(), lakes=[site.lake()], master="local[2]", conf=SMALL)
        spark.sparkContext.setLogLevel("ERROR")
        one = Bench(spark=spark, site=site, aws=aws, folder=Path(scratch), quick=given.quick)
        try:
            for name in given.only:
                print(f"{name} ...", file=sys.stderr, flush=True)
                module, _, function = SECTIONS[name].partition(":")
                texts.append(getattr(importlib.import_module(module), function)(one))
                print(texts[-1], flush=True)
        finally:
            spark.stop()
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run")
    parser.add_argument("--engine", choices=("ministack", "localstack"), default="ministack")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between them (%(default)s)")
    parser.add_argument("--markdown", type=Path, help="write the sections there too")
    given = parser.parse_args()
    given.only = given.only.split(",")
    if unknown := set(given.only) - set(SECTIONS):
        parser.error(f"no section is called {', '.join(sorted(unknown))}: take some of {', '.join(SECTIONS)}")
    load = os.getloadavg()[0]
    texts = run(given)
    where = f"{platform.machine()}, {os.cpu_count()} cores, {given.engine}, load {load:.1f} to {os.getloadavg()[0]:.1f}"
    texts.append(f"{'A smoke run: ' if given.quick else ''}{where}.\n")
    print(texts[-1])
    if given.markdown:
        given.markdown.write_text("\n".join(texts))


if __name__ == "__main__":
    main()
