"""The fleet follows its queue, and shrinks under load: nobody loses a row, whoever is told to stop."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from tests.integration.fault_proxy import FaultProxy
from tests.integration.stages import FRAMES, Books, check_all
from tools.k8s.api import parse_quantity

from .release import NAME, Release

pytestmark = pytest.mark.slow
HPA = {
    "enabled": True,
    "minReplicas": 1,
    "maxReplicas": 4,
    "messagesPerPod": 3,
    "behavior": {
        "scaleDown": {
            "stabilizationWindowSeconds": 3,
            "policies": [{"type": "Pods", "value": 4, "periodSeconds": 2}],
        }
    },
}


def test_the_fleet_follows_its_queue_up_and_down(release: Release) -> None:
    """Captures are held at the store, so that the queue stands for as long as it is looked at."""
    stage, lab = release.stage, release.lab

    async def story() -> None:
        async with FaultProxy(stage.aws.s3) as proxy:
            options = {"allow_http": "true", "aws_endpoint": proxy.url}
            hpa = {**HPA, "metric": {"selector": {"matchLabels": {"queue": stage.queue}}}}
            await asyncio.to_thread(release.install, hpa=hpa, settings={"storage_option": options, "max_inflight": 4})
            await asyncio.to_thread(release.ready, 1)
            held = proxy.add("GetObject", "hold", key="in/*", times=None)
            await asyncio.to_thread(stage.upload, range(24))
            began = time.monotonic()
            await asyncio.to_thread(lab.until, lambda: release.replicas() == 4, "the HPA does not go up")
            wanted = time.monotonic() - began
            await asyncio.to_thread(release.ready, 4)
            up = time.monotonic() - began
            held.release()
            proxy.clear()
            began = time.monotonic()
            await asyncio.to_thread(lab.until, lambda: not stage.left(), "the queue stays")
            empty = time.monotonic() - began
            await asyncio.to_thread(lab.until, lambda: release.replicas() == 1, "the HPA does not go down")
            await asyncio.to_thread(release.ready, 1)
            down = time.monotonic() - began - empty
            print(
                f"4 wanted {wanted:.1f} s and ready {up:.1f} s after 24 messages; 1 again {down:.1f} s after the last"
            )
            await asyncio.to_thread(lab.until, lambda: len(stage.captures()) == 24, "captures are not in the lake")
            await asyncio.to_thread(release.gone)

    asyncio.run(story())
    assert len(release.endings()) == 4
    release.check_endings()
    check_all(stage, dict.fromkeys(stage.uris(range(24)), FRAMES))


def test_scaled_in_under_load_every_row_is_there_once(release: Release) -> None:
    """Up and down again while captures come all the time; at the end every worker has drained, and nothing is lost."""
    stage, lab = release.stage, release.lab
    release.install(worker={"replicas": 3})
    release.ready(3)
    expected: dict[str, int] = {}
    books = Books(stage)
    number = 0
    for replicas in (1, 3, 1, 2, 1):
        for _ in range(4):
            frames = FRAMES * (1 + number % 40)
            stage.upload([number], frames)
            expected[f"s3://{stage.raw}/in/{number} ü+.pcap"] = frames
            number += 1
        release.scale(replicas)
        lab.until(lambda n=replicas: len(release.namespace.pods()) == n, "the ReplicaSet does not follow")  # type: ignore[misc]
        books.read_on()
    lab.until(lambda: books.has(expected), "captures are not in the lake")
    lab.until(lambda: not stage.left(), "messages stay")
    release.gone()
    assert len(release.endings()) >= 5
    release.check_endings()
    check_all(stage, expected)


def test_a_busy_pod_outlives_an_idle_one(release: Release) -> None:
    """Without the annotation a ReplicaSet takes the younger of two; here it takes the idle one, each time."""
    stage, lab, namespace = release.stage, release.lab, release.namespace

    async def story() -> None:
        async with FaultProxy(stage.aws.s3) as proxy:
            options = {"allow_http": "true", "aws_endpoint": proxy.url}
            settings = {"storage_option": options, "max_inflight": 1}
            await asyncio.to_thread(release.install, settings=settings, worker={"replicas": 2})
            for number in range(2):
                pods = await asyncio.to_thread(release.ready, 2)
                await asyncio.to_thread(
                    lab.until, lambda p=pods: [release.cost(pod) for pod in p] == [0, 0], "they are not idle"
                )
                held = proxy.add("GetObject", "hold", key="in/*", times=None)
                await asyncio.to_thread(stage.upload, [number])
                await asyncio.to_thread(
                    lab.until,
                    lambda p=pods: sorted(release.cost(pod) or 0 for pod in p) == [0, 1],
                    "no pod says that it is busy",
                )
                (busy,) = [pod for pod in pods if release.cost(pod) == 1]
                release.scale(1)
                await asyncio.to_thread(lab.until, lambda: len(namespace.pods()) == 1, "it is not scaled in")
                assert [pod["metadata"]["name"] for pod in namespace.pods()] == [busy]
                held.release()
                proxy.clear()
                await asyncio.to_thread(
                    lab.until, lambda n=number: len(stage.captures()) == n + 1, "what the busy pod had is lost"
                )
                release.scale(2)
            await asyncio.to_thread(release.gone)

    asyncio.run(story())
    check_all(stage, dict.fromkeys(stage.uris(range(2)), FRAMES))


def test_a_disruption_budget_holds(release: Release) -> None:
    """Of three workers one may be away: the second eviction is refused until the first is made good."""
    namespace = release.namespace
    release.install(worker={"replicas": 3})
    pods = release.ready(3)
    budget = f"{NAME}-pcaplake-worker"
    release.lab.until(
        lambda: namespace.get("pdb", budget)["status"].get("disruptionsAllowed") == 1, "the budget is not counted"
    )

    def evict(pod: str) -> int:
        """The status that the API server gives."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace.name}}
        path = f"/api/v1/namespaces/{namespace.name}/pods/{pod}/eviction"
        return release.lab.ask("POST", path, body)[0]

    assert evict(pods[0]) == 201
    refused = evict(pods[1])
    assert refused == 429
    assert pods[1] in namespace.ready()
    release.ready(3)
    release.lab.until(lambda: evict(pods[1]) == 201, "the budget is not free again")
    release.ready(3)
    assert not {pods[0], pods[1]} & set(namespace.ready())


def test_what_the_hpa_says_is_what_it_saw(release: Release) -> None:
    """The metric is read through the aggregator, by the queue's name."""
    stage = release.stage
    path = f"/apis/external.metrics.k8s.io/v1beta1/namespaces/default/pcaplake_queue_messages?labelSelector=queue%3D{stage.queue}"
    stage.upload(range(3))

    def same() -> bool:
        """As a quantity: the server may write 3 as it likes."""
        (item,) = json.loads(release.lab.kubectl("get", "--raw", path))["items"]
        return 3 <= parse_quantity(item["value"]) == stage.left()

    release.lab.until(same, "not what is in the queue")
