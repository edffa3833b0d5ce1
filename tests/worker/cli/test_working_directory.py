"""Modules in the working directory are not executed: it may be a folder of captures that others uploaded."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pcaplake.worker.cli.app import SUMMARIES
from tests.drives import Drive
from tools import ROOMS

ROOT = Path(__file__).parents[3]
OURS = {"deltalake", "numpy", "obstore", "pyarrow", "pcaplake", "typer", "yaml", "sitecustomize", "usercustomize"}
PLANTED = sorted(
    name
    for name in (sys.stdlib_module_names | OURS) - set(sys.builtin_module_names)
    if not name.startswith("_") and name not in ("site", "os")
)


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A folder with a module for each name that a process may import; each says in `executed` that it ran."""
    folder = tmp_path / "uploads"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text(
            f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r} + '\\n')\nraise ImportError({name!r})\n"
        )
    return folder


@pytest.mark.slow
def test_no_command_executes_them(drive: Drive, planted: Path, tmp_path: Path) -> None:
    lake, capture = tmp_path / "lake", str(drive.captures[0])
    missing, databases = tmp_path / "no-lake", tmp_path / "body.dbc"
    databases.write_text('BO_ 256 Speed: 8 Vector__XXX\n SG_ Value : 0|16@1+ (1,0) [0|0] "" Vector__XXX\n')
    commands = {
        "sample": [str(tmp_path / "sample"), "--seconds", "0.01"],
        "ingest": [capture, "--lake", str(lake), "--profile", str(drive.profile), "--checkpoint-interval", "1"],
        "inspect": [capture],
        "profile": ["init", capture],
        "signals": ["--lake", str(lake), "--databases", str(databases)],
        "tables": ["--lake", str(lake)],
        "query": ["FROM captures", "--lake", str(lake)],
        "delete": ["--older-contents", "--yes", "--lake", str(lake)],
        "maintain": ["--lake", str(lake)],
        "doctor": ["--lake", str(lake)],
        "docs": ["ingest"],
        # these stop before they reach a service; their child processes are those of `ingest`
        **{
            name: ["--lake", str(missing)]
            for name in ("status", "setup", "replay", "reconcile", "redrive", "run", "operator")
        },
    }
    assert commands.keys() == SUMMARIES.keys()
    program = Path(sys.executable).with_name("pcaplake")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    codes = {
        name: subprocess.run(
            [program, name, *arguments], cwd=planted, env=environment, capture_output=True, check=False
        ).returncode
        for name, arguments in commands.items()
    }
    assert not (tmp_path / "executed").exists(), (tmp_path / "executed").read_text()
    assert {name for name, code in codes.items() if code == 0} >= {
        "sample",
        "ingest",
        "inspect",
        "signals",
        "tables",
        "query",
        "delete",
        "maintain",
    }, codes
    assert list(lake.glob("packets/_delta_log/*.checkpoint.parquet")), "a child process wrote a checkpoint"


def test_one_place_names_the_python_of_child_processes() -> None:
    found = [
        str(path.relative_to(ROOT))
        for package in (*ROOMS, "src")
        for path in (ROOT / package).rglob("*.py")
        if re.search(r"sys\.executable|multiprocessing|ProcessPoolExecutor", path.read_text())
    ]
    # the session passes it to Spark, whose executors get PYTHONSAFEPATH
    assert sorted(found) == ["common/child_python.py", "spark_jobs/common/session.py"]
