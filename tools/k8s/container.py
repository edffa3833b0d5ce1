"""A container as processes of this machine: namespaces, an overlay of /, a memory limit, a user; started, signalled, ended.

An image is a map: `entrypoint`, `cmd`, `env`, `override` (wins over the pod's environment), `binds` (path in the
container -> folder or file here), `traverse` (folders that its user may pass through, in the overlay only), `workdir`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .api import Doc, quantity, second
from .view import expand

KILLED = 128 + signal.SIGKILL
GROUP = "pcaplake-k8s"  # of control groups; `clear` removes it
_V1 = Path("/sys/fs/cgroup/memory")


def _groups() -> Path:
    return (_V1 if _V1.exists() else Path("/sys/fs/cgroup")) / GROUP


def limited(name: str, limit: object) -> Path | None:
    """A control group of so many bytes; None without a limit, or where there are no groups."""
    if not limit:
        return None
    base = _groups()
    try:
        (base / name).mkdir(parents=True, exist_ok=True)
        if not _V1.exists():
            (base / "cgroup.subtree_control").write_text("+memory")
        file = "memory.limit_in_bytes" if _V1.exists() else "memory.max"
        (base / name / file).write_text(str(int(quantity(limit))))
    except OSError as error:
        print("no control group:", error, flush=True)
        return None
    return base / name


async def clear() -> None:
    """Remove all control groups; a process that dies may hold one for a moment."""
    for _ in range(50):
        for group in [*_groups().glob("*-*"), _groups()]:
            with contextlib.suppress(OSError):
                group.rmdir()
        if not _groups().exists():
            return
        await asyncio.sleep(0.1)


def _out_of_memory(group: Path | None) -> bool:
    for file in ("memory.events", "memory.oom_control"):
        if group and (group / file).exists():
            return bool(re.search(r"^oom_kill [1-9]", (group / file).read_text(), re.MULTILINE))
    return False


class Container:
    """One of a pod's; `state` and `last` as in its status."""

    def __init__(self, spec: Doc) -> None:
        self.spec = spec
        self.name: str = spec["name"]
        self.state: Doc = {"waiting": {"reason": "ContainerCreating"}}
        self.last: Doc = {}
        self.restarts = 0
        self.ready = self.started = False
        self.probing: list[asyncio.Task[None]] = []
        self.env: dict[str, str] = {}
        self._process: asyncio.subprocess.Process | None = None
        self._group: Path | None = None
        self._killed = False

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def status(self) -> Doc:
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": f"process://{self.spec['image']}",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last,
        }

    async def start(self, pod: Doc, folder: Path, volumes: Mapping[str, Path], image: Doc, env: dict[str, str]) -> None:
        self.env, self._killed = env, False
        limit = (self.spec.get("resources", {}).get("limits") or {}).get("memory")
        group = limited(f"{pod['metadata']['uid']}-{self.name}-{self.restarts}", limit)

        def enter() -> None:
            if group:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        with (folder / f"{self.name}.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command(pod, folder, volumes, image),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
                preexec_fn=enter,
            )
        self._group = group
        self.state = {"running": {"startedAt": second()}}

    def _command(self, pod: Doc, folder: Path, volumes: Mapping[str, Path], image: Doc) -> list[str]:
        command = self.spec.get("command") or image.get("entrypoint", [])
        given = self.spec.get("command") or self.spec.get("args")
        args = (self.spec.get("args") or []) if given else image.get("cmd", [])
        argv = [expand(str(one), self.env) for one in [*command, *args]]
        security = {**(pod["spec"].get("securityContext") or {}), **(self.spec.get("securityContext") or {})}
        root = folder / "root" / self.name
        root.mkdir(parents=True, exist_ok=True)
        within = f"{root}/m"
        lines = [
            f"mount -t tmpfs none {root}",
            f"mkdir {root}/u {root}/w {within}",
            f"mount -t overlay none -o lowerdir=/,upperdir={root}/u,workdir={root}/w {within}",
            f"mount -t proc proc {within}/proc",
            f"mount --rbind /dev {within}/dev",
            f"mount -t sysfs -o ro none {within}/sys 2>/dev/null || true",
        ]
        for at, source in image.get("binds", {}).items():
            there = f"{within}{at}"
            make = f"mkdir -p {there}" if os.path.isdir(source) else f"touch {there}"
            lines.append(f"{make} && mount --bind {shlex.quote(source)} {there}")
        for mount in self.spec.get("volumeMounts", []):
            at = f"{within}{os.path.realpath(mount['mountPath'])}"
            source = volumes[mount["name"]] / mount.get("subPath", "")
            lines.append(f"mkdir -p {at} && mount --bind {shlex.quote(str(source))} {at}")
            if mount.get("readOnly"):
                lines.append(f"mount -o remount,ro,bind {at}")
        lines += [f"chmod o+x {within}{each}" for each in image.get("traverse", [])]
        if security.get("readOnlyRootFilesystem"):
            lines.append(f"mount -o remount,ro {within}")
        become = ["setpriv", "--no-new-privs"]
        if (user := security.get("runAsUser")) is not None:
            become += [f"--reuid={user}", f"--regid={security.get('runAsGroup', user)}", "--clear-groups"]
        where = self.spec.get("workingDir") or image.get("workdir", "/")
        step = """sh -c 'cd "$0" && exec "$@"'"""
        lines.append(f'exec chroot {within} {" ".join(become)} -- {step} {where} "$@"')
        apart = ["unshare", "-m", "-p", "--fork", "--kill-child=KILL", "--propagation", "private"]
        return ["setpriv", "--pdeathsig", "KILL", "--", *apart, "sh", "-ec", "\n".join(lines), "sh", *argv]

    @property
    def pid(self) -> int | None:
        """Of process 1 in the container, as this machine knows it."""
        if self._process is None or self._process.returncode is not None:
            return None
        pid = self._process.pid
        try:
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None  # it is just being made, or has just ended

    def signal(self, number: int) -> None:
        """To process 1; SIGKILL ends everything."""
        if self._process is None or self._process.returncode is not None:
            return
        self._killed = self._killed or number == signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid or self._process.pid, number)

    async def within(self, command: Sequence[str], seconds: float) -> int:
        """The exit code of a command in the container; 124 when it takes too long."""
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "-t", str(self.pid), "-m", "-p", "-r", "-w", "--", *command),
            env=self.env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(seconds):
                return await process.wait()
        except TimeoutError:
            process.kill()
            return 124

    async def gone(self, seconds: float) -> bool:
        """Did it end within that time?"""
        if self._process is not None:
            try:
                async with asyncio.timeout(seconds):
                    await self._process.wait()
            except TimeoutError:
                return False
        return True

    async def wait(self) -> int:
        """Until it ends -> its exit code, as a kubelet tells it."""
        assert self._process is not None
        code = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for task in self.probing:
            task.cancel()
        out_of_memory = _out_of_memory(self._group)
        if self._killed or out_of_memory:
            code = KILLED  # `unshare` itself says something else
        code = code if code >= 0 else 128 - code
        started = self.state.get("running", {}).get("startedAt", second())
        reason = "OOMKilled" if out_of_memory else "Completed" if code == 0 else "Error"
        ended = {"exitCode": code, "startedAt": started, "finishedAt": second(), "reason": reason}
        self.ready = self.started = False
        self.state = {"terminated": ended}
        return code
