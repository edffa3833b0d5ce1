"""Decides what to do now from the plan, the existing Jobs and the time. No I/O, no clock.

Rules for each job of the plan:

1. A due time is launched once: only if no Job for this or a later due time exists.
2. A due time that is older than `late` is skipped. A suspended job is never launched.
3. While a Job is running, the next one is not launched. It is launched late if the running Job ends in time.
4. Finished Jobs beyond `keep_succeeded` and `keep_failed` are deleted, the oldest first, so the last one always stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from .plan import Plan

State = Literal["active", "succeeded", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A Job in the cluster. `job` is its name in the plan, `why` the reason if it failed; `uid` tells Jobs of one name apart."""

    name: str
    uid: str
    job: str
    due: datetime
    state: State
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    job: str
    due: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The job is due, but its last Job is still running."""

    job: str
    due: datetime
    running: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    seen: Seen


Action = Launch | Overlap | Delete


def decide(plan: Plan, there: Sequence[Seen], now: datetime) -> list[Action]:
    """The actions, deletions first. Jobs that are not in the plan are ignored."""
    deletions: list[Action] = []
    others: list[Action] = []
    for name, job in plan.jobs.items():
        ours = sorted((seen for seen in there if seen.job == name), key=lambda seen: seen.due, reverse=True)
        for failed in (False, True):
            done = [seen for seen in ours if seen.state == ("failed" if failed else "succeeded")]
            deletions += [Delete(seen=seen) for seen in done[plan.keep(name, failed=failed) :]]
        due = plan.last_due(name, now)
        missed = now - due > timedelta(seconds=plan.late_of(name))
        if job.suspend or missed or any(seen.due >= due for seen in ours):
            continue
        running = [seen.name for seen in ours if seen.state == "active"]
        others.append(Overlap(job=name, due=due, running=running[0]) if running else Launch(job=name, due=due))
    return deletions + others
