"""Commands of pcaplake, in this process or in one that is killed or frozen before one of its writes."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from pcaplake.lake.store import durable, local_store
from pcaplake.worker.cli.app import run_command_line
from pcaplake.worker.config.settings import Settings

PROCESSES: Final = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.worker.histories.warmed", "tests.worker.histories.commands"])
_WAIT: Final = 60.0  # seconds, more than enough


def be_quick() -> Callable[[], None]:
    """No fsync, no thread for each access to a file, and who comes after a killed process waits for its lease only shortly.

    Returns what undoes this.
    """
    lake_config, fsync = Settings.lake_config, os.fsync

    async def call(function: Callable[..., Any], *given: Any) -> Any:
        return function(*given)

    getter = lake_config.fget
    assert getter is not None
    changed = property(lambda self: replace(getter(self), lease_timeout=0.2))
    Settings.lake_config, os.fsync = changed, lambda handle: None  # type: ignore[method-assign, assignment]

    local_store.asyncio = SimpleNamespace(to_thread=call)  # type: ignore[assignment]

    def undo() -> None:
        local_store.asyncio = asyncio
        Settings.lake_config, os.fsync = lake_config, fsync  # type: ignore[method-assign]

    return undo


def _before_write(number: int, what: Callable[[], None]) -> None:
    """Do this before the store of this process creates, replaces or deletes a file for the `number`-th time."""
    left = number

    def counting(real: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                what()
            return real(*given, **named)

        return counted

    for name in ("replace_file", "delete_file"):
        setattr(durable, name, counting(getattr(durable, name)))
    durable.NewFile.finish = counting(durable.NewFile.finish)  # type: ignore[method-assign]


def _run(arguments: list[str], log: str, number: int, name: str) -> None:
    with Path(log).open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        be_quick()
        _before_write(number, lambda: os.kill(os.getpid(), signal.Signals[name]))
        code = run_command_line(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _start(arguments: Sequence[str], log: Path, number: int, name: str) -> ForkServerProcess:
    process = PROCESSES.Process(target=_run, args=(list(arguments), str(log), number, name))
    process.start()
    return process


def _end(process: ForkServerProcess) -> int:
    process.join(_WAIT)
    if process.exitcode is None:
        process.kill()
        raise AssertionError("a command hangs")
    return process.exitcode


def run(arguments: Sequence[str], log: Path) -> int:
    """A command to its end -> its exit code."""
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        file.write(f"$ {' '.join(arguments)}\n")
        return run_command_line(list(arguments))


def run_killed(arguments: Sequence[str], log: Path, number: int) -> int:
    """A command that is killed before its `number`-th write -> its exit code, -9 if it came so far."""
    return _end(_start(arguments, log, number, "SIGKILL"))


def run_beside(arguments: Sequence[str], log: Path, number: int, act: Callable[[], None]) -> int:
    """A command that waits before its `number`-th write until something else has been done -> its exit code.

    If it has fewer writes, that comes after it.
    """
    process = _start(arguments, log, number, "SIGSTOP")
    pid, deadline = process.pid or 0, time.monotonic() + _WAIT
    while process.exitcode is None and _state(pid) != "T" and time.monotonic() < deadline:
        time.sleep(0.002)
    try:
        act()
    finally:
        if process.exitcode is None:
            os.kill(pid, signal.SIGCONT)
    return _end(process)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""
