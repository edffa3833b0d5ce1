"""The leader's loop: list the Jobs, decide, launch and delete Jobs, log and count their outcomes.

schedule.py decides, and jobs.py talks to the cluster. The loop needs no state of its own: the Jobs in the cluster say what
was launched, so the next leader continues where this one stopped.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.meter import SILENT, Meter

from .api import Forbidden, Refused, Rights
from .jobs import Jobs
from .plan import Plan
from .schedule import Delete, Launch, Overlap, Seen, State, decide

log = logging.getLogger(__name__)
EVERY = 10.0  # seconds between two listings


class Operator:
    """Call `run` while this process leads. `name` is the operator's name and the first part of its Jobs' names."""

    def __init__(
        self,
        plan: Plan,
        jobs: Jobs,
        *,
        name: str,
        every: float = EVERY,
        meter: Meter = SILENT,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._plan, self._jobs, self._name, self._every = plan, jobs, name, every
        self._meter, self._now, self._clock, self._sleep = meter, now, clock, sleep
        self._known: dict[str, State] | None = None
        self._refused: dict[str, datetime] = {}  # the last due time that was refused, by job
        # the last due time that was forbidden, by job that was not created since
        self._forbidden: dict[str, datetime] = {}
        self._kept: set[str] = set()  # uids of Jobs that may not be deleted
        self._rights = Rights(clock)
        self._overlapped: dict[str, datetime] = {}
        self._turned: float | None = None

    @property
    def seconds_since_listing(self) -> float:
        """Seconds since the last listing while this process leads, otherwise 0."""
        return 0.0 if self._turned is None else self._clock() - self._turned

    async def run(self) -> None:
        """Runs until canceled. Raises Fatal if the Role does not allow to list or create Jobs."""
        self._known, self._turned = None, self._clock()
        self._rights, self._forbidden = Rights(self._clock), {}
        try:
            while True:
                try:
                    await self.turn()
                except Retryable as error:
                    log.warning("%s; trying again", error)
                self._turned = self._clock()
                await self._sleep(self._every)
        finally:
            self._turned = None

    async def turn(self) -> None:
        """List the Jobs once, launch those that are due, and delete old ones."""
        try:
            jobs = await self._jobs.there()
        except Forbidden as error:
            self._final("list", error)
            raise
        self._rights.allowed("list")
        self._publish_gauges(jobs)
        for action in decide(self._plan, jobs, self._now()):
            match action:
                case Launch() if self._refused.get(action.job) != action.due:
                    await self._launch(action)
                case Overlap() if self._overlapped.get(action.job) != action.due:
                    self._overlapped[action.job] = action.due
                    self._meter.count("operator_jobs", job=action.job, outcome="overlap")
                    log.warning("%s is due, but waits because %s is still running", action.job, action.running)
                case Delete():
                    await self._delete(action.seen)

    async def _launch(self, launch: Launch) -> None:
        manifest = self._plan.manifest(launch.job, launch.due, operator=self._name)
        try:
            made = await self._jobs.make(manifest)
        except Refused as error:  # retried at its next due time; the other jobs do not wait for this template
            self._refused[launch.job] = launch.due
            self._meter.count("operator_jobs", job=launch.job, outcome="refused")
            log.error("cannot launch %s because of its template: %s", launch.job, error)
            return
        except Forbidden as error:  # a quota or a webhook may forbid one Job; the Role would forbid all
            if self._forbidden.get(launch.job) != launch.due:
                self._forbidden[launch.job] = launch.due
                self._meter.count("operator_jobs", job=launch.job, outcome="refused")
                log.error("cannot launch %s; retrying until it is too late: %s", launch.job, error)
            if self._forbidden.keys() >= {name for name, job in self._plan.jobs.items() if not job.suspend}:
                self._final("make", error)
            return
        self._forbidden.pop(launch.job, None)
        self._rights.allowed("make")
        if made:
            self._meter.count("operator_jobs", job=launch.job, outcome="launched")
            log.info("launched %s, due %s", manifest["metadata"]["name"], launch.due.isoformat())

    async def _delete(self, seen: Seen) -> None:
        """Deletes a finished Job. A failure is only logged, because launching Jobs does not depend on it."""
        try:
            await self._jobs.delete(seen)
        except Forbidden as error:
            if seen.uid not in self._kept:
                self._kept.add(seen.uid)
                log.warning("cannot delete %s, which has %s: %s", seen.name, seen.state, error)
        else:
            self._kept.discard(seen.uid)
            log.debug("deleted %s, which has %s", seen.name, seen.state)

    def _final(self, what: str, error: Forbidden) -> None:
        """Raises Fatal if the refusal has lasted, because a server that has just started forbids everything."""
        if self._rights.refused(what):
            raise Fatal(str(error)) from error

    def _publish_gauges(self, there: Sequence[Seen]) -> None:
        """Logs and counts how Jobs changed since the last listing. A new leader logs the running Jobs."""
        known, self._known = self._known, {job.uid: job.state for job in there}
        for job in there:
            before = None if known is None else known.get(job.uid, "active")
            if before is None and job.state == "active":
                log.info("%s is running", job.name)
            if before != "active" or job.state == "active":
                continue
            self._meter.count("operator_jobs", job=job.job, outcome=job.state)
            if job.state == "succeeded":
                log.info("%s succeeded", job.name)
            else:
                log.error("%s failed: %s; see kubectl logs job/%s", job.name, job.why, job.name)
