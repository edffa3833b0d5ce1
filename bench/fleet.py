"""The fleet on this machine: commits, adds, messages and bytes per second, lag, and the requests that they take.

    python -m bench.fleet [--quick] [--only commits,lag] [--json FILE] [--markdown FILE] [--engine ministack|localstack]

S3, SQS and DynamoDB are started on loopback for the run. `deltalake` 1.6.0 (the last version with a DynamoDB lock) is
installed in its own environment under build/, and measured in the same run. The local services share the cores with the
measured program and are slower than it, so CPU and requests are better measures than rates. docs/benchmarks-fleet.md
describes the method. `--quick` tests in about a minute whether everything works; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tools.local.engines import AWS_ENGINES

from . import fleet_commits, fleet_committer, fleet_lag, fleet_service, fleet_suspects
from .fleet_report import SECTIONS
from .fleet_service import ServedCaptures, tiny_captures
from .fleet_site import BenchSite, start_bench_site
from .ingest import make_captures


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """The sizes of the measurements."""

    repeats: int = 3
    commit_cases: tuple[tuple[int, int], ...] = ((1, 0), (4, 0), (8, 0), (1, 10_000))  # writers, live files
    commit_seconds: float = 10.0
    counted_commits: int = 20
    stagers: tuple[int, ...] = (1, 8)
    stages: int = 192
    days: int = 8
    messages: int = 2000
    volume: tuple[int, int] = (32, 16)  # megabytes of a capture, captures
    cost: tuple[tuple[int, int], ...] = ((0, 3000), (1, 64), (32, 16))  # megabytes of a capture (0: tiny), captures
    idle_seconds: float = 60.0
    heap: int = 500
    lag_seconds: float = 120.0
    suspects: tuple[tuple[int, int], ...] = ((0, 200), (1, 64))  # megabytes of a capture (0: tiny), captures
    suspects_shares: tuple[float, ...] = (0.5, 0.01)  # shares of suspects among the messages
    suspects_workers: tuple[int, ...] = (1, 2)


QUICK = Scale(
    repeats=1,
    commit_cases=((1, 0),),
    commit_seconds=0.5,
    counted_commits=2,
    stagers=(1, 2),
    stages=4,
    days=2,
    messages=30,
    volume=(1, 2),
    cost=((0, 20), (1, 2)),
    idle_seconds=2.0,
    heap=20,
    lag_seconds=3.0,
    suspects=((0, 20),),
    suspects_shares=(0.5,),
    suspects_workers=(1,),
)


def measurement_sections(
    where: BenchSite, scale: Scale, folder: Path, old: Path | None
) -> Mapping[str, Callable[[], Awaitable[Any]]]:
    """The measurement of each section, in the order of the report."""
    which = fleet_commits.writer_systems(old)

    def mix_captures(megabytes: int) -> ServedCaptures:
        folder_of_mix = make_captures(folder, "c", megabytes)
        return ServedCaptures(
            name=f"c{megabytes}", path=next(folder_of_mix.glob("*/*.pcap*")), profile=folder_of_mix / "profile.yaml"
        )

    def served_captures(megabytes: int) -> ServedCaptures:
        return mix_captures(megabytes) if megabytes else tiny_captures(folder)

    async def measure_lag_presets() -> list[dict[str, Any]]:
        return [
            await fleet_lag.measure_ingest_lag(where, preset, heap=scale.heap, seconds=scale.lag_seconds)
            for preset in ("low_latency", "default")
        ]

    return {
        "requests": lambda: fleet_commits.measure_commit_requests(where, which, commits=scale.counted_commits),
        "commits": lambda: fleet_commits.measure_commit_rates(
            where, which, scale.commit_cases, seconds=scale.commit_seconds, repeats=scale.repeats
        ),
        "committer": lambda: fleet_committer.measure_committer_rates(
            where, scale.stagers, stages=scale.stages, days=scale.days, repeats=scale.repeats
        ),
        "messages": lambda: fleet_service.measure_messages(where, count=scale.messages, repeats=scale.repeats),
        "volume": lambda: fleet_service.measure_volume(
            where, mix_captures(scale.volume[0]), count=scale.volume[1], repeats=scale.repeats
        ),
        "lag": measure_lag_presets,
        "cost": lambda: fleet_service.measure_costs(
            where, [(served_captures(megabytes), count) for megabytes, count in scale.cost]
        ),
        "idle": lambda: fleet_service.measure_idle_costs(where, seconds=scale.idle_seconds),
        "suspects": lambda: fleet_suspects.measure_suspects(
            where,
            [(served_captures(megabytes), count) for megabytes, count in scale.suspects],
            workers=scale.suspects_workers,
            shares=scale.suspects_shares,
            repeats=scale.repeats,
        ),
    }


async def run_measurements(where: BenchSite, options: argparse.Namespace, result: dict[str, Any]) -> list[str]:
    """Measure the sections; print each one, and write it to --json, as soon as it is measured."""
    scale = QUICK if options.quick else Scale()
    needs_old = not options.without_old and {"requests", "commits"} & set(options.only)
    old = fleet_commits.old_deltalake_interpreter() if needs_old else None
    texts = []
    for name, measure in measurement_sections(where, scale, options.folder, old).items():
        if name in options.only:
            print(f"{name} ...", file=sys.stderr)
            result[name] = await measure()
            result["machine"]["load_at_the_end"] = round(os.getloadavg()[0], 1)
            texts.append(SECTIONS[name](result[name]))
            print(texts[-1], flush=True)
            if options.json:
                options.json.write_text(json.dumps(result, indent=1))
    return texts


def describe_machine() -> dict[str, Any]:
    return {
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "deltalake": version("deltalake"),
        "load_at_the_start": round(os.getloadavg()[0], 1),
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke test of about a minute")
    parser.add_argument("--engine", choices=AWS_ENGINES, default=os.environ.get("LOCAL_AWS_ENGINE", "ministack"))
    parser.add_argument("--only", default=",".join(SECTIONS), help="comma-separated sections (%(default)s)")
    parser.add_argument("--without-old", action="store_true", help="skip deltalake 1.6.0")
    parser.add_argument("--folder", type=Path, default=Path("bench-data"), help="folder for the generated captures")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--markdown", type=Path, help="also write the tables to this file")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(SECTIONS):
        parser.error(f"unknown sections {', '.join(sorted(unknown))}: choose from {', '.join(SECTIONS)}")
    return options


def main() -> None:
    options = parse_arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"engine": options.engine, "quick": options.quick, "machine": describe_machine()}
    here = result["machine"]
    print(
        f"{options.engine}; {here['architecture']}, {here['cores']} cores, Python {here['python']}, deltalake "
        f"{here['deltalake']}, load {here['load_at_the_start']}{'; a smoke test' if options.quick else ''}\n"
    )
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as scratch, start_bench_site(options.engine, Path(scratch)) as where:
        texts = asyncio.run(run_measurements(where, options, result))
    if options.markdown:
        options.markdown.write_text("\n".join(texts))
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
