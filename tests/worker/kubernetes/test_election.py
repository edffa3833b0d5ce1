"""One leads: what happens when requests fail, leaders vanish, freeze or end, and how the Lease is given back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from pcaplake.common.errors import Fatal
from pcaplake.worker.kubernetes.api import Cluster
from pcaplake.worker.kubernetes.election import Election, Timing
from tests.worker.kubernetes import clusters
from tests.worker.kubernetes.clusters import until

LEASE, RENEW, RETRY = 4, 2.5, 1.0


class Candidate:
    """Stands for election; `since` is when it began to lead, None while it does not."""

    def __init__(self, cluster: Cluster, name: str, *, work: Callable[[], Awaitable[None]] | None = None, **given: Any):
        self.election = Election(
            cluster,
            namespace="ns",
            name="lease",
            identity=name,
            **{"timing": Timing(lease=LEASE, renew=RENEW, retry=RETRY), **given},
        )
        self.since: float | None = None
        self.terms = 0
        self._work = work
        self.task = asyncio.create_task(self.election.run(self._lead))

    async def _lead(self) -> None:
        self.since, self.terms = time.monotonic(), self.terms + 1
        try:
            await (self._work() if self._work else asyncio.Event().wait())
        finally:
            self.since = None

    @property
    def leads(self) -> bool:
        return self.since is not None

    async def stop(self) -> float:
        """Seconds that it took."""
        began = time.monotonic()
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        return time.monotonic() - began


def holder(api: clusters.Api) -> str | None:
    lease = api.objects.get(("leases", "lease"))
    return lease and lease["spec"].get("holderIdentity")


def story(folder: Path, tell: Callable[[clusters.Api, Cluster], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with clusters.connected(folder, request=1.0) as (api, cluster):
            await tell(api, cluster)
            mine = asyncio.current_task()
            assert [task for task in asyncio.all_tasks() if task is not mine and "Election" in repr(task)] == []

    asyncio.run(run())


@pytest.mark.slow
def test_one_leads_and_gives_the_lease_back_to_the_next(tmp_path: Path) -> None:
    async def tell(api: clusters.Api, cluster: Cluster) -> None:
        first = Candidate(cluster, "a")
        await until(lambda: first.leads, "no Lease was made")
        assert str(holder(api)).startswith("a_")
        second = Candidate(cluster, "b")
        asked = api.asked["GET leases"]
        await until(lambda: api.asked["GET leases"] > asked + 2, "it does not stand")
        assert not second.leads
        assert await first.stop() < 2
        assert holder(api) == ""
        assert not first.leads
        began = time.monotonic()
        await until(lambda: second.leads, "nobody took over")
        assert time.monotonic() - began < LEASE
        await second.stop()

    story(tmp_path, tell)


@pytest.mark.slow
def test_a_leader_that_vanished_is_replaced_after_the_lease(tmp_path: Path) -> None:
    async def tell(api: clusters.Api, cluster: Cluster) -> None:
        gone = {"holderIdentity": "gone", "leaseDurationSeconds": 4}
        times = {"acquireTime": "2026-01-01T00:00:00.000001Z", "renewTime": "2026-01-01T00:00:00.000001Z"}
        api.put("leases", "lease", {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": gone | times})
        began = time.monotonic()
        second = Candidate(cluster, "b")
        await until(lambda: second.leads, "nobody took over")
        assert time.monotonic() - began >= LEASE - RETRY, "its times are no times of ours: it is watched for a lease"
        await second.stop()

    story(tmp_path, tell)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["drop", "lose", "hang", 500, 409])
def test_a_leader_outlives_failures_that_end_in_time(tmp_path: Path, fault: clusters.Fault) -> None:
    async def tell(api: clusters.Api, cluster: Cluster) -> None:
        leader = Candidate(cluster, "a", timing=Timing(lease=20, renew=15.0, retry=RETRY))
        await until(lambda: leader.leads, "it does not lead")
        asked = api.asked["PUT leases"]
        api.at("leases", fault, times=2)
        await until(lambda: api.asked["PUT leases"] > asked + 2, "it has given up")
        assert (leader.leads, leader.terms) == (True, 1)
        await leader.stop()
        assert holder(api) == ""

    story(tmp_path, tell)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["drop", 503])
def test_work_ends_when_the_server_is_away_for_too_long_and_begins_again(tmp_path: Path, fault: clusters.Fault) -> None:
    async def tell(api: clusters.Api, cluster: Cluster) -> None:
        leader = Candidate(cluster, "a")
        await until(lambda: leader.leads, "it does not lead")
        api.at("leases", fault, times=10_000)
        began = time.monotonic()
        await until(lambda: not leader.leads, "it works on, whoever leads now")
        assert time.monotonic() - began < LEASE, "before others may take over"
        api.well()
        await until(lambda: leader.leads, "it does not stand again")
        assert leader.terms == 2
        await leader.stop()

    story(tmp_path, tell)


@pytest.mark.slow
def test_one_that_thaws_and_finds_another_stops_at_its_first_look(tmp_path: Path) -> None:
    async def tell(api: clusters.Api, cluster: Cluster) -> None:
        leader = Candidate(cluster, "a", timing=Timing(lease=60, renew=50.0, retry=RETRY))
        await until(lambda: leader.leads, "it does not lead")
        lease = api.objects["leases", "lease"]
        api.put("leases", "lease", {**lease, "spec": {**lease["spec"], "holderIdentity": "b"}})
        await until(lambda: not leader.leads, "it leads beside another", seconds=10)
        assert await leader.stop() < 2
        assert holder(api) == "b", "what is another's is not given back"

    story(tmp_path, tell)


@pytest.mark.slow
def test_a_clock_that_is_set_back_keeps_nobody_in_office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library asks the wall clock; the deadline is on the monotonic one."""

    async def tell(api: clusters.Api, cluster: Cluster) -> None:
        leader = Candidate(cluster, "a")
        await until(lambda: leader.leads, "it does not lead")
        real = time.time
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda: real() - 3600)
            api.at("leases", 503, times=10_000)
            await until(lambda: not leader.leads, "it works on", seconds=LEASE + 10)
            await leader.stop()

    story(tmp_path, tell)


def test_what_the_work_says_is_said(tmp_path: Path) -> None:
    async def fails() -> None:
        raise Fatal("the work is impossible")

    async def ends() -> None:
        """At once."""

    async def tell(api: clusters.Api, cluster: Cluster) -> None:
        with pytest.raises(Fatal, match="impossible"):
            await Candidate(cluster, "a", work=fails).task
        assert holder(api) == ""
        await Candidate(cluster, "a", work=ends).task
        assert holder(api) == ""

    story(tmp_path, tell)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["GET", "POST", "PUT"])
def test_without_the_right_to_leases_it_says_which_role(tmp_path: Path, verb: str) -> None:
    async def tell(api: clusters.Api, cluster: Cluster) -> None:
        if verb == "PUT":
            api.put("leases", "lease", {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "spec": {}})
        api.at(f"{verb} leases", 403, times=100)
        with pytest.raises(Fatal, match=r"ns/lease.*pcaplake docs operator"):
            await Candidate(cluster, "a", lasting=1.5).task

    story(tmp_path, tell)


@pytest.mark.slow
def test_a_server_that_begins_forbids_for_a_while(tmp_path: Path) -> None:
    async def tell(api: clusters.Api, cluster: Cluster) -> None:
        api.at("leases", 403, times=2)
        leader = Candidate(cluster, "a")
        await until(lambda: leader.leads, "it has given up")
        await leader.stop()

    story(tmp_path, tell)


@pytest.mark.slow
def test_release_is_bounded_when_nobody_answers(tmp_path: Path) -> None:
    async def tell(api: clusters.Api, cluster: Cluster) -> None:
        leader = Candidate(cluster, "a", timing=Timing(lease=60, renew=50.0, retry=RETRY))
        await until(lambda: leader.leads, "it does not lead")
        api.at("leases", "hang", times=100)
        assert await leader.stop() < 2

    story(tmp_path, tell)


@pytest.mark.slow
def test_two_of_the_same_name_are_two(tmp_path: Path) -> None:
    """A container that is started again in its pod is not the one that froze."""

    async def tell(api: clusters.Api, cluster: Cluster) -> None:
        first = Candidate(cluster, "pod", timing=Timing(lease=60, renew=50.0, retry=RETRY))
        await until(lambda: first.leads, "it does not lead")
        second = Candidate(cluster, "pod")
        assert first.election.identity != second.election.identity
        asked = api.asked["GET leases"]
        await until(lambda: api.asked["GET leases"] > asked + 2, "it does not stand")
        assert not second.leads
        await asyncio.gather(first.stop(), second.stop())

    story(tmp_path, tell)
