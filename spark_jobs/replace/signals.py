"""Replaces the signals of replaced captures with those of the new frames.

The signals job skips versions that change rows, so it never reads the frames that `replace` writes; but it may not have read
the old frames yet. It must read those first, or it would write old signals after the new ones. So either this job drains
the streams, or it waits for a running signals job to pass the current versions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcaplake.signals.database import Databases
from pcaplake.signals.definitions import DefinitionState
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.sources import TABLES, Source
from pcaplake.signals.tables import SIGNALS, wide_table_name
from pcaplake.signals.wide import require_wide_messages, source_of_message
from pcaplake.spark_jobs.common.delta_writes import replace_rows, session_settings
from pcaplake.spark_jobs.common.lake_tables import read_table, table_exists, table_path, union_frames
from pcaplake.spark_jobs.signals.history import StateFolder
from pcaplake.spark_jobs.signals.pipeline import SignalOptions, run
from pcaplake.spark_jobs.signals.writing import WRITING, SignalRows
from pcaplake.worker.errors import Fatal, Retryable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL = 0.5
_pause = time.sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalReplacerConfig:
    """`databases`: those of the signals job. `wait`: seconds to wait for a running signals job; None: none is running."""

    databases: Databases
    wait: float | None = None


class SignalReplacer:
    """Create it before frames are replaced. Raises Fatal if the databases differ from those of the signals job."""

    def __init__(
        self,
        spark: SparkSession,
        lake: str,
        follow: SignalReplacerConfig,
        storage: Mapping[str, str],
        say: Callable[[str], None],
    ) -> None:
        self._spark, self._lake, self._follow, self._storage, self._say = spark, lake, follow, storage, say
        memory = StateFolder.open(lake, storage)
        state = memory.load_state()
        self._wide = tuple(state.wide) if state is not None else ()
        try:
            require_wide_messages(follow.databases, self._wide)
        except DatabaseError as error:
            raise Fatal(
                f"these databases differ from those of the signals job ({error}): give the same databases"
            ) from error
        if follow.wait is not None and state != DefinitionState.from_databases(follow.databases, self._wide):
            raise Fatal(
                "the databases differ from those of the running signals job: give the same databases, or stop that job first"
            )
        self._versions: Mapping[Source, int | None] = {}

    def note_versions(self) -> None:
        """Note the versions that a running signals job must read first. Call it after choosing and before replacing."""
        self._versions = {source: _newest_version(self._spark, self._lake, table) for source, table in TABLES.items()}

    def replace_signals(self, where: str) -> None:
        """Replace the signals of all frames that match `where`."""
        if self._follow.wait is None:
            self._say("decoding frames that the signals job has not read yet")
            options = SignalOptions(databases=self._follow.databases, wide=self._wide)
            run(self._spark, self._lake, options, storage=self._storage, say=self._say)
        else:
            self._wait_for_signals_job(self._follow.wait)
        rows = SignalRows(self._spark, self._follow.databases)
        with session_settings(self._spark, WRITING):
            new = union_frames(
                rows.decode_signals(source, read_table(self._spark, self._lake, table).where(where))
                for source, table in TABLES.items()
            )
            replace_rows(new, self._lake, SIGNALS, where)
            for name in self._wide:
                source = source_of_message(self._follow.databases, name)
                frames = read_table(self._spark, self._lake, TABLES[source]).where(where)
                replace_rows(rows.decode_wide_rows(source, name, frames), self._lake, wide_table_name(name), where)

    def _wait_for_signals_job(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        pending = [source for source, version in self._versions.items() if version is not None]
        while pending:
            memory = StateFolder.open(self._lake, self._storage)
            pending = [source for source in pending if not self._has_passed_version(memory, source)]
            if pending and time.monotonic() >= until:
                raise Retryable(
                    f"the signals job did not read {TABLES[pending[0]]} up to version {self._versions[pending[0]]} "
                    f"within {seconds:g} s: check that it runs, or stop it and omit --wait-for-signals; then run this again"
                )
            if pending:
                _pause(_POLL)

    def _has_passed_version(self, memory: StateFolder, source: Source) -> bool:
        at = memory.read_position(source)
        before = self._versions[source]
        return at is not None and before is not None and at.version > before


def has_signals(spark: SparkSession, lake: str) -> bool:
    return table_exists(spark, lake, SIGNALS)


def _newest_version(spark: SparkSession, lake: str, table: str) -> int | None:
    """The newest version of a table; None: there is no table."""
    from delta.tables import DeltaTable

    if not table_exists(spark, lake, table):
        return None
    newest = DeltaTable.forPath(spark, table_path(lake, table)).history(1).select("version").first()
    return int(newest[0])
