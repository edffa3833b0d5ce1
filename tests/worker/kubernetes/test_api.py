"""Requests to the API server and what their answers mean; the deletion cost of a pod."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.common.meter import SILENT
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.kubernetes import deletion_cost
from pcaplake.worker.kubernetes.api import Cluster, Forbidden, Refused
from pcaplake.worker.kubernetes.deletion_cost import ANNOTATION, DeletionCost, following, level
from pcaplake.worker.service import run as serve
from tests.worker.kubernetes import clusters
from tests.worker.telemetry.counts import Counts

POD = "/api/v1/namespaces/ns/pods/me"


@pytest.fixture
def counts() -> Counts:
    return Counts()


# -- requests ---------------------------------------------------------------------------------------------------------
async def test_who_asks_is_who_the_file_says(tmp_path: Path) -> None:
    async with clusters.connected(tmp_path) as (api, cluster):
        api.put("pods", "me", {"spec": {"newer than the client": 1}})
        assert (await cluster.ask("GET", POD))["spec"] == {"newer than the client": 1}
        assert api.headers[-1]["authorization"].lower() == "bearer of-the-pod"


@pytest.mark.parametrize(
    ("fault", "error", "said"),
    [
        (403, Forbidden, "pcaplake docs operator"),
        (401, Retryable, "401"),
        (429, Retryable, "429"),
        (503, Retryable, "503"),
        ("drop", Retryable, "no answer"),
        ("hang", Retryable, "no answer"),
        (422, Refused, "as the test wants it"),
        (404, Refused, "404"),
    ],
)
async def test_what_an_answer_means(tmp_path: Path, fault: clusters.Fault, error: type[Exception], said: str) -> None:
    async with clusters.connected(tmp_path, request=0.2) as (api, cluster):
        api.put("pods", "me", {})
        api.at("PATCH", fault, times=9)
        with pytest.raises(error, match=said) as raised:
            await cluster.ask("PATCH", POD, {"metadata": {}})
        assert type(raised.value) is error


async def test_outside_of_a_cluster_says_what_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    wrong = tmp_path / "wrong"
    wrong.write_text("clusters: 3\n")

    async def story(file: Path | None) -> None:
        with pytest.raises(Fatal, match="--kubeconfig"):
            async with Cluster.connected(file):
                pass

    for file in (None, wrong, tmp_path / "nothing"):
        await story(file)


# -- the deletion cost ------------------------------------------------------------------------------------------------
@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_more_work_never_costs_less_and_idle_is_as_without_annotation(one: int, other: int) -> None:
    assert level(0) == 0 < level(1)
    assert (one <= other) <= (level(one) <= level(other))


class Clock:
    """Whoever sleeps finds the time gone by."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Pod:
    """Takes writes at times of a fake clock; `refusals`: how many fail first."""

    def __init__(self, clock: Clock, refusals: int = 0) -> None:
        self.clock, self.refusals = clock, refusals
        self.writes: list[tuple[float, int]] = []
        self.tries: list[float] = []

    async def write(self, cost: int) -> None:
        self.tries.append(self.clock.time())
        if len(self.tries) <= self.refusals:
            raise Retryable("not now")
        self.writes.append((self.clock.time(), cost))


async def run(pod: Pod, work: dict[float, int], *, until: float, meter: Any = SILENT, interval: float = 30.0) -> None:
    """`work`: messages in flight from each time on."""

    class Over(Exception):
        pass

    async def sleep(seconds: float) -> None:
        await pod.clock.sleep(seconds)
        if pod.clock.time() >= until:
            raise Over

    def in_flight() -> int:
        return [number for at, number in work.items() if at <= pod.clock.time()][-1]

    cost = DeletionCost(pod.write, in_flight, interval=interval, meter=meter, clock=pod.clock.time, sleep=sleep)
    with pytest.raises(Over):
        await cost.run()


async def test_written_when_the_level_changes_and_not_often(counts: Counts) -> None:
    """Half an hour of messages that come and go every few seconds."""
    clock = Clock()
    pod, start = Pod(clock), clock.time()
    work = {start + at: (at * 7 // 3) % 5 for at in range(0, 1800, 3)}
    await run(pod, work, until=start + 1800, meter=counts)
    gaps = [b - a for (a, _), (b, _) in zip(pod.writes, pod.writes[1:], strict=False)]
    assert min(gaps) >= 30
    assert all(a != b for (_, a), (_, b) in zip(pod.writes, pod.writes[1:], strict=False))
    assert 20 < len(pod.writes) <= 61
    assert counts("deletion_cost_updates_total", outcome="written") == len(pod.writes)


async def test_work_that_stays_is_written_once_and_its_end_too() -> None:
    clock = Clock()
    pod, start = Pod(clock), clock.time()
    await run(pod, {start: 0, start + 100: 5, start + 105: 7, start + 500: 0}, until=start + 1000)
    assert [(at - start, cost) for at, cost in pod.writes] == [(0, 0), (100, 3), (500, 0)]


async def test_failures_are_harmless_counted_told_once_and_rarer_each_time(
    counts: Counts, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    pod, start = Pod(clock, refusals=8), clock.time()
    with caplog.at_level("WARNING"):
        await run(pod, {0: 1}, until=start + 3000, meter=counts)
    gaps = [round(b - a) for a, b in zip(pod.tries, pod.tries[1:], strict=False)]
    assert gaps == [30, 60, 120, 240, 480, 480, 480, 480]
    assert [cost for _, cost in pod.writes] == [1]
    assert counts("deletion_cost_updates_total", outcome="failed") == 8
    assert len(caplog.records) == 1
    assert "no data is lost" in caplog.text


async def test_the_annotation_of_a_pod_follows_beside_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: Counts
) -> None:
    async with clusters.serving() as api:
        file = clusters.kubeconfig(tmp_path / "k", api)
        cluster = Cluster.connected
        monkeypatch.setattr(deletion_cost.Cluster, "connected", lambda: cluster(file))
        api.put("pods", "me", {"metadata": {"annotations": {"others": "stay", ANNOTATION: "9"}}, "spec": {"x": 1}})
        work = 3

        def shown() -> str:
            pod = api.objects["pods", "me"]
            assert pod["metadata"]["annotations"]["others"] == "stay"
            assert pod["spec"] == {"x": 1}
            return str(pod["metadata"]["annotations"][ANNOTATION])

        async with asyncio.timeout(20), following(lambda: work, ("ns", "me"), interval=0.01, meter=counts):
            while shown() != "2":
                await asyncio.sleep(0.005)
            work = 0
            while shown() != "0":
                await asyncio.sleep(0.005)
        assert api.asked["PATCH pods"] == 2


@pytest.mark.parametrize("pod", [None, ("ns", "me")])
async def test_where_there_is_no_cluster_the_service_runs_all_the_same(
    pod: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    async with following(lambda: 1, pod, interval=1, meter=SILENT):
        pass
    assert "deletion_cost has no effect" in caplog.text


# -- the service ------------------------------------------------------------------------------------------------------
async def test_the_service_asks_for_the_package_only_when_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sys.modules, "pcaplake.worker.kubernetes.deletion_cost", None
    )  # as where the extra is not installed
    nobody: Any = None

    for settings in (FleetSettings.load(), FleetSettings.load(deletion_cost=True, role="committer")):
        async with serve._follow_deletion_cost(settings, nobody, SILENT):
            pass
    with pytest.raises(Fatal, match="pcaplake\\[cluster\\]"):
        serve._follow_deletion_cost(FleetSettings.load(deletion_cost=True), nobody, SILENT)


def test_which_pod_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from pcaplake.worker.config.environment import read_pod_identity

    monkeypatch.setenv("POD_NAME", "me")
    monkeypatch.delenv("POD_NAMESPACE", raising=False)
    assert read_pod_identity() is None
    monkeypatch.setenv("POD_NAMESPACE", "ns")
    assert read_pod_identity() == ("ns", "me")
