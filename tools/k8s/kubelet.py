"""A node without containers: registers itself, and runs the pods that are bound to it as processes.

python -m tools.k8s.kubelet --kubeconfig FILE --folder DIR --images images.json --port N
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import ssl
import subprocess
from pathlib import Path

import aiohttp
from aiohttp import web

from tools.local.engines import LOOPBACK

from .api import MERGE, STRATEGIC, Doc, KubernetesApi, microsecond_timestamp, parse_quantity, second_timestamp
from .container import remove_control_groups
from .pod import Pod

PODS = "10.88.0.0/16"  # on `lo`: nothing leaves this machine
BEAT = 10.0  # seconds
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class Kubelet:
    """One node. `images`: as in container.py, by repository. `back_off`: seconds before a container restarts."""

    def __init__(
        self, kubeconfig: Path, folder: Path, images: Path, *, port: int, name: str = "process-1", back_off: float = 1.0
    ) -> None:
        self.folder, self.back_off, self.port, self.name = folder.resolve(), back_off, port, name
        self.capacity = {
            "cpu": 64.0,
            "memory": parse_quantity("64Gi"),
            "pods": 110.0,
            "ephemeral-storage": float(2**36),
        }
        self._images, self._kubeconfig = images, kubeconfig
        self._pki = kubeconfig.resolve().parent / "pki"
        self._pods: dict[str, Pod] = {}
        self._addresses = 0
        self.api: KubernetesApi
        self.http: aiohttp.ClientSession
        self.server = ("", "")

    def find_image(self, name: str) -> Doc:
        """Looked up at each start, because a test may add an image. A tag may have its own map."""
        images: dict[str, Doc] = json.loads(self._images.read_text())
        repository = re.sub(r"(@sha256:.*|:[^/:]*)$", "", name)
        return images.get(name) or images.get(repository) or {}

    def allocate_address(self) -> str:
        self._addresses += 1
        return f"10.88.{self._addresses // 250}.{self._addresses % 250 + 1}"

    async def run(self) -> None:
        """Run until SIGTERM."""
        self.api = KubernetesApi(self._kubeconfig)
        match = re.fullmatch(r"https://(.*):(\d+)", self.api.server)
        assert match is not None
        self.server = match[1], match[2]
        self.http = aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True))
        _add_loopback_route("replace")
        runner = await self._serve_kubelet_api()
        done = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, done.set)
        tasks = [
            asyncio.create_task(coroutine) for coroutine in (self._register_node(), self._sync_pods(), done.wait())
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            for pod in self._pods.values():
                pod.kill_containers()
            _add_loopback_route("del")
            await remove_control_groups()
            await runner.cleanup()
            await self.http.close()
            await self.api.close()
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _serve_kubelet_api(self) -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._stream_pod_logs)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self._pki / "ca.crt"))
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_cert_chain(self._pki / "serving.crt", self._pki / "serving.key")
        await web.TCPSite(runner, LOOPBACK, self.port, ssl_context=tls).start()
        return runner

    async def _stream_pod_logs(self, request: web.Request) -> web.StreamResponse:
        pod_key = f"{request.match_info['namespace']}/{request.match_info['pod']}"
        for pod in [*self._pods.values()]:
            file = pod.folder / f"{request.match_info['container']}.log"
            if pod.name == pod_key and file.exists():
                lines = file.read_bytes().splitlines(keepends=True)
                tail = request.query.get("tailLines")
                return web.Response(body=b"".join(lines[-int(tail) :] if tail else lines), content_type="text/plain")
        return web.Response(status=404)

    async def _register_node(self) -> None:
        labels = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "topology.kubernetes.io/zone": "lab-a",
        }
        await self.api.send_request(
            "POST", "/api/v1/nodes", {"metadata": {"name": self.name, "labels": labels}}, ok=(409,)
        )
        path = f"/api/v1/nodes/{self.name}/status"
        while True:
            with contextlib.suppress(RuntimeError, aiohttp.ClientError, OSError, TimeoutError):
                await self.api.send_request("PATCH", path, {"status": self._node_status()}, kind=STRATEGIC)
                spec = {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": microsecond_timestamp()}
                got = await self.api.send_request(
                    "PATCH", f"{LEASES}/{self.name}", {"spec": spec}, kind=MERGE, ok=(404,)
                )
                if got.get("code") == 404:
                    await self.api.send_request("POST", LEASES, {"metadata": {"name": self.name}, "spec": spec})
            await asyncio.sleep(BEAT)

    def _node_status(self) -> Doc:
        resources = {name: str(int(value)) for name, value in self.capacity.items()}
        at = {"reason": "Lab", "lastHeartbeatTime": second_timestamp(), "lastTransitionTime": second_timestamp()}
        bad = ("MemoryPressure", "DiskPressure", "PIDPressure")
        names = ("bootID", "machineID", "osImage", "systemUUID", "kubeProxyVersion")
        versions = {"kubeletVersion": "v1.37.1", "containerRuntimeVersion": "process://1"}
        system = {"architecture": "amd64", "operatingSystem": "linux", "kernelVersion": os.uname().release}
        return {
            "capacity": resources,
            "allocatable": resources,
            "conditions": [
                {"type": "Ready", "status": "True", **at},
                *({"type": condition_type, "status": "False", **at} for condition_type in bad),
            ],
            "addresses": [{"type": "InternalIP", "address": LOOPBACK}, {"type": "Hostname", "address": self.name}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self.port}},
            "nodeInfo": {**dict.fromkeys(names, ""), **versions, **system},
        }

    async def _sync_pods(self) -> None:
        async for kind, doc in self.api.watch_objects("/api/v1/pods", f"spec.nodeName={self.name}"):
            if kind == "LIST":
                here = {pod["metadata"]["uid"] for pod in doc["items"]}
                for uid in set(self._pods) - here:
                    self._pods.pop(uid).begin_termination(0)
            for pod in doc["items"] if kind == "LIST" else [doc]:
                self._handle_pod_event(kind, pod)

    def _handle_pod_event(self, kind: str, doc: Doc) -> None:
        uid = doc["metadata"]["uid"]
        if kind == "DELETED":
            if pod := self._pods.pop(uid, None):
                pod.begin_termination(0)
            return
        if uid not in self._pods:
            if doc.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                return
            self._pods[uid] = Pod(self, doc)
        if doc["metadata"].get("deletionTimestamp"):
            self._pods[uid].begin_termination(doc["metadata"].get("deletionGracePeriodSeconds", 30))


def _add_loopback_route(verb: str) -> None:
    subprocess.run(["ip", "route", verb, "local", PODS, "dev", "lo"], check=verb != "del")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A node without containers.")
    for option in ("--kubeconfig", "--folder", "--images"):
        parser.add_argument(option, type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--back-off", type=float, default=1.0)
    given = parser.parse_args()
    node = Kubelet(given.kubeconfig, given.folder, given.images, port=given.port, back_off=given.back_off)
    asyncio.run(node.run())
