"""Errors that stop commits to one table; the other tables continue."""

from __future__ import annotations

from collections.abc import Mapping

from pcaplake.common.errors import OutcomeUnknown, PcaplakeError, Retryable


class FilesNotWritten(PcaplakeError):
    """The uploads of a commit's files failed, so nothing was committed. The cause is the error of the uploads."""


class TableBlocked(Retryable):
    """The table cannot be written, for example after a protocol upgrade. The message says what unblocks it."""


class RowsLost(TableBlocked):
    """Another program has removed rows of a table, for example by RESTORE. `batches`: those whose rows are gone, at most.

    `restored`: the transactions of the version that the table was put back to; None: it was changed in another way.
    """

    def __init__(self, table: str, what: str, batches: range, restored: Mapping[str, int] | None = None) -> None:
        super().__init__(
            f"{table}: {what}. Nothing is written to it until the rows are back or given up: RESTORE the table to the version "
            "before; or read the captures again with `pcaplake ingest --reread` or `pcaplake-spark replace`; or accept the loss "
            f"with `pcaplake doctor --repair --accept-loss {table}`. `pcaplake doctor` counts the rows of each capture"
        )
        self.batches, self.restored = batches, restored


class SchemaConflict(Retryable):
    """The schema of the files does not fit the table. The message names the table, the column and both types."""


class InvalidFile(SchemaConflict):
    """A file that would make the table unreadable or hide rows. The message names the file and the field to correct."""


class Hidden(OutcomeUnknown):
    """The log cannot say whether the commit happened, because a checkpoint replaced the entries that would."""


class SwapConflict(Retryable):
    """Another writer changed what a swap of files was made from. Nothing was committed: read the table again, or stop."""


class FileGone(SwapConflict):
    """A file that was live when a swap was made does not exist any more."""


class TransactionConflict(Retryable):
    """The log of a table has other transactions than the commit expects. Nothing was committed: read them again, or stop."""


class TransactionLost(TableBlocked):
    """The log of a table lacks a transaction of another application that it had: it is an older copy."""


class RolledBack(Retryable):
    """The log of a table lacks a transaction that it had, so it cannot tell which later batches are in the table."""

    def __init__(self, table: str, batch: int, current_batch: int, version: int) -> None:
        """`batch`: the transaction it had. `current_batch`: that in its log, -1 for none. `version`: of the table, -1: gone."""
        if version < 0:
            what = f"it had batch {batch}, and the table is gone: it was dropped"
        else:
            what = (
                f"it had batch {batch}, and its log says {current_batch}: the log was restored to an older "
                "version, or the table was dropped and created again, or a checkpoint lost the transaction `pcaplake`"
            )
        super().__init__(
            f"{table}: {what}. Nothing is written to it until this is repaired: `pcaplake doctor` says how to restore it, or "
            "how to continue without the rows that it lost"
        )
