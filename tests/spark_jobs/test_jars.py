"""The folder of jars: made once, named by what it is made from, refused when it is another's."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pcaplake.common.errors import Fatal
from pcaplake.spark_jobs import jars

pytestmark = pytest.mark.unit


class Maven:
    """Makes what Maven would make, at once."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.code = 0

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.calls.append(command)
        for argument in command:
            if argument.startswith("-DoutputDirectory="):
                folder = Path(argument.partition("=")[2])
                folder.mkdir(parents=True)
                (folder / "delta.jar").touch()
        if command[-1] == "package":
            target = Path(command[command.index("-f") + 1]).parent / "target"
            target.mkdir()
            (target / "logstore-0.1.0.jar").touch()
        return subprocess.CompletedProcess(command, self.code, stdout="a\nthe last line")


@pytest.fixture
def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Maven:
    made = Maven()
    monkeypatch.setattr(subprocess, "run", made)
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.delenv("PCAPLAKE_SPARK_JARS", raising=False)
    return made


def test_they_are_made_once(maven: Maven, capsys: pytest.CaptureFixture[str]) -> None:
    folder = jars.ensure_jars()
    assert {path.name for path in folder.glob("*.jar")} == {"delta.jar", "logstore-0.1.0.jar"}
    assert len(maven.calls) == 2
    assert jars.NOTICE in capsys.readouterr().err
    assert jars.ensure_jars() == folder
    assert len(maven.calls) == 2
    assert capsys.readouterr().err == ""


def test_those_with_the_stock_class_are_others(maven: Maven) -> None:
    assert jars.ensure_jars(stock=True) != jars.ensure_jars()
    assert "-Pstock" in maven.calls[0]


def test_the_name_is_of_everything_they_are_made_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    here = tmp_path / "spark_jobs"
    shutil.copytree(jars.HERE, here, ignore=shutil.ignore_patterns("*.py", "target", "__pycache__"))
    before = jars.source_fingerprint()
    monkeypatch.setattr(jars, "HERE", here)
    monkeypatch.setattr(jars, "LOG_STORE", here / "logstore")
    assert jars.source_fingerprint() == before
    names = {before}
    for path in (here / "pom.xml", here / "logstore" / "pom.xml", next(here.rglob("Entry.java"))):
        path.write_text(path.read_text() + "\n")
        names.add(jars.source_fingerprint())
    assert len(names) == 4


def test_a_failure_leaves_nothing_and_says_what_maven_said(
    maven: Maven, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    maven.code = 1
    with pytest.raises(Fatal, match="Its output is above"):
        jars.ensure_jars()
    assert capsys.readouterr().err.endswith("\nthe last line\n")
    assert [path.name for path in (tmp_path / "home" / ".cache" / "pcaplake").iterdir() if path.is_dir()] == []


def test_without_maven_it_says_what_to_do(maven: Maven, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise FileNotFoundError("mvn")

    monkeypatch.setattr(subprocess, "run", missing)
    with pytest.raises(Fatal, match="PCAPLAKE_SPARK_JARS"):
        jars.ensure_jars()


def test_a_folder_that_was_made_ahead(maven: Maven, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "image"
    monkeypatch.setenv("PCAPLAKE_SPARK_JARS", str(folder))
    with pytest.raises(Fatal, match=r"python -m pcaplake\.spark_jobs\.jars"):
        jars.ensure_jars()
    assert jars.main([str(folder)]) == 0
    assert jars.ensure_jars() == folder
    with pytest.raises(Fatal, match="another version"):
        jars.ensure_jars(stock=True)
    (folder / "made-from").write_text("older")
    with pytest.raises(Fatal, match="another version"):
        jars.ensure_jars()


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert jars.main(["--help"]) == 0
    assert "PCAPLAKE_SPARK_JARS" in capsys.readouterr().err
    assert jars.main(["--nothing"]) == jars.main(["one", "two"]) == 2


def test_a_job_builds_none_and_says_how(maven: Maven, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Fatal, match=r"run `python -m pcaplake\.spark_jobs\.jars` once"):
        jars.require_jars()
    with pytest.raises(Fatal, match=r"run `python -m pcaplake\.spark_jobs\.jars --stock` once"):
        jars.require_jars(stock=True)
    assert maven.calls == []
    assert jars.main([]) == jars.main(["--stock"]) == 0
    assert capsys.readouterr().out.split() == [str(jars.require_jars()), str(jars.require_jars(stock=True))]


def test_where_nothing_can_be_kept_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a file").touch()
    monkeypatch.delenv("PCAPLAKE_SPARK_JARS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "a file"))
    with pytest.raises(Fatal, match=r"jars FOLDER`, and set PCAPLAKE_SPARK_JARS to that folder"):
        jars.ensure_jars()
