"""The signals of replaced captures: out with those of the old frames, in with those of the new.

The stream of signals passes over versions that change rows, so it never reads what `replace` wrote; but it may not have
read yet what was there before. Those frames it must read first, else it would bring the old signals after the new ones:
either the streams are drained here, or a job that follows them is waited for.

Knows signals and how far their streams are. Must not know how captures are decoded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from worker.errors import Fatal, Retryable

from .places import read_table, table_exists, table_path
from .signals.database import Databases
from .signals.history import Memory, State
from .signals.model import Kind
from .signals.pipeline import KINDS, Options, checked, run, swap
from .signals.tables import SIGNALS, SOURCES, wide_table
from .signals.writing import WRITING, Rows
from .upkeep import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL = 0.5
_pause = time.sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """`databases`: as the signals job has them. `wait`: seconds for a signals job that runs; None: none runs."""

    databases: Databases
    wait: float | None = None


class Signals:
    """Of one lake. Made before frames are replaced. Fatal where the databases are not those of the signals job."""

    def __init__(
        self, spark: SparkSession, lake: str, follow: Follow, storage: Mapping[str, str], say: Callable[[str], None]
    ) -> None:
        self._spark, self._lake, self._follow, self._storage, self._say = spark, lake, follow, storage, say
        memory = Memory.open(lake, storage)
        state = memory.load()
        self._wide = tuple(state.wide) if state is not None else ()
        try:
            checked(Options(databases=follow.databases, wide=self._wide))
        except Fatal as error:
            raise Fatal(f"these databases are not those of the signals job, give the same ({error})") from error
        if follow.wait is not None and state != State.of(follow.databases, self._wide):
            raise Fatal("the databases are not those of the running signals job: give the same, or stop that job first")
        self._versions: Mapping[Kind, int | None] = {}

    def begin(self) -> None:
        """After captures were chosen, and before frames are replaced: what a running job must have read by then."""
        self._versions = {kind: _version(self._spark, self._lake, SOURCES[kind]) for kind in KINDS}

    def replace(self, where: str) -> None:
        """Signals of all frames for which `where` holds anew."""
        if self._follow.wait is None:
            self._say("reading what the signals job has not read yet")
            options = Options(databases=self._follow.databases, wide=self._wide)
            run(self._spark, self._lake, options, storage=self._storage, say=self._say)
        else:
            self._wait(self._follow.wait)
        rows = Rows(self._spark, self._follow.databases)
        with settings(self._spark, WRITING):
            parts = [rows.long(kind, read_table(self._spark, self._lake, SOURCES[kind]).where(where)) for kind in KINDS]
            new = parts[0].unionByName(parts[1])
            swap(new, self._lake, SIGNALS, where)
            for name in self._wide:
                kind = rows.kind_of(name)
                frames = read_table(self._spark, self._lake, SOURCES[kind]).where(where)
                swap(rows.wide(kind, name, frames), self._lake, wide_table(name), where)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        left = [kind for kind in KINDS if self._versions[kind] is not None]
        while left:
            memory = Memory.open(self._lake, self._storage)
            left = [kind for kind in left if not self._passed(memory, kind)]
            if left and time.monotonic() >= until:
                raise Retryable(
                    f"the signals job has not read {SOURCES[left[0]]} up to version {self._versions[left[0]]} in "
                    f"{seconds:g} s: see that it runs, or stop it and leave --wait-for-signals away; run this again"
                )
            if left:
                _pause(_POLL)

    def _passed(self, memory: Memory, kind: Kind) -> bool:
        at = memory.position(kind)
        before = self._versions[kind]
        return at is not None and before is not None and at.version > before


def has_signals(spark: SparkSession, lake: str) -> bool:
    return table_exists(spark, lake, SIGNALS)


def _version(spark: SparkSession, lake: str, table: str) -> int | None:
    """The newest version that may hold rows of captures which are committed now."""
    from delta.tables import DeltaTable

    if not table_exists(spark, lake, table):
        return None
    newest = DeltaTable.forPath(spark, table_path(lake, table)).history(1).select("version").first()
    return int(newest[0])
