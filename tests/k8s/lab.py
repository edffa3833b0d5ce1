"""The lab as tests see it: a cluster with one node, Helm, and what stands in for the images.

Knows kubectl, helm and the folders of the node. Must not know what any test wants.
"""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tools.k8s.plane import ROOT, TETHERED, ControlPlane
from tools.local.stack import find_free_ports

PATIENCE = 180.0  # seconds until something must have happened on the slowest machine
CHART = ROOT / "helm" / "pcaplake"
IMAGE = "pcaplake"
INIT = (  # what tini does in the image: process 1 passes signals on, so that one works before Python has a handler for it
    "sh",
    "-c",
    """trap 'kill -TERM $child 2>/dev/null' TERM
    "$@" & child=$!
    while :; do
        wait $child && code=0 || code=$?
        kill -0 $child 2>/dev/null || exit $code
    done""",
    "init",
)
Doc = dict[str, Any]


class Failed(AssertionError):
    """A command of the lab failed; the message is what it said."""


def closed_folders() -> list[str]:
    """Those above Python and the project that only their owner may pass through: a home, mostly."""
    found: dict[str, None] = {}
    for place in (sys.prefix, sys.base_prefix, str(ROOT)):
        for folder in Path(os.path.realpath(place)).parents:
            if not folder.stat().st_mode & 0o001:
                found[str(folder)] = None
    return list(reversed(found))


def _user() -> str:
    """The line of /etc/passwd that the Dockerfile adds."""
    (line,) = re.findall(r'echo "([^"]+)" >> /etc/passwd', (ROOT / "Dockerfile").read_text())
    return f"{line}\n"


class Lab:
    """One control plane and one node, up. Namespaces are a test's own."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.folder = plane, folder
        self.node = folder / "node"
        self._images = folder / "images.json"
        users = folder / "passwd"
        users.write_text(Path("/etc/passwd").read_text() + _user())
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._image: Doc = {
            "entrypoint": [*INIT, "sh", str(ROOT / "deploy/docker/start")],
            "binds": {"/etc/passwd": str(users)},
            "env": {"PATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            "override": {"PCAPLAKE_HTTP_HOST": "$(POD_IP)"},  # all pods share one network: each has its own address
            "traverse": closed_folders(),
            "workdir": "/tmp",
        }
        self.image(IMAGE)

    def image(self, name: str, *, binds: Mapping[str, str] | None = None, env: Mapping[str, str] | None = None) -> None:
        """Another image, made of ours: what is given besides comes first, so that a folder may have ours below it."""
        images = json.loads(self._images.read_text()) if self._images.exists() else {}
        more = {"binds": {**(binds or {}), **self._image["binds"]}, "env": {**self._image["env"], **(env or {})}}
        images[name] = {**self._image, **more}
        self._images.write_text(json.dumps(images))

    @property
    def images(self) -> Path:
        return self._images

    # -- commands -------------------------------------------------------------------------------------------------
    def kubectl(self, *arguments: str, given: Any = None, check: bool = True) -> str:
        """Its output; Failed with what it says. `given`: an object for `-f -`."""
        return self.run("kubectl", "--kubeconfig", str(self.plane.kubeconfig), *arguments, given=given, check=check)

    def helm(self, *arguments: str, check: bool = True) -> str:
        home = {f"HELM_{kind}_HOME": str(self.folder / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
        program = str(self.plane.bin / "helm")
        return self.run(program, "--kubeconfig", str(self.plane.kubeconfig), *arguments, env=home, check=check)

    def run(self, *command: str, given: Any = None, env: Mapping[str, str] | None = None, check: bool = True) -> str:
        done = subprocess.run(
            command,
            input=None if given is None else json.dumps(given),
            capture_output=True,
            text=True,
            timeout=PATIENCE * 2,
            env={**os.environ, **(env or {})},
            check=False,
        )
        if check and done.returncode:
            raise Failed(f"{' '.join(command)}: {done.returncode}: {done.stdout}\n{done.stderr}")
        return done.stdout

    def get(self, *what: str) -> Doc:
        doc: Doc = json.loads(self.kubectl("get", *what, "-o", "json"))
        return doc

    def serves(self, api: str) -> bool:
        """Is this APIService there, and answers?"""
        found = json.loads(self.kubectl("get", "apiservices", "-o", "json"))["items"]
        return any(one["metadata"]["name"] == api and _is(one, "Available") for one in found)

    def ask(
        self, method: str, path: str, body: Any = None, *, kind: str = "application/json", token: str | None = None
    ) -> tuple[int, Doc]:
        """Status and answer, as the administrator, or as whose `token` it is."""
        context = ssl.create_default_context(cafile=str(self.plane.pki / "ca.crt"))
        headers = {"Content-Type": kind}
        if token is None:
            context.load_cert_chain(self.plane.pki / "admin.crt", self.plane.pki / "admin.key")
        else:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.plane.server + path, data, headers, method=method)
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        try:
            with urllib.request.build_opener(*handlers).open(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def process(self, uid: str) -> Path:
        """/proc of process 1 in the pod's container."""
        for cgroup in Path("/proc").glob("[0-9]*/mountinfo"):
            try:
                status = (cgroup.parent / "status").read_text()
                if f"/{uid}/" in cgroup.read_text() and re.search(r"^NSpid:\t\d+\t1$", status, re.MULTILINE):
                    return cgroup.parent
            except OSError:
                continue  # it has just ended
        raise Failed(f"no process of {uid}")

    def until(self, holds: Callable[[], Any], what: str, seconds: float = PATIENCE) -> float:
        """Seconds that it took; Failed with the lab's events after too many."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > seconds:
                raise Failed(f"{what}: not within {seconds:.0f} s\n{self.story()}")
            time.sleep(0.1)
        return time.monotonic() - began

    def story(self) -> str:
        """What happened, for whoever reads a failure."""
        events = self.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp", check=False)[-6000:]
        pods = self.kubectl("get", "pods", "-A", "-o", "wide", check=False)
        logs = [f"{path.parent.name}: {path.read_text(errors='replace')[-1500:]}" for path in self.containers()]
        return "\n".join([pods, events, *logs[-6:], self.node_log()[-3000:]])

    def containers(self) -> list[Path]:
        """Logs of all containers that were ever started, the oldest first."""
        return sorted(self.node.glob("pods/*/*.log"), key=lambda path: path.stat().st_mtime)

    def node_log(self) -> str:
        return (self.folder / "kubelet.log").read_text(errors="replace")


class Namespace:
    """A test's own, deleted at its end with all that is in it."""

    def __init__(self, lab: Lab, name: str) -> None:
        self.lab, self.name = lab, name

    def kubectl(self, *arguments: str, given: Any = None, check: bool = True) -> str:
        return self.lab.kubectl("-n", self.name, *arguments, given=given, check=check)

    def helm(self, *arguments: str, check: bool = True) -> str:
        return self.lab.helm("-n", self.name, *arguments, check=check)

    def get(self, *what: str) -> Doc:
        return self.lab.get("-n", self.name, *what)

    def pods(self, component: str = "worker") -> list[Doc]:
        """Those of one component that are not about to end."""
        items: list[Doc] = self.get("pods", "-l", f"app.kubernetes.io/component={component}")["items"]
        return [one for one in items if not one["metadata"].get("deletionTimestamp")]

    def ready(self, component: str = "worker") -> list[str]:
        """Names of its pods that work."""
        return [one["metadata"]["name"] for one in self.pods(component) if _is(one, "Ready")]

    def log(self, pod: str) -> str:
        return self.kubectl("logs", pod)

    def token(self, uid: str) -> str:
        """Of the pod itself, as it was mounted into it."""
        (file,) = (self.lab.node / "pods" / uid).glob("volumes/kube-api-access-*/token")
        return file.read_text()


def _is(doc: Doc, condition: str) -> bool:
    conditions = doc.get("status", {}).get("conditions", [])
    return any(one["type"] == condition and one["status"] == "True" for one in conditions)


@contextmanager
def spawned(name: str, folder: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of this project beside the control plane, until the end of the body."""
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*TETHERED, *command], stdout=log, stderr=log, start_new_session=True, cwd=ROOT)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def running(folder: Path) -> Iterator[Lab]:
    """A lab that answers, with its node registered and its metrics served; SQS as the environment says."""
    plane = ControlPlane(folder / "plane")
    with ExitStack() as stack:
        plane.start_control_plane()
        stack.callback(plane.stop_control_plane)
        lab = Lab(plane, folder)
        kubelet_port, metrics_port = find_free_ports(2)
        node = ("--kubeconfig", str(plane.kubeconfig), "--folder", str(lab.node), "--images", str(lab.images))
        python = (sys.executable, "-m")
        stack.enter_context(
            spawned("kubelet", folder, *python, "tools.k8s.kubelet", *node, "--port", str(kubelet_port))
        )
        metrics = ("--pki", str(plane.pki), "--port", str(metrics_port), "--register", str(plane.kubeconfig))
        stack.enter_context(spawned("metrics", folder, *python, "tools.k8s.metrics", *metrics))
        lab.until(lambda: any(_is(one, "Ready") for one in lab.get("nodes")["items"]), "no node")
        lab.until(lambda: lab.serves("v1beta1.external.metrics.k8s.io"), "no metrics")
        yield lab
