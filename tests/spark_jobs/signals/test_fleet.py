"""The signals of a fleet's lake, under its lock table, follow what Spark does to the frames.

One lake for all: what follows one change is the beginning of the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pcaplake.derived.signals.report import SignalReport
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta import LogStore, Txn
from pcaplake.lake.records import Capture
from pcaplake.lake.staging.window import Window
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES
from pcaplake.signals import Databases
from pcaplake.spark_jobs.backfill import job as backfill
from pcaplake.spark_jobs.common.lake_tables import table_path
from pcaplake.spark_jobs.common.lock_table import open_lock_table
from pcaplake.spark_jobs.replace import job as replace
from pcaplake.worker.config.service_settings import FleetSettings
from tests.signals.lakes import SignalLake
from tests.spark_jobs.conftest import Site
from tests.spark_jobs.signals.runs import decode
from tests.worker.adapters.faults import Killed
from tests.worker.fleets import can_capture

FRAMES = 6
DBC = 'VERSION ""\nBU_: A\n' + "".join(
    f'BO_ {number} M{number}: 8 A\n SG_ s : 0|8@1+ (0.5,{number}) [0|0] "" A\n' for number in range(FRAMES)
)


class FleetLake(SignalLake):
    """A lake on S3, its fleet's settings, and captures of it."""

    def __init__(self, spark: Any, site: Site, folder: Path) -> None:
        self.uri, self._spark, self._site, self._folder = site.lake(), spark, site, folder
        self.store = Store.open(self.uri, self.settings("a").storage_options_for(self.uri))
        (folder / "all.dbc").write_text(DBC)
        self.databases = Databases.from_file(folder / "all.dbc")
        self.captures = 0

    def settings(self, vehicle: str) -> FleetSettings:
        """With a profile that gives all captures this vehicle."""
        profile = self._folder / f"{vehicle}.yaml"
        profile.write_text(f"vehicle_id: '/(?P<vehicle_id>{vehicle})/'\n")
        return self._site.settings(lake=self.uri, profile=profile, create=True)

    def upload(self) -> str:
        """One more capture, which is in all tables -> its URI."""
        self.captures += 1
        path = self._folder / "a" / "b" / f"{self.captures}.pcap"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(can_capture(FRAMES, self.captures))
        options = backfill.BackfillOptions(names=(str(path),), commit=True, flush_interval=0.1)
        report = backfill.run(self._spark, self.uri, options, settings=self.settings("a"))
        assert report.committed
        assert (report.staged, report.quarantined) == (1, 0)
        return f"file://{path}"

    def replace(self, uris: list[str], vehicle: str, *, force: bool = False) -> None:
        options = replace.ReplaceOptions(names=tuple(uris), force=force)
        report = replace.run(self._spark, self.uri, options, settings=self.settings(vehicle))
        assert (report.replaced, report.failed) == (len(uris), {})

    def execute(self, statement: str, table: str) -> None:
        self._spark.sql(statement.format(table=f"delta.`{table_path(self.uri, table)}`"))

    def drop(self, table: str) -> None:
        """Its objects, and its entries in the lock table, as the doctor deletes them."""
        bucket, _, prefix = self.uri.removeprefix("s3://").partition("/")
        s3, dynamodb = self._site.aws.client("s3"), self._site.aws.client("dynamodb")
        for one in s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/{table}/")["Contents"]:
            s3.delete_object(Bucket=bucket, Key=one["Key"])
        for item in dynamodb.scan(TableName=self._site.locks)["Items"]:
            if item["tablePath"]["S"] == table_path(self.uri, table):
                key = {name: item[name] for name in ("tablePath", "fileName")}
                dynamodb.delete_item(TableName=self._site.locks, Key=key)
        self._spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def create(self, table: str, rows: pa.Table) -> None:
        """Make a table anew, with these rows in a batch."""

        async def commit() -> None:
            async with open_lock_table(self.settings("a"), self.store) as lock_table:
                log = LogStore(self.store, lock_table=lock_table)
                schema = TABLES[table].schema
                await log.create(table, schema, partition_columns=["date"])
                window = Window(self.store, {table: schema}, lake_config=LakeConfig(), generation=0)
                window.begin(Capture(capture_id="x", uri="x", etag="", size=0))
                for batch in rows.cast(schema).to_batches():
                    window.write(table, batch)
                window.end()
                stage = window.close()
                assert stage is not None
                await log.commit(table, stage.adds[table], txn=Txn(app_id="pcaplake", version=0))

        asyncio.run(commit())

    def table(self, name: str) -> pa.Table:
        return DeltaTable(
            self.store.external_location(name), storage_options=self.store.current_options()
        ).to_pyarrow_table()

    def has(self, name: str) -> bool:
        return name in asyncio.run(self.store.list_folders())

    def decode(self, step: Callable[[str], None] = lambda name: None, **given: Any) -> SignalReport:
        return decode(self._spark, self.uri, self.databases, settings=self.settings("a"), step=step, **given)

    def check(self) -> SignalReport:
        report = self.decode()
        found = self.signals()
        assert found == self.expected(self.databases)
        assert max(found.values()) == 1
        vehicles = [
            {(row["capture_id"], row["vehicle_id"]) for row in self.table(name).to_pylist()}
            for name in ("signals", "can_frames")
        ]
        assert vehicles[0] == vehicles[1]
        return report


def test_signals_follow_what_spark_does_to_the_frames(spark: Any, site: Site, tmp_path: Path) -> None:
    lake = FleetLake(spark, site, tmp_path)
    first = lake.upload()
    lake.check()

    # another profile, beside a job that repeats its runs: it reads the log before the swaps, and commits after them
    second = lake.upload()
    seen = list[str]()

    def step(name: str) -> None:
        seen.append(name)
        if name == "before signals.decode can" and seen.count(name) == 1:
            lake.replace([first, second], "b")
        elif name == "after signals.follow" and "before signals.replace can" in seen:
            raise Killed

    with pytest.raises(Killed):
        lake.decode(step, every=0.1)
    assert {row["vehicle_id"] for row in lake.table("signals").to_pylist()} == {"b"}
    lake.check()

    # a swap that only adds, because the rows were lost: before the signals have followed that
    (capture,) = {row["capture_id"] for row in lake.table("captures").to_pylist() if row["uri"] == first}
    lake.execute(f"DELETE FROM {{table}} WHERE capture_id = '{capture}'", "can_frames")
    lake.replace([first], "b", force=True)
    lake.check()

    # there and back
    version = DeltaTable(
        lake.store.external_location("can_frames"), storage_options=lake.store.current_options()
    ).version()
    lake.execute("RESTORE TABLE {table} TO VERSION AS OF 1", "can_frames")
    assert not lake.check().missing
    lake.execute(f"RESTORE TABLE {{table}} TO VERSION AS OF {version}", "can_frames")
    lake.check()

    # frames that are deleted before they are decoded
    lake.upload()
    lake.execute("DELETE FROM {table} WHERE packet_no = 2", "can_frames")
    lake.check()

    lake.execute("DELETE FROM {table} WHERE packet_no = 3", "signals")
    lake.check()
    lake.drop("signals")
    lake.check()
    rows = lake.table("can_frames")
    lake.drop("can_frames")
    lake.decode()
    lake.create("can_frames", rows.slice(0, 4))
    lake.check()
    assert lake.check().batches == 0
