"""Names of lakes on S3: the objects are where deltalake looks for them, and the lock table names the same place."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pcaplake.worker.errors import WrongChoice
from pcaplake.worker.lake.delta.lock_table import TablePath
from pcaplake.worker.lake.delta.log_store import LogStore
from pcaplake.worker.lake.store.store import Store
from tests.worker.lake.store.test_place import NFC, NFD

from .conftest import Aws

NAMES = (
    "lake", "a b", "a+b", "a&b", "a=b", "a;b", "a:b", "a@b", "a'b", 'a"b', "a`b", "a{b}", "a<b>", "a*b", "a$b", "a!b", "a,b",
    "a(b)", "~", "a~b", "...", "-", NFC, NFD, "日本", "🚗",
)  # fmt: skip
REFUSED = (
    "k#x",
    "k?x=1",
    "a%20b",
    "a%2Fb",
    "100%",
    "a\\b",
    "a[b]",
    "a|b",
    "a^b",
    " a",
    "a ",
    "a//b",
    "a/./b",
    "a/../b",
    "a\nb",
)


def test_a_lake_is_at_one_place_for_all_programs(aws: Aws) -> None:
    bucket, s3 = aws.bucket(), aws.client("s3")
    options = {"aws_endpoint": aws.s3, "aws_allow_http": "true", "aws_region": aws.region}

    async def create(uri: str) -> str:
        await LogStore(store := Store.open(uri, options)).create("t", pa.schema([("x", pa.int64())]))
        return store.external_location("t")

    for name in NAMES:
        uri = f"s3://{bucket}/{name}"
        location = asyncio.run(create(f"{uri}/"))
        write_deltalake(location, pa.table({"x": [1, 2]}), mode="append", storage_options=options)
        table = DeltaTable(location, storage_options=options)
        table.create_checkpoint()
        assert (table.version(), table.to_pyarrow_table().num_rows) == (1, 2), name
        assert TablePath.for_table(uri, "t").uri == f"s3a://{bucket}/{name}/t"
    listed = [
        one["Key"] for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket) for one in page["Contents"]
    ]
    for name in NAMES:
        log = {key.rpartition("/")[2] for key in listed if key.startswith(f"{name}/t/_delta_log/")}
        ended = {f"{0:020d}.json", f"{1:020d}.json", f"{1:020d}.checkpoint.parquet", "_last_checkpoint"}
        assert log == ended, name
    assert {key.partition("/")[0] for key in listed} == set(NAMES)
    for name in REFUSED:
        with pytest.raises(WrongChoice):
            Store.open(f"s3://{bucket}/{name}", options)
