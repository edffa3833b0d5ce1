"""Compiled kernels are kept in the first folder that can be written, in memory if there is none, and never a reason to fail."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numba
import pytest

from pcaplake.parser.engine import kernel_cache
from pcaplake.parser.engine.kernel import NOTICE

ROOT = Path(__file__).parents[3]
SOURCE = "from pcaplake.parser.engine.kernels import kernel\n\n\n@kernel\ndef add(a, b):\n    return a + b\n"


class Places:
    """A package with one kernel, and each folder that could keep the machine code. A file blocks a folder, also for root."""

    def __init__(self, folder: Path, name: str) -> None:
        self.module = f"{name}.adding"
        self.package = folder / name
        self.beside = self.package / "__pycache__"
        self.home = folder / "home"
        self.temporary = folder / "tmp" / f"pcaplake-kernels-{os.geteuid()}"
        self.package.mkdir()
        (self.package / "__init__.py").touch()
        (self.package / "adding.py").write_text(SOURCE)
        self.temporary.parent.mkdir()

    def load(self) -> Any:
        """As in a new process."""
        sys.modules.pop(self.module, None)
        sys.modules.pop(self.package.name, None)
        importlib.invalidate_caches()
        kernel_cache.warn.cache_clear()
        return importlib.import_module(self.module).add


def block(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.write_text("a file")


def compiled_in(folder: Path) -> int:
    return len(list(folder.rglob("*.nbc"))) if folder.is_dir() else 0


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Places]:
    made = Places(tmp_path, f"package_{abs(hash(request.node.name))}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setattr(tempfile, "tempdir", str(made.temporary.parent))
    monkeypatch.setenv("HOME", str(made.home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    yield made
    sys.modules.pop(made.module, None)
    sys.modules.pop(made.package.name, None)
    kernel_cache.warn.cache_clear()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without the line that a process logs when it compiles for the first time."""
    return [message for message in caplog.messages if message != NOTICE]


@pytest.mark.slow
def test_the_first_folder_that_can_be_written_keeps_the_kernels(
    places: Places, caplog: pytest.LogCaptureFixture
) -> None:
    for folder in (places.beside, places.home, places.temporary):
        assert places.load()(1, 2) == 3
        assert compiled_in(folder) == 1
        assert bool(warnings(caplog)) == (folder == places.temporary), "a folder that is not kept is worth a warning"
        block(folder)
    kernel = places.load()
    assert not kernel.is_compiled
    assert kernel(1, 2) == 3
    assert kernel(1.0, 2.0) == 3.0
    kept, nowhere = warnings(caplog)
    assert str(places.temporary) in kept
    assert "each process compiles kernels again" in nowhere
    assert all("set NUMBA_CACHE_DIR" in one and "\n" not in one for one in (kept, nowhere))


@pytest.mark.slow
def test_kernels_of_the_installation_are_read_by_users_who_cannot_write_there(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert places.load()(1, 2) == 3
    create = tempfile.TemporaryFile

    def refuse(dir: str) -> Any:  # file modes do not stop root
        if Path(dir) == places.beside:
            raise PermissionError(dir)
        return create(dir=dir)

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    kernel = places.load()
    assert Path(kernel.dispatcher._cache.cache_path).is_relative_to(places.home)
    assert kernel.is_compiled
    assert kernel(1, 2) == 3
    assert list(kernel.dispatcher.stats.cache_hits.values()) == [1]
    assert kernel(1.0, 2.0) == 3.0
    assert (compiled_in(places.beside), compiled_in(places.home)) == (1, 1)


def test_a_folder_that_others_can_write_is_not_used(places: Places) -> None:
    for folder in (places.beside, places.home):
        block(folder)
    places.temporary.mkdir()
    places.temporary.chmod(0o777)
    assert places.load()(1, 2) == 3
    assert compiled_in(places.temporary) == 0
    places.temporary.chmod(0o700)
    assert places.load()(1, 2) == 3
    assert compiled_in(places.temporary) == 1


def test_a_user_without_a_home_gets_no_folder_with_the_name_of_a_tilde(
    places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block(places.beside)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user that no file names
    monkeypatch.chdir(tmp_path)
    assert places.load()(1, 2) == 3
    assert not (tmp_path / "~").exists()
    assert compiled_in(places.temporary) == 1


def test_a_disk_that_is_full_costs_only_the_cache(places: Places, caplog: pytest.LogCaptureFixture) -> None:
    kernel = places.load()
    assert not kernel.is_compiled
    block(places.beside)
    assert kernel(1, 2) == 3
    assert kernel(1.0, 2.0) == 3.0
    (only,) = warnings(caplog)
    assert "each process compiles kernels again" in only


@pytest.mark.slow
def test_a_warning_is_one_line_on_stderr_and_no_import_fails(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "parser", tmp_path / "pcaplake" / "parser", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__init__.py", "lazy_names.py"):
        shutil.copy(ROOT / "src" / "pcaplake" / name, tmp_path / "pcaplake")
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "adding.py").write_text(SOURCE)
    for blocked in (
        "pcaplake/parser/engine/kernels/__pycache__",
        "user/__pycache__",
        f"pcaplake-kernels-{os.geteuid()}",
    ):
        (tmp_path / blocked).touch()
    (tmp_path / "user" / "__init__.py").touch()
    code = "import pcaplake, user.adding as it; pcaplake.open_capture; print(pcaplake.__file__, it.add(1, 2))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path), "HOME": "/dev/null", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(tmp_path / "pcaplake" / "__init__.py"), "3"]
    (only,) = (line for line in done.stderr.splitlines() if line != NOTICE)
    assert "set NUMBA_CACHE_DIR" in only
