"""`pcaplake maintain`: compacts small files, writes checkpoints, deletes files that no table version needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pcaplake.common.errors import Fatal, PcaplakeError
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.identity import refuse_lake_with_lock_table
from pcaplake.lake.maintenance import LEAST_RETENTION_DAYS, MaintenanceResult, maintain_each_table
from pcaplake.lake.store.store import Store
from pcaplake.worker import console as screen
from pcaplake.worker.admin.open_case import create_local_case
from pcaplake.worker.admin.pending_stages import find_tables_to_leave_alone, find_uncommitted_stages
from pcaplake.worker.config.settings import WrongSetting, parse_size

from .lake_options import LakeUri, LedgerPath, Pair
from .tables import open_lake_store


def maintain(
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
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compact small files, write checkpoints, and delete files that no table version needs.

    For lakes without a lock table. An ingest may run at the same time. The ledger keeps all captures, so no capture is
    read again because of this.

    Staged files that are not committed yet, because their table is blocked or their stage is held, are kept whatever
    their age. The ledger names them: if it cannot be read, nothing is deleted and the exit code is 3. A table whose log
    was restored to an older version or cannot be read is skipped, also with exit code 3, because restoring it needs its files.
    So is a table with a Delta feature that pcaplake does not support; the error names the feature.

    Exit codes: 0 done, 2 wrong usage or settings, 3 stopped by an error, or a table was skipped.

    Example:  pcaplake maintain --lake lake/ --target-file-size 256MB
    """
    store = open_lake_store(lake, storage_option)
    if target_file_size < 1 << 20:
        raise WrongSetting("--target-file-size: the minimum is 1MB")
    if retention_days < LEAST_RETENTION_DAYS:
        raise WrongSetting(
            f"--retention-days: the minimum is {LEAST_RETENTION_DAYS}, because readers and pending stages need the files"
        )
    asyncio.run(refuse_lake_with_lock_table(store))
    files, problems, left_alone = _make_uncommitted_files_reader(store, ledger), list[PcaplakeError](), dict[str, str]()
    try:
        left_alone = asyncio.run(_read_tables_to_leave_alone(store, ledger))
    except PcaplakeError as error:
        problems.append(
            Fatal(f"nothing was deleted, because it is not known which files are not committed yet: {error}")
        )
    report = dict[str, MaintenanceResult]()
    for name, done in maintain_each_table(
        store,
        target_file_size=target_file_size,
        waiting=None if problems else files,
        left_alone=left_alone,
        retention_days=retention_days,
        begin=lambda name: screen.say(f"{name} ..."),
    ):
        if isinstance(done, MaintenanceResult):
            report[name] = done
        else:
            problems.append(done)
    if json:
        screen.as_json({name: asdict(result) for name, result in report.items()})
    else:
        rows = [
            (name, result.compacted, result.added, "-" if result.deleted is None else result.deleted, result.version)
            for name, result in report.items()
        ]
        screen.table(None, ["table", "files compacted", "into", "deleted", "version"], rows)
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Fatal("; ".join(dict.fromkeys(map(str, problems))))


async def _read_tables_to_leave_alone(store: Store, ledger: Path | None) -> dict[str, str]:
    """table -> why it is skipped. Raises Fatal or Retryable if these tables or the uncommitted files cannot be determined."""
    case = create_local_case(store, ledger)
    try:
        await find_uncommitted_stages(case)
        return await find_tables_to_leave_alone(case)
    finally:
        await case.close()


def _make_uncommitted_files_reader(store: Store, ledger: Path | None) -> Callable[[], frozenset[str]]:
    """A function that reads the uncommitted files from ledger and manifests; it raises Fatal or Retryable if it cannot."""

    async def read_uncommitted_files() -> frozenset[str]:
        case = create_local_case(store, ledger)
        try:
            return frozenset(
                path for stage in (await find_uncommitted_stages(case)).values() for path in stage.file_paths
            )
        finally:
            await case.close()

    return lambda: asyncio.run(read_uncommitted_files())
