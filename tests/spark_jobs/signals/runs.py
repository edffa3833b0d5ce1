"""Runs of the Spark job `signals`, with a session that is there."""

from __future__ import annotations

from typing import Any

from pcaplake.derived.signals.report import SignalReport
from pcaplake.derived.signals.run import Options
from pcaplake.signals import Databases
from pcaplake.spark_jobs.signals import run
from pcaplake.worker.config.service_settings import FleetSettings


def decode(spark: Any, lake: Any, known: Databases, **given: Any) -> SignalReport:
    """One run to its end; by default each file of frames is a batch. `lake`: a place. `settings`: of a fleet."""
    keywords = {name: given.pop(name) for name in ("every", "say", "step") if name in given}
    settings = given.pop("settings", None) or FleetSettings.load(None, lake=str(lake))
    options = Options(databases=known, **{"batch_bytes": 1, **given})
    return run(spark, str(lake), options, settings=settings, **keywords)
