"""Child processes that answer each line of JSON on stdin with a line of JSON on stdout.

So several processes can get ready before a measurement begins, and their start is not measured.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

OPTIONS = {"allow_http": "true"}
"""Storage options of every client: the services are on loopback."""
_LINE_BYTES = 1 << 26
_LOG_TAIL = 3000


class ChildFailed(Exception):
    """The child ended, or did not answer in time; the message has the end of its log."""


class ChildProcess:
    """A child process: `async with await ChildProcess.start(...)`. It is killed at the end if it still runs."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Self:
        """Start a process with stderr to `log`. It is ready after its first answer."""
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=dict(environment),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
                limit=_LINE_BYTES,
            )
        return cls(process, log)

    async def request_answer(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and return the answer. Raises ChildFailed if there is none within `seconds`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            await self._process.stdin.drain()
            line = await asyncio.wait_for(self._process.stdout.readline(), seconds)
        except (TimeoutError, OSError) as error:
            raise self._failure_with_log(f"no answer to {question} within {seconds:.0f} s") from error
        if not line:
            await self._process.wait()
            raise self._failure_with_log(f"it ended with {self._process.returncode} after the request {question}")
        return dict(json.loads(line))

    async def close(self) -> None:
        """End the process by closing its stdin; kill it after 10 seconds."""
        if self._process.returncode is not None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    def _failure_with_log(self, why: str) -> ChildFailed:
        return ChildFailed(f"{why}; the end of {self._log}:\n{self._log.read_text(errors='replace')[-_LOG_TAIL:]}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is not None:
            self.kill()
        await self.close()


def python_module_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this package."""
    return [sys.executable, "-m", f"bench.{module}", *arguments]


async def answer_requests(respond: Callable[[dict[str, Any]], Awaitable[Mapping[str, Any]]]) -> None:
    """Answer requests until stdin ends; in the child. Other output to stdout goes to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(out, "w") as answers:
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await respond(json.loads(line))), file=answers, flush=True)
