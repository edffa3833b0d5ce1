"""The distribution takes one name from everybody else, `pcaplake`, and modules of a user with our folders' names do no harm."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pcaplake.common import VERSION
from tools import ROOMS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def strangers(tmp_path: Path) -> Path:
    """A folder with modules of a user that have the names of our folders."""
    (tmp_path / "parser.py").write_text("raise ImportError('a parser of somebody else')\n")
    for name in ("signals", "worker", "spark_jobs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"raise ImportError('a {name} of somebody else')\n")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("program", ["pcaplake", "pcaplake-spark"])
@pytest.mark.parametrize("by_path", [False, True], ids=["working directory", "PYTHONPATH"])
def test_modules_of_a_user_do_no_harm(program: str, by_path: bool, strangers: Path, tmp_path: Path) -> None:
    modules, command_shown = {
        "pcaplake": (("pcaplake", "pcaplake.worker"), "ingest"),
        "pcaplake-spark": (("pcaplake.spark_jobs",), "compact"),
    }[program]
    environment = {**os.environ, **({"PYTHONPATH": str(strangers)} if by_path else {})}
    installed = Path(sys.executable).with_name(program)
    for command in ([installed], *([sys.executable, "-m", module] for module in modules)):
        done = subprocess.run(
            [*command, "--help"],
            cwd=strangers,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert command_shown in done.stdout


def test_names_of_the_package_are_what_they_say() -> None:
    import pcaplake
    from pcaplake.lake.delta import AddFile, LogStore, Txn
    from pcaplake.lake.lake import Lake
    from pcaplake.lake.parquet import delta_statistics
    from pcaplake.lake.store.store import Store
    from pcaplake.parser import Profile, ReadOptions, open_capture
    from pcaplake.signals import read_signals
    from pcaplake.worker.query.connection import connect

    offered = [getattr(pcaplake, name) for name in pcaplake.__all__]
    want = [
        AddFile,
        Lake,
        LogStore,
        Profile,
        ReadOptions,
        Store,
        Txn,
        connect,
        delta_statistics,
        open_capture,
        read_signals,
    ]
    assert offered == want
    assert set(pcaplake.__all__) <= set(dir(pcaplake))
    assert pcaplake.__version__ == VERSION
    with pytest.raises(AttributeError, match="no attribute 'Worker'"):
        _ = pcaplake.Worker


@pytest.mark.slow
def test_reading_captures_loads_nothing_of_a_lake() -> None:
    code = "import sys; from pcaplake import open_capture; print([n for n in sys.modules if n.startswith('pcaplake.worker')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
def test_the_wheel_installs_one_name(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"pcaplake", f"pcaplake-{VERSION}.dist-info"}
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    folders = tuple(f"{room}/" for room in ROOMS)
    assert {f"pcaplake/{name}" for name in tracked.split() if name.startswith(folders)} <= set(names)
    assert "pcaplake/py.typed" in names
