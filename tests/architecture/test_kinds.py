"""Each test has one kind, and a unit test that needs more than Python fails."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import conftest
from tests.guard import NotAUnitTest, guarded

KINDS = {"unit", "services", "spark", "cluster"}
ROOT = Path(__file__).parents[2]
ELSEWHERE = ("192.0.2.1", 9)  # an address that nobody has (RFC 5737)


def test_every_test_has_one_kind(request: pytest.FixtureRequest) -> None:
    for item in request.session.items:
        kinds = KINDS & {mark.name for mark in item.iter_markers()}
        assert len(kinds) == 1, (item.nodeid, kinds)
        assert kinds != {"unit"} or "aws" not in getattr(item, "fixturenames", ()), item.nodeid


def test_what_make_unit_ignores_has_no_unit_tests() -> None:
    """A test there has the kind of its folder, unless it says that it is a unit test."""
    (command,) = re.findall(r"^unit:.*\n\t(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    ignored = re.findall(r"--ignore tests/(\S+)", command)
    assert ignored
    assert set(ignored) <= set(conftest.KINDS)
    sources = [path for folder in ignored for path in (ROOT / "tests" / folder).rglob("*.py")]
    assert len(sources) > len(ignored)
    assert [str(path) for path in sources if "mark.unit" in path.read_text()] == []


def connect() -> None:
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.connect(ELSEWHERE)


def connect_by_asyncio() -> None:
    asyncio.run(asyncio.wait_for(asyncio.open_connection(*ELSEWHERE), 5))


def java() -> None:
    subprocess.run(["/usr/bin/java", "-version"], check=False)


def services() -> None:
    subprocess.run([sys.executable, "-m", "tools.local", "up"], check=False)


def shark() -> None:
    subprocess.run(["tshark", "--version"], check=False)


@pytest.mark.parametrize("attempt", [connect, connect_by_asyncio, java, services, shark])
def test_a_unit_test_that_needs_more_fails(attempt: Callable[[], None]) -> None:
    with pytest.raises(NotAUnitTest), guarded(quick=True):
        attempt()


@pytest.mark.parametrize("attempt", [connect, java])
def test_an_attempt_whose_error_is_swallowed_fails_too(attempt: Callable[[], None]) -> None:
    with pytest.raises(NotAUnitTest), guarded(quick=True), contextlib.suppress(Exception):
        attempt()


def test_this_machine_and_its_programs_are_allowed() -> None:
    with guarded(quick=True), socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(server.getsockname()).close()
        assert subprocess.run([sys.executable, "-c", ""]).returncode == 0
