"""Commits to one table by 1, 4 and 8 writer processes: commits per second, CPU and requests per commit; pcaplake and `deltalake`.

Every measurement has its own table. Requests are counted by proxies in separate runs, one commit at a time. A proxy delays
each request by 50 ms, which shows which requests wait for one another and which are concurrent.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from pcaplake.lake.store.store import Store

from .commit import create_table_with_files
from .fleet_child import OPTIONS, ChildFailed, ChildProcess, python_module_command
from .fleet_site import BenchSite, CountingProxies

PINS = Path(__file__).parent / "requirements" / "deltalake-1.6.0.txt"
ENVIRONMENT = Path("build/bench-deltalake-1.6.0")
LATE = 0.05
WARM = 3  # commits before anything is measured
PATIENCE = 120.0
_VERSION = re.compile(r"\d{20}\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSystem:
    """How to start one writer. `command` has placeholders for the lake, the table and the lock table."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def command_for(self, lake: str, table: str, locks: str) -> list[str]:
        return [part.format(lake=lake, table=table, locks=locks) for part in self.command]


def own_writer_system(name: str, locks: str, kind: str) -> WriterSystem:
    return WriterSystem(
        name=name, command=tuple(python_module_command("fleet_writer", "{lake}", "{table}", locks, kind))
    )


def writer_systems(old: Path | None) -> list[WriterSystem]:
    """pcaplake's writers and the peers. `old`: the interpreter that has deltalake 1.6.0."""
    measured_systems = [
        own_writer_system("pcaplake, lock table, one Add", "{locks}", "add"),
        own_writer_system("pcaplake, lock table, a file of one row", "{locks}", "file"),
        own_writer_system("pcaplake, put-if-absent, one Add", "-", "add"),
        own_writer_system("pcaplake, put-if-absent, a file of one row", "-", "file"),
    ]
    if old is not None:
        locking = {"AWS_S3_LOCKING_PROVIDER": "dynamodb", "DELTA_DYNAMO_TABLE_NAME": "{locks}"}
        command = (str(old), "-m", "bench.fleet_peer", "{lake}/{table}")
        measured_systems.append(
            WriterSystem(name="deltalake 1.6.0, lock table, a file of one row", command=command, environment=locking)
        )
    command = (sys.executable, "-m", "bench.fleet_peer", "{lake}/{table}")
    measured_systems.append(
        WriterSystem(
            name=f"deltalake {version('deltalake')}, conditional put, a file of one row",
            command=command,
            environment={"AWS_CONDITIONAL_PUT": "etag"},
        )
    )
    return measured_systems


def old_deltalake_interpreter() -> Path:
    """The interpreter of an environment with deltalake 1.6.0, which the first call installs."""
    interpreter, mark = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".installed"
    if not mark.exists() or mark.read_text() != PINS.read_text():
        print(f"installing deltalake 1.6.0 into {ENVIRONMENT}, once", file=sys.stderr)
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True, stdout=sys.stderr.fileno())
        pip = [str(interpreter), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        done = subprocess.run([*pip, "--require-hashes", "-r", str(PINS)], check=False, stdout=sys.stderr.fileno())
        if done.returncode:
            raise SystemExit("cannot install deltalake 1.6.0, for which pip needs its index; --without-old skips it")
        mark.write_text(PINS.read_text())
    return interpreter.absolute()


class CommitTables:
    """The tables of the measurements: in one lake, under one lock table. Their checkpoints are those of bench.commit."""

    def __init__(self, site: BenchSite) -> None:
        self._site, self.environment = site, site.environment
        self._lake, self._locks = f"s3://{site.make_bucket('commits')}/lake", site.make_lock_table()
        self._store = Store.open(self._lake, OPTIONS)

    async def _create_table(self, live: int) -> str:
        """Create a table with `live` files, at version 0, and return its name."""
        folder, name = self._site.folder / f"live-{live}", self._site.unique_name("t")
        if not folder.exists():
            await create_table_with_files(folder, "t", live)
        for path in sorted(folder.glob("t/_delta_log/*")):
            await self._store.put(f"{name}/_delta_log/{path.name}", path.read_bytes())
        return name

    async def start_writers(
        self, system: WriterSystem, count: int, live: int, stack: AsyncExitStack, environment: Mapping[str, str]
    ) -> tuple[str, list[ChildProcess]]:
        """Create a table and start `count` writers, which then have committed some versions."""
        table, writers = await self._create_table(live), list[ChildProcess]()
        writer_environment = {name: value.format(locks=self._locks) for name, value in system.environment.items()}
        command = system.command_for(self._lake, table, self._locks)
        for _ in range(count):
            child = await ChildProcess.start(
                command, {**environment, **writer_environment}, self._site.make_log_path("writer")
            )
            writers.append(await stack.enter_async_context(child))
        for child in writers:
            await child.request_answer({"commits": WARM}, PATIENCE)
        return table, writers

    async def count_commits(self, table: str) -> int:
        """The number of versions after version 0."""
        listing = await self._store.list(f"{table}/_delta_log")
        return sum(_VERSION.fullmatch(meta.path.rpartition("/")[2]) is not None for meta in listing) - 1


async def measure_commit_rates(
    site: BenchSite, which: Sequence[WriterSystem], cases: Sequence[tuple[int, int]], *, seconds: float, repeats: int
) -> list[dict[str, Any]]:
    """Commits per second and CPU by system, for each case of writers and live files; systems take turns."""
    tables = CommitTables(site)
    todo = [(system, writers, live) for writers, live in cases for system in which]
    rates_by_case: list[list[dict[str, float]]] = [[] for _ in todo]
    for _ in range(repeats):
        for (system, writers, live), runs in zip(todo, rates_by_case, strict=True):
            runs.append(await _measure_commit_rate(tables, system, writers, live, seconds))
    return [
        {
            "system": system.name,
            "writers": writers,
            "live_files": live,
            "per_second": [run["per_second"] for run in runs],
            "cpu_ms": [run["cpu_ms"] for run in runs],
            "failed": sum(run["failed"] for run in runs),
            "stuck": sum(run["stuck"] for run in runs),
            "lost": sum(run["lost"] for run in runs),
        }
        for (system, writers, live), runs in zip(todo, rates_by_case, strict=True)
    ]


async def _measure_commit_rate(
    tables: CommitTables, system: WriterSystem, count: int, live: int, seconds: float
) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        table, writers = await tables.start_writers(system, count, live, stack, tables.environment)
        pending_answers = [writer.request_answer({"seconds": seconds}, seconds + PATIENCE) for writer in writers]
        ends = await asyncio.gather(*pending_answers, return_exceptions=True)
        stuck = [(writer, end) for writer, end in zip(writers, ends, strict=True) if isinstance(end, ChildFailed)]
        for writer, end in stuck:
            print(f"{system.name}: {end}", file=sys.stderr)
            writer.kill()
    answers = [end for end in ends if isinstance(end, dict)]
    if len(answers) + len(stuck) < count or not answers:
        raise SystemExit(f"{system.name}: {ends}")
    commits = sum(answer["commits"] for answer in answers)
    return {
        "per_second": commits / max(answer["seconds"] for answer in answers),
        "cpu_ms": 1000 * sum(answer["cpu"] for answer in answers) / max(commits, 1),
        "failed": sum(answer["failed"] for answer in answers),
        "stuck": len(stuck),
        "lost": max(0, count * WARM + commits - await tables.count_commits(table)),
    }


async def measure_commit_requests(
    site: BenchSite, which: Sequence[WriterSystem], *, commits: int
) -> list[dict[str, Any]]:
    """Requests of one uncontended commit, how many of them are in sequence, and its duration if each is delayed."""
    tables, rows = CommitTables(site), []
    for system in which:
        async with CountingProxies(site.environment, LATE) as counting, AsyncExitStack() as stack:
            _, [writer] = await tables.start_writers(system, 1, 0, stack, counting.environment)
            counting.take_request_counts()
            totals, depths, seconds = list[int](), list[int](), list[float]()
            operations = Counter[str]()
            for _ in range(commits):
                seconds.append((await writer.request_answer({"commits": 1}, PATIENCE))["seconds"])
                operations_by_name, depth = counting.take_request_counts()
                totals.append(operations_by_name.total())
                depths.append(depth)
                operations.update(operations_by_name)
        rows.append(
            {
                "system": system.name,
                "requests": median(totals),
                "most_requests": max(totals),
                "in_sequence": min(depths),  # delays of a busy machine can only increase the number
                "seconds_when_late": median(seconds),
                "late_ms": 1000 * LATE,
                "operations": {name: count / commits for name, count in operations.most_common()},
            }
        )
    return rows
