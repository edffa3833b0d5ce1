"""What maintenance must keep: files of stages that are not in every table yet, and tables that lost versions.

Reads the ledger (SQLite or DynamoDB) and the manifests; changes nothing.
"""

from __future__ import annotations

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.lake.commit.history import read_last_batches
from pcaplake.lake.commit.swaps import read_unfinished_stages
from pcaplake.lake.delta.errors import TableBlocked
from pcaplake.lake.delta.foreign_versions import judge
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import rolled_back_message
from pcaplake.lake.ledger import StageItem
from pcaplake.lake.records import Stage
from pcaplake.worker.admin.case import EVERYTHING, Case, iterate_manifests, list_batches_from


async def find_uncommitted_stages(case: Case) -> dict[str, Stage]:
    """Every stage that is pending, held, or in a batch above head (which a blocked table may lack), and those of swaps of
    rows that a table lacks, by its id.

    Head is read first: a stage that advances meanwhile is found at its next place, or is in every table of a log that is
    read later. So read the logs after you call this. Raises Fatal if the stages cannot be known: no lake, another lake's
    ledger, a ledger that has lost stages, or an older version of lake.json.
    """
    try:
        lake, book = await case.read_identity_and_ledger()
    except Fatal as problem:
        raise Fatal(f"{case.store.uri}: {problem}; `pcaplake doctor` says what to do") from problem
    in_use = await case.generation_in_use()
    if in_use > lake.generation:
        raise Fatal(f"{case.store.uri}: {rolled_back_message(lake.generation, f'generation {in_use} is in use')}")
    head = await book.read_head()
    items: dict[str, StageItem] = {}
    lost: list[str] = []
    for generation in range(lake.generation, max(lake.generation, lake.reserved) + 1):  # an overwrite stages ahead
        named = {*await book.list_pending_stages(generation, EVERYTHING), *await book.list_held_stages(generation)}
        items |= await book.get_stage_items(generation, named)
        lost += [
            stage_id
            for stage_id in named
            if (item := items.get(stage_id)) is None or (item.stage is None and item.batch is None)
        ]
    if lost:
        raise Fatal(
            f"{case.store.uri}: {counted(len(lost), 'stage is', 'stages are')} on the work list but not in the "
            "ledger, so it is not known which "
            "files they need: see `pcaplake doctor`"
        )
    stages_by_id = {
        stage_id: item.stage
        for stage_id, item in items.items()
        if item.stage is not None and (item.batch is None or item.batch > head)
    }
    async for _, manifest in iterate_manifests(case.store, await list_batches_from(case.store, head + 1)):
        stages_by_id |= {stage.stage_id: stage for stage in (() if manifest is None else manifest.stages)}
    unfinished = await read_unfinished_stages(case.store, LogStore(case.store), in_use)
    return stages_by_id | {stage.stage_id: stage for stage in unfinished}


async def find_tables_to_leave_alone(case: Case) -> dict[str, str]:
    """Tables that lack a batch or rows, or have an unreadable log, with the reason. Call `find_uncommitted_stages` first.

    Such a table is repaired by restoring its log, and the restored log needs files that the current log does not name. A
    version written meanwhile would take the place of a lost one. Raises Fatal for a manifest that cannot be read.
    """
    _, book = case.require_identity_and_ledger()
    last = await read_last_batches(case.store, book)
    batch_state, reasons = await case.read_batch_state(), dict[str, str]()
    for table, log in batch_state.logs.items():
        done = batch_state.last_batch_in_table(table)
        if isinstance(log, TableBlocked):
            reasons[table] = str(log).removeprefix(f"{table}: ")
        elif done is not None and done < last.get(table, -1):
            reasons[table] = (
                f"batch {last[table]} must be in it and is not: it was dropped or restored to an older version, and restoring it "
                "needs its files; `pcaplake doctor` says what to do"
            )
        elif (loss := (await judge(case.store, table, log)).error(table)) is not None:
            reasons[table] = str(loss).removeprefix(f"{table}: ")
    return reasons
