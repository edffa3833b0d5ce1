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
import resource
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pcaplake.worker.captures.source import Sources
from pcaplake.worker.cli import app as cli
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.errors import PcaplakeError
from pcaplake.worker.runtime import Runtime
from pcaplake.worker.service import run as serve
from tests.worker.adapters.faults import crash_at_step

from .proxied import Proxied
from .stages import PATIENCE, Stage

PROCESSES = multiprocessing.get_context("forkserver")
PEAK = "peak"
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
    steps: dict[str, Callable[[str], Callable[[str], None]]] = {"kill": crash_at_step, "stop": stop_at}
    if kind:
        serve.Runtime = functools.partial(Runtime, step=steps[kind](where))  # type: ignore[attr-defined,assignment]
    if bodies:
        serve.Sources = lambda options: Sources(lambda uri: {**options(uri), "aws_endpoint": bodies})  # type: ignore
    before = peak()
    try:
        code = asyncio.run(serve.run_service(FleetSettings.load()))
    except PcaplakeError as error:
        print(f"error: {error!r}", flush=True)
        code = cli.FATAL
    print(json.dumps({PEAK: [before, peak()]}), flush=True)
    os._exit(code)


def peak() -> int:
    """The most bytes this process has had in memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peaks(stage: Stage) -> list[int]:
    """How much each process that has ended had at most, above what it had before it began."""
    found = [json.loads(line)[PEAK] for line in stage.logs().splitlines() if line.startswith(f'{{"{PEAK}"')]
    return [after - before for before, after in found]


def start(
    stage: Stage,
    name: str,
    *,
    kill: str = "",
    stop: str = "",
    behind: Proxied | None = None,
    bodies: str = "",
    **settings: Any,
) -> Any:
    """A worker that has begun. `kill`, `stop`: the step at which it dies, or stands still; `settings` by name.

    `behind`: its requests go through these proxies. `bodies`: the server that has the captures, and nothing else.
    """
    given = {f"PCAPLAKE_{setting.upper()}": str(value) for setting, value in settings.items()}
    if behind is not None:
        given |= {"AWS_ENDPOINT_URL_SQS": behind.sqs.url, "AWS_ENDPOINT_URL_DYNAMODB": behind.dynamodb.url}
        given["PCAPLAKE_STORAGE_OPTION"] = json.dumps({"allow_http": "true", "aws_endpoint": behind.s3.url})
    kind = "kill" if kill else "stop" if stop else ""
    arguments = (stage.settings | given, str(stage.folder / f"{name}.log"), kind, kill or stop, bodies)
    process = PROCESSES.Process(target=_serve, args=arguments)
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
