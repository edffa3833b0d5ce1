"""The examples of docs/recipes.md run, one after the other, and print what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import shutil
import subprocess
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pcaplake.parser import open_capture
from pcaplake.signals.tables import SIGNALS_SCHEMA
from pcaplake.worker.cli import app as cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
EXAMPLES = re.findall(r"```python\n(.*?)```(?:\n```text\n(.*?)```)?", PAGE.read_text(encoding="utf-8"), re.DOTALL)
START = datetime.fromisoformat("2026-09-22T00:00:00+00:00")


def signal_rows() -> pa.Table:
    """Two seconds of a signal that rises, as the job `signals` writes them."""
    rows = []
    for number in range(20):
        ts = START + timedelta(milliseconds=100 * number)
        rows.append(
            {
                "capture_id": "c", "vehicle_id": "vehicle-001", "date": date(2026, 9, 22), "ts": ts,
                "ts_ns": int(ts.timestamp() * 1e9), "packet_no": number + 1, "sub_no": 0, "source": "socketcan",
                "message": "Engine", "signal": "EngineSpeed", "value": 800.0 + number, "unit": "rpm", "valid": True,
            }
        )  # fmt: skip
    return pa.Table.from_pylist(rows, SIGNALS_SCHEMA)


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    for command in re.findall(r"^pcaplake (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE):
        assert cli.run_command_line(command.split()) == 0, command
    write_deltalake(tmp_path / "lake" / "signals", signal_rows())
    return {"LAKE": str(tmp_path / "lake")}


@pytest.mark.slow
def test_recipes_print_what_the_page_shows(namespace: dict[str, Any], tmp_path: Path) -> None:
    for code, printed in EXAMPLES:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, str(PAGE), "exec"), namespace)
        assert out.getvalue() == printed, code
    namespace["db"].close()
    assert len(EXAMPLES) == 8
    editcap = shutil.which("editcap")
    assert editcap is not None, "it comes with tshark, which `make test` installs"
    command = [editcap, "-r", namespace["capture"], "one.pcapng", str(namespace["packet_no"])]
    subprocess.run(command, check=True, capture_output=True)
    with open_capture(tmp_path / "one.pcapng", "can_frames") as capture:
        assert capture.read()["can_id"].to_pylist() == [424]
