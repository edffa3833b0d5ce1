"""A backfill's tasks in processes of their own, and the job as a process that can be killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.spark_jobs.backfill.executor import OutcomeCounts, Work, stage_captures


def staged(work: Work, refs: Sequence[ObjectRef], results: object) -> None:
    """For a process: its outcome goes into a queue."""
    results.put(stage_captures(work, refs))  # type: ignore[attr-defined]


def outcome(*, ends: Mapping[str, int]) -> OutcomeCounts:
    made = OutcomeCounts()
    made.ends.update(ends)
    return made


def start(arguments: Sequence[str], log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """`pcaplake-spark backfill`, leader of a group of its own: JVM and workers end with it, killed at once."""
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "pcaplake.spark_jobs", "backfill", *arguments],
            env={**os.environ, **environment},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
