"""What all jobs share: options, report, exit codes and signals. No Spark is started."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import signal
import sys
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from pcaplake.common.errors import Fatal, WrongChoice
from pcaplake.lake.store.store import Store
from pcaplake.spark_jobs import __main__ as jobs
from pcaplake.spark_jobs.common import job, session
from pcaplake.spark_jobs.common.maintenance import TABLE_NAMES, require_lake
from pcaplake.spark_jobs.vacuum.pending_stages import PendingStages
from pcaplake.worker.admin.open_case import Subject
from pcaplake.worker.config.service_settings import FleetSettings
from tests.spark_jobs.drives import fill

pytestmark = pytest.mark.unit
ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ALLOW_HTTP")  # other tests of this process may set them


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    lake: str
    files: int
    day: date


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted(Report):
    partitions: tuple[Any, ...] = ()


class Session:
    """Counts how often it was stopped."""

    stopped = 0
    sparkContext = None

    def stop(self) -> None:
        self.stopped += 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `open_session` was called with."""
    given: dict[str, Any] = {"session": Session()}

    def open_session(**arguments: Any) -> Session:
        given.update(arguments)
        made: Session = given["session"]
        return made

    monkeypatch.setattr(session, "open_session", open_session)
    monkeypatch.setattr(session, "is_session_running", lambda: False)  # other tests share one in this process
    monkeypatch.setattr(session, "require_java_and_jars", lambda log_store: None)
    monkeypatch.setattr(job, "require_lake", lambda store, tables: None)
    monkeypatch.delenv("PCAPLAKE_LAKE", raising=False)
    return given


@job.command
def counted(*, files: Annotated[int, typer.Option(help="How many.")] = 1, invocation: job.Invocation) -> Report:
    """Count files."""
    with invocation.open_lake_session("count") as opened:
        if files == 0:
            raise Fatal("nothing to count")
        if files < 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return Report(lake=opened.lake, files=10 // (files - 7), day=date(2026, 11, 21))


def run(*arguments: str) -> int:
    app = typer.Typer(add_completion=False)
    app.command()(counted)
    return job.run(app, arguments)


def test_a_report_on_stdout(opened: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--lake", "lake", "--files", "8", "--conf", "a=b=c", "--master", "local[1]") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"lake": "lake", "files": 10, "day": "2026-11-21"}
    assert "count: starting Spark" in shown.err
    assert (opened["lakes"], opened["conf"], opened["master"]) == (["lake"], {"a": "b=c"}, "local[1]")
    assert opened["session"].stopped == 1


def test_a_report_in_a_file(opened: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--lake", "lake", "--report", str(tmp_path / "report.json")) == 0
    assert json.loads((tmp_path / "report.json").read_text())["lake"] == "lake"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ((), job.USAGE, "PCAPLAKE_LAKE"),
        (("--lake", "x", "--log-store", "other"), job.USAGE, "--log-store"),
        (("--lake", "x", "--conf", "other"), job.USAGE, "--conf"),
        (("--lake", "x", "--report", "no/such/folder/file"), job.USAGE, "--report"),
        (("--nothing",), job.USAGE, "--help"),
        (("--lake", "x", "--files", "0"), job.FATAL, "nothing to count"),
        (("--lake", "x", "--files", "7"), job.FATAL, "ZeroDivisionError"),
        (("--lake", "x", "--files", "-1"), job.INTERRUPTED, "interrupted"),
    ],
)
def test_exit_codes(
    opened: dict[str, Any], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    assert run(*arguments) == code
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
    assert signal.getsignal(signal.SIGTERM) is before
    assert opened["session"].stopped == ("lakes" in opened)


def test_a_session_that_ran_before_goes_on(opened: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "is_session_running", lambda: True)
    assert run("--lake", "x") == 0
    assert opened["session"].stopped == 0


def test_help_has_both_kinds_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    shown = capsys.readouterr().out
    assert "Count files." in shown
    assert all(option in shown for option in ("--files", "--lake", "--config", "--master", "--conf", "--report"))


def test_an_option_of_all_jobs_cannot_be_a_jobs_own() -> None:
    def clash(*, lake: str = "", invocation: job.Invocation) -> None: ...

    with pytest.raises(ValueError, match="lake"):
        job.command(clash)


def help_text(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> str:
    """The help of a job in a terminal of 80 columns; of all jobs where the name is empty."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    assert jobs.main([name, "--help"] if name else ["--help"]) == 0
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("name", ["", *jobs.JOBS])
def test_help_has_examples_and_no_ragged_lines(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = help_text(name, capsys, monkeypatch)
    assert "--lake" in shown
    prose = re.split(r"\n(?:Arguments|Options):", shown)[0].strip("\n").split("\n\n")
    examples = prose[prose.index("  Examples:") + 1].splitlines()
    assert examples
    assert all(line.startswith("    pcaplake-spark ") for line in examples)
    for paragraph in prose:
        lines = paragraph.splitlines()
        for line, following in itertools.pairwise(lines):  # a line ends where the next word does not fit
            assert line.startswith("   ") or len(f"{line} {following.split()[0]}") > 78, paragraph


def test_without_a_job_it_tells_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs.main([]) == job.USAGE
    shown = capsys.readouterr()
    assert jobs.main(["--help"]) == 0
    assert shown == capsys.readouterr(), "the same text, line by line"
    assert "..." not in shown.out.partition("Commands:")[2], "no summary is cut off"
    assert all(f"\n  {name} " in shown.out for name in jobs.JOBS)


@pytest.mark.parametrize("name", ["compact", "vacuum"])
def test_stores_are_opened_with_the_region_of_the_settings(
    name: str, opened: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION", "PCAPLAKE_REGION", *ENDPOINTS):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "fleet.yaml").write_text("region: eu-west-3\nstorage_option: {allow_http: 'true'}\n")
    given: dict[str, Any] = {}

    def stub(*arguments: Any, storage: dict[str, str], **others: Any) -> Report:
        given["storage"] = storage
        return Compacted(lake="lake", files=0, day=date(2026, 11, 21))

    async def look(subject: Subject, lake: str) -> PendingStages:
        given["subject"] = subject.open_store(lake).options
        return PendingStages(stages=0, oldest=None, now=0)

    def correct(settings: FleetSettings, lake: str, *others: Any) -> None:
        given["corrected"] = settings.storage_options_for(lake)

    arguments = [name, "--lake", "s3://lake/drives", "--config", str(tmp_path / "fleet.yaml")]
    module: Any = import_module(f"pcaplake.spark_jobs.{name}.job")
    monkeypatch.setattr(module, "run", stub)
    if name == "vacuum":
        monkeypatch.setattr(module, "find_pending_stages", look)
    else:
        monkeypatch.setattr(module, "correct_written_files", correct)
    app = jobs.build_command_line([name, "quality"])
    assert job.run(app, arguments) == 0
    expected = {"region": "eu-west-3", "allow_http": "true"}
    assert given == {"storage": expected, ("subject" if name == "vacuum" else "corrected"): expected}


def test_a_region_is_for_s3_alone_and_not_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ENDPOINTS:
        monkeypatch.delenv(variable, raising=False)
    settings = FleetSettings(region="eu-west-3")
    assert settings.storage_options_for("s3a://lake/drives") == {"region": "eu-west-3"}
    assert settings.storage_options_for("gs://lake/drives") == settings.storage_options_for("lake") == {}
    named = FleetSettings(region="eu-west-3", storage_option={"AWS_REGION": "eu-west-1"})
    assert named.storage_options_for("s3://lake/drives") == {"AWS_REGION": "eu-west-1"}


@pytest.mark.parametrize("package", ["pyspark", "delta", "pandas"])
def test_a_missing_package_is_reported_before_java_and_jars(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(tmp_path, [])
    monkeypatch.setitem(sys.modules, package, None)  # as if it was not installed
    monkeypatch.setenv("PCAPLAKE_SPARK_JARS", str(tmp_path / "none"))
    assert jobs.main(["quality", "--lake", str(tmp_path)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: Spark jobs need the extra `spark`: pip install 'pcaplake[spark]'"), line
    assert package in line


DBC = """VERSION ""
BU_: A
BO_ 291 Speed: 8 A
 SG_ speed : 0|8@1+ (1,0) [0|255] "" A
"""


@pytest.fixture(scope="module")
def empty_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lake = tmp_path_factory.mktemp("empty") / "lake"
    fill(lake, [])
    return lake


@pytest.fixture
def here(empty_lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: a lake, a signal database and a file that is not one. Spark cannot start."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PCAPLAKE_LAKE", raising=False)
    monkeypatch.setattr(session, "require_java_and_jars", lambda log_store: None)
    monkeypatch.delattr(session, "open_session")
    shutil.copytree(empty_lake, tmp_path / "lake")
    Path("car.dbc").write_text(DBC)
    Path("text.txt").write_text("text")
    Path("broken.dbc").write_text("BO_ x")
    Path("broken.yaml").write_text("databases: [")
    return tmp_path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *((f"{name} --lake typo", "typo is not a lake") for name in ("compact", "vacuum", "quality")),
        ("signals --lake typo --databases car.dbc", "typo is not a lake"),
        ("replace x --lake typo", "typo is not a lake"),
        *((f"{name} --lake foo://x/y", "no store for foo://") for name in ("compact", "vacuum", "quality")),
        ("quality --lake gs://bucket/lake", "--lake: gs://bucket/lake: Spark jobs support"),
        ("backfill lake --lake gs://bucket/lake", "--lake: gs://bucket/lake: Spark jobs support"),
        ("compact --lake lake --table can_frame", "has no table can_frame; did you mean 'can_frames'?"),
        ("vacuum --lake lake --table can_frame", "has no table can_frame; did you mean 'can_frames'?"),
        ("signals --lake lake --databases no.dbc", "--databases: the signal database no.dbc does not exist"),
        ("signals --lake lake --databases text.txt", "--databases: text.txt is not a signal database"),
        ("signals --lake lake --databases broken.dbc", "--databases: cannot read the signal database broken.dbc"),
        ("signals --lake lake --databases broken.yaml", "--databases: broken.yaml is not YAML"),
        ("signals --lake lake --databases car.dbc --wide Sped", "no database has a message 'Sped'"),
        ("signals --lake lake --databases car.dbc --size much", "'much' is not a size"),
        ("quality --lake lake --since 2026-13-01", "'2026-13-01' is not a day; write for example 2026-09-21"),
        ("quality --lake lake --since 2026-09-02 --until 2026-09-01", "--until: the last day is before the first"),
        ("replace --lake lake", "nothing to replace"),
        ("replace x --lake lake --profile p.yaml --without-profile", "give one of the two"),
        ("backfill typo --lake lake", "typo does not exist"),
        ("backfill --list typo --lake lake", "typo does not exist"),
    ],
)
def test_a_mistake_is_one_line_before_spark_starts(
    line: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert jobs.main(line.split()) == job.USAGE
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert said in shown.err


def test_a_new_lake_has_no_tables_yet(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    with pytest.raises(WrongChoice, match="is not a lake"):
        require_lake(Store.open(str(lake)))
    fill(lake, [])
    require_lake(Store.open(str(lake)), ["captures"])
    for table in TABLE_NAMES:
        shutil.rmtree(lake / table, ignore_errors=True)
    require_lake(Store.open(str(lake)))  # lake.json is enough
    (lake / "_pcaplake" / "lake.json").unlink()
    with pytest.raises(WrongChoice, match="is not a lake"):
        require_lake(Store.open(str(lake)))
