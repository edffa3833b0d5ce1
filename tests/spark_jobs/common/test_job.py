"""What all jobs share: options, report, exit codes and signals. No Spark is started."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, cast

import pytest
import typer

from pcaplake.spark_jobs import __main__ as jobs
from pcaplake.spark_jobs.common import job, session
from pcaplake.spark_jobs.signals.job import require_lake
from pcaplake.spark_jobs.vacuum.pending_stages import PendingStages
from pcaplake.worker.admin.open_case import Subject
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.errors import Fatal
from tests.spark_jobs.drives import fill


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    lake: str
    files: int
    day: date


class Session:
    """Counts how often it was stopped."""

    stopped = 0

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
    monkeypatch.setattr(job, "_is_session_running", lambda: False)
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
    monkeypatch.setattr(job, "_is_session_running", lambda: True)
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


@pytest.mark.parametrize("name", jobs.JOBS)
def test_every_job_tells_what_it_does(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs.main([name, "--help"]) == 0
    assert "--lake" in capsys.readouterr().out


def test_without_a_job_it_tells_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs.main([]) == job.USAGE
    shown = capsys.readouterr()
    assert all(name in shown.out + shown.err for name in jobs.JOBS)


@pytest.mark.parametrize("name", ["compact", "vacuum", "signals"])
def test_stores_are_opened_with_the_region_of_the_settings(
    name: str, opened: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION", "PCAPLAKE_REGION"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "fleet.yaml").write_text("region: eu-west-3\nstorage_option: {allow_http: 'true'}\n")
    given: dict[str, Any] = {}

    def stub(*arguments: Any, storage: dict[str, str], **others: Any) -> Report:
        given["storage"] = storage
        return Report(lake="lake", files=0, day=date(2026, 11, 21))

    async def look(subject: Subject, lake: str) -> PendingStages:
        given["subject"] = subject.open_store(lake).options
        return PendingStages(stages=0, oldest=None, now=0)

    arguments = [name, "--lake", "s3://lake/drives", "--config", str(tmp_path / "fleet.yaml")]
    module: Any = import_module(f"pcaplake.spark_jobs.{name}.job")
    monkeypatch.setattr(module, "run", stub)
    if name == "vacuum":
        monkeypatch.setattr(module, "find_pending_stages", look)
    if name == "signals":
        monkeypatch.setattr(module, "require_lake", lambda opened: None)
        monkeypatch.setattr(module.Databases, "from_file", lambda path: None)
        arguments += ["--databases", "buses.yaml"]
    app = jobs.build_command_line([name, "quality"])
    assert job.run(app, arguments) == 0
    expected = {"region": "eu-west-3", "allow_http": "true"}
    assert given == {"storage": expected} | ({"subject": expected} if name == "vacuum" else {})


def test_a_region_is_for_s3_alone_and_not_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(variable, raising=False)
    settings = FleetSettings(region="eu-west-3")
    assert settings.storage_options_for("s3a://lake/drives") == {"region": "eu-west-3"}
    assert settings.storage_options_for("gs://lake/drives") == settings.storage_options_for("lake") == {}
    named = FleetSettings(region="eu-west-3", storage_option={"AWS_REGION": "eu-west-1"})
    assert named.storage_options_for("s3://lake/drives") == {"AWS_REGION": "eu-west-1"}


def test_signals_makes_no_tables_where_no_lake_is(tmp_path: Path) -> None:
    one = job.OpenedLake(spark=cast(Any, None), lake=str(tmp_path / "typo"), settings=FleetSettings())
    with pytest.raises(Fatal, match="is not a lake: it has no tables"):
        require_lake(one)
    fill(tmp_path / "typo", [])
    require_lake(one)
