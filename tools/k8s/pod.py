"""The lifecycle of a pod on the simulated node: containers in order, probes, restarts, graceful termination, status."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import time
from pathlib import Path
from typing import Any, Protocol

import aiohttp

from tools.local.engines import LOOPBACK

from .api import STRATEGIC, Doc, KubernetesApi, second_timestamp
from .container import Container
from .view import ContainerView

AFTER = 5.0  # seconds; after its containers have ended, a pod's task may take this long


class PodNode(Protocol):
    """What a pod needs from its node."""

    api: KubernetesApi
    http: aiohttp.ClientSession
    folder: Path
    back_off: float
    capacity: dict[str, float]
    server: tuple[str, str]

    def allocate_address(self) -> str: ...

    def find_image(self, name: str) -> Doc: ...


class Pod:
    """Runs as soon as it is created. `begin_termination` starts its termination."""

    def __init__(self, node: PodNode, doc: Doc) -> None:
        self._node, self.doc = node, doc
        self.ip = node.allocate_address()
        self.folder = node.folder / "pods" / doc["metadata"]["uid"]
        self._view = ContainerView(node.api, doc, ip=self.ip, folder=self.folder, capacity=node.capacity)
        self.containers = [Container(each) for each in doc["spec"]["containers"]]
        self._inits = [Container(each) for each in doc["spec"].get("initContainers", [])]
        self._start_time, self._phase, self._stopping = second_timestamp(), "Pending", False
        meta = doc["metadata"]
        self.name = f"{meta['namespace']}/{meta['name']}"
        self._path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._telling = asyncio.Lock()
        self._task = asyncio.create_task(self._run_containers())
        self._end: asyncio.Task[None] | None = None

    @property
    def _restart_policy(self) -> str:
        return str(self.doc["spec"].get("restartPolicy", "Always"))

    def append_log_line(self, text: str) -> None:
        print(f"{second_timestamp()} {self.name} {text}", flush=True)

    # -- status ---------------------------------------------------------------------------------------------------
    async def _publish_status(self) -> None:
        async with self._telling:
            ready = self._phase == "Running" and all(each.ready for each in self.containers)
            states = {"Initialized": self._phase != "Pending", "ContainersReady": ready, "Ready": ready}
            conditions = [
                {"type": name, "status": str(holds), "lastTransitionTime": second_timestamp()}
                for name, holds in states.items()
            ]
            status = {
                "phase": self._phase,
                "startTime": self._start_time,
                "hostIP": LOOPBACK,
                "podIP": self.ip,
                "podIPs": [{"ip": self.ip}],
                "conditions": conditions,
                "containerStatuses": [each.container_status() for each in self.containers],
            }
            if self._inits:
                status["initContainerStatuses"] = [each.container_status() for each in self._inits]
            body = {"metadata": {"uid": self.doc["metadata"]["uid"]}, "status": status}
            await self._node.api.send_request("PATCH", f"{self._path}/status", body, kind=STRATEGIC, ok=(404, 409))

    # -- running --------------------------------------------------------------------------------------------------
    async def _run_containers(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            await self._publish_status()
            volumes = await self._view.prepare_volumes()
            for each in self._inits:
                if not await self._run_init_container(each, volumes):
                    self._phase = "Failed"
                    await self._publish_status()
                    return
            codes = await asyncio.gather(*(self._keep_container_running(each, volumes) for each in self.containers))
            self._phase = "Failed" if any(codes) else "Succeeded"
            await self._publish_status()
        except Exception as error:  # noqa: BLE001 -- as a kubelet, reports it in the pod's status
            self.append_log_line(f"cannot start: {error!r}")
            for each in self.containers:
                each.state = {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}}
            await self._publish_status()

    async def _start_container(self, container: Container, volumes: dict[str, Path]) -> None:
        image = self._node.find_image(container.spec["image"])
        env = await self._view.build_environment(container.spec, image, self._node.server)
        await container.start_process(self.doc, self.folder, volumes, image, env)

    async def _run_init_container(self, container: Container, volumes: dict[str, Path]) -> bool:
        while True:
            await self._start_container(container, volumes)
            await self._publish_status()
            if await container.wait_for_exit() == 0:
                container.ready = True
                return True
            if self._restart_policy == "Never" or self._stopping:
                return False
            container.restarts += 1
            await asyncio.sleep(self._node.back_off)

    async def _keep_container_running(self, container: Container, volumes: dict[str, Path]) -> int:
        """Start it, and restart it as the restart policy requires; return its last exit code."""
        pause = self._node.back_off
        while True:
            await self._start_container(container, volumes)
            spec = container.spec
            container.started = "startupProbe" not in spec
            container.ready = not {"readinessProbe", "startupProbe"} & set(spec)
            kinds = [kind for kind in ("startup", "readiness", "liveness") if f"{kind}Probe" in spec]
            container.probing = [asyncio.create_task(self._probe_periodically(container, kind)) for kind in kinds]
            self._phase = "Running"
            await self._publish_status()
            code = await container.wait_for_exit()
            self.append_log_line(f"{container.name} ended: {container.state['terminated']}")
            if self._stopping or self._restart_policy == "Never" or (self._restart_policy == "OnFailure" and code == 0):
                await self._publish_status()
                return code
            container.last, container.restarts = container.state, container.restarts + 1
            container.state = {"waiting": {"reason": "CrashLoopBackOff", "message": f"back-off {pause}s"}}
            await self._publish_status()
            await asyncio.sleep(pause)
            pause = min(300.0, pause * 2)
            if self._stopping:
                return code

    # -- probes ---------------------------------------------------------------------------------------------------
    async def _attempt_probe(self, container: Container, probe: Doc) -> bool:
        seconds = probe.get("timeoutSeconds", 1)
        try:
            if get := probe.get("httpGet"):
                url = f"http://{self.ip}:{_resolve_probe_port(container, get['port'])}{get.get('path', '/')}"
                async with self._node.http.get(url, timeout=aiohttp.ClientTimeout(total=seconds)) as answer:
                    return 200 <= answer.status < 400
            return await container.exec_command(probe["exec"]["command"], seconds) == 0
        except (OSError, aiohttp.ClientError, TimeoutError):
            return False

    async def _probe_periodically(self, container: Container, kind: str) -> None:
        probe: dict[str, Any] = container.spec[f"{kind}Probe"]
        good = bad = 0
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            while kind != "startup" and not container.started:  # noqa: ASYNC110 -- the startup probe sets it
                await asyncio.sleep(0.1)
            holds = await self._attempt_probe(container, probe)
            good, bad = (good + 1, 0) if holds else (0, bad + 1)
            before = container.ready, container.started
            if kind == "startup" and holds:
                container.started, container.ready = True, "readinessProbe" not in container.spec
            if kind == "readiness" and good >= probe.get("successThreshold", 1):
                container.ready = True
            if bad >= probe.get("failureThreshold", 3):
                if kind != "readiness":
                    self.append_log_line(f"{container.name}: the {kind} probe failed")
                    container.send_signal(signal.SIGTERM)
                    asyncio.get_running_loop().call_later(
                        self._termination_grace_seconds, container.send_signal, signal.SIGKILL
                    )
                    return
                container.ready = False
            if before != (container.ready, container.started):
                await self._publish_status()
            if kind == "startup" and holds:
                return
            await asyncio.sleep(probe.get("periodSeconds", 10))

    @property
    def _termination_grace_seconds(self) -> float:
        return float(self.doc["spec"].get("terminationGracePeriodSeconds", 30))

    # -- the end --------------------------------------------------------------------------------------------------
    def begin_termination(self, grace: float) -> None:
        """Start the termination. Later calls have no effect."""
        if self._end is None:
            self._end = asyncio.create_task(self._terminate_containers(grace))

    async def _terminate_containers(self, grace: float) -> None:
        self._stopping, began = True, time.monotonic()

        async def terminate_container(container: Container) -> None:
            hook = (container.spec.get("lifecycle") or {}).get("preStop")
            if hook and grace and container.is_running:
                if pause := hook.get("sleep"):
                    await asyncio.sleep(min(pause["seconds"], grace))
                else:
                    await self._attempt_probe(container, {**hook, "timeoutSeconds": grace})
            container.send_signal(signal.SIGTERM)
            if not await container.is_gone_within(max(0.01, grace - (time.monotonic() - began))):
                container.send_signal(signal.SIGKILL)

        await asyncio.gather(*(terminate_container(each) for each in self.containers))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AFTER):
                await asyncio.shield(self._task)
        self._task.cancel()
        codes = [str(each.state.get("terminated", {}).get("exitCode")) for each in self.containers]
        self.append_log_line(
            f"stopped in {time.monotonic() - began:.1f} s of {grace:.0f} s grace, exit {','.join(codes)}"
        )
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.doc["metadata"]["uid"]}}
        await self._node.api.send_request("DELETE", self._path, body, ok=(404, 409))
        self._unmount_volumes()

    def _unmount_volumes(self) -> None:
        for root in self.folder.glob("root/*"):
            subprocess.run(["umount", "-lR", str(root)], stderr=subprocess.DEVNULL, check=False)

    def kill_containers(self) -> None:
        """The node stops: kill all processes of the pod."""
        self._stopping = True
        for container in self.containers:
            container.send_signal(signal.SIGKILL)


def _resolve_probe_port(container: Container, port: int | str) -> int:
    if isinstance(port, int):
        return port
    return next(
        int(declared["containerPort"]) for declared in container.spec.get("ports", []) if declared["name"] == port
    )
