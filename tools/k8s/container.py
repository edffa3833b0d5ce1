"""A container as processes of this machine: namespaces, an overlay of /, a memory limit, a user; starts, signals and stops it.

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

from .api import Doc, parse_quantity, second_timestamp
from .view import expand_variables

KILLED = 128 + signal.SIGKILL
GROUP = "pcaplake-k8s"  # of control groups; `remove_control_groups` removes it
_V1 = Path("/sys/fs/cgroup/memory")


def _control_group_root() -> Path:
    return (_V1 if _V1.exists() else Path("/sys/fs/cgroup")) / GROUP


def create_memory_limit(name: str, limit: object) -> Path | None:
    """Create a control group with this memory limit. None without a limit, or if the machine has no control groups."""
    if not limit:
        return None
    base = _control_group_root()
    try:
        (base / name).mkdir(parents=True, exist_ok=True)
        if not _V1.exists():
            (base / "cgroup.subtree_control").write_text("+memory")
        file = "memory.limit_in_bytes" if _V1.exists() else "memory.max"
        (base / name / file).write_text(str(int(parse_quantity(limit))))
    except OSError as error:
        print("no control group:", error, flush=True)
        return None
    return base / name


async def remove_control_groups() -> None:
    """Remove all control groups. A dying process may hold one for a moment."""
    for _ in range(50):
        for group in [*_control_group_root().glob("*-*"), _control_group_root()]:
            with contextlib.suppress(OSError):
                group.rmdir()
        if not _control_group_root().exists():
            return
        await asyncio.sleep(0.1)


def _was_out_of_memory(group: Path | None) -> bool:
    for file in ("memory.events", "memory.oom_control"):
        if group and (group / file).exists():
            return bool(re.search(r"^oom_kill [1-9]", (group / file).read_text(), re.MULTILINE))
    return False


class Container:
    """A container of a pod. `state` and `last` are as in the pod's status."""

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
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def container_status(self) -> Doc:
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

    async def start_process(
        self, pod: Doc, folder: Path, volumes: Mapping[str, Path], image: Doc, env: dict[str, str]
    ) -> None:
        self.env, self._killed = env, False
        limit = (self.spec.get("resources", {}).get("limits") or {}).get("memory")
        group = create_memory_limit(f"{pod['metadata']['uid']}-{self.name}-{self.restarts}", limit)

        def enter_control_group() -> None:
            if group:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        with (folder / f"{self.name}.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._build_command(pod, folder, volumes, image),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=env,
                start_new_session=True,
                preexec_fn=enter_control_group,
            )
        self._group = group
        self.state = {"running": {"startedAt": second_timestamp()}}

    def _build_command(self, pod: Doc, folder: Path, volumes: Mapping[str, Path], image: Doc) -> list[str]:
        command = self.spec.get("command") or image.get("entrypoint", [])
        command_line = self.spec.get("command") or self.spec.get("args")
        args = (self.spec.get("args") or []) if command_line else image.get("cmd", [])
        argv = [expand_variables(str(argument), self.env) for argument in [*command, *args]]
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
        lines += [f"chmod o+x {within}{traversed_folder}" for traversed_folder in image.get("traverse", [])]
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
    def init_process_id(self) -> int | None:
        """The pid on this machine of process 1 of the container."""
        if self._process is None or self._process.returncode is not None:
            return None
        pid = self._process.pid
        try:
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None  # the process is starting or has ended

    def send_signal(self, number: int) -> None:
        """Send a signal to process 1. SIGKILL ends all processes."""
        if self._process is None or self._process.returncode is not None:
            return
        self._killed = self._killed or number == signal.SIGKILL
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.init_process_id or self._process.pid, number)

    async def exec_command(self, command: Sequence[str], seconds: float) -> int:
        """Run a command in the container and return its exit code, or 124 if it takes too long."""
        process = await asyncio.create_subprocess_exec(
            *("nsenter", "-t", str(self.init_process_id), "-m", "-p", "-r", "-w", "--", *command),
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

    async def is_gone_within(self, seconds: float) -> bool:
        """Whether it ends within this time."""
        if self._process is not None:
            try:
                async with asyncio.timeout(seconds):
                    await self._process.wait()
            except TimeoutError:
                return False
        return True

    async def wait_for_exit(self) -> int:
        """Wait until it ends, and return its exit code as a kubelet reports it."""
        assert self._process is not None
        code = await self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for task in self.probing:
            task.cancel()
        out_of_memory = _was_out_of_memory(self._group)
        if self._killed or out_of_memory:
            code = KILLED  # `unshare` returns another code
        code = code if code >= 0 else 128 - code
        started = self.state.get("running", {}).get("startedAt", second_timestamp())
        reason = "OOMKilled" if out_of_memory else "Completed" if code == 0 else "Error"
        ended = {"exitCode": code, "startedAt": started, "finishedAt": second_timestamp(), "reason": reason}
        self.ready = self.started = False
        self.state = {"terminated": ended}
        return code
