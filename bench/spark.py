"""Spark and the workers on this machine: the cost of the log store for Spark, and the rates of the Spark jobs.

    python -m bench.spark [--quick] [--only NAMES] [--markdown FILE] [--engine ministack|localstack]

S3 and DynamoDB are started on loopback for the run, and share the cores with Spark. Each section is one function of a
`SparkBench` that returns its markdown: to add one, write it in a module of its own and name it in `SECTIONS`.
docs/benchmarks-spark.md has the results. `--quick` tests whether everything works; its figures mean nothing.
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

from pcaplake.spark_jobs.common.session import open_session
from tests.aws import Aws
from tests.integration.soak import engine
from tests.spark_jobs.conftest import SMALL, Site

SECTIONS: Final = {  # name: where its function is
    "logstore": "bench.spark_logstore:commit_section",
    "opening": "bench.spark_logstore:table_opening_section",
    "compact": "bench.spark_compact:compaction_section",
    "zorder": "bench.spark_compact:data_skipping_section",
    "backfill": "bench.spark_backfill:section_for_spark",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkBench:
    """The environment of a section's measurements. `quick`: only test that it works."""

    spark: Any
    site: Site
    aws: Aws
    folder: Path
    quick: bool


def format_median_range(values: Sequence[float], unit: str = "ms") -> str:
    """Median and range."""
    return f"{statistics.median(values):.0f} {unit} ({min(values):.0f} to {max(values):.0f}, n={len(values)})"


def format_markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines) + "\n"


def run_sections(options: argparse.Namespace) -> list[str]:
    texts = []
    with tempfile.TemporaryDirectory() as scratch, engine(options.engine, Path(scratch)) as aws:
        locks = aws.table("locks", hash_key="tablePath", range_key="fileName")
        site = Site(aws=aws, locks=locks, ledger=aws.table("ledger"))
        spark = open_session(app="bench", settings=site.settings(), lakes=[site.lake()], master="local[2]", conf=SMALL)
        spark.sparkContext.setLogLevel("ERROR")
        bench = SparkBench(spark=spark, site=site, aws=aws, folder=Path(scratch), quick=options.quick)
        try:
            for name in options.only:
                print(f"{name} ...", file=sys.stderr, flush=True)
                module, _, function = SECTIONS[name].partition(":")
                texts.append(getattr(importlib.import_module(module), function)(bench))
                print(texts[-1], flush=True)
        finally:
            spark.stop()
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test")
    parser.add_argument("--engine", choices=("ministack", "localstack"), default="ministack")
    parser.add_argument("--only", default=",".join(SECTIONS), help="comma-separated sections (%(default)s)")
    parser.add_argument("--markdown", type=Path, help="also write the sections to this file")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(SECTIONS):
        parser.error(f"unknown sections {', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}")
    load = os.getloadavg()[0]
    texts = run_sections(options)
    where = (
        f"{platform.machine()}, {os.cpu_count()} cores, {options.engine}, load {load:.1f} to {os.getloadavg()[0]:.1f}"
    )
    texts.append(f"{'A smoke test: ' if options.quick else ''}{where}.\n")
    print(texts[-1])
    if options.markdown:
        options.markdown.write_text("\n".join(texts))


if __name__ == "__main__":
    main()
