"""Who of several processes leads: a Lease of coordination.k8s.io, by the election of the package `kubernetes`.

The library's election as it is (37.0) ends with the first request that gets no answer, leaves what it started running
then, notices late that another leads, and gives the Lease back to nobody. So here:

- a request without an answer is a failed try, and is made again until `renew` seconds have passed;
- what leads is cancelled when the Lease was not renewed for `renew` seconds of the monotonic clock, when somebody else
  has it, and when the election ends for any reason;
- at the end the Lease is given back, and the next one leads within `retry` seconds instead of `lease`.

A Lease is no lock: a leader that was frozen goes on until it has looked. It may choose who schedules, never who writes.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from kubernetes.aio import client
from kubernetes.aio.leaderelection.electionconfig import Config
from kubernetes.aio.leaderelection.leaderelection import LeaderElection
from kubernetes.aio.leaderelection.leaderelectionrecord import LeaderElectionRecord
from kubernetes.aio.leaderelection.resourcelock.leaselock import LeaseLock

from ..errors import Fatal
from ..meter import SILENT, Meter
from .api import LASTING, TRANSPORT, Cluster, Rights

log = logging.getLogger(__name__)
LEASE, RENEW, RETRY = 15, 10.0, 2.0  # seconds, as in client-go
RELEASE = 1.0  # seconds that giving the Lease back may take


class Election:
    """A candidate for the Lease `name`. `identity` is made unique: a process that starts again is another one.

    `lease`: others take over when nothing was heard for so long. `renew`: this one gives up after so long without an
    answer. `retry`: seconds between two tries. All three 1 at the least, `lease` above `renew` above 1.2 `retry`; a Lease
    counts whole seconds, and the library dies of others.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        namespace: str,
        name: str,
        identity: str,
        lease: int = LEASE,
        renew: float = RENEW,
        retry: float = RETRY,
        lasting: float = LASTING,
        meter: Meter = SILENT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = f"{identity}_{uuid.uuid4().hex[:8]}"
        self._cluster, self._namespace, self._name = cluster, namespace, name
        self._lease, self._renew, self._retry = lease, renew, retry
        self._meter, self._clock, self._rights = meter, clock, Rights(clock, lasting=lasting)

    async def run(self, lead: Callable[[], Awaitable[None]]) -> None:
        """Stands for election until cancelled; `lead` runs while this one leads, is cancelled when it does no more.

        Returns, or raises, when `lead` does. Fatal where the Role allows no Lease. The Lease is given back at the end,
        after `lead` has ended.
        """
        while not await self._term(lead):
            log.warning("%s leads no more; standing again", self.identity)

    async def _term(self, lead: Callable[[], Awaitable[None]]) -> bool:
        """One time of following, then leading. True: `lead` has returned."""
        lock = _Lock(self._cluster, self._namespace, self._name, self.identity, self._rights, clock=self._clock)
        elected = asyncio.Event()

        async def begin() -> None:
            elected.set()

        election = Config(
            lock,
            lease_duration=self._lease,
            renew_deadline=self._renew,
            retry_period=self._retry,
            onstarted_leading=begin,
            onstopped_leading=None,
        )
        standing = asyncio.create_task(LeaderElection(election).run())
        begun = asyncio.create_task(elected.wait())
        others: list[asyncio.Task[Any]] = [begun, asyncio.create_task(lock.forbidden.wait())]
        leading: asyncio.Future[None] | None = None
        self._meter.set("operator_leading", 0)
        try:
            await asyncio.wait({standing, *others}, return_when=asyncio.FIRST_COMPLETED)
            if begun.done():
                log.info("%s leads", self.identity)
                self._meter.set("operator_leading", 1)
                leading = asyncio.ensure_future(lead())
                others += [asyncio.create_task(lock.lost.wait()), asyncio.create_task(self._overdue(lock))]
                await asyncio.wait({standing, leading, *others[1:]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            mine = [task for task in (standing, leading, *others) if task is not None]
            ended = leading is not None and leading.done()
            for task in mine:
                task.cancel()
            await asyncio.gather(*mine, return_exceptions=True)
            self._meter.set("operator_leading", 0)
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
        """Until the Lease was not renewed for `renew` seconds; the library asks the wall clock, which may be set."""
        while (left := lock.renewed + self._renew - self._clock()) > 0:  # noqa: ASYNC110 -- it waits for what does not happen
            await asyncio.sleep(left)


class _Lock(LeaseLock):  # type: ignore[misc] # the package's types are not read
    """The library's Lease, whose requests end in time and never raise. `renewed`: when the last good write began."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        identity: str,
        rights: Rights,
        *,
        clock: Callable[[], float],
    ) -> None:
        super().__init__(name, namespace, identity, cluster.http)
        self._timeout, self._clock, self._rights = cluster.timeout, clock, rights
        self.renewed = clock()
        self.mine = self._asked = False
        self.lost, self.forbidden, self.why = asyncio.Event(), asyncio.Event(), ""

    async def get(self, name: str, namespace: str) -> tuple[bool, LeaderElectionRecord | Exception | None]:
        """The record, or the error; a Lease that makes no sense reads as one without a holder."""
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
        """37.0.1 passes `pretty=True`, which its own models refuse: no Lease would ever be made."""
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
            self.why = f"Kubernetes allows no Lease {self.namespace}/{self.name}: {error.reason}: docs/operator.md has the Role"
            self.forbidden.set()

    async def release(self) -> None:
        """If it is ours, nobody's; failures are nobody's business: it runs out."""
        if not self._asked:  # one that got no answer may have been done
            return
        try:
            lease = await self.api_instance.read_namespaced_lease(self.name, self.namespace)
            if lease.spec is None or lease.spec.holder_identity != self.identity:
                return
            lease.spec.holder_identity = ""
            lease.spec.lease_duration_seconds = 1
            await self.api_instance.replace_namespaced_lease(self.name, self.namespace, lease)
            log.info("%s gave the Lease %s/%s back", self.identity, self.namespace, self.name)
        except (client.ApiException, *TRANSPORT, ValueError) as error:
            log.warning("the Lease %s/%s was not given back, and runs out: %s", self.namespace, self.name, error)
