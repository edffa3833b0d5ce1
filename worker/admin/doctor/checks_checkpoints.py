"""Checks of `_last_checkpoint` and the checkpoints of a table, without which other programs cannot open it."""

from __future__ import annotations

from pcaplake.lake.delta.checkpoint_repair import CheckpointState, read_checkpoint_state, repair_checkpoints
from pcaplake.lake.delta.errors import TableBlocked
from pcaplake.lake.delta.log_state import delta_log_path
from pcaplake.lake.store.store import Store

from .findings import Finding, Repair, error, warning

_REPAIRED = "--repair corrects it; so does the next checkpoint"


async def check_checkpoints(store: Store, table: str) -> list[Finding]:
    """What is wrong with the checkpoints of a table; nothing for a table that only V2 checkpoints describe."""
    try:
        state = await read_checkpoint_state(store, table)
        if state.is_hint_wrong or state.unreadable:  # another program may just have replaced a checkpoint
            state = await read_checkpoint_state(store, table)
    except TableBlocked:  # the check of the log reports it
        return []
    repair = Repair(
        what=f"correct {delta_log_path(table, '_last_checkpoint')}"
        + "".join(f" and delete the damaged checkpoint {checkpoint.version}" for checkpoint in state.unreadable),
        make=lambda: repair_checkpoints(store, table),
    )
    if state.unreadable:
        return [_report_unreadable(state, repair)]
    return [_report_wrong_hint(state, repair)] if state.is_hint_wrong else []


def _report_unreadable(state: CheckpointState, repair: Repair) -> Finding:
    what = f"other programs cannot read the table: {'; '.join(state.unreadable.values())}"
    if state.is_whole_without_unreadable:
        return error(
            what, "--repair deletes it; every version is in the rest of the log", table=state.table, repair=repair
        )
    log = delta_log_path(state.table)
    return error(what, f"restore the file in {log}: the versions before it were cleaned up", table=state.table)


def _report_wrong_hint(state: CheckpointState, repair: Repair) -> Finding:
    if state.missing_parts:
        missing = ", ".join(path.rpartition("/")[2] for path in state.missing_parts[:3])
        what = (
            f"_last_checkpoint names a checkpoint of which {missing} is missing: other programs cannot open the table"
        )
        return error(what, _REPAIRED, table=state.table, repair=repair)
    if state.hint is None:
        return warning(
            "_last_checkpoint is damaged, so readers list the whole log", _REPAIRED, table=state.table, repair=repair
        )
    newest = -1 if state.good is None else state.good.version
    return warning(
        f"_last_checkpoint names checkpoint {state.hint.version}, but checkpoint {newest} exists: a slow writer "
        "overwrote it, and readers that rely on it get an old version or an error",
        _REPAIRED,
        table=state.table,
        repair=repair,
    )
