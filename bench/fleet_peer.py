"""One writer of `deltalake` in a process and an environment of its own; nothing but `deltalake` is installed there.

    python -m bench.fleet_peer TABLE_URI

A commit is `write_deltalake` of one row to a `DeltaTable` that is kept, the cheapest way there is: so its state follows
the log, where a table that is opened anew, or `create_write_transaction`, reads the log behind the last checkpoint for
each commit. How versions are made (AWS_S3_LOCKING_PROVIDER, AWS_CONDITIONAL_PUT) is in the environment.
Asked {"commits": n} or {"seconds": s} it answers what it did and how much CPU that took.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from arro3.core import Array, DataType, Table
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from .fleet_child import answer

PERSISTENT = CommitProperties(max_commit_retries=1000)  # a writer that loses tries again, as ours do


async def main(uri: str) -> None:
    table = DeltaTable(uri)
    row = Table.from_pydict(
        {
            "id": Array([1], DataType.int64()),
            "name": Array(["a"], DataType.utf8()),
            "date": Array([20_485], DataType.int32()).cast(DataType.date32()),
        }
    )

    async def work(asked: dict[str, Any]) -> dict[str, Any]:
        made, failed, began, cpu = 0, 0, time.monotonic(), time.process_time()
        while made + failed < asked.get("commits", sys.maxsize):
            if time.monotonic() - began >= asked.get("seconds", float("inf")):
                break
            try:
                write_deltalake(table, row, mode="append", commit_properties=PERSISTENT)
                made += 1
            except (DeltaError, OSError) as error:
                print(error, file=sys.stderr)
                table.update_incremental()
                failed += 1
        seconds = time.monotonic() - began
        return {"commits": made, "failed": failed, "seconds": seconds, "cpu": time.process_time() - cpu}

    await answer(work)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
