"""What is to be done now: a plan, the Jobs that there are, the time -> actions. No I/O, no clock.

Rules, for each job of the plan:

1. A due time is launched once: no Job of it, nor of a later time, may be there.
2. One that is older than `late` is left out; so is everything of a suspended job.
3. While a Job of it runs, the next is not launched (and is launched late when it ends in time).
4. Finished Jobs beyond `keep_succeeded` and `keep_failed` are deleted, the oldest first; so the last one always stays.
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
    """A Job in the cluster; `job` as the plan names it, `why` it failed. `uid` tells it from one of the same name."""

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
    """It is time, and the last one still runs."""

    job: str
    due: datetime
    running: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    seen: Seen


Action = Launch | Overlap | Delete


def decide(plan: Plan, there: Sequence[Seen], now: datetime) -> list[Action]:
    """Deletions first. Jobs that the plan does not name are left alone."""
    deletions: list[Action] = []
    others: list[Action] = []
    for name, job in plan.jobs.items():
        ours = sorted((one for one in there if one.job == name), key=lambda one: one.due, reverse=True)
        for failed in (False, True):
            done = [one for one in ours if one.state == ("failed" if failed else "succeeded")]
            deletions += [Delete(seen=one) for one in done[plan.keep(name, failed=failed) :]]
        due = plan.last_due(name, now)
        missed = now - due > timedelta(seconds=plan.late_of(name))
        if job.suspend or missed or any(one.due >= due for one in ours):
            continue
        running = [one.name for one in ours if one.state == "active"]
        others.append(Overlap(job=name, due=due, running=running[0]) if running else Launch(job=name, due=due))
    return deletions + others
