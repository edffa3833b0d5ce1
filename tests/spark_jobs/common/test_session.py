"""The one session builder: under which log store, and when it refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pcaplake.common.errors import Fatal
from pcaplake.lake.lake import Lake
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.spark_jobs.common import session
from pcaplake.spark_jobs.common.lake_tables import read_table, table_exists, table_path
from pcaplake.spark_jobs.common.session import (
    ARBITRATED,
    PUT_IF_ABSENT,
    STOCK,
    LockTableAddress,
    check_session,
    resolve_lock_table,
    spark_configuration,
)
from pcaplake.worker.config.service_settings import FleetSettings
from tests.spark_jobs.conftest import Site

LOCKS = LockTableAddress(name="locks", region="eu-west-1")
LAKE_JSON = "_pcaplake/lake.json"


def made(site: Site, **given: Any) -> tuple[str, FleetSettings]:
    """A lake that workers with these settings have set up."""
    settings, lake = site.settings(**given), site.lake()

    async def make() -> None:
        locks = settings.lock_table if settings.log_store == "dynamodb" else None
        async with await SharedTables.open(settings.ledger_table, locks) as shared_tables:
            await (await Lake.open(lake, ledger=shared_tables, storage_options=settings.storage_option)).close()

    asyncio.run(make())
    return lake, settings


class TestPlaces:
    @pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n"])
    def test_one_spelling(self, scheme: str) -> None:
        assert table_path(f"{scheme}://bucket/drives/", "can_frames") == "s3a://bucket/drives/can_frames"

    def test_a_folder(self, tmp_path: Path) -> None:
        assert table_path(str(tmp_path / "a b"), "captures") == f"file://{tmp_path}/a b/captures"

    @pytest.mark.parametrize("lake", ["gs://bucket/x", "s3://bucket//x", "s3://bucket/a%20b", "memory:///x"])
    def test_what_spark_cannot_have(self, lake: str) -> None:
        with pytest.raises(Fatal):
            table_path(lake, "captures")

    def test_a_missing_table_is_empty(self, spark: Any, lake: str) -> None:
        assert not table_exists(spark, lake, "can_frames")
        frames = read_table(spark, lake, "can_frames")
        assert frames.count() == 0
        assert dict(frames.dtypes)["ts"] == "timestamp"


class TestConfiguration:
    def test_ours_is_one_store_for_all_spellings(self) -> None:
        conf = spark_configuration(FleetSettings(), LOCKS)
        assert {conf[f"spark.delta.logStore.{scheme}.impl"] for scheme in ("s3", "s3a", "s3n")} == {ARBITRATED}
        assert conf["spark.delta.logStore.file.impl"] == PUT_IF_ABSENT
        assert conf["spark.pcaplake.logstore.table"] == "locks"
        assert conf["spark.pcaplake.logstore.region"] == "eu-west-1"

    def test_without_a_lock_table(self) -> None:
        conf = spark_configuration(FleetSettings(), None)
        assert conf["spark.delta.logStore.s3a.impl"] == PUT_IF_ABSENT
        assert not [name for name in conf if name.startswith("spark.pcaplake.")]

    def test_the_stock_class_gets_only_the_one_spelling(self) -> None:
        conf = spark_configuration(FleetSettings(), LOCKS, "stock")
        assert conf["spark.delta.logStore.s3a.impl"] == STOCK
        assert not [name for name in conf if ".s3." in name or ".s3n." in name]
        assert conf[f"{session.STOCK_OPTIONS}.tableName"] == "locks"

    def test_endpoints_and_keys_as_the_workers_have_them(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "https://everything")
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", "https://locks")
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        conf = spark_configuration(FleetSettings(storage_option=keys), LOCKS)
        assert conf["spark.hadoop.fs.s3a.endpoint"] == "https://everything"
        assert conf["spark.pcaplake.logstore.endpoint"] == "https://locks"
        assert conf["spark.hadoop.fs.s3a.access.key"] == "key"
        assert "spark.hadoop.fs.s3a.aws.credentials.provider" not in conf


class TestRunningSession:
    def running(self, **conf: str) -> Any:
        return SimpleNamespace(sparkContext=SimpleNamespace(getConf=lambda: conf))

    def test_another_lock_table(self) -> None:
        wanted = {"spark.pcaplake.logstore.table": "locks"}
        check_session(self.running(**wanted), wanted)
        with pytest.raises(Fatal, match="locks"):
            check_session(self.running(**{"spark.pcaplake.logstore.table": "other"}), wanted)
        with pytest.raises(Fatal, match="locks"):
            check_session(self.running(), wanted)

    def test_s3_under_the_stock_class(self) -> None:
        with pytest.raises(Fatal, match="s3://"):
            check_session(self.running(**{"spark.delta.logStore.s3.impl": STOCK}), {})


class TestAgreed:
    def test_a_lake_under_the_lock_table(self, site: Site) -> None:
        lake, settings = made(site)
        assert resolve_lock_table(settings, [lake]) == LockTableAddress(name=site.locks, region=site.aws.region)
        assert resolve_lock_table(settings, [lake.replace("s3://", "s3a://")]) is not None

    def test_a_lake_of_conditional_puts(self, site: Site) -> None:
        lake, settings = made(site, log_store="put-if-absent")
        assert resolve_lock_table(settings, [lake]) is None
        with pytest.raises(Fatal, match="lock table"):
            resolve_lock_table(settings, [lake], "stock")
        with pytest.raises(Fatal, match="put-if-absent"):
            resolve_lock_table(site.settings(), [lake])

    def test_settings_without_the_lock_table(self, site: Site) -> None:
        lake, _ = made(site)
        with pytest.raises(Fatal, match=site.locks):
            resolve_lock_table(site.settings(log_store="put-if-absent"), [lake])

    def test_another_lock_table(self, site: Site) -> None:
        lake, _ = made(site)
        other = site.aws.table("others", hash_key="tablePath", range_key="fileName")
        with pytest.raises(Fatal, match=other):
            resolve_lock_table(site.settings(lock_table=other), [lake])

    def test_a_lock_table_that_is_none(self, site: Site) -> None:
        with pytest.raises(Fatal, match="is not a lock table"):
            resolve_lock_table(site.settings(lock_table=site.ledger), [site.lake()])

    def test_tables_of_the_same_names_elsewhere(self, site: Site) -> None:
        """lake.json does not say where; that the ledger is another one tells."""
        lake, settings = made(site)
        bucket, _, folder = lake.removeprefix("s3://").partition("/")
        s3, key = site.aws.client("s3"), f"{folder}/{LAKE_JSON}"
        said = json.loads(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
        s3.put_object(Bucket=bucket, Key=key, Body=json.dumps(said | {"ledger_id": "another"}).encode())
        with pytest.raises(Fatal, match="another ledger"):
            resolve_lock_table(settings, [lake])

    def test_a_lake_in_a_folder(self, lake: str) -> None:
        assert resolve_lock_table(FleetSettings(), [lake]) is None
        folder = Path(lake) / "_pcaplake"
        folder.mkdir(parents=True)
        known = dict.fromkeys(("lake_id", "ledger_kind", "ledger_name", "ledger_id"), "x")
        more = {"generation": 0, "log_store": "dynamodb x", "shards": 1, "partition_columns": ["date"], "uri": None}
        (folder / "lake.json").write_text(json.dumps({**known, **more, "format": 1}))
        with pytest.raises(Fatal, match="dynamodb x"):
            resolve_lock_table(FleetSettings(), [lake])


def test_the_session_is_what_it_was_asked_to_be(spark: Any, site: Site) -> None:
    """A second opening for lakes of the same kind gets the same session, for another kind it is refused."""
    again = session.open_session(app="again", settings=site.settings(), lakes=[site.lake()])
    assert again.sparkContext is spark.sparkContext
    lake, settings = made(site, log_store="put-if-absent")
    with pytest.raises(Fatal, match=r"spark\.delta\.logStore\.s3a\.impl"):
        session.open_session(app="other", settings=settings, lakes=[lake])
    assert spark.conf.get("spark.delta.logStore.s3a.impl") == ARBITRATED
