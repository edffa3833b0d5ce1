"""One SparkSession for the whole run, and lakes to use it on: in folders, and on the local S3 with its lock table.

Nobody stops the session or leaves a setting changed. What needs another configuration starts Spark in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pcaplake.spark_jobs.common.session import open_session
from pcaplake.worker.config.service_settings import FleetSettings
from tests.aws import Aws

LOCKS = "delta_log"
# to verify the bytecode of Spark's and Delta's classes takes a tenth of the CPU time of a start; one compiler tier alone has a
# code cache of 48 MB, which is soon full: methods are compiled again and again
JAVA = (
    "-XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -Xmn400m "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
# The second compiler would take a third of the CPU time of a JVM that runs for ten minutes: it compiles what is called eight
# times as often as by default, and leaves the rest to the first one
LATE_C2 = (
    "-XX:Tier4InvocationThreshold=40000 -XX:Tier4MinInvocationThreshold=5000 "
    "-XX:Tier4CompileThreshold=120000 -XX:Tier4BackEdgeThreshold=320000"
)
SMALL = {  # a JVM beside everything else on two cores
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 {JAVA}",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",  # VACUUM lists in 10,000 tasks by default
    "spark.databricks.delta.snapshotPartitions": "1",  # Delta reads a log in 50 tasks by default
    "spark.default.parallelism": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # what the user interface would show of a thousand queries fills the memory
    **{f"spark.ui.retained{what}": "50" for what in ("Jobs", "Stages", "Tasks")},
    "spark.sql.ui.retainedExecutions": "10",
}
INTERPRETED = {  # to compile Java for each small query takes longer than to run it; `make torture` compiles
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}


def write_defaults(folder: Path, conf: Mapping[str, str]) -> str:
    """A folder for SPARK_CONF_DIR: what a JVM has that the command line says nothing about."""
    lines = [f"{name} {value}\n" for name, value in conf.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))
    return str(folder)


@pytest.fixture(scope="session", autouse=True)
def spark_conf_dir(tmp_path_factory: pytest.TempPathFactory, torture: bool) -> Iterator[str | None]:
    """Commands that tests start are as small as their session; `make torture` leaves them as users have them."""
    if torture:
        yield None
        return
    folder = write_defaults(tmp_path_factory.mktemp("spark-conf"), SMALL | INTERPRETED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_CONF_DIR", folder)
        yield folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The local services that the session was started for."""

    aws: Aws
    locks: str
    ledger: str

    def settings(self, **given: Any) -> FleetSettings:
        """Of workers here."""
        return FleetSettings.load(
            **{"ledger_table": self.ledger, "lock_table": self.locks, "storage_option": {"allow_http": "true"}, **given}
        )

    def lake(self) -> str:
        """The URI of a lake that is not there yet, in a bucket of its own."""
        return f"s3://{self.aws.bucket('lake')}/drives"


@pytest.fixture(scope="session")
def site(aws: Aws) -> Site:
    return Site(
        aws=aws, locks=aws.table("locks", hash_key="tablePath", range_key="fileName"), ledger=aws.table("ledger")
    )


@pytest.fixture(scope="session")
def spark(site: Site, torture: bool) -> Iterator[Any]:
    """Spark with Delta, for `file://` and for `s3a://` under the lock table of `site`."""
    lake = site.lake()
    # with the second compiler, unlike the JVMs that commands start: this one runs for long
    conf = (SMALL if torture else SMALL | INTERPRETED) | {"spark.driver.extraJavaOptions": f"{JAVA} {LATE_C2}"}
    session = open_session(app="tests", settings=site.settings(), lakes=[lake], master="local[2]", conf=conf)
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def tables_are_forgotten(request: pytest.FixtureRequest) -> Iterator[None]:
    """For an hour, Delta keeps the plans of each table that it has read; those of all tests would fill the JVM's memory."""
    yield
    if "spark" in request.fixturenames:
        request.getfixturevalue("spark")._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """A folder for a lake; nothing is in it."""
    return str(tmp_path / "lake")
