"""The one way to a SparkSession: Delta, and the log store that the workers of these lakes use.

Knows which class makes versions of a table where, and refuses to start where that would not be the workers': two kinds of
log store on one table lose commits. Must not know what a job does.

    pcaplake  our class, which repairs, and never overwrites a version (docs/spark.md, ADR 6)
    stock     io.delta.storage.S3DynamoDBLogStore; nothing but s3a:// then, because it takes s3:// for another table
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from worker.errors import Fatal
from worker.fleet_settings import FleetSettings
from worker.lake import identity
from worker.lake.store import Store
from worker.settings import aws_endpoint, spark_python, spark_submitted

from . import jars
from .places import table_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Kind = Literal["pcaplake", "stock"]

ARBITRATED = "io.pcaplake.logstore.DynamoDBLogStore"
PUT_IF_ABSENT = "io.pcaplake.logstore.PutIfAbsentLogStore"
STOCK = "io.delta.storage.S3DynamoDBLogStore"
OPTIONS = "spark.pcaplake.logstore"
STOCK_OPTIONS = "spark.io.delta.storage.S3DynamoDBLogStore.ddb"

_DYNAMODB = "dynamodb "
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_CREDENTIALS = "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"  # as our log store's
_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.hadoop.fs.s3a.input.stream.type": "classic",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.parquet.compression.codec": "zstd",  # as the workers write; Spark's own defaults are older
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
_LOCAL = {  # one machine: nobody else needs to reach it
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "pcaplake-spark-warehouse"),  # else made in the cwd
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTable:
    """The DynamoDB table that versions are made under."""

    name: str
    region: str


def open_session(
    *,
    app: str,
    settings: FleetSettings | None = None,
    lakes: Sequence[str] = (),
    log_store: Kind = "pcaplake",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session for jobs on these lakes, under the log store of their workers.

    `settings`: those of the workers; the environment's by default. `master`: all cores of this machine by default;
    under spark-submit, and where a session runs already, it is that one's. `conf`: further settings of Spark, which
    win. Raises Fatal where the log store would not be the workers', and says what to do; WrongSetting.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    settings = settings or FleetSettings.load()
    wanted = configuration(settings, agreed(settings, lakes, log_store), log_store)
    decisive = {name: value for name, value in wanted.items() if _matters(name)}
    if SparkContext._active_spark_context is not None:  # looked at before anything is set: it may be somebody else's
        spark = SparkSession.builder.getOrCreate()
        check(spark, decisive)
        for name, value in (conf or {}).items():
            spark.conf.set(name, value)
        return spark
    builder = SparkSession.builder.appName(app)
    if not spark_submitted():
        master = master or "local[*]"
        builder = builder.master(master)
        folder = jars.jars(stock=log_store == "stock")
        wanted |= {"spark.driver.extraClassPath": f"{folder}/*"}
        if master.startswith("local"):
            wanted = _LOCAL | wanted
            spark_python(sys.executable)
        else:
            wanted |= {"spark.jars": ",".join(sorted(str(jar) for jar in folder.glob("*.jar")))}
    for name, value in (_DEFAULTS | wanted | dict(conf or {})).items():
        builder = builder.config(name, value)
    with _stdout_is_ours():
        spark = builder.getOrCreate()
    try:
        check(spark, decisive)
    except Fatal:
        spark.stop()
        raise
    return spark


def agreed(settings: FleetSettings, lakes: Sequence[str], log_store: Kind = "pcaplake") -> LockTable | None:
    """What the lakes' workers make versions under; None: S3's conditional puts alone, or there is no lake on S3.

    A lake that is not there yet is as the settings say. Raises Fatal where lakes and settings disagree, in the region
    of the tables too.
    """
    for lake in lakes:
        table_path(lake, "captures")  # only one spelling
    stores = [Store.open(lake, settings.storage(lake)) for lake in lakes]
    remote = [store for store in stores if store.local is None]
    arbitrated = bool(remote) and settings.log_store == "dynamodb"
    if log_store == "stock" and remote and not arbitrated:
        raise Fatal(
            "Delta's S3DynamoDBLogStore always works with a lock table, and these lakes have none: take --log-store "
            "pcaplake"
        )
    with ThreadPoolExecutor(max_workers=1) as beside:  # a notebook has a running event loop already
        return beside.submit(asyncio.run, _agreed(settings, stores, arbitrated)).result()


async def _agreed(settings: FleetSettings, stores: Sequence[Store], arbitrated: bool) -> LockTable | None:
    ledgers = {}
    for store in stores:
        kind = identity.LOG_STORE if store.local is not None else _of_settings(settings)
        known = await identity.read_identity(store)
        if known is not None and known[0].log_store != kind:
            raise Fatal(
                f"the workers of {store.uri} make versions by {known[0].log_store}, the settings say {kind}. Two kinds "
                "on one table lose commits: set PCAPLAKE_LOG_STORE and PCAPLAKE_LOCK_TABLE as the workers have them"
            )
        if known is not None and known[0].ledger_kind == "dynamodb":
            ledgers[store.uri] = known[0]
    if not arbitrated:
        return None
    from worker.lake.delta.dynamodb import DynamoArbiter
    from worker.lake.fleet import Services
    from worker.lake.ledger.dynamodb import DynamoLedger

    async with await Services.open(settings.ledger_table, settings.lock_table, region=settings.region) as services:
        assert services.locks is not None
        region = services.locks.region
        for uri, lake in ledgers.items():  # lake.json does not name the region; the ledger beside the lock table tells
            there = await DynamoLedger(services.ledger, stores[0], lake_id=None).identity()
            if there != lake.ledger_id:
                raise Fatal(
                    f"the workers of {uri} have another ledger than {settings.ledger_table} in {region}, so perhaps "
                    "another lock table: set PCAPLAKE_LEDGER_TABLE, PCAPLAKE_REGION and the endpoints as they have them"
                )
        await DynamoArbiter(services.locks).verify()
        return LockTable(name=settings.lock_table, region=region)


def configuration(settings: FleetSettings, locks: LockTable | None, log_store: Kind = "pcaplake") -> dict[str, str]:
    """What a session must be configured with, by Spark's names."""
    conf = dict(_DELTA)
    conf["spark.delta.logStore.file.impl"] = PUT_IF_ABSENT
    schemes = ("s3a",) if log_store == "stock" else ("s3", "s3a", "s3n")
    for scheme in schemes:
        impl = STOCK if log_store == "stock" else PUT_IF_ABSENT if locks is None else ARBITRATED
        conf[f"spark.delta.logStore.{scheme}.impl"] = impl
        conf[f"spark.hadoop.fs.{scheme}.impl"] = _S3A
    if locks is not None:
        prefix, name = (STOCK_OPTIONS, "tableName") if log_store == "stock" else (OPTIONS, "table")
        conf |= {f"{prefix}.{name}": locks.name, f"{prefix}.region": locks.region}
        if log_store == "pcaplake" and (endpoint := aws_endpoint("dynamodb")):
            conf[f"{prefix}.endpoint"] = endpoint
    return conf | _s3a(settings, locks)


def check(spark: SparkSession, wanted: Mapping[str, str]) -> None:
    """Fatal where a session that ran already, or was configured by spark-submit, has something else."""
    conf = spark.sparkContext.getConf()
    has = {name: conf.get(name) for name in wanted}
    other = {name: value for name, value in has.items() if value != wanted[name]}
    second = [scheme for scheme in ("s3", "s3n") if conf.get(f"spark.delta.logStore.{scheme}.impl") == STOCK]
    if second:
        raise Fatal(
            f"Delta's S3DynamoDBLogStore takes {second[0]}:// and s3a:// for two tables with a lock each: configure it for "
            f"s3a alone, without spark.delta.logStore.{second[0]}.impl"
        )
    if other:
        lines = ", ".join(f"{name}={wanted[name]} (it has {value})" for name, value in other.items())
        raise Fatal(f"the running Spark session is not configured for these lakes; start it with {lines}")


@contextlib.contextmanager
def _stdout_is_ours() -> Iterator[None]:
    """A JVM that is started here says on stderr what it says: VACUUM prints lines of its own, and stdout is for reports."""
    sys.stdout.flush()
    ours = os.dup(1)
    try:
        os.dup2(2, 1)
        yield
    finally:
        os.dup2(ours, 1)
        os.close(ours)


def _matters(name: str) -> bool:
    """Could rows be lost where it is another?"""
    return name in _DELTA or name.startswith(("spark.delta.logStore.", OPTIONS, STOCK_OPTIONS))


def _of_settings(settings: FleetSettings) -> str:
    """As lake.json has it."""
    return f"{_DYNAMODB}{settings.lock_table}" if settings.log_store == "dynamodb" else identity.LOG_STORE


def _s3a(settings: FleetSettings, locks: LockTable | None) -> dict[str, str]:
    """The object store as the workers reach it."""
    given = {name.lower().removeprefix("aws_"): value for name, value in settings.storage_option.items()}
    prefix = "spark.hadoop.fs.s3a"
    conf = {}
    if region := given.get("region") or settings.region or (locks and locks.region):
        conf[f"{prefix}.endpoint.region"] = region
    endpoint = given.get("endpoint") or given.get("endpoint_url") or aws_endpoint("s3")
    if endpoint:
        conf |= {
            f"{prefix}.endpoint": endpoint,
            f"{prefix}.path.style.access": "true",
            f"{prefix}.connection.ssl.enabled": "true" if endpoint.startswith("https") else "false",
        }
    if "access_key_id" in given:
        conf |= {
            f"{prefix}.access.key": given["access_key_id"],
            f"{prefix}.secret.key": given.get("secret_access_key", ""),
        }
        if token := given.get("session_token"):
            conf[f"{prefix}.session.token"] = token
    else:
        conf[f"{prefix}.aws.credentials.provider"] = _CREDENTIALS
    return conf
