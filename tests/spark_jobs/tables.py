"""A table on the local S3 that Spark and the workers' log store write in turns, and what half a commit leaves there.

And how many files a query of Spark's has read.
"""

from __future__ import annotations

import asyncio
import io
import json
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pcaplake.lake.delta import LogStore, Txn
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.delta.lock_table import Entry
from pcaplake.lake.delta.lock_table_dynamodb import DynamoLockTable
from pcaplake.lake.store.store import Store
from pcaplake.spark_jobs.common.lake_tables import table_path
from tests.spark_jobs.conftest import Site

APP = "pcaplake"
DAY = "2026-11-21"
SCHEMA = pa.schema([("n", pa.int64()), ("date", pa.string())])


def files_read(frame: Any) -> int:
    """Files that the scan of a query opened, by its metric `numFiles`."""
    frame.collect()
    plan = frame._jdf.queryExecution().executedPlan()
    if plan.getClass().getSimpleName() == "AdaptiveSparkPlanExec":
        plan = plan.executedPlan()
    leaves = plan.collectLeaves()
    return sum(leaves.apply(no).metrics().apply("numFiles").value() for no in range(leaves.size()))


class Dead(BaseException):
    """The process is gone."""


class Dying:
    """A lock table whose process dies `where`: "entry" is put and the process gone, or all is done but to "complete" it."""

    def __init__(self, lock_table: DynamoLockTable, where: str) -> None:
        self._lock_table, self._where = lock_table, where

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock_table, name)

    async def put_entry_if_absent(self, entry: Entry) -> Entry | None:
        found = await self._lock_table.put_entry_if_absent(entry)
        if self._where == "entry":
            raise Dead
        return found

    async def complete_entry(self, entry: Entry) -> Entry | None:
        if self._where == "complete":
            raise Dead
        return await self._lock_table.complete_entry(entry)


class Shared:
    """The table `t` of a lake of its own, under the lock table of `site`."""

    def __init__(self, site: Site, spark: Any = None) -> None:
        self.site, self.spark = site, spark
        self.lake = f"s3://{site.aws.bucket('shared')}/lake"
        self.bucket = self.lake.split("/")[2]
        self.path = table_path(self.lake, "t")
        asyncio.run(self._create())

    # -- the workers' side ----------------------------------------------------------------------------------------
    @asynccontextmanager
    async def log(self, *, dies: str = "") -> AsyncIterator[LogStore]:
        lock_table = await DynamoLockTable.open(self.site.locks)
        store = Store.open(self.lake, {"allow_http": "true"})
        try:
            yield LogStore(store, lock_table=Dying(lock_table, dies) if dies else lock_table)
        finally:
            await lock_table.close()

    async def _create(self) -> None:
        async with self.log() as log:
            await log.create("t", SCHEMA, partition_columns=["date"])

    def add(self, values: Sequence[int]) -> AddFile:
        """A Parquet file of the table, which nobody reads yet."""
        path, body = f"date={DAY}/{uuid.uuid4().hex}.zstd.parquet", io.BytesIO()
        pq.write_table(pa.table({"n": pa.array(values, pa.int64())}), body)
        self.site.aws.client("s3").put_object(Bucket=self.bucket, Key=f"lake/t/{path}", Body=body.getvalue())
        stats = {"numRecords": len(values), "minValues": {"n": min(values)}, "maxValues": {"n": max(values)}}
        return AddFile(
            path=path,
            size=len(body.getvalue()),
            partition_values={"date": DAY},
            modification_time=0,
            stats=json.dumps({**stats, "nullCount": {"n": 0}}),
        )

    async def append(self, values: Sequence[int], *, dies: str = "") -> bool:
        """As a committer does: the next transaction. False: it was in the table already."""
        async with self.log(dies=dies) as log:
            number = await log.read_transaction("t", APP) + 1
            try:
                commit = await log.commit("t", [self.add(values)], txn=Txn(app_id=APP, version=number))
            except Dead:
                return False
            return not commit.already

    def ours(self, values: Sequence[int], *, dies: str = "") -> bool:
        return asyncio.run(self.append(values, dies=dies))

    # -- Spark's side ---------------------------------------------------------------------------------------------
    def sparks(self, values: Sequence[int], scheme: str = "s3a") -> None:
        rows = self.spark.createDataFrame([(value, DAY) for value in values], "n long, date string")
        rows.coalesce(1).write.format("delta").mode("append").save(self.path.replace("s3a", scheme, 1))

    def optimize(self) -> None:
        self.spark.sql(f"OPTIMIZE delta.`{self.path}`").collect()

    def read(self, scheme: str = "s3a") -> list[int]:
        """By Spark, sorted."""
        found = self.spark.read.format("delta").load(self.path.replace("s3a", scheme, 1))
        return sorted(row["n"] for row in found.collect())

    # -- what is there --------------------------------------------------------------------------------------------
    def items(self) -> dict[int, dict[str, Any]]:
        """version -> item of the lock table, as on the wire."""
        pages = (
            self.site.aws.client("dynamodb")
            .get_paginator("query")
            .paginate(
                TableName=self.site.locks,
                KeyConditionExpression="tablePath = :t",
                ExpressionAttributeValues={":t": {"S": self.path}},
                ConsistentRead=True,
            )
        )
        found = [item for page in pages for item in page["Items"]]
        return {int(item["fileName"]["S"][:20]): item for item in found if item["fileName"]["S"].endswith(".json")}

    def log_files(self) -> dict[str, bytes]:
        s3, folder = self.site.aws.client("s3"), "lake/t/_delta_log/"
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=folder)
        return {
            each["Key"].removeprefix(folder): s3.get_object(Bucket=self.bucket, Key=each["Key"])["Body"].read()
            for page in pages
            for each in page.get("Contents", ())
        }

    def versions(self) -> list[bytes]:
        """N.json from 0 on; AssertionError for a gap, a file that was added twice, an entry that is not complete."""
        log = {name: data for name, data in self.log_files().items() if "/" not in name and name.endswith(".json")}
        assert sorted(log) == [f"{number:020d}.json" for number in range(len(log))]
        found = [log[name] for name in sorted(log)]
        lines = [json.loads(line) for data in found for line in data.splitlines()]
        assert max(Counter(line["add"]["path"] for line in lines if "add" in line).values(), default=1) == 1
        items = self.items()
        assert sorted(items) == list(range(len(found)))
        assert {item["complete"]["S"] for item in items.values()} == {"true"}
        assert all(
            set(item) == {"tablePath", "fileName", "tempPath", "complete", "expireTime"} for item in items.values()
        )
        return found

    # -- what a process that died leaves --------------------------------------------------------------------------
    def unmake(self, version: int, *, keep: bool) -> None:
        """Back to where its writer had put the entry, or (`keep`) N.json too, and did not live to complete it."""
        item = self.items()[version]
        del item["expireTime"]
        self.site.aws.client("dynamodb").put_item(TableName=self.site.locks, Item=item | {"complete": {"S": "false"}})
        if not keep:
            self.delete(f"{version:020d}.json")

    def delete(self, name: str) -> None:
        self.site.aws.client("s3").delete_object(Bucket=self.bucket, Key=f"lake/t/_delta_log/{name}")
