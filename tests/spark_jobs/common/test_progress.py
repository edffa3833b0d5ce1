"""How the tasks of a job are reported. No Spark is started: a tracker answers as Spark's does."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from pcaplake.spark_jobs.common.progress import report_tasks

pytestmark = pytest.mark.unit


class Tracker:
    """Answers with one state of the stages after the other, (done, all tasks) of each; None: a stage that has just ended."""

    def __init__(self, *states: list[tuple[int, int] | None]) -> None:
        self._states, self.over = list(states), threading.Event()
        self._now: list[tuple[int, int] | None] = []

    def getActiveStageIds(self) -> list[int]:
        self._now = self._states.pop(0) if self._states else []
        if not self._states:
            self.over.set()
        return list(range(len(self._now)))

    def getStageInfo(self, stage_id: int) -> Any:
        stage = self._now[stage_id]
        return None if stage is None else SimpleNamespace(numCompletedTasks=stage[0], numTasks=stage[1])


def test_tasks_are_reported_when_their_number_changes() -> None:
    tracker = Tracker([], [(0, 4)], [(0, 4)], [(3, 4), (0, 2000)], [None], [(3, 4)], [], [(3, 4)], [])
    said: list[str] = []
    with report_tasks(SimpleNamespace(statusTracker=lambda: tracker), said.append, every=0.001):
        assert tracker.over.wait(60)
    assert said == ["3 of 2,004 tasks done", "3 of 4 tasks done"]
