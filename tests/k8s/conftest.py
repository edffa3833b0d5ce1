"""The Kubernetes lab of the session, where it can be had: binaries, root, and the tools that make pods of processes.

PCAPLAKE_K8S_BIN names the folder with `k8slab` and `helm`; by default .k8s/bin, which `make k8s-bin` fills.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aws import Aws
from tests.integration.stages import Stage, staged
from tools.k8s.plane import NEEDED, VARIABLE, binaries_folder

from .lab import Lab, Namespace, running
from .release import Release

TOOLS = ("kubectl", "openssl", "unshare", "setpriv", "nsenter", "ip", "mount", "chroot")


def reason() -> str | None:
    """Why there can be no lab here."""
    missing = [name for name in NEEDED if not (binaries_folder() / name).is_file()]
    if missing:
        return (
            f"no {' and no '.join(missing)} in {binaries_folder()}: "
            f"`make k8s-bin` builds them, {VARIABLE} names another folder"
        )
    if sys.platform != "linux" or os.geteuid() != 0:
        return "pods are processes in namespaces of their own: only root on Linux can make them"
    absent = [name for name in TOOLS if shutil.which(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    layers = "lowerdir=/,upperdir=/tmp/u,workdir=/tmp/w"
    tried = f"mount -t tmpfs none /tmp && mkdir /tmp/u /tmp/w /tmp/m && mount -t overlay none -o {layers} /tmp/m"
    command = ["unshare", "-m", "-p", "--fork", "--propagation", "private", "sh", "-c", tried]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"no namespaces and overlays here: {done.stderr.strip()}" if done.returncode else None


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Up for the whole session; a test has a namespace of its own."""
    if why := reason():
        pytest.skip(f"no Kubernetes lab: {why}")
    request.getfixturevalue("aws")  # the metrics ask its SQS
    folder = tmp_path_factory.mktemp("k8s")
    with running(folder) as lab:
        yield lab


_NUMBERS = itertools.count(1)


@pytest.fixture
def namespace(lab: Lab) -> Iterator[Namespace]:
    name = f"test-{next(_NUMBERS)}"
    lab.kubectl("create", "namespace", name)
    yield Namespace(lab, name)
    lab.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def stage(lab: Lab, aws: Aws, tmp_path: Path) -> Iterator[Stage]:
    with staged(aws, tmp_path) as made:
        yield made


@pytest.fixture
def release(namespace: Namespace, stage: Stage) -> Iterator[Release]:
    """The chart's values for this stage, not installed yet; what was installed is gone at the end."""
    release = Release(namespace, stage)
    yield release
    release.gone()
