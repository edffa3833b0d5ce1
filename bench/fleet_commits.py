"""Commits to one table by 1, 4 and 8 writers, each a process: a second, CPU and requests of one; ours and `deltalake`.

Every measurement has a table of its own. Requests are counted through proxies in runs of their own, one commit at a
time, with each request 50 ms late, which tells requests that wait for one another from those beside each other.
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

from worker.lake.store import Store

from .commit import make_table
from .fleet_child import OPTIONS, Child, ChildFailed, python
from .fleet_site import Counting, Site

PINS = Path(__file__).parent / "requirements" / "deltalake-1.6.0.txt"
ENVIRONMENT = Path("build/bench-deltalake-1.6.0")
LATE = 0.05
WARM = 3  # commits before anything is measured
PATIENCE = 120.0
_VERSION = re.compile(r"\d{20}\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """How one writer is started: `command` gets the lake, the table and the lock table to fill in."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def of(self, lake: str, table: str, locks: str) -> list[str]:
        return [part.format(lake=lake, table=table, locks=locks) for part in self.command]


def ours(name: str, locks: str, kind: str) -> System:
    return System(name=name, command=tuple(python("fleet_writer", "{lake}", "{table}", locks, kind)))


def systems(old: Path | None) -> list[System]:
    """Ours and the peers; `old`: the interpreter that has deltalake 1.6.0."""
    found = [
        ours("pcaplake, lock table, one Add", "{locks}", "add"),
        ours("pcaplake, lock table, a file of one row", "{locks}", "file"),
        ours("pcaplake, put-if-absent, one Add", "-", "add"),
        ours("pcaplake, put-if-absent, a file of one row", "-", "file"),
    ]
    if old is not None:
        locking = {"AWS_S3_LOCKING_PROVIDER": "dynamodb", "DELTA_DYNAMO_TABLE_NAME": "{locks}"}
        command = (str(old), "-m", "bench.fleet_peer", "{lake}/{table}")
        found.append(
            System(name="deltalake 1.6.0, lock table, a file of one row", command=command, environment=locking)
        )
    command = (sys.executable, "-m", "bench.fleet_peer", "{lake}/{table}")
    found.append(
        System(
            name=f"deltalake {version('deltalake')}, conditional put, a file of one row",
            command=command,
            environment={"AWS_CONDITIONAL_PUT": "etag"},
        )
    )
    return found


def old_deltalake() -> Path:
    """The interpreter of an environment with deltalake 1.6.0, made at first use."""
    interpreter, mark = ENVIRONMENT / "bin" / "python", ENVIRONMENT / ".installed"
    if not mark.exists() or mark.read_text() != PINS.read_text():
        print(f"installing deltalake 1.6.0 into {ENVIRONMENT}, once", file=sys.stderr)
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(ENVIRONMENT)], check=True, stdout=sys.stderr.fileno())
        pip = [str(interpreter), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        done = subprocess.run([*pip, "--require-hashes", "-r", str(PINS)], check=False, stdout=sys.stderr.fileno())
        if done.returncode:
            raise SystemExit("deltalake 1.6.0 cannot be installed: pip needs its index; or leave it out: --without-old")
        mark.write_text(PINS.read_text())
    return interpreter.absolute()


class Tables:
    """The tables of the measurements: in one lake, under one lock table. Their checkpoints are those of bench.commit."""

    def __init__(self, site: Site) -> None:
        self._site, self.environment = site, site.environment
        self._lake, self._locks = f"s3://{site.bucket('commits')}/lake", site.lock_table()
        self._store = Store.open(self._lake, OPTIONS)

    async def _made(self, live: int) -> str:
        """A new table with so many live files, at version 0."""
        folder, name = self._site.folder / f"live-{live}", self._site.name("t")
        if not folder.exists():
            await make_table(folder, "t", live)
        for path in sorted(folder.glob("t/_delta_log/*")):
            await self._store.put(f"{name}/_delta_log/{path.name}", path.read_bytes())
        return name

    async def writers(
        self, system: System, count: int, live: int, stack: AsyncExitStack, environment: Mapping[str, str]
    ) -> tuple[str, list[Child]]:
        """A new table, and so many writers of it, warm."""
        table, found = await self._made(live), list[Child]()
        given = {name: value.format(locks=self._locks) for name, value in system.environment.items()}
        command = system.of(self._lake, table, self._locks)
        for _ in range(count):
            child = await Child.start(command, {**environment, **given}, self._site.log("writer"))
            found.append(await stack.enter_async_context(child))
        for child in found:
            await child.ask({"commits": WARM}, PATIENCE)
        return table, found

    async def commits(self, table: str) -> int:
        """How many versions its log has got since it was made."""
        found = await self._store.list(f"{table}/_delta_log")
        return sum(_VERSION.fullmatch(each.path.rpartition("/")[2]) is not None for each in found) - 1


async def rates(
    site: Site, which: Sequence[System], cases: Sequence[tuple[int, int]], *, seconds: float, repeats: int
) -> list[dict[str, Any]]:
    """Commits a second and CPU by system, for each case of writers and live files; in turn, so that all share the

    weather.
    """
    tables = Tables(site)
    todo = [(system, writers, live) for writers, live in cases for system in which]
    found: list[list[dict[str, float]]] = [[] for _ in todo]
    for _ in range(repeats):
        for (system, writers, live), runs in zip(todo, found, strict=True):
            runs.append(await _rate(tables, system, writers, live, seconds))
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
        for (system, writers, live), runs in zip(todo, found, strict=True)
    ]


async def _rate(tables: Tables, system: System, count: int, live: int, seconds: float) -> dict[str, float]:
    async with AsyncExitStack() as stack:
        table, writers = await tables.writers(system, count, live, stack, tables.environment)
        asked = [writer.ask({"seconds": seconds}, seconds + PATIENCE) for writer in writers]
        ends = await asyncio.gather(*asked, return_exceptions=True)
        stuck = [(writer, end) for writer, end in zip(writers, ends, strict=True) if isinstance(end, ChildFailed)]
        for writer, end in stuck:
            print(f"{system.name}: {end}", file=sys.stderr)
            writer.kill()
    told = [end for end in ends if isinstance(end, dict)]
    if len(told) + len(stuck) < count or not told:
        raise SystemExit(f"{system.name}: {ends}")
    commits = sum(one["commits"] for one in told)
    return {
        "per_second": commits / max(one["seconds"] for one in told),
        "cpu_ms": 1000 * sum(one["cpu"] for one in told) / max(commits, 1),
        "failed": sum(one["failed"] for one in told),
        "stuck": len(stuck),
        "lost": max(0, count * WARM + commits - await tables.commits(table)),
    }


async def requests(site: Site, which: Sequence[System], *, commits: int) -> list[dict[str, Any]]:
    """Requests of one uncontended commit, how many of them in sequence, and how long it takes when each is late."""
    tables, rows = Tables(site), []
    for system in which:
        async with Counting(site.environment, LATE) as counting, AsyncExitStack() as stack:
            _, [writer] = await tables.writers(system, 1, 0, stack, counting.environment)
            counting.take()
            totals, depths, seconds = list[int](), list[int](), list[float]()
            operations = Counter[str]()
            for _ in range(commits):
                seconds.append((await writer.ask({"commits": 1}, PATIENCE))["seconds"])
                found, depth = counting.take()
                totals.append(found.total())
                depths.append(depth)
                operations.update(found)
        rows.append(
            {
                "system": system.name,
                "requests": median(totals),
                "most_requests": max(totals),
                "in_sequence": min(depths),  # what a busy machine delays looks like more, never like fewer
                "seconds_when_late": median(seconds),
                "late_ms": 1000 * LATE,
                "operations": {name: count / commits for name, count in operations.most_common()},
            }
        )
    return rows
