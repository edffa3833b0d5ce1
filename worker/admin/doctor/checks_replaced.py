"""Checks that no table has rows of contents that `ingest --replace-changed` has replaced. The next ingest removes them."""

from __future__ import annotations

from pcaplake.worker.admin.case import Case
from pcaplake.worker.lake.commit.replaced import tables_behind
from pcaplake.worker.lake.delta.log_store import LogStore

from .findings import Finding, ok, warning


async def check_replaced_contents(case: Case) -> list[Finding]:
    """Find tables with rows of replaced contents. A table that was restored to an older version has them again."""
    behind = await tables_behind(case.store, LogStore(case.store, lock_table=case.lock_table))
    if not behind:
        return [ok("no table has rows of replaced contents")]
    return [
        warning(
            f"{', '.join(behind)}: the table may contain rows of replaced contents: their removal was interrupted, or the "
            "table was restored to an older version",
            "run `pcaplake ingest`, which first removes these rows",
        )
    ]
