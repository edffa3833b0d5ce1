"""The help of every command, in a terminal of 80 columns, and the pages of `pcaplake docs`."""

from __future__ import annotations

import re
import subprocess

import pytest
from typer.main import get_command

from pcaplake.worker.cli.app import app
from tests.worker import lakes
from tools import ROOMS

COMMANDS = [
    *([name] for name in get_command(app).commands),  # type: ignore[attr-defined]
    [],
]


def shown(command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = lakes.run(capsys, *command, "--help")
    assert (code, err) == (0, "")
    return out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command) or "pcaplake")
def test_help_fits_the_terminal_and_shows_examples(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shown(command, capsys, monkeypatch)
    assert not [line for line in out.splitlines() if len(line) > 80]
    assert "<" not in out.replace("<queue>", ""), "no types of Python, no flag with a value"
    assert "..." not in out.partition("Commands:")[2], "no summary is cut off"
    assert ".md" not in out, "an installation has no repository: `pcaplake docs PAGE`"
    assert not re.search(r"^ *pcaplake \w.* pcaplake \w", out, re.MULTILINE), "each example has its own line"
    example = rf"^ +(Example: +)?pcaplake {' '.join(command)}"
    assert re.search(example, out, re.MULTILINE), out


def test_the_usage_line_shows_arguments_without_marks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usages = {
        name: shown([name], capsys, monkeypatch).strip().splitlines()[0].partition("[OPTIONS] ")[2]
        for name in ("ingest", "replay", "docs", "profile")
    }
    assert usages == {
        "ingest": "CAPTURES...",
        "replay": "s3://BUCKET/PREFIX",
        "docs": "[PAGE]",
        "profile": "{init|check} [PROFILE] CAPTURES...",
    }


def test_braces_and_brackets_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert 'args: [compact, --lake, "s3://lake/a"]' in shown(["operator"], capsys, monkeypatch)


def test_pages_of_the_documentation(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = lakes.run(capsys, "docs")
    assert code == 0
    assert re.search(r"^settings +Settings", out, re.MULTILINE), out
    for name in ("settings", "docs/settings.md"):
        code, out, _ = lakes.run(capsys, "docs", name)
        assert code == 0
        assert "PCAPLAKE_QUEUE" in out
    code, _, err = lakes.run(capsys, "docs", "nothing")
    assert code == 2
    assert "`pcaplake docs` lists the pages" in err


def test_pages_that_messages_name_exist(capsys: pytest.CaptureFixture[str]) -> None:
    code = subprocess.run(
        ["git", "grep", "-hoE", r"`pcaplake docs [a-z-]+`", "--", *ROOMS],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    pages = {line.strip("`").split()[-1] for line in code.splitlines()}
    assert len(pages) > 3
    for page in pages:
        assert lakes.run(capsys, "docs", page)[0] == 0, page
