"""Names of lakes on S3: the objects are where deltalake looks for them, and the lock table names the same place."""

from __future__ import annotations

import asyncio
import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from pcaplake.common.errors import WrongChoice
from pcaplake.lake.delta.lock_table import TablePath
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import LAKE_JSON
from pcaplake.lake.store.store import Store
from tests.worker.fleets import can_capture
from tests.worker.lakes import run

from .conftest import Aws

NFC, NFD = (unicodedata.normalize(form, "Größe") for form in ("NFC", "NFD"))
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


def test_a_lake_that_an_older_version_created_with_a_fragment_is_adopted_where_it_is(
    aws: Aws, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri, s3 = f"s3://{(bucket := aws.bucket())}/k", aws.client("s3")
    for number in range(3):
        (tmp_path / f"{number}.pcap").write_bytes(can_capture(3, number))
    options = ("--lake", uri, "--ledger", tmp_path / "books", "--storage-option=allow_http=true")
    assert run(capsys, "ingest", tmp_path / "0.pcap", *options)[0] == 0
    said = json.loads(s3.get_object(Bucket=bucket, Key=f"k/{LAKE_JSON}")["Body"].read())
    s3.put_object(Bucket=bucket, Key=f"k/{LAKE_JSON}", Body=json.dumps({**said, "uri": f"{uri}#x"}).encode())
    code, _, err = run(capsys, "ingest", tmp_path / "1.pcap", *options)
    assert (code, "--adopt" in err) == (3, True), err
    for adopt in (["--adopt"], []):
        code, _, err = run(capsys, "ingest", tmp_path / f"{2 - len(adopt)}.pcap", *options, *adopt)
        assert code == 0, err
    code, out, _ = run(capsys, "tables", "--lake", uri, "--storage-option=allow_http=true", "--json")
    assert (code, json.loads(out)["can_frames"]["rows"]) == (0, 9)
    assert run(capsys, "doctor", *options)[0] == 0
