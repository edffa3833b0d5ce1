"""Leader election with a Lease of coordination.k8s.io, based on the election of the package `kubernetes`.

The library's own election (37.0) ends at the first request without an answer, does not stop the leader's work then, notices
another leader late, and never releases the Lease. This module changes that:

- A request without an answer is a failed attempt, which is repeated for `renew` seconds.
- The leader's work is canceled if the Lease is not renewed for `renew` seconds of the monotonic clock, if another process
  has the Lease, and if the election ends for any reason.
- At the end the Lease is released, so that the next leader takes over within `retry` seconds instead of `lease`.

A Lease is not a lock: a leader that was suspended continues until it checks the Lease. So a Lease may decide which process
schedules Jobs, but never which process writes data.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kubernetes.aio import client
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from pcaplake.common.errors import Fatal
from pcaplake.common.meter import SILENT, Meter

from .api import LASTING, TRANSPORT, Cluster, Rights

log = logging.getLogger(__name__)
RELEASE = 1.0  # seconds within which the Lease must be released


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Times in seconds, as in client-go. Others take over if the Lease is not renewed for `lease`, a whole number.

    The leader gives up after `renew` without an answer. `retry` is the time between two attempts. Each is at least 1,
    `lease` is greater than `renew`, and `renew` is greater than 1.2 times `retry`; the library refuses other values.
    """

    lease: int
    renew: float
    retry: float


class Election:
    """A candidate for the Lease `name`. `identity` gets a unique suffix, so a restarted process is a new candidate."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: Timing,
        lasting: float = LASTING,
        meter: Meter = SILENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = f"{identity}_{uuid.uuid4().hex[:8]}"
        self._cluster, self._namespace, self._name = cluster, namespace, name
        self._timing = timing
        self._meter, self._clock, self._rights = meter, clock, Rights(clock, lasting=lasting)

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Takes part in the election until canceled. `lead` runs while this candidate leads, and is canceled when it does not.

        Returns or raises when `lead` does. Raises Fatal if the Role does not allow the Lease. At the end, after `lead` has
        ended, the Lease is released.
        """
        while not await self._term(lead):
            log.warning("%s lost leadership; trying again", self.identity)

    async def _term(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """Waits for the Lease, then leads. True: `lead` has returned; False: leadership was lost."""
        lock = _Lock(self._cluster, self._namespace, self._name, self.identity, self._rights, clock=self._clock)
        elected = asyncio.Event()

        async def begin() -> None:
            elected.set()

        election = Config(
            lock,
            lease_duration=self._timing.lease,
            renew_deadline=self._timing.renew,
            retry_period=self._timing.retry,
            onstarted_leading=begin,
            onstopped_leading=None,
        )
        standing = asyncio.create_task(LeaderElection(election).run())
        begun = asyncio.create_task(elected.wait())
        others: list[asyncio.Task[Any]] = [begun, asyncio.create_task(lock.forbidden.wait())]
        leading: asyncio.Future[None] | None = None
        self._meter.set("operator_leader", 0)
        try:
            await asyncio.wait({standing, *others}, return_when=asyncio.FIRST_COMPLETED)
            if begun.done():
                log.info("%s leads", self.identity)
                self._meter.set("operator_leader", 1)
                leading = asyncio.ensure_future(lead())
                others += [asyncio.create_task(lock.lost.wait()), asyncio.create_task(self._overdue(lock))]
                await asyncio.wait({standing, leading, *others[1:]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            mine = [task for task in (standing, leading, *others) if task is not None]
            ended = leading is not None and leading.done()
            for task in mine:
                task.cancel()
            await asyncio.gather(*mine, return_exceptions=True)
            self._meter.set("operator_leader", 0)
            with suppress(TimeoutError):
                async with asyncio.timeout(RELEASE):
                    await lock.release()
        if ended and leading is not None:
            leading.result()
            return True
        if lock.forbidden.is_set():
            raise Fatal(lock.why)
        if standing.done() and not standing.cancelled() and (error := standing.exception()) is not None:
            raise Fatal(f"the election for the Lease {self._namespace}/{self._name} broke: {error!r}") from error
        return False

    async def _overdue(self, lock: _Lock) -> None:
        """Returns when the Lease was not renewed for `renew` seconds. The library uses the wall clock, which can be changed."""
        while (left := lock.renewed + self._timing.renew - self._clock()) > 0:  # noqa: ASYNC110 -- no event marks a missing renewal
            await asyncio.sleep(left)


class _Lock(LeaseLock):  # type: ignore[misc] # the package's types are not read
    """The library's Lease, but requests time out and never raise. `renewed`: when the last successful write began."""

    def __init__(
        self, cluster: Cluster, namespace: str, name: str, identity: str, rights: Rights, *, clock: Callable[[], float]
    ) -> None:
        super().__init__(name, namespace, identity, cluster.http)
        self._timeout, self._clock, self._rights = cluster.timeout, clock, rights
        self.renewed = clock()
        self.mine = self._asked = False
        self.lost, self.forbidden, self.why = asyncio.Event(), asyncio.Event(), ""

    async def get(self, name: str, namespace: str) -> tuple[bool, LeaderElectionRecord | Exception | None]:
        """The record, or the error. An invalid Lease is treated as a Lease without a holder."""
        try:
            async with asyncio.timeout(self._timeout):
                found, record = await super().get(name, namespace)
        except (*TRANSPORT, ValueError) as error:  # ValueError: not a Lease
            return False, client.ApiException(status=0, reason=f"{type(error).__name__} {error}")
        self._note("get", record if isinstance(record, client.ApiException) else None)
        if not found:
            return found, record
        if self.mine and record is not None and record.holder_identity not in (None, self.identity):
            self.lost.set()
        return found, record

    async def create(self, name: str, namespace: str, election_record: LeaderElectionRecord) -> bool:
        """37.0.1 passes `pretty=True`, which its own models refuse, so it never creates a Lease."""
        body = client.V1Lease(metadata=client.V1ObjectMeta(name=name), spec=self.update_lease(election_record))
        return await self._write("create", self.api_instance.create_namespaced_lease(namespace, body))

    async def update(self, name: str, namespace: str, updated_record: LeaderElectionRecord) -> bool:
        lease = self.lease_reference  # with the resourceVersion that was read: the server refuses it if it has changed
        lease.spec = self.update_lease(updated_record, lease.spec)
        return await self._write("update", self.api_instance.replace_namespaced_lease(name, namespace, lease))

    async def _write(self, verb: str, request: Awaitable[client.V1Lease]) -> bool:
        began, self._asked = self._clock(), True
        try:
            async with asyncio.timeout(self._timeout):
                self.lease_reference = await request
        except client.ApiException as error:
            self._note(verb, error)
            return False
        except (*TRANSPORT, ValueError) as error:
            log.warning("the Lease %s/%s: no answer: %s %s", self.namespace, self.name, type(error).__name__, error)
            return False
        self._note(verb)
        self.renewed, self.mine = began, True
        return True

    def _note(self, verb: str, error: client.ApiException | None = None) -> None:
        if error is None or error.status != 403:
            self._rights.allowed(verb)
        elif self._rights.refused(verb):
            lease = f"{self.namespace}/{self.name}"
            self.why = (
                f"Kubernetes does not allow the Lease {lease}: {error.reason}; `pcaplake docs operator` has the Role"
            )
            self.forbidden.set()

    async def release(self) -> None:
        """Releases the Lease if this candidate holds it. Failures are only logged, because the Lease expires anyway."""
        if not self._asked:  # a write without an answer may have been executed
            return
        try:
            lease = await self.api_instance.read_namespaced_lease(self.name, self.namespace)
            if lease.spec is None or lease.spec.holder_identity != self.identity:
                return
            lease.spec.holder_identity = ""
            lease.spec.lease_duration_seconds = 1
            await self.api_instance.replace_namespaced_lease(self.name, self.namespace, lease)
            log.info("%s released the Lease %s/%s", self.identity, self.namespace, self.name)
        except (client.ApiException, *TRANSPORT, ValueError) as error:
            log.warning("cannot release the Lease %s/%s, it will expire: %s", self.namespace, self.name, error)
