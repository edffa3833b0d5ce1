"""`pcaplake run` in processes that start as copies of one that has imported everything: quick to begin, easy to kill.

Knows steps at which a process dies or stands still; the command has no setting for that. A copy has its settings from
its environment, as the command has, and is the same from `FleetSettings.load` on.
"""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pcaplake.common.errors import PcaplakeError
from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.source import Sources
from pcaplake.worker.__main__ import HiddenPackages
from pcaplake.worker.cli import app as cli
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.service import run as serve
from tests.worker.adapters.faults import crash_at_step

from .proxied import Proxied
from .stages import PATIENCE, Stage

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.integration.warmed", "tests.integration.processes"])


def stop_at(where: str) -> Callable[[str], None]:
    """A `step` at which this process stops (SIGSTOP), once; it goes on when somebody sends SIGCONT."""
    left = [where]

    def step(here: str) -> None:
        if left and (here == left[0] or here.startswith(f"{left[0]} ")):
            left.clear()
            os.kill(os.getpid(), signal.SIGSTOP)

    return step


def _serve(environment: Mapping[str, str], log: str, kind: str, where: str, bodies: str) -> None:
    """In a process of its own: all it says goes to `log`, its exit code is the command's."""
    with Path(log).open("a") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    os.environ.update(environment)
    sys.meta_path.insert(0, HiddenPackages())  # as the command does; a copy may have it already
    steps: dict[str, Callable[[str], Callable[[str], None]]] = {"kill": crash_at_step, "stop": stop_at}
    if kind:
        serve.Runtime = functools.partial(Runtime, step=steps[kind](where))  # type: ignore[attr-defined,assignment]
    if bodies:

        def options_of(uri: str, options: Callable[[str], Mapping[str, str]]) -> dict[str, str]:
            others = {name: value for name, value in options(uri).items() if not name.endswith("endpoint")}
            return {**others, "endpoint": bodies}

        serve.Sources = lambda options: Sources(lambda uri: options_of(uri, options))  # type: ignore
    try:
        code = serve.run_service(FleetSettings.load())
    except PcaplakeError as error:
        print(f"error: {error!r}", flush=True)
        code = cli.FATAL
    os._exit(code)


@dataclass(frozen=True, slots=True)
class Memory:
    """What of a process is in memory, in bytes, as proc(5) has it.

    `own` (RssAnon) leaves out pages of program files, which the system can drop at any time. `peak` (VmHWM) is all, at most.
    """

    own: int
    peak: int


def memory(pid: int) -> Memory:
    """Of a process that runs `apart`: a copy begins with what the process has that it is copied from."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    found = {line[0]: int(line[1]) * 1024 for line in lines if line and line[0] in ("RssAnon:", "VmHWM:")}
    return Memory(found["RssAnon:"], found["VmHWM:"])


def start(
    stage: Stage,
    name: str,
    *,
    kill: str = "",
    stop: str = "",
    behind: Proxied | None = None,
    bodies: str = "",
    apart: bool = False,
    **settings: Any,
) -> Any:
    """A worker that has begun. `kill`, `stop`: the step at which it dies, or stands still; `settings` by name.

    `behind`: its requests go through these proxies. `bodies`: the server that has the captures, and nothing else.
    `apart`: it is no copy, so that its memory is its own.
    """
    given = {f"PCAPLAKE_{setting.upper()}": str(value) for setting, value in settings.items()}
    if behind is not None:
        given |= {"AWS_ENDPOINT_URL_SQS": behind.sqs.url, "AWS_ENDPOINT_URL_DYNAMODB": behind.dynamodb.url}
        given["PCAPLAKE_STORAGE_OPTION"] = json.dumps({"allow_http": "true", "aws_endpoint": behind.s3.url})
    kind = "kill" if kill else "stop" if stop else ""
    arguments = (stage.settings | given, str(stage.folder / f"{name}.log"), kind, kill or stop, bodies)
    context = multiprocessing.get_context("spawn") if apart else PROCESSES
    process: Any = context.Process(target=_serve, args=arguments)
    process.start()
    stage.ends.callback(process.join)
    stage.ends.callback(process.kill)
    return process


def began(stage: Stage, name: str) -> bool:
    """Had everything answered that a worker asks when it starts?"""
    log = stage.folder / f"{name}.log"  # one that is killed at once has none
    return log.exists() and "running as" in log.read_text()


async def ended(process: Any, stage: Stage) -> int:
    """Its exit code; a process that does not end fails the test."""
    await asyncio.to_thread(process.join, PATIENCE)
    assert process.exitcode is not None, stage.logs()
    code: int = process.exitcode
    return code


async def frozen(process: Any, stage: Stage) -> None:
    """Until it stands still."""
    async with asyncio.timeout(PATIENCE):
        while _state(process.pid) != "T":
            assert process.is_alive(), stage.logs()
            await asyncio.sleep(0.02)


def _state(pid: int) -> str:
    """One letter, as proc(5) has it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
