"""A child process that answers each line of JSON on stdin with a line of JSON on stdout: both ends.

So several processes can get ready before any of them begins, and no start of a process is measured.
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
    """The asking end. `async with await Child.start(...)`: killed at the end, if it still runs."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process, self._log = process, log

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str], log: Path) -> Self:
        """`log` gets its stderr. It is alive when this returns, and ready when it has answered something."""
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
        """The answer. ChildFailed when there is none after so many seconds."""
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
        """Its stdin ends, and so does it; after a while it is killed."""
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
    """The command of one of our own children."""
    return [sys.executable, "-m", f"bench.{module}", *arguments]


async def answer_requests(respond: Callable[[dict[str, Any]], Awaitable[Mapping[str, Any]]]) -> None:
    """The answering end, until stdin ends. What anything else prints goes to stderr."""
    out = os.dup(1)
    os.dup2(2, 1)
    with os.fdopen(out, "w") as answers:
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps(await respond(json.loads(line))), file=answers, flush=True)
