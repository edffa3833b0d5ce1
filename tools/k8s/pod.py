"""The life of a pod on the lab's node: containers first to last, probes, restarts, the end within its grace, its status."""

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

from .api import STRATEGIC, Api, Doc, second
from .container import Container
from .view import View

AFTER = 5.0  # seconds that a pod's own task has when its containers are gone


class Node(Protocol):
    """What a pod asks of its node."""

    api: Api
    http: aiohttp.ClientSession
    folder: Path
    back_off: float
    capacity: dict[str, float]
    server: tuple[str, str]

    def address(self) -> str: ...

    def image(self, name: str) -> Doc: ...


class Pod:
    """Runs from the start; `stop` begins its end."""

    def __init__(self, node: Node, doc: Doc) -> None:
        self._node, self.doc = node, doc
        self.ip = node.address()
        self.folder = node.folder / "pods" / doc["metadata"]["uid"]
        self._view = View(node.api, doc, ip=self.ip, folder=self.folder, capacity=node.capacity)
        self.containers = [Container(each) for each in doc["spec"]["containers"]]
        self._inits = [Container(each) for each in doc["spec"].get("initContainers", [])]
        self._start_time, self._phase, self._stopping = second(), "Pending", False
        meta = doc["metadata"]
        self.name = f"{meta['namespace']}/{meta['name']}"
        self._path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
        self._telling = asyncio.Lock()
        self._task = asyncio.create_task(self._run())
        self._end: asyncio.Task[None] | None = None

    @property
    def _policy(self) -> str:
        return str(self.doc["spec"].get("restartPolicy", "Always"))

    def say(self, text: str) -> None:
        print(f"{second()} {self.name} {text}", flush=True)

    # -- status ---------------------------------------------------------------------------------------------------
    async def _tell(self) -> None:
        async with self._telling:
            ready = self._phase == "Running" and all(each.ready for each in self.containers)
            states = {"Initialized": self._phase != "Pending", "ContainersReady": ready, "Ready": ready}
            conditions = [
                {"type": name, "status": str(holds), "lastTransitionTime": second()} for name, holds in states.items()
            ]
            status = {
                "phase": self._phase,
                "startTime": self._start_time,
                "hostIP": LOOPBACK,
                "podIP": self.ip,
                "podIPs": [{"ip": self.ip}],
                "conditions": conditions,
                "containerStatuses": [each.status() for each in self.containers],
            }
            if self._inits:
                status["initContainerStatuses"] = [each.status() for each in self._inits]
            body = {"metadata": {"uid": self.doc["metadata"]["uid"]}, "status": status}
            await self._node.api.ask("PATCH", f"{self._path}/status", body, kind=STRATEGIC, ok=(404, 409))

    # -- running --------------------------------------------------------------------------------------------------
    async def _run(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            await self._tell()
            volumes = await self._view.volumes()
            for each in self._inits:
                if not await self._initialized(each, volumes):
                    self._phase = "Failed"
                    await self._tell()
                    return
            codes = await asyncio.gather(*(self._keep(each, volumes) for each in self.containers))
            self._phase = "Failed" if any(codes) else "Succeeded"
            await self._tell()
        except Exception as error:  # noqa: BLE001 -- as a kubelet: it stands in the status
            self.say(f"cannot start: {error!r}")
            for each in self.containers:
                each.state = {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}}
            await self._tell()

    async def _start(self, container: Container, volumes: dict[str, Path]) -> None:
        image = self._node.image(container.spec["image"])
        env = await self._view.environment(container.spec, image, self._node.server)
        await container.start(self.doc, self.folder, volumes, image, env)

    async def _initialized(self, container: Container, volumes: dict[str, Path]) -> bool:
        while True:
            await self._start(container, volumes)
            await self._tell()
            if await container.wait() == 0:
                container.ready = True
                return True
            if self._policy == "Never" or self._stopping:
                return False
            container.restarts += 1
            await asyncio.sleep(self._node.back_off)

    async def _keep(self, container: Container, volumes: dict[str, Path]) -> int:
        """Start it again and again, as the policy says -> its last exit code."""
        pause = self._node.back_off
        while True:
            await self._start(container, volumes)
            spec = container.spec
            container.started = "startupProbe" not in spec
            container.ready = not {"readinessProbe", "startupProbe"} & set(spec)
            kinds = [kind for kind in ("startup", "readiness", "liveness") if f"{kind}Probe" in spec]
            container.probing = [asyncio.create_task(self._probe(container, kind)) for kind in kinds]
            self._phase = "Running"
            await self._tell()
            code = await container.wait()
            self.say(f"{container.name} ended: {container.state['terminated']}")
            if self._stopping or self._policy == "Never" or (self._policy == "OnFailure" and code == 0):
                await self._tell()
                return code
            container.last, container.restarts = container.state, container.restarts + 1
            container.state = {"waiting": {"reason": "CrashLoopBackOff", "message": f"back-off {pause}s"}}
            await self._tell()
            await asyncio.sleep(pause)
            pause = min(300.0, pause * 2)
            if self._stopping:
                return code

    # -- probes ---------------------------------------------------------------------------------------------------
    async def _attempt(self, container: Container, probe: Doc) -> bool:
        seconds = probe.get("timeoutSeconds", 1)
        try:
            if get := probe.get("httpGet"):
                url = f"http://{self.ip}:{_port(container, get['port'])}{get.get('path', '/')}"
                async with self._node.http.get(url, timeout=aiohttp.ClientTimeout(total=seconds)) as answer:
                    return 200 <= answer.status < 400
            return await container.within(probe["exec"]["command"], seconds) == 0
        except (OSError, aiohttp.ClientError, TimeoutError):
            return False

    async def _probe(self, container: Container, kind: str) -> None:
        probe: dict[str, Any] = container.spec[f"{kind}Probe"]
        good = bad = 0
        await asyncio.sleep(probe.get("initialDelaySeconds", 0))
        while True:
            while kind != "startup" and not container.started:  # noqa: ASYNC110 -- the startup probe sets it
                await asyncio.sleep(0.1)
            holds = await self._attempt(container, probe)
            good, bad = (good + 1, 0) if holds else (0, bad + 1)
            before = container.ready, container.started
            if kind == "startup" and holds:
                container.started, container.ready = True, "readinessProbe" not in container.spec
            if kind == "readiness" and good >= probe.get("successThreshold", 1):
                container.ready = True
            if bad >= probe.get("failureThreshold", 3):
                if kind != "readiness":
                    self.say(f"{container.name}: the {kind} probe failed")
                    container.signal(signal.SIGTERM)
                    asyncio.get_running_loop().call_later(self._grace, container.signal, signal.SIGKILL)
                    return
                container.ready = False
            if before != (container.ready, container.started):
                await self._tell()
            if kind == "startup" and holds:
                return
            await asyncio.sleep(probe.get("periodSeconds", 10))

    @property
    def _grace(self) -> float:
        return float(self.doc["spec"].get("terminationGracePeriodSeconds", 30))

    # -- the end --------------------------------------------------------------------------------------------------
    def stop(self, grace: float) -> None:
        """Once; later calls change nothing."""
        if self._end is None:
            self._end = asyncio.create_task(self._stop(grace))

    async def _stop(self, grace: float) -> None:
        self._stopping, began = True, time.monotonic()

        async def one(container: Container) -> None:
            hook = (container.spec.get("lifecycle") or {}).get("preStop")
            if hook and grace and container.runs:
                if pause := hook.get("sleep"):
                    await asyncio.sleep(min(pause["seconds"], grace))
                else:
                    await self._attempt(container, {**hook, "timeoutSeconds": grace})
            container.signal(signal.SIGTERM)
            if not await container.gone(max(0.01, grace - (time.monotonic() - began))):
                container.signal(signal.SIGKILL)

        await asyncio.gather(*(one(each) for each in self.containers))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(AFTER):
                await asyncio.shield(self._task)
        self._task.cancel()
        codes = [str(each.state.get("terminated", {}).get("exitCode")) for each in self.containers]
        self.say(f"stopped in {time.monotonic() - began:.1f} s of {grace:.0f} s grace, exit {','.join(codes)}")
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.doc["metadata"]["uid"]}}
        await self._node.api.ask("DELETE", self._path, body, ok=(404, 409))
        self._unmount()

    def _unmount(self) -> None:
        for root in self.folder.glob("root/*"):
            subprocess.run(["umount", "-lR", str(root)], stderr=subprocess.DEVNULL, check=False)

    def kill(self) -> None:
        """The node goes, and all its processes."""
        self._stopping = True
        for each in self.containers:
            each.signal(signal.SIGKILL)


def _port(container: Container, port: int | str) -> int:
    if isinstance(port, int):
        return port
    return next(int(one["containerPort"]) for one in container.spec.get("ports", []) if one["name"] == port)
