"""Spark in a process of its own, that can be killed: does what it is told, a line at a time, and tells how it went.

    python -m tests.spark_jobs.beside LAKE [LOG_STORE]

A line on stdin is a word and a table, as `optimize can_frames`; the answer is one JSON object on stdout, with `error`
where it failed. The first line tells that Spark is up. Settings are those of the workers, from the environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pcaplake.spark_jobs.common.lake_tables import table_path
from pcaplake.spark_jobs.common.session import open_session
from pcaplake.worker.config.service_settings import FleetSettings
from tests.spark_jobs.conftest import SMALL

KEYS = {"captures": "uri", "t": "n"}  # of other tables: capture_id, packet_no


class Beside:
    """What can be asked for; `where` is the table's path."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def _sql(self, text: str) -> list[Any]:
        return list(self._spark.sql(text).collect())

    def optimize(self, where: str) -> dict[str, Any]:
        return self._compacted(self._sql(f"OPTIMIZE delta.`{where}`"))

    def zorder(self, where: str) -> dict[str, Any]:
        column = "uri" if where.endswith("/captures") else "packet_no"
        return self._compacted(self._sql(f"OPTIMIZE delta.`{where}` ZORDER BY ({column})"))

    def vacuum(self, where: str) -> dict[str, Any]:
        """What has been out of the table for seven days: nothing here, and above all nothing that is only staged."""
        return {
            "deleted": len(self._sql(f"VACUUM delta.`{where}` RETAIN 168 HOURS DRY RUN")),
            "rows": self._run_vacuum(where),
        }

    def _run_vacuum(self, where: str) -> int:
        return len(self._sql(f"VACUUM delta.`{where}` RETAIN 168 HOURS"))

    def read(self, where: str) -> dict[str, Any]:
        """Every row of one snapshot, and how many of them there are by their keys."""
        keys = KEYS.get(where.rpartition("/")[2], "capture_id, packet_no")
        row = self._sql(f"SELECT count(*) AS n, count(DISTINCT {keys}) AS keys FROM delta.`{where}`")[0]
        return {"rows": row["n"], "keys": row["keys"]}

    def append(self, where: str) -> dict[str, Any]:
        """Its own rows once more: a blind append, for tests of single commits."""
        self._spark.read.format("delta").load(where).write.format("delta").mode("append").save(where)
        return {}

    def _compacted(self, rows: list[Any]) -> dict[str, Any]:
        metrics = rows[0]["metrics"]
        return {"added": metrics["numFilesAdded"], "removed": metrics["numFilesRemoved"]}


def main(lake: str, log_store: str = "pcaplake") -> None:
    spark = open_session(
        app="beside",
        settings=FleetSettings.load(),
        lakes=[lake],
        log_store=log_store,  # type: ignore[arg-type]
        master="local[2]",
        conf=SMALL,
    )
    spark.sparkContext.setLogLevel("ERROR")
    beside = Beside(spark)
    tell({"ready": True})
    for line in sys.stdin:
        word, _, table = line.strip().partition(" ")
        begun = time.monotonic()
        ask: Callable[[str], dict[str, Any]] = getattr(beside, word)
        try:
            answer = ask(table_path(lake, table))
        except (PySparkException, Py4JError) as error:
            answer = {"error": str(error)[:2000]}
        tell({"asked": line.strip(), "seconds": round(time.monotonic() - begun, 2), **answer})
    spark.stop()


def tell(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
