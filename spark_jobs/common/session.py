"""Opens a SparkSession with Delta and with the log store that the workers of these lakes use.

Refuses to start with another log store than the workers', because two kinds of log store on one table lose commits.

    pcaplake  this project's class, which repairs incomplete commits and never overwrites a version (docs/spark.md, ADR 6)
    stock     io.delta.storage.S3DynamoDBLogStore; only with s3a://, because it takes s3:// for another table
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from pcaplake.common.errors import Fatal
from pcaplake.common.event_loop import run_request
from pcaplake.lake import identity
from pcaplake.lake.store.store import Store
from pcaplake.spark_jobs import jars
from pcaplake.worker.config.environment import (
    SAFE_PATH,
    is_started_by_spark_submit,
    read_aws_endpoint,
    set_spark_python,
)
from pcaplake.worker.config.service_settings import FleetSettings

from . import jvm
from .delta_writes import PARQUET_SETTINGS
from .lake_tables import table_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Kind = Literal["pcaplake", "stock"]
OWN_LOG_STORE: Final = "pcaplake"

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
    f"spark.executorEnv.{SAFE_PATH}": "1",  # Spark starts Python with `-m` in the working directory
    **PARQUET_SETTINGS,
}
_LOCAL = {  # one machine: no other host needs to reach the driver
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "pcaplake-spark-warehouse"),  # else made in the cwd
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LockTableAddress:
    """The DynamoDB table that decides who writes a version."""

    name: str
    region: str


def open_session(
    *,
    app: str,
    settings: FleetSettings | None = None,
    lakes: Sequence[str] = (),
    log_store: Kind = OWN_LOG_STORE,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    spark_logs: bool = True,
) -> SparkSession:
    """A session for jobs on these lakes, with the log store of their workers.

    `settings`: the workers' settings; default: from the environment. `master`: default all cores of this machine; ignored
    under spark-submit and where a session already runs. `conf`: further Spark settings, which take precedence.
    `spark_logs` False: what Spark and its JVM log is not shown, unless spark-submit or another program started them.
    Raises Fatal if Java or the jars are missing or the log store would differ from the workers', and WrongSetting.
    """
    from pyspark.sql import SparkSession

    folder = require_java_and_jars(log_store)
    settings = settings or FleetSettings.load()
    required_settings = spark_configuration(settings, resolve_lock_table(settings, lakes, log_store), log_store)
    decisive = {name: value for name, value in required_settings.items() if _is_decisive(name)}
    # checked before any setting changes, because it may belong to another program
    if is_session_running():
        spark = SparkSession.builder.getOrCreate()
        check_session(spark, decisive)
        for name, value in (conf or {}).items():
            spark.conf.set(name, value)
        return spark
    choose_python(conf or {})
    builder = SparkSession.builder.appName(app)
    if folder is not None:
        master = master or "local[*]"
        builder = builder.master(master)
        required_settings |= {"spark.driver.extraClassPath": f"{folder}/*", **jvm.log_options(shown=spark_logs)}
        if master.startswith("local"):
            required_settings = _LOCAL | required_settings
        else:
            required_settings |= {"spark.jars": ",".join(sorted(str(jar) for jar in folder.glob("*.jar")))}
    for name, value in (_DEFAULTS | required_settings | dict(conf or {})).items():
        builder = builder.config(name, value)
    if not spark_logs:
        jvm.silence_query_loggers()
    with jvm.starting_jvm(shown=spark_logs or folder is None):
        spark = builder.getOrCreate()
    try:
        check_session(spark, decisive)
    except Fatal:
        spark.stop()
        raise
    return spark


def is_session_running() -> bool:
    """Whether this process has a Spark context. Does not import pyspark, which takes long."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._active_spark_context is not None


def require_java_and_jars(log_store: Kind) -> Path | None:
    """The folder of the jars for a JVM that `open_session` starts; None: it starts none. Raises Fatal with what to do.

    Raises ModuleNotFoundError without the extra `spark`, also for pandas: Spark would ask for it only after it has started.
    """
    for package in ("pyspark", "delta", "pandas"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    if is_session_running() or is_started_by_spark_submit():
        return None
    jvm.require_java()
    return jars.require_jars(stock=log_store == "stock")


def resolve_lock_table(
    settings: FleetSettings, lakes: Sequence[str], log_store: Kind = OWN_LOG_STORE
) -> LockTableAddress | None:
    """The lock table of the lakes' workers; None: they use conditional puts only, or no lake is on S3.

    A lake that does not exist yet follows the settings. Raises Fatal if lakes and settings disagree, also about the
    region of the tables.
    """
    for lake in lakes:
        table_path(lake, "captures")  # Fatal for a URI with two spellings
    stores = [Store.open(lake, settings.storage_options_for(lake)) for lake in lakes]
    remote = [store for store in stores if store.local is None]
    locked = bool(remote) and settings.log_store == "dynamodb"
    if log_store == "stock" and remote and not locked:
        raise Fatal(
            "Delta's S3DynamoDBLogStore needs a lock table, and these lakes have none: use --log-store pcaplake"
        )
    return run_request(lambda: _verify_lock_table(settings, stores, locked))


async def _verify_lock_table(settings: FleetSettings, stores: Sequence[Store], locked: bool) -> LockTableAddress | None:
    ledgers = {}
    for store in stores:
        kind = identity.LOG_STORE if store.local is not None else _configured_log_store(settings)
        lake_identity = await identity.read_identity(store)
        if lake_identity is not None and lake_identity[0].log_store != kind:
            raise Fatal(
                f"the workers of {store.uri} commit with {lake_identity[0].log_store}, the settings say {kind}. Two log "
                "stores on one table lose commits: set PCAPLAKE_LOG_STORE and PCAPLAKE_LOCK_TABLE as for the workers"
            )
        if lake_identity is not None and lake_identity[0].ledger_kind == "dynamodb":
            ledgers[store.uri] = lake_identity[0]
    if not locked:
        return None
    from pcaplake.lake.delta.lock_table_dynamodb import DynamoLockTable
    from pcaplake.lake.ledger.dynamodb import DynamoLedger
    from pcaplake.lake.shared_tables import SharedTables

    async with await SharedTables.open(
        settings.ledger_table, settings.lock_table, region=settings.region
    ) as shared_tables:
        assert shared_tables.locks is not None
        region = shared_tables.locks.region
        # lake.json does not name the region; the ledger is in the lock table's region
        for uri, lake in ledgers.items():
            ledger_id = await DynamoLedger(shared_tables.ledger, stores[0], lake_id=None).read_ledger_id()
            if ledger_id != lake.ledger_id:
                raise Fatal(
                    f"the workers of {uri} use another ledger than {settings.ledger_table} in {region}, and perhaps "
                    "another lock table: set PCAPLAKE_LEDGER_TABLE, PCAPLAKE_REGION and the endpoints as for the workers"
                )
        await DynamoLockTable(shared_tables.locks).verify_and_read_clock()
        return LockTableAddress(name=settings.lock_table, region=region)


def spark_configuration(
    settings: FleetSettings, locks: LockTableAddress | None, log_store: Kind = OWN_LOG_STORE
) -> dict[str, str]:
    """The Spark settings that a session needs."""
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
        if log_store == "pcaplake" and (endpoint := read_aws_endpoint("dynamodb")):
            conf[f"{prefix}.endpoint"] = endpoint
    return conf | _s3a_settings(settings, locks)


def check_session(spark: SparkSession, required_settings: Mapping[str, str]) -> None:
    """Raises Fatal if a running session, or one that spark-submit configured, has other values."""
    conf = spark.sparkContext.getConf()
    has = {name: conf.get(name) for name in required_settings}
    other = {name: value for name, value in has.items() if value != required_settings[name]}
    second = [scheme for scheme in ("s3", "s3n") if conf.get(f"spark.delta.logStore.{scheme}.impl") == STOCK]
    if second:
        raise Fatal(
            f"Delta's S3DynamoDBLogStore locks {second[0]}:// and s3a:// as two different tables: configure it for "
            f"s3a only, and remove spark.delta.logStore.{second[0]}.impl"
        )
    if other:
        lines = ", ".join(f"{name}={required_settings[name]} (it has {value})" for name, value in other.items())
        raise Fatal(f"the running Spark session is not configured for these lakes; start it with {lines}")


def choose_python(conf: Mapping[str, str]) -> None:
    """Executors run the driver's Python unless the user chose another. Spark itself would take `python3` from the PATH."""
    chosen = conf.get("spark.pyspark.python")  # only spark-submit reads it, and there it precedes the variable as well
    set_spark_python(chosen or sys.executable, replace=chosen is not None)


def _is_decisive(name: str) -> bool:
    """Whether another value could lose commits."""
    return name in _DELTA or name.startswith(("spark.delta.logStore.", OPTIONS, STOCK_OPTIONS))


def _configured_log_store(settings: FleetSettings) -> str:
    """The log store as lake.json spells it."""
    return f"{_DYNAMODB}{settings.lock_table}" if settings.log_store == "dynamodb" else identity.LOG_STORE


def _s3a_settings(settings: FleetSettings, locks: LockTableAddress | None) -> dict[str, str]:
    """S3A's settings, so that Spark reaches the object store as the workers do."""
    storage_options = {name.lower().removeprefix("aws_"): value for name, value in settings.storage_option.items()}
    prefix = "spark.hadoop.fs.s3a"
    conf = {}
    if region := storage_options.get("region") or settings.region or (locks and locks.region):
        conf[f"{prefix}.endpoint.region"] = region
    endpoint = storage_options.get("endpoint") or storage_options.get("endpoint_url") or read_aws_endpoint("s3")
    if endpoint:
        conf |= {
            f"{prefix}.endpoint": endpoint,
            f"{prefix}.path.style.access": "true",
            f"{prefix}.connection.ssl.enabled": "true" if endpoint.startswith("https") else "false",
        }
    if "access_key_id" in storage_options:
        conf |= {
            f"{prefix}.access.key": storage_options["access_key_id"],
            f"{prefix}.secret.key": storage_options.get("secret_access_key", ""),
        }
        if token := storage_options.get("session_token"):
            conf[f"{prefix}.session.token"] = token
    else:
        conf[f"{prefix}.aws.credentials.provider"] = _CREDENTIALS
    return conf
