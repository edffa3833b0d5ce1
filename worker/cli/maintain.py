"""`pcaplake maintain`: compacts files, writes checkpoints, deletes files that no table version needs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from pcaplake.common import VERSION
from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.lake.compaction.run import Compactor
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import LOG_STORE, read_identity, refuse_other_log_store, require_lake
from pcaplake.lake.maintenance import LEAST_RETENTION_DAYS, MaintenanceResult, maintain_each_table
from pcaplake.lake.store.store import Store
from pcaplake.worker import console as screen
from pcaplake.worker.admin.case import Case
from pcaplake.worker.admin.open_case import Subject, create_local_case, open_case
from pcaplake.worker.admin.pending_stages import find_tables_to_leave_alone, find_uncommitted_stages
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import Settings, WrongSetting, parse_size

from .lake_options import LakeUri, LedgerPath, Pair


def maintain(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="YAML file with the settings of the service: maintain the lakes of a fleet, with their lock table.",
            show_default=False,
        ),
    ] = None,
    lake: LakeUri = None,
    storage_option: Pair = None,
    ledger: LedgerPath = None,
    target_file_size: Annotated[
        int,
        typer.Option(
            metavar="SIZE",
            parser=parse_size,
            help="Target size of compacted files. Default: 128MB.",
            show_default=False,
        ),
    ] = LakeConfig().target_file_size,
    retention_days: Annotated[
        int, typer.Option(metavar="DAYS", help=f"Keep replaced files for this time; at least {LEAST_RETENTION_DAYS}.")
    ] = LEAST_RETENTION_DAYS,
    max_minutes: Annotated[
        float | None,
        typer.Option(
            metavar="N", min=0, help="Begin no compaction after this time; the next run goes on.", show_default=False
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compact files, write checkpoints, and delete files that no table version needs.

    Small files of a partition become larger ones, with their rows sorted by vehicle, ten minutes, the table's key (such as bus
    and id) and time. An ingest, workers and Spark may run at the same time. The ledger keeps all captures, so no capture is
    read again because of this. You can stop or kill the command at any time.

    Staged files that are not committed yet, because their table is blocked or their stage is held, are kept whatever
    their age. The ledger names them: if it cannot be read, nothing is deleted and the exit code is 3. A table whose log
    was restored to an older version or cannot be read is skipped, also with exit code 3, because restoring it needs its files.
    So is a table with a Delta feature that pcaplake does not support; the error names the feature.

    Exit codes: 0 done, 2 wrong usage or settings, 3 stopped by an error, or a table was skipped, 130 Ctrl-C (what is done
    stays).

    Examples:

      pcaplake maintain --lake lake/ --target-file-size 256MB

      pcaplake maintain --config fleet.yaml --max-minutes 30
    """
    if target_file_size < 1 << 20:
        raise WrongSetting("--target-file-size: the minimum is 1MB")
    if retention_days < LEAST_RETENTION_DAYS:
        raise WrongSetting(
            f"--retention-days: the minimum is {LEAST_RETENTION_DAYS}, because readers and pending stages need the files"
        )
    runtime = Runtime()
    until = None if max_minutes is None else runtime.clock() + 60 * max_minutes
    lake_config = LakeConfig(target_file_size=target_file_size)
    reports, problems = dict[str, dict[str, MaintenanceResult]](), list[PcaplakeError]()
    for place in _find_places(config, lake, storage_option, ledger):
        run = _Run(place, lake_config, retention_days, until, runtime)
        try:
            asyncio.run(run.run())
        except PcaplakeError as error:
            if config is None:
                raise
            problems.append(error)  # the other lakes of the fleet go on
        reports[place.store.uri] = run.report
        problems += run.problems
    _show(reports, by_lake=config is not None, json=json)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Fatal("; ".join(dict.fromkeys(map(str, problems))))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A lake; `subject`: how it is opened as one of a fleet."""

    store: Store
    ledger: Path | None = None
    subject: Subject | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Case]:
        """The lake, with its ledger and lock table."""
        if self.subject is not None and self.subject.lake is not None:
            async with open_case(self.subject, self.subject.lake) as case:
                yield case
            return
        case = create_local_case(self.store, self.ledger)
        try:
            yield case
        finally:
            await case.close()


def _find_places(
    config: Path | None, lake: str | None, storage_option: list[str] | None, ledger: Path | None
) -> list[_Place]:
    if config is None:
        settings = Settings.load(lake=lake, storage_option=storage_option)
        return [_Place(store=Store.open(settings.lake, settings.storage_options_for(settings.lake)), ledger=ledger)]
    if ledger is not None:
        raise WrongSetting("--ledger: not with --config, which says where the ledger is")
    fleet = FleetSettings.load(config, storage_option=storage_option)
    uris = Subject(settings=fleet, lake=lake).find_lake_uris()
    subjects = [Subject(settings=fleet, lake=uri) for uri in uris]
    return [_Place(store=subject.open_store(uri), subject=subject) for subject, uri in zip(subjects, uris, strict=True)]


@dataclass(slots=True)
class _Run:
    """Maintenance of one lake. `report`: by table."""

    place: _Place
    lake_config: LakeConfig
    retention_days: int
    until: float | None
    runtime: Runtime
    report: dict[str, MaintenanceResult] = field(default_factory=dict)
    problems: list[PcaplakeError] = field(default_factory=list)

    async def run(self) -> None:
        store = self.place.store
        await require_lake(store)
        known = await read_identity(store)
        assert known is not None
        if self.place.subject is None and known[0].log_store != LOG_STORE:
            raise Fatal(
                f"{store.uri} commits under a lock table ({known[0].log_store}): name the settings of its fleet with --config"
            )
        async with self.place.open() as case:
            refuse_other_log_store(known[0], case.log_store)
            await store.delete_abandoned_uploads()  # of a run that was killed
            left_alone, known_stages = dict[str, str](), False
            try:
                await find_uncommitted_stages(case)
                left_alone, known_stages = await find_tables_to_leave_alone(case), True
            except PcaplakeError as error:
                self.problems.append(
                    Fatal(f"nothing was deleted, because it is not known which files are not committed yet: {error}")
                )
            compactor = Compactor(
                log_store=LogStore(store, lock_table=case.lock_table, engine_info=f"pcaplake/{VERSION}"),
                store=store,
                lake_config=self.lake_config,
                until=self.until,
                progress=_say_progress,
                runtime=self.runtime,
            )
            async for name, done in maintain_each_table(
                compactor,
                waiting=self._read_uncommitted_files if known_stages else None,
                left_alone=left_alone,
                retention_days=self.retention_days,
                begin=lambda name: screen.say(f"{name} ..."),
            ):
                if isinstance(done, MaintenanceResult):
                    self.report[name] = done
                else:
                    self.problems.append(done)

    async def _read_uncommitted_files(self) -> frozenset[str]:
        """The uncommitted files, by ledger and manifests. Raises Fatal or Retryable if they cannot be known."""
        async with self.place.open() as case:
            stages = (await find_uncommitted_stages(case)).values()
            return frozenset(path for stage in stages for path in stage.file_paths)


def _say_progress(table: str, done: int, total: int) -> None:
    if done:
        screen.say(f"{table}: {done:,} of {counted(total, 'file')} compacted")


def _show(reports: dict[str, dict[str, MaintenanceResult]], *, by_lake: bool, json: bool) -> None:
    by_uri: dict[str, Any] = {
        uri: {name: asdict(result) for name, result in report.items()} for uri, report in reports.items()
    }
    if json:
        screen.as_json(by_uri if by_lake else next(iter(by_uri.values()), {}))
        return
    for uri, report in reports.items():
        rows = [
            (
                name,
                result.compacted,
                result.added,
                result.compacted_bytes,
                result.added_bytes,
                result.left,
                "-" if result.deleted is None else result.deleted,
                result.version,
            )
            for name, result in report.items()
        ]
        columns = ["table", "files compacted", "into", "bytes", "into", "left", "deleted", "version"]
        screen.table(uri if by_lake else None, columns, rows)
