"""Certificates of a test cluster: its CA, the CA of the aggregator's front proxy, serving and client certificates, a token key.

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


def _run_openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(arguments)}: {done.stderr}")


def _create_authority(folder: Path, name: str) -> None:
    files = ("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt")
    extensions = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _run_openssl("req", "-x509", *_KEY, *_DAYS, "-subj", f"/CN=lab-{name}", *extensions, *files)


def _format_alternative_name(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        return f"DNS:{name}"


def _issue_certificate(folder: Path, authority: str, name: str, subject: str, names: Sequence[str] = ()) -> None:
    """Create NAME.crt and NAME.key, valid for servers and clients."""
    extensions = ["-addext", "basicConstraints=CA:FALSE", "-addext", "extendedKeyUsage=serverAuth,clientAuth"]
    if names:
        extensions += ["-addext", f"subjectAltName={','.join(map(_format_alternative_name, names))}"]
    files = ("-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.crt")
    signer = ("-CA", f"{folder}/{authority}.crt", "-CAkey", f"{folder}/{authority}.key")
    _run_openssl("req", "-x509", *_KEY, *_DAYS, "-subj", subject, *signer, *extensions, *files)


def write_certificates(folder: Path) -> None:
    """Create all files that the control plane, the node and the metrics server need."""
    folder.mkdir(parents=True, exist_ok=True)
    _create_authority(folder, "ca")
    _create_authority(folder, "front-ca")
    _issue_certificate(folder, "ca", "serving", "/CN=kube-apiserver", NAMES)
    _issue_certificate(folder, "ca", "admin", "/O=system:masters/CN=admin")
    _issue_certificate(folder, "front-ca", "front-proxy", "/CN=front-proxy-client")
    _run_openssl("genrsa", "-out", f"{folder}/sa.key", "2048")
    _run_openssl("rsa", "-in", f"{folder}/sa.key", "-pubout", "-out", f"{folder}/sa.pub")
