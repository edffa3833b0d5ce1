"""The fleet on this machine: commits, adds, messages and bytes a second, lag, and what all of it costs in requests.

    python -m bench.fleet [--quick] [--only commits,lag] [--json FILE] [--markdown FILE] [--engine ministack|localstack]

S3, SQS and DynamoDB are started on loopback for the run; `deltalake` 1.6.0 (the last one with a DynamoDB lock) gets an
environment of its own under build/, and runs beside ours. The local services share the cores with what is measured, and
are slower than it: so CPU and requests say more than what a second holds. docs/benchmarks-fleet.md tells the method.
`--quick` looks in about a minute whether everything works; its figures mean nothing.
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

from tools.local.engines import ENGINES

from . import fleet_commits, fleet_committer, fleet_lag, fleet_service
from .fleet_report import SECTIONS
from .fleet_service import Captures
from .fleet_site import Site, site
from .ingest import captures


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    repeats: int = 3
    commit_cases: tuple[tuple[int, int], ...] = ((1, 0), (4, 0), (8, 0), (1, 10_000))  # writers, live files
    commit_seconds: float = 10.0
    counted_commits: int = 20
    stagers: tuple[int, ...] = (1, 8)
    stages: int = 192
    days: int = 8
    messages: int = 2000
    volume: tuple[int, int] = (32, 16)  # megabytes of a capture, captures
    cost: tuple[tuple[int, int], ...] = ((1, 64), (32, 16))
    idle_seconds: float = 60.0
    heap: int = 500
    lag_seconds: float = 120.0


QUICK = Scale(
    repeats=1,
    commit_cases=((1, 0),),
    commit_seconds=0.5,
    counted_commits=3,
    stagers=(1, 2),
    stages=4,
    days=2,
    messages=30,
    volume=(1, 2),
    cost=((1, 2),),
    idle_seconds=2.0,
    heap=20,
    lag_seconds=3.0,
)


def measurements(
    where: Site, scale: Scale, folder: Path, old: Path | None
) -> Mapping[str, Callable[[], Awaitable[Any]]]:
    """By section, in the order of the report."""
    which = fleet_commits.systems(old)

    def mix(megabytes: int) -> Captures:
        made = captures(folder, "c", megabytes)
        return Captures(name=f"c{megabytes}", path=next(made.glob("*/*.pcap*")), profile=made / "profile.yaml")

    async def lags() -> list[dict[str, Any]]:
        return [
            await fleet_lag.lag(where, preset, heap=scale.heap, seconds=scale.lag_seconds)
            for preset in ("low_latency", "default")
        ]

    return {
        "requests": lambda: fleet_commits.requests(where, which, commits=scale.counted_commits),
        "commits": lambda: fleet_commits.rates(
            where, which, scale.commit_cases, seconds=scale.commit_seconds, repeats=scale.repeats
        ),
        "committer": lambda: fleet_committer.rates(
            where, scale.stagers, stages=scale.stages, days=scale.days, repeats=scale.repeats
        ),
        "messages": lambda: fleet_service.messages(where, count=scale.messages, repeats=scale.repeats),
        "volume": lambda: fleet_service.volume(
            where, mix(scale.volume[0]), count=scale.volume[1], repeats=scale.repeats
        ),
        "lag": lags,
        "cost": lambda: fleet_service.cost(where, [(mix(megabytes), count) for megabytes, count in scale.cost]),
        "idle": lambda: fleet_service.idle(where, seconds=scale.idle_seconds),
    }


async def run(where: Site, options: argparse.Namespace, result: dict[str, Any]) -> list[str]:
    """Each section is told, and kept in --json, as soon as it is measured."""
    scale = QUICK if options.quick else Scale()
    needs_old = not options.without_old and {"requests", "commits"} & set(options.only)
    old = fleet_commits.old_deltalake() if needs_old else None
    texts = []
    for name, measure in measurements(where, scale, options.folder, old).items():
        if name in options.only:
            print(f"{name} ...", file=sys.stderr)
            result[name] = await measure()
            result["machine"]["load_at_the_end"] = round(os.getloadavg()[0], 1)
            texts.append(SECTIONS[name](result[name]))
            print(texts[-1], flush=True)
            if options.json:
                options.json.write_text(json.dumps(result, indent=1))
    return texts


def machine() -> dict[str, Any]:
    return {
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "deltalake": version("deltalake"),
        "load_at_the_start": round(os.getloadavg()[0], 1),
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of about a minute")
    parser.add_argument("--engine", choices=ENGINES, default=os.environ.get("LOCAL_AWS_ENGINE", "ministack"))
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, with commas between them (%(default)s)")
    parser.add_argument("--without-old", action="store_true", help="leave out deltalake 1.6.0")
    parser.add_argument("--folder", type=Path, default=Path("bench-data"), help="where captures are made and kept")
    parser.add_argument("--json", type=Path, help="write every figure there")
    parser.add_argument("--markdown", type=Path, help="write the tables there too")
    options = parser.parse_args()
    options.only = options.only.split(",")
    if unknown := set(options.only) - set(SECTIONS):
        parser.error(f"no section is called {', '.join(sorted(unknown))}: take some of {', '.join(SECTIONS)}")
    return options


def main() -> None:
    options = arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {"engine": options.engine, "quick": options.quick, "machine": machine()}
    here = result["machine"]
    print(
        f"{options.engine}; {here['architecture']}, {here['cores']} cores, Python {here['python']}, deltalake "
        f"{here['deltalake']}, load {here['load_at_the_start']}{'; a smoke run' if options.quick else ''}\n"
    )
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as scratch, site(options.engine, Path(scratch)) as where:
        texts = asyncio.run(run(where, options, result))
    if options.markdown:
        options.markdown.write_text("\n".join(texts))
    print(f"load at the end {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
