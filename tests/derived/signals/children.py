"""Runs of `pcaplake signals` in processes of their own, which can be killed."""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from pcaplake.common.errors import PcaplakeError
from pcaplake.derived.signals.run import Options
from pcaplake.lake.store.store import Store
from pcaplake.signals import Databases
from pcaplake.worker.cli.signals import run_signals
from tests.derived.signals.every_kind import WIDE
from tests.worker.adapters.faults import crash_at_step

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.derived.signals.children"])
FATAL = 3


def _decode(lake: Path, databases: Path, log: Path, kill: str) -> None:
    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        options = Options(databases=Databases.from_file(databases), wide=(WIDE,), threads=2, batch_bytes=1)
        step = crash_at_step(kill) if kill else lambda name: None
        try:
            code = run_signals(Store.open(str(lake)), options, json=True, step=step)
        except PcaplakeError as error:
            print(error, file=sys.stderr)
            code = FATAL
        sys.stdout.flush()
    os._exit(code)


def start(lake: Path, databases: Path, log: Path, kill: str = "") -> ForkServerProcess:
    """`kill`: the step at which it kills itself."""
    process = PROCESSES.Process(target=_decode, args=(lake, databases, log, kill))
    process.start()
    return process


def decode(lake: Path, databases: Path, log: Path, kill: str = "") -> int | None:
    """The exit code."""
    process = start(lake, databases, log, kill)
    process.join()
    return process.exitcode
