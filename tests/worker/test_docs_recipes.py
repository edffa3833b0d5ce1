"""The examples of docs/recipes.md run, one after the other: they print what the page shows on the lake that the page names, and
on a lake of several drives what loops over the captures find. They open only files of the days that they name.
"""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pcaplake.parser import open_capture
from pcaplake.worker.cli import app as cli
from tests.worker.opened_files import opened
from tests.worker.recipe_loops import Drives, make_lake

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLE = re.compile(r"^## (.*?)\n(?:(?!^## ).)*?```python\n(.*?)```(?:\n```text\n(.*?)```)?", re.DOTALL | re.MULTILINE)
EXAMPLES = EXAMPLE.findall(TEXT)


def run(code: str, namespace: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(PAGE), "exec"), namespace)
    return out.getvalue()


def named_days(code: str) -> set[str]:
    """Those of a query; two are the ends of a range, and no example has a longer one."""
    return {f"date={day}" for day in re.findall(r"\d{4}-\d\d-\d\d", code)}


def test_every_example_is_run() -> None:
    assert len(EXAMPLES) == TEXT.count("```python") == 11


@pytest.mark.slow
def test_recipes_print_what_the_page_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in re.findall(r"^pcaplake (.*)$", TEXT, re.MULTILINE):
        assert cli.run_command_line(command.split()) == 0, command
    namespace: dict[str, Any] = {"LAKE": str(tmp_path / "lake")}
    for heading, code, printed in EXAMPLES:
        assert run(code, namespace) == printed, heading
    namespace["db"].close()
    editcap = shutil.which("editcap")
    assert editcap is not None, "it comes with tshark, which `make test` installs"
    command = [editcap, "-r", namespace["capture"], "one.pcapng", str(namespace["packet_no"])]
    subprocess.run(command, check=True, capture_output=True)
    with open_capture(tmp_path / "one.pcapng", "can_frames") as capture:
        assert capture.read()["can_id"].to_pylist() == [424]


@pytest.mark.slow
def test_recipes_are_right_for_several_drives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_lake()
    lake, drives = tmp_path / "lake", Drives()
    namespace: dict[str, Any] = {"LAKE": str(lake)}
    for heading, code, _ in EXAMPLES:
        with opened(lake) as files:
            printed = run(code, namespace)
        if heading == "Connect":
            namespace["db"].execute("SET enable_external_file_cache = false")  # each query opens what it reads
            continue
        assert printed == drives.of(heading), heading
        tables = {file.parts[0] for file in files}
        days = {file.parts[1] for file in files if file.parts[0] != "captures"}
        assert tables, heading
        assert days == named_days(code), heading
    namespace["db"].close()
    assert len({path.name for path in (lake / "can_frames").glob("date=*")}) == 3
