"""A real control plane as processes on loopback: etcd, API server, controllers, scheduler. It stops with its parent process.

python -m tools.k8s.plane DIR      # until Ctrl-C; DIR/kubeconfig is the administrator's
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tools.local.engines import LOOPBACK
from tools.local.stack import find_free_ports

from . import pki

ROOT = Path(__file__).parents[2]
VARIABLE = "PCAPLAKE_K8S_BIN"
NEEDED = ("k8slab", "helm")
READY = 180.0  # seconds
TETHERED = ("setpriv", "--pdeathsig", "KILL", "--")


def binaries_folder() -> Path:
    """The folder of the binaries: PCAPLAKE_K8S_BIN, or the folder of `make k8s-bin`."""
    return Path(os.environ.get(VARIABLE) or ROOT / ".k8s" / "bin")


def write_admin_kubeconfig(path: Path, server: str, certificates: Path) -> Path:
    """A kubeconfig with all permissions."""
    user = {"client-certificate": f"{certificates}/admin.crt", "client-key": f"{certificates}/admin.key"}
    cluster = {"server": server, "certificate-authority": f"{certificates}/ca.crt"}
    doc = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "lab",
        "clusters": [{"name": "lab", "cluster": cluster}],
        "users": [{"name": "lab", "user": user}],
        "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": "lab", "namespace": "default"}}],
    }
    path.write_text(json.dumps(doc))
    return path


class ControlPlane:
    """One control plane: API server, etcd, controllers.

    `start_control_plane` returns when it answers; `stop_control_plane` stops all processes and deletes the state.
    `hpa_sync`: seconds between two decisions of the HPA.
    """

    def __init__(self, folder: Path, *, hpa_sync: float = 2.0, bin: Path | None = None) -> None:
        self.folder, self.bin = folder.resolve(), (bin or binaries_folder()).resolve()
        self.pki, self.kubeconfig = self.folder / "pki", self.folder / "kubeconfig"
        self._etcd, self._peer, self._api = find_free_ports(3)
        self.server = f"https://{LOOPBACK}:{self._api}"
        self._hpa_sync = hpa_sync
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_control_plane(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        pki.write_certificates(self.pki)
        write_admin_kubeconfig(self.kubeconfig, self.server, self.pki)
        try:
            self.start_etcd()
            self.start_api_server()
            self.wait_until_ready()
            config = ("--kubeconfig", str(self.kubeconfig), "--leader-elect=false", "--secure-port", "0")
            self._spawn_component("kube-controller-manager", [*config, *self._controller_flags()])
            self._spawn_component("kube-scheduler", [*config, "--profiling=false"])
        except BaseException:
            self.stop_control_plane()
            raise

    def start_etcd(self) -> None:
        client, peer = f"http://{LOOPBACK}:{self._etcd}", f"http://{LOOPBACK}:{self._peer}"
        flags = {
            "data-dir": self.folder / f"etcd-{secrets.token_hex(4)}",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "log-level": "warn",
        }
        self._spawn_component("etcd", ["--unsafe-no-fsync", *_format_flags(flags)])

    def start_api_server(self) -> None:
        """Start the API server, also after it was killed: its state is in etcd."""
        certs = self.pki
        flags = {
            "etcd-servers": f"http://{LOOPBACK}:{self._etcd}",
            "bind-address": LOOPBACK,
            "advertise-address": LOOPBACK,
            "secure-port": self._api,
            "endpoint-reconciler-type": "none",
            "service-cluster-ip-range": "10.0.0.0/24",
            "authorization-mode": "RBAC",
            "anonymous-auth": "false",
            "tls-cert-file": certs / "serving.crt",
            "tls-private-key-file": certs / "serving.key",
            "client-ca-file": certs / "ca.crt",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": certs / "sa.pub",
            "service-account-signing-key-file": certs / "sa.key",
            "requestheader-client-ca-file": certs / "front-ca.crt",
            "requestheader-allowed-names": "front-proxy-client",
            "requestheader-username-headers": "X-Remote-User",
            "requestheader-group-headers": "X-Remote-Group",
            "requestheader-extra-headers-prefix": "X-Remote-Extra-",
            "proxy-client-cert-file": certs / "front-proxy.crt",
            "proxy-client-key-file": certs / "front-proxy.key",
            "kubelet-preferred-address-types": "InternalIP",  # the default asks DNS for the node's name
            "kubelet-certificate-authority": certs / "ca.crt",
            "kubelet-client-certificate": certs / "admin.crt",
            "kubelet-client-key": certs / "admin.key",
            "profiling": "false",
        }
        self._spawn_component("kube-apiserver", _format_flags(flags))

    def _controller_flags(self) -> list[str]:
        flags = {
            "root-ca-file": self.pki / "ca.crt",
            "service-account-private-key-file": self.pki / "sa.key",
            "horizontal-pod-autoscaler-sync-period": f"{self._hpa_sync}s",
            "node-monitor-grace-period": "60s",
            "profiling": "false",
        }
        return _format_flags(flags)

    def wait_until_ready(self) -> None:
        """Wait until the API server is ready."""
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        handlers = (urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
        opener = urllib.request.build_opener(*handlers)
        deadline = time.monotonic() + READY
        while True:
            for name, process in self.processes.items():
                if process.poll() is not None:
                    raise RuntimeError(
                        f"{name} ended with {process.returncode}: {self.read_component_log(name)[-2000:]}"
                    )
            try:
                with opener.open(f"{self.server}/readyz", timeout=5) as answer:
                    if answer.status == 200:
                        return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"no API server after {READY:.0f} s: {self.read_component_log('kube-apiserver')[-2000:]}"
                )
            time.sleep(0.1)

    def read_component_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _spawn_component(self, name: str, flags: Sequence[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            command = [*TETHERED, str(self.bin / "k8slab"), name, *flags]
            self.processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )

    def stop_control_plane(self) -> None:
        for process in reversed(self.processes.values()):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.processes.values()):
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()


def _format_flags(flags: dict[str, object]) -> list[str]:
    return [f"--{name}={value}" for name, value in flags.items()]


if __name__ == "__main__":
    plane = ControlPlane(Path(sys.argv[1]))
    plane.start_control_plane()
    print(f"export KUBECONFIG={plane.kubeconfig}", flush=True)
    try:
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    finally:
        plane.stop_control_plane()
