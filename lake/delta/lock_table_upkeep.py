"""Deletes the lock table's entries of tables that were deleted, which would keep anybody from creating the tables again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from pcaplake.lake.store.store import Store

from .lock_table import LockTable, TablePath
from .log_state import delta_log_path


async def delete_entries_of_gone_tables(
    store: Store, lock_table: LockTable, *, kept: Collection[str] = (), only: str | None = None
) -> dict[str, int]:
    """Delete the entries of each table below the lake whose log has no object -> how many, by table. Idempotent.

    `kept`: tables whose entries stay. `only`: this table and no other. Stop all writers first: one that was frozen since
    before the table was deleted could still create its version. An entry that is put meanwhile is not deleted. The newest
    entry of a table is deleted last, because it keeps others from creating the table.
    """
    below = TablePath.for_table(store.uri, "").uri if only is None else TablePath.for_table(store.uri, only).uri
    deleted: Counter[str] = Counter()
    gone: dict[str, bool] = {}
    for entry in sorted(await lock_table.list_entries_below(below), key=lambda entry: entry.version):
        table = entry.table.uri.removeprefix(TablePath.for_table(store.uri, "").uri)
        if table in kept or (only is not None and table != only):
            continue
        if table not in gone:
            gone[table] = not await store.list(delta_log_path(table))
        if gone[table]:
            await lock_table.delete_entry(entry)
            deleted[table] += 1
    return dict(deleted)
