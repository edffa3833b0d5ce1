"""Commits to Delta tables: asynchronous, at a cost that does not grow with the table.

Public API: programs that write their own Parquet files can commit them. docs/commit-api.md has an example that runs.
"""

from __future__ import annotations

from .actions import AddFile, Txn
from .commit_content import Commit
from .errors import FilesNotWritten, InvalidFile, SchemaConflict, TableBlocked
from .lock_table import LockTable, TablePath
from .log_store import LogStore
from .properties import PROPERTIES

__all__ = [
    "PROPERTIES",
    "AddFile",
    "Commit",
    "FilesNotWritten",
    "InvalidFile",
    "LockTable",
    "LogStore",
    "SchemaConflict",
    "TableBlocked",
    "TablePath",
    "Txn",
]
