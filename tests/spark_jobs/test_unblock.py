"""The doctor's statements for blocked tables: Spark accepts each, and the workers' log store writes the table again."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pcaplake.lake.delta import LogStore, TableBlocked, Txn
from pcaplake.lake.delta.log_state import read_log_state
from pcaplake.lake.delta.properties import _MAY_BE_OFF, _NEVER, KINDS, TXN_RETENTION, find_property_problem
from pcaplake.lake.delta.schema import to_delta_struct
from pcaplake.lake.delta.write_support import list_unsupported_features, unsupported_reason
from pcaplake.lake.store.store import Store
from pcaplake.worker.admin.doctor.unblock_sql import (
    FEATURES,
    Removal,
    Way,
    build_unblock_ways,
    find_last_writable_version,
)
from tests.lake.delta.deltas import SCHEMA, write
from tests.spark_jobs.tables import DAY

REFUSED = (PySparkException, Py4JJavaError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What somebody does to a table. `features`: that it has afterwards and pcaplake does not support."""

    statements: Sequence[str]
    features: Sequence[str] = ()
    partition_columns: Sequence[str] = ("date",)
    struct: dict[str, Any] | None = None
    structs: Sequence[dict[str, Any]] = ()
    torture: bool = False


def properties(**given: str) -> str:
    pairs = [f"'delta.{name.replace('__', '.')}' = '{value}'" for name, value in given.items()]
    return f"ALTER TABLE {{t}} SET TBLPROPERTIES ({', '.join(pairs)})"


def supported(feature: str) -> str:
    return f"ALTER TABLE {{t}} SET TBLPROPERTIES ('delta.feature.{feature}' = 'supported')"


NAME = ("columnMapping__mode", "name")
NOT_NULL = to_delta_struct(SCHEMA)
NOT_NULL["fields"][0]["nullable"] = False
INVARIANT = to_delta_struct(SCHEMA)
INVARIANT["fields"][0]["metadata"]["delta.invariants"] = '{"expression":{"expression":"n > -5"}}'
# Spark does not replace a table that is named by its path, and no other statement adds such a column
GENERATED = to_delta_struct(SCHEMA)
GENERATED["fields"].append(
    {"name": "m", "type": "long", "nullable": True, "metadata": {"delta.generationExpression": "n + 1"}}
)
IDENTITY = to_delta_struct(SCHEMA)
IDENTITY["fields"][0]["metadata"].update(
    {"delta.identity.start": 1, "delta.identity.step": 1, "delta.identity.allowExplicitInsert": False}
)

CHANGES: dict[str, Change] = {
    # those that can be dropped at once
    "a constraint": Change(
        statements=["ALTER TABLE {t} ADD CONSTRAINT c CHECK (n > -5)"], features=["checkConstraints"]
    ),
    "a constraint and row tracking": Change(
        statements=["ALTER TABLE {t} ADD CONSTRAINT c CHECK (n > -5)", properties(enableRowTracking="true")],
        features=["checkConstraints", "domainMetadata", "rowTracking"],
        torture=True,
    ),
    "a constraint that was dropped": Change(
        statements=["ALTER TABLE {t} ADD CONSTRAINT c CHECK (n > -5)", "ALTER TABLE {t} DROP CONSTRAINT c"],
        features=["checkConstraints"],
        torture=True,
    ),
    "row tracking": Change(
        statements=[properties(enableRowTracking="true")], features=["domainMetadata", "rowTracking"], torture=True
    ),
    "in-commit timestamps": Change(
        statements=[properties(enableInCommitTimestamps="true")], features=["inCommitTimestamp"], torture=True
    ),
    "materialized partition columns": Change(
        statements=[supported("materializePartitionColumns")], features=["materializePartitionColumns"], torture=True
    ),
    # those that take a day
    "deletion vectors": Change(
        statements=[properties(enableDeletionVectors="true"), "DELETE FROM {t} WHERE n = 1"], features=["deletionVectors"]
    ),
    "column mapping, type widening, V2 checkpoints and vacuumProtocolCheck": Change(
        statements=[
            properties(**{NAME[0]: NAME[1]}, enableTypeWidening="true", checkpointPolicy="v2"),
            supported("vacuumProtocolCheck"),
        ],
        features=["columnMapping", "typeWidening", "v2Checkpoint", "vacuumProtocolCheck"],
        torture=True,
    ),
    "column mapping": Change(statements=[properties(**{NAME[0]: NAME[1]})], features=["columnMapping"], torture=True),
    "type widening": Change(statements=[properties(enableTypeWidening="true")], features=["typeWidening"], torture=True),
    "V2 checkpoints": Change(statements=[properties(checkpointPolicy="v2")], features=["v2Checkpoint"], torture=True),
    "vacuumProtocolCheck": Change(
        statements=[supported("vacuumProtocolCheck")], features=["vacuumProtocolCheck"], torture=True
    ),
    "a feature that was dropped": Change(
        statements=[supported("vacuumProtocolCheck"), "ALTER TABLE {t} DROP FEATURE vacuumProtocolCheck"],
        features=["checkpointProtection"],
        torture=True,
    ),
    # those that Delta cannot drop
    "change data feed and column defaults": Change(
        statements=[
            properties(enableChangeDataFeed="true"),
            supported("allowColumnDefaults"),
            "ALTER TABLE {t} ALTER COLUMN n SET DEFAULT 5",
            "DELETE FROM {t} WHERE n = 1",
        ],
        features=["allowColumnDefaults", "changeDataFeed"],
    ),
    "UniForm": Change(
        statements=[properties(**{NAME[0]: NAME[1]}, enableIcebergCompatV2="true", universalFormat__enabledFormats="iceberg")],
        features=["columnMapping", "icebergCompatV2"],
        torture=True,
    ),
    "IcebergCompatV1": Change(
        statements=[properties(**{NAME[0]: NAME[1]}, enableIcebergCompatV1="true")],
        features=["columnMapping", "icebergCompatV1"],
        torture=True,
    ),
    "clustering": Change(
        statements=["ALTER TABLE {t} CLUSTER BY (n)"],
        features=["clustering", "domainMetadata"],
        partition_columns=(),
        torture=True,
    ),
    "generated columns": Change(
        statements=[supported("generatedColumns")], structs=[GENERATED], features=["generatedColumns"], torture=True
    ),
    "identity columns": Change(
        statements=[supported("identityColumns")], structs=[IDENTITY], features=["identityColumns"], torture=True
    ),
    "instants without a zone": Change(
        statements=[supported("timestampNtz"), "ALTER TABLE {t} ADD COLUMN z TIMESTAMP_NTZ"],
        features=["timestampNtz"],
        torture=True,
    ),
    "variants": Change(
        statements=[supported("variantType"), "ALTER TABLE {t} ADD COLUMN z VARIANT"], features=["variantType"], torture=True
    ),
    "writer version 4": Change(
        statements=[properties(minReaderVersion="1", minWriterVersion="4")],
        features=["changeDataFeed", "checkConstraints", "generatedColumns"],
        torture=True,
    ),
    "writer version 6": Change(
        statements=[properties(minReaderVersion="2", minWriterVersion="6")],
        features=["changeDataFeed", "checkConstraints", "columnMapping", "generatedColumns", "identityColumns"],
        torture=True,
    ),
    # no features
    "the retention of transactions, and NOT NULL": Change(
        statements=[properties(setTransactionRetentionDuration="interval 7 days")], struct=NOT_NULL
    ),
    "an invariant": Change(statements=[], structs=[INVARIANT], torture=True),
}  # fmt: skip


class Blocked:
    """A table that pcaplake made and wrote to, and that somebody changed."""

    def __init__(self, root: Path, spark: Any) -> None:
        self.root, self.spark, self.name = root, spark, "t"

    @property
    def path(self) -> Path:
        return self.root / self.name

    def log(self) -> LogStore:
        return LogStore(Store.open(self.root))

    def make(self, change: Change) -> None:
        async def commit() -> None:
            log = self.log()
            await log.create("t", change.struct or SCHEMA, partition_columns=change.partition_columns)
            if change.partition_columns:
                await log.commit(
                    "t", [write(self.path, "first", [1, 2], date=DAY)], txn=Txn(app_id="pcaplake", version=0)
                )

        asyncio.run(commit())
        for statement in change.statements:
            self.run(statement.format(t=f"delta.`{self.path}`"))
        for struct in change.structs:
            number = int(max(self.path.glob("_delta_log/0*.json")).stem) + 1
            lines = map(json.loads, (self.path / f"_delta_log/{0:020d}.json").read_text().splitlines())
            (metadata,) = (line["metaData"] for line in lines if "metaData" in line)
            changed = json.dumps({"metaData": {**metadata, "schemaString": json.dumps(struct)}})
            (self.path / f"_delta_log/{number:020d}.json").write_text(f"{changed}\n")

    def run(self, statement: str) -> None:
        self.spark.sql(statement.rstrip(";")).collect()

    def ways(self) -> list[Way]:
        """As the doctor finds them."""

        async def find() -> list[Way]:
            store = Store.open(self.root)
            state = await read_log_state(store, self.name)
            assert state.metadata is not None
            assert state.protocol is not None
            last = await find_last_writable_version(
                store, self.name, lambda found: unsupported_reason("t", found, None)
            )
            wanted = to_delta_struct(SCHEMA)
            return build_unblock_ways(str(self.path), state.metadata, state.protocol, wanted, last)

        return asyncio.run(find())

    def copy(self, number: int) -> Blocked:
        other = Blocked(self.root, self.spark)
        other.name = f"way{number}"
        shutil.copytree(self.path, other.path)
        return other

    def wait_a_day(self) -> None:
        then = time.time() - 25 * 3600
        for file in self.path.glob("_delta_log/*"):
            os.utime(file, (then, then))
        self.spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def assert_writable(self, change: Change) -> None:
        async def commit() -> None:
            log = self.log()
            assert await log.read_block_reason(self.name) is None
            file = write(self.path, "second", [7], date=DAY) if change.partition_columns else None
            await log.commit(self.name, [file] if file else [], txn=Txn(app_id="pcaplake", version=1), schema=SCHEMA)

        asyncio.run(commit())
        rows = [row["n"] for row in self.spark.read.format("delta").load(str(self.path)).collect()]
        if change.partition_columns:
            assert set(rows) >= {2, 7}


@pytest.mark.parametrize(
    "what", [pytest.param(name, marks=pytest.mark.torture if one.torture else []) for name, one in CHANGES.items()]
)
def test_what_the_doctor_says_unblocks_the_table(what: str, spark: Any, tmp_path: Path, torture: bool) -> None:
    """`make test` goes the first way of each: the others are RESTORE, the first way of what Delta cannot drop."""
    change, table = CHANGES[what], Blocked(tmp_path, spark)
    table.make(change)
    state = asyncio.run(read_log_state(Store.open(tmp_path), "t"))
    assert state.protocol is not None
    assert list_unsupported_features(state.protocol) == sorted(change.features)
    number = len(table.ways())
    assert number
    for position in range(number if torture else 1):
        copied = table.copy(position)
        way = copied.ways()[position]
        for statement in way.today:
            copied.run(statement)
        for statement in way.a_day_later:
            with pytest.raises(REFUSED, match=r"(?i)retention|wait|history"):
                copied.run(statement)
            copied.wait_a_day()
            copied.run(statement)
        copied.assert_writable(change)


@pytest.mark.torture
def test_a_table_with_a_v2_checkpoint_is_read_again(spark: Any, tmp_path: Path) -> None:
    """What the log store says itself, because the state of such a table cannot be read."""
    table = Blocked(tmp_path, spark)
    change = Change(
        statements=[
            properties(checkpointPolicy="v2", checkpointInterval="1"),
            "INSERT INTO {t} VALUES (3, '2026-11-21')",
        ]
    )
    table.make(change)
    with pytest.raises(TableBlocked, match="is a V2 checkpoint") as blocked:
        asyncio.run(table.log().read_version("t"))
    today, later = re.findall(r"DROP FEATURE \w+(?: TRUNCATE HISTORY)?", str(blocked.value))
    table.run(f"ALTER TABLE delta.`{table.path}` {today}")
    table.wait_a_day()
    table.run(f"ALTER TABLE delta.`{table.path}` {later}")
    table.assert_writable(change)


def scala(spark: Any, name: str) -> Any:
    return getattr(getattr(spark._jvm.org.apache.spark.sql.delta, f"{name}$"), "MODULE$")


def test_delta_has_these_features_and_drops_those_that_we_say(spark: Any) -> None:
    features = dict(
        spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala(spark, "TableFeature").allSupportedFeaturesMap())
    )
    found = {one.name(): one.isRemovable() for one in features.values()}
    for name in ("appendOnly", "invariants", "geospatial-dev"):  # those of writer version 2, and one of tests
        found.pop(name, None)
    assert found.keys() == FEATURES.keys()
    ours = {
        name: removal is not Removal.RESTORE for name, removal in FEATURES.items() if removal is not Removal.NOT_TRIED
    }
    assert ours == {name: found[name] for name in ours}
    tried = {name for change in CHANGES.values() for name in change.features}
    untried = {
        "domainMetadata",
        "icebergCompatV3",
        "typeWidening-preview",
        "variantShredding",
        "variantShredding-preview",
        "variantType-preview",
    }
    assert {name for name in ours if name not in tried} <= untried


def test_delta_has_these_properties(spark: Any) -> None:
    """Those of Delta, without those that have other beginnings here; and Delta accepts what we accept."""
    configs = scala(spark, "DeltaConfigs")
    entries = dict(spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(configs.getAllConfigs()))
    found = {one.key() for one in entries.values()}
    others = {"delta.parquet.compression.codec", "delta.targetFileSize", "delta.tuneFileSizesForRewrites"}
    assert {key for key in found if not key.startswith(_NEVER)} == {*KINDS, *_MAY_BE_OFF, TXN_RETENTION} - others

    def accepts(key: str, value: str) -> bool:
        try:
            configs.validateConfigurations(spark._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap({key: value}))
        except REFUSED:
            return False
        return True

    tried = (
        "true",
        "false",
        "x",
        "",
        "0",
        "1",
        "-1",
        "7",
        "interval 7 days",
        "interval 1 month",
        "classic",
        "none",
        "Serializable",
    )
    for key in {*KINDS, *_MAY_BE_OFF} - others:
        for value in tried:
            if find_property_problem({key: value}) is None:
                assert accepts(key, value), (key, value)
