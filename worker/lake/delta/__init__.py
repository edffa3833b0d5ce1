"""The Delta commit path: small, async, and as cheap on a table of a million files as on an empty one.

Public: others may write their own Parquet and commit it. docs/commit-api.md has an example that runs.
"""

from __future__ import annotations

from .actions import AddFile, Txn
from .arbiter import Arbiter, TablePath
from .errors import SchemaConflict, TableBlocked
from .log import PROPERTIES, Commit, LogStore

__all__ = [
    "PROPERTIES",
    "AddFile",
    "Arbiter",
    "Commit",
    "LogStore",
    "SchemaConflict",
    "TableBlocked",
    "TablePath",
    "Txn",
]
