"""Reports the progress of Spark's tasks, because a step of a job may take minutes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pcaplake.common.plain_text import counted

LOOK_SECONDS = 5.0


@contextmanager
def report_tasks(context: Any, say: Callable[[str], None], *, every: float = LOOK_SECONDS) -> Iterator[None]:
    """Look at the running stages of a SparkContext `every` few seconds, and say how many tasks are done when that changes."""
    over = threading.Event()

    def poll_status() -> None:
        before = ""
        while not over.wait(every):
            text = _describe_stages(context.statusTracker())
            if text and text != before:
                say(text)
                before = text

    thread = threading.Thread(target=poll_status, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _describe_stages(tracker: Any) -> str:
    """Empty while no task of a running stage is done."""
    stages = [tracker.getStageInfo(stage_id) for stage_id in tracker.getActiveStageIds()]
    running = [stage for stage in stages if stage is not None]
    done, total = sum(stage.numCompletedTasks for stage in running), sum(stage.numTasks for stage in running)
    return f"{done:,} of {counted(total, 'task')} done" if done else ""
