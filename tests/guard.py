"""What a unit test does not do: talk to another machine, start a JVM, or start local AWS services.

Python's audit events tell of each attempt, also of one whose error the code under test swallows. What native libraries
and child processes do is not seen.
"""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any

JVM = {"java", "javac", "mvn", "spark-submit", "spark-class"}
SERVICES = {"tools.local", "ministack", "localstack"}

# make setup does not bring these, so `make unit` does without
PROGRAMS = {"tshark", "tcpdump", "strace", "prometheus", "promtool", "chromium", "terraform", "tofu"}

_attempts: list[str] | None = None  # of the unit test that runs now
_quick = False


class NotAUnitTest(Exception):
    """A unit test tried to use what unit tests do without."""


def _forbidden(event: str, arguments: tuple[Any, ...]) -> str | None:
    """What this audit event does that a unit test does not do."""
    if event == "socket.connect":
        address = arguments[1]
        if isinstance(address, tuple) and not _is_this_machine(str(address[0])):
            return f"it connects to {address[0]}"
    elif event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
        executable, command = arguments[0], arguments[1]
        words = [os.fsdecode(word) for word in ([command] if isinstance(command, str | bytes) else command)]
        names = {PurePath(word).name for word in [os.fsdecode(executable or ""), *words[:1]]}
        if names & JVM:
            return f"it starts a JVM: {' '.join(words)[:200]}"
        if any(word in SERVICES or word.startswith("tools.local.") for word in words):
            return f"it starts local AWS services: {' '.join(words)[:200]}"
        if _quick and names & PROGRAMS:
            return f"mark it slow: it starts {' '.join(names & PROGRAMS)}, which `make setup` does not bring"
    return None


def _is_this_machine(host: str) -> bool:
    if host in ("", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False  # a name: asking for it is a request to another machine
    return address.is_loopback or address.is_unspecified


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _attempts is not None and (what := _forbidden(event, arguments)):
        _attempts.append(what)
        raise NotAUnitTest(what)


_hooked = False


@contextmanager
def guarded(*, quick: bool) -> Iterator[None]:
    """Refuses what unit tests do without; raises at the end if it was tried and the refusal was swallowed."""
    global _attempts, _quick, _hooked
    if not _hooked:  # an audit hook stays as long as its process
        sys.addaudithook(_audit)
        _hooked = True
    before = _attempts, _quick
    attempts: list[str] = []
    _attempts, _quick = attempts, quick
    try:
        yield
    finally:
        _attempts, _quick = before
    if attempts:
        raise NotAUnitTest("; ".join(attempts))
