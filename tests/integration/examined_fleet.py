"""A fleet on S3, SQS and DynamoDB with captures in its tables, and what the doctor says of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from pcaplake.lake.config import LakeConfig
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.lake.tables import SCHEMAS
from tests.worker.lakes import run

from .conftest import Aws

Capsys = pytest.CaptureFixture[str]
WRITTEN = ("captures", "packets")
DAY = date(2026, 1, 2)
HTTP = {"aws_allow_http": "true"}


class Fleet:
    """A bucket, its tables and its queue, as `pcaplake setup` makes them, and the settings that name them."""

    def __init__(self, aws: Aws, folder: Path) -> None:
        self.aws = aws
        self.bucket, self.raw = aws.bucket("lakes"), aws.bucket("raw")
        self.ledger = aws.table("ledger")
        self.locks = aws.table("delta-log", hash_key="tablePath", range_key="fileName")
        for table in (self.ledger, self.locks):
            aws.client("dynamodb").update_time_to_live(
                TableName=table, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expireTime"}
            )
        self.dead = aws.queue("dead", MessageRetentionPeriod="1209600")
        policy = json.dumps({"deadLetterTargetArn": aws.queue_arn(self.dead), "maxReceiveCount": 5})
        self.url = aws.queue("captures", VisibilityTimeout="120", RedrivePolicy=policy)
        self.queue = self.url.rpartition("/")[2]
        self.uri = f"s3://{self.bucket}/lake"
        self.config = folder / "fleet.yaml"
        self.settings: dict[str, Any] = {
            "queue": self.queue, "routes": "routes.yaml", "ledger_table": self.ledger, "lock_table": self.locks,
            "lease_timeout": 1, "storage_option": HTTP,
        }  # fmt: skip
        (folder / "routes.yaml").write_text(f"routes:\n  - {{bucket: {self.raw}, lake: '{self.uri}'}}\n")
        self.write()

    def write(self, **settings: Any) -> None:
        self.settings |= settings
        self.config.write_text(json.dumps(self.settings))

    @asynccontextmanager
    async def lake(self) -> AsyncIterator[Lake]:
        async with await SharedTables.open(self.ledger, self.locks) as shared_tables:
            lake_config = LakeConfig(max_batch_age=0.0, commits=False, lease_timeout=1.0)
            lake = await Lake.open(self.uri, lake_config=lake_config, ledger=shared_tables, storage_options=HTTP)
            try:
                yield lake
            finally:
                await lake.close()

    def batches(self, *names: str) -> None:
        """One capture each."""

        async def commit() -> None:
            async with self.lake() as lake:
                for name in names:
                    await staged(lake, name)
                    await lake.committer.run_turn()

        asyncio.run(commit())

    def stage(self, name: str) -> str:
        async def only() -> str:
            async with self.lake() as lake:
                return await staged(lake, name)

        return asyncio.run(only())

    def rows(self) -> dict[str, list[str]]:
        return {
            table: sorted(
                deltalake.DeltaTable(f"{self.uri}/{table}")
                .to_pyarrow_table(columns=["capture_id"])["capture_id"]
                .to_pylist()
            )
            for table in WRITTEN
        }

    def items(self, kind: str) -> list[dict[str, Any]]:
        """The ledger's items of a kind, as on the wire."""
        found = self.aws.client("dynamodb").scan(TableName=self.ledger, ConsistentRead=True)["Items"]
        return [item for item in found if item["pk"]["S"].startswith(f"{kind}#")]

    def delete_items(self, *kinds: str) -> None:
        for item in (item for kind in kinds for item in self.items(kind)):
            key = {"pk": item["pk"], "sk": item["sk"]}
            self.aws.client("dynamodb").delete_item(TableName=self.ledger, Key=key)

    def entry(self, table: str, version: int) -> dict[str, Any]:
        key = {"tablePath": {"S": f"s3a://{self.bucket}/lake/{table}"}, "fileName": {"S": f"{version:020d}.json"}}
        return dict(self.aws.client("dynamodb").get_item(TableName=self.locks, Key=key, ConsistentRead=True)["Item"])

    def put_entry(self, item: dict[str, Any]) -> None:
        self.aws.client("dynamodb").put_item(TableName=self.locks, Item=item)

    def exists(self, key: str) -> bool:
        return key in self.below(key)

    def below(self, prefix: str) -> list[str]:
        listed = self.aws.client("s3").list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return [one["Key"] for one in listed.get("Contents", ())]


def value(field: pa.Field, name: str) -> pa.Array:
    """One value of a column: null where it may be."""
    if field.name in ("capture_id", "date"):
        return pa.array([name if field.name == "capture_id" else DAY], field.type)
    if field.nullable:
        return pa.nulls(1, field.type)
    return pa.array(["x" if pa.types.is_string(field.type) else 0], field.type)


async def staged(lake: Lake, name: str) -> str:
    window = lake.window()
    window.begin(Capture(capture_id=name, uri=f"s3://raw/{name}.pcap", etag="e", size=1))
    for table in WRITTEN:
        columns = [value(field, name) for field in SCHEMAS[table]]
        window.write(table, pa.RecordBatch.from_arrays(columns, names=SCHEMAS[table].names))
    window.end()
    stage = window.close()
    assert stage is not None
    assert (await lake.stage(stage)).staged
    return stage.stage_id


def each(*captures: str) -> dict[str, list[str]]:
    """A row of each capture in each table."""
    return {table: sorted(captures) for table in WRITTEN}


def doctor(fleet: Fleet, capsys: Capsys, *arguments: object) -> tuple[int, dict[str, Any]]:
    code, out, err = run(capsys, "doctor", "--config", fleet.config, "--json", *arguments)
    assert err == ""
    return code, json.loads(out)


def unwell(report: dict[str, Any]) -> set[tuple[str, str, str | None]]:
    """What is not ok, without what only was not examined because of it."""
    return {
        (one["level"], one["check"], one["table"])
        for one in report["findings"]
        if one["level"] != "ok" and not one["what"].startswith("did not look for orphaned")
    }
