"""The Delta commit path: small, async, O(1) in the size of the table. Others may commit their own Parquet through it.

store = Store.open("s3://bucket/lake")
log = LogStore(store)
await log.commit("trips", [AddFile(...)], txn=Txn(app_id="mine", version=7), schema=schema)
"""

from __future__ import annotations

from .actions import AddFile, Txn
from .errors import SchemaConflict, TableBlocked
from .log import Commit, LogStore

__all__ = ["AddFile", "Commit", "LogStore", "SchemaConflict", "TableBlocked", "Txn"]
