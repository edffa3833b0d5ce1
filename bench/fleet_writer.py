"""One writer of pcaplake in its own process: commits to a table by the public commit API (docs/commit-api.md).

    python -m bench.fleet_writer LAKE TABLE LOCK_TABLE|- add|file

`add`: a commit is one Add, of a file that does not exist. `file`: each commit writes a Parquet file of one row.
To {"commits": n} or {"seconds": s} it answers the number of commits and their CPU time.
"""

from __future__ import annotations

import sys
import time
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import uvloop

from pcaplake.common.errors import Retryable
from pcaplake.lake.delta import AddFile, LogStore
from pcaplake.lake.delta.lock_table_dynamodb import DynamoLockTable
from pcaplake.lake.store.store import Store

from .fleet_child import OPTIONS, answer_requests

DATE = "2026-02-01"
STATS = '{"numRecords":1,"minValues":{"id":1,"name":"a"},"maxValues":{"id":1,"name":"a"},"nullCount":{"id":0,"name":0}}'


class CommitWriter:
    def __init__(self, store: Store, log: LogStore, table: str, with_file: bool) -> None:
        self._store, self._log, self._table, self._with_file = store, log, table, with_file

    async def commit_one_file(self) -> None:
        path, size, upload = f"date={DATE}/{uuid.uuid4()}.parquet", 500, None
        if self._with_file:
            sink = pa.BufferOutputStream()
            pq.write_table(pa.table({"id": [1], "name": ["a"]}), sink)
            data = sink.getvalue().to_pybytes()
            size, upload = len(data), self._store.put(f"{self._table}/{path}", data)
        add = AddFile(
            path=path,
            size=size,
            partition_values={"date": DATE},
            modification_time=round(time.time() * 1000),  # deltalake takes it from the local clock, too
            stats=STATS,
        )
        if upload is None:
            await self._log.commit(self._table, [add])
        else:
            await self._log.commit_uploads(self._table, [add], upload)

    async def commit_repeatedly(self, request: dict[str, Any]) -> dict[str, Any]:
        """Make this many commits, or as many as begin within this many seconds."""
        commits, failed, began, cpu = 0, 0, time.monotonic(), time.process_time()
        while commits + failed < request.get("commits", sys.maxsize):
            if time.monotonic() - began >= request.get("seconds", float("inf")):
                break
            try:
                await self.commit_one_file()
                commits += 1
            except Retryable as error:
                print(error, file=sys.stderr)
                failed += 1
        seconds = time.monotonic() - began
        return {"commits": commits, "failed": failed, "seconds": seconds, "cpu": time.process_time() - cpu}


async def main(lake: str, table: str, lock_table: str, kind: str) -> None:
    store = Store.open(lake, OPTIONS)
    locks = None if lock_table == "-" else await DynamoLockTable.open(lock_table)
    log = LogStore(store, lock_table=locks)
    await answer_requests(CommitWriter(store, log, table, kind == "file").commit_repeatedly)
    if locks is not None:
        await locks.close()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))  # as `pcaplake run`
