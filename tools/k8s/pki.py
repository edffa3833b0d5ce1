"""Certificates of a lab: its CA, the CA of the aggregator's front proxy, serving and client certificates, a token key.

By the program `openssl`, 3.0 or newer.
"""

from __future__ import annotations

import ipaddress
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tools.local.engines import LOOPBACK

NAMES = ("localhost", LOOPBACK, "10.0.0.1", "kubernetes.default.svc", "external-metrics.kube-system.svc")
_DAYS = ("-days", "30")
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(arguments)}: {done.stderr}")


def _authority(folder: Path, name: str) -> None:
    files = ("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt")
    extensions = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl("req", "-x509", *_KEY, *_DAYS, "-subj", f"/CN=lab-{name}", *extensions, *files)


def _alternative(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def _issue(folder: Path, authority: str, name: str, subject: str, names: Sequence[str] = ()) -> None:
    """NAME.crt and NAME.key, good for servers and clients."""
    extensions = ["-addext", "basicConstraints=CA:FALSE", "-addext", "extendedKeyUsage=serverAuth,clientAuth"]
    if names:
        extensions += ["-addext", f"subjectAltName={','.join(map(_alternative, names))}"]
    files = ("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt")
    signer = ("-CA", f"{folder}/{authority}.crt", "-CAkey", f"{folder}/{authority}.key")
    _openssl("req", "-x509", *_KEY, *_DAYS, "-subj", subject, *signer, *extensions, *files)


def write(folder: Path) -> None:
    """All files that the control plane, the node and the metrics need."""
    folder.mkdir(parents=True, exist_ok=True)
    _authority(folder, "ca")
    _authority(folder, "front-ca")
    _issue(folder, "ca", "serving", "/CN=kube-apiserver", NAMES)
    _issue(folder, "ca", "admin", "/O=system:masters/CN=admin")
    _issue(folder, "front-ca", "front-proxy", "/CN=front-proxy-client")
    _openssl("genrsa", "-out", f"{folder}/sa.key", "2048")
    _openssl("rsa", "-in", f"{folder}/sa.key", "-pubout", "-out", f"{folder}/sa.pub")
