"""docs/logs.md lists what the worker logs: every event of the code, with its level and its fields, and no other."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tools import ROOMS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/logs.md"
LEVELS = ("info", "warning", "error", "critical")
VALUE = re.compile(r"%(?:\.\d+)?[sdrf]")
ROW = re.compile(r"^\| (\w+) \| `(.+?)` \|([^|]*)\|([^|]*)\|$", re.MULTILINE)


class Event(NamedTuple):
    level: str
    text: str
    fields: frozenset[str]


def logged_events(source: str, where: str) -> Iterator[Event]:
    """The calls of `log.<level>`; values in a text are shown as `…`."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not (isinstance(node.func.value, ast.Name) and node.func.value.id == "log" and node.func.attr in LEVELS):
            continue
        text = node.args[0]
        assert isinstance(text, ast.Constant), f"{where}:{node.lineno}: the text of an event is a constant"
        assert not VALUE.fullmatch(text.value), f"{where}:{node.lineno}: an event has a text besides its value"
        extra = next((keyword.value for keyword in node.keywords if keyword.arg == "extra"), ast.Dict([], []))
        assert isinstance(extra, ast.Dict), f"{where}:{node.lineno}: the fields of an event are a dict"
        names = [key.value for key in extra.keys if isinstance(key, ast.Constant)]
        yield Event(node.func.attr, VALUE.sub("…", text.value), frozenset(names))


@pytest.mark.slow
def test_the_page_has_every_event_and_no_other() -> None:
    names = subprocess.run(
        ["git", "ls-files", "--", *(f"{room}/*.py" for room in ROOMS if room != "spark_jobs")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    code = {event for name in names.stdout.split() for event in logged_events((ROOT / name).read_text(), name)}
    page = {
        Event(level, text, frozenset(re.findall(r"`(\w+)`", fields)))
        for level, text, fields, _ in ROW.findall(PAGE.read_text())
    }
    assert page - code == set(), "the code does not log these"
    assert code - page == set(), "docs/logs.md lacks these"


def test_an_event_without_a_text_is_refused() -> None:
    assert list(logged_events('log.info("read %d of %s", n, x, extra={"lake": uri})', "x")) == [
        Event("info", "read … of …", frozenset({"lake"}))
    ]
    for refused in ('log.info("%s", error)', 'log.info(f"{error}")'):
        try:
            list(logged_events(refused, "x"))
        except AssertionError:
            continue
        raise AssertionError(refused)
