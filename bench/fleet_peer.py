"""One writer of `deltalake` in its own process and environment, in which only `deltalake` is installed.

    python -m bench.fleet_peer TABLE_URI

A commit is `write_deltalake` of one row to a `DeltaTable` that stays open. This is the cheapest way, because its state follows
the log; a newly opened table, or `create_write_transaction`, reads the log after the last checkpoint for each commit. The
environment selects how versions are made (AWS_S3_LOCKING_PROVIDER, AWS_CONDITIONAL_PUT).
To {"commits": n} or {"seconds": s} it answers the number of commits and their CPU time.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from arro3.core import Array, DataType, Table
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from .fleet_child import answer_requests

PERSISTENT = CommitProperties(max_commit_retries=1000)  # like pcaplake's, a writer that loses a version retries


async def main(uri: str) -> None:
    table = DeltaTable(uri)
    row = Table.from_pydict(
        {
            "id": Array([1], DataType.int64()),
            "name": Array(["a"], DataType.utf8()),
            "date": Array([20_485], DataType.int32()).cast(DataType.date32()),
        }
    )

    async def commit_repeatedly(request: dict[str, Any]) -> dict[str, Any]:
        commits, failed, began, cpu = 0, 0, time.monotonic(), time.process_time()
        while commits + failed < request.get("commits", sys.maxsize):
            if time.monotonic() - began >= request.get("seconds", float("inf")):
                break
            try:
                write_deltalake(table, row, mode="append", commit_properties=PERSISTENT)
                commits += 1
            except (DeltaError, OSError) as error:
                print(error, file=sys.stderr)
                table.update_incremental()
                failed += 1
        seconds = time.monotonic() - began
        return {"commits": commits, "failed": failed, "seconds": seconds, "cpu": time.process_time() - cpu}

    await answer_requests(commit_repeatedly)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
