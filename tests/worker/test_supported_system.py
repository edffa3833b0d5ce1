"""On another system than Linux, commands and imports end with one line that says what to do (docs/adr/0017-linux-only.md)."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from mypy import api

from pcaplake import lake
from pcaplake.spark_jobs import __main__ as spark_jobs
from pcaplake.worker import __main__ as worker

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_commands_say_it_before_they_import_what_only_linux_has(
    system: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    for module in [name for name in sys.modules if name.startswith("pcaplake.lake")] + ["fcntl"]:
        monkeypatch.setitem(sys.modules, module, None)  # an import of it fails
    with pytest.raises(SystemExit) as ended:
        worker.main()
    assert (ended.value.code, spark_jobs.main(["compact"])) == (3, 3)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(f"runs on Linux only, and this is {system}: run it in a container" in line for line in lines)


def test_a_lake_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match="runs on Linux only"):
        runpy.run_path(lake.__file__)


@pytest.mark.slow
@pytest.mark.parametrize("system", ["win32", "darwin"])
def test_the_parser_uses_nothing_that_only_linux_has(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    said, errors, code = api.run(["--platform", system, "--cache-dir", str(tmp_path), "-p", "pcaplake.parser"])
    assert code == 0, said + errors
