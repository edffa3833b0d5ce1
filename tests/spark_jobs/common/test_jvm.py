"""The JVM of a job: which Java it needs, what it prints, and what it reports when it fails. No JVM is started."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import typer

from pcaplake.common.errors import Fatal
from pcaplake.spark_jobs import __main__ as jobs
from pcaplake.spark_jobs.common import job, jvm, session
from pcaplake.spark_jobs.common.spark_errors import explain_spark_error, is_spark_error, summarize_error

pytestmark = pytest.mark.unit


def jdk(folder: Path, version: str | None) -> Path:
    """A folder like that of a JDK."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    if version is not None:
        (folder / "release").write_text(f'IMPLEMENTOR="Someone"\nJAVA_VERSION="{version}"\nOS_NAME="Linux"\n')
    return folder


class TestJava:
    @pytest.mark.parametrize("version", ["17.0.15", "21", None])
    def test_a_java_that_works(self, version: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", str(jdk(tmp_path, version)))
        jvm.require_java()

    @pytest.mark.parametrize(("version", "major"), [("1.8.0_402", 8), ("11.0.2", 11)])
    def test_a_java_that_is_too_old(
        self, version: str, major: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", str(jdk(tmp_path, version)))
        with pytest.raises(Fatal, match=f"is Java {major}: install one"):
            jvm.require_java()

    def test_the_path_is_searched_without_java_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("JAVA_HOME", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path / "links"))
        with pytest.raises(Fatal, match="on the PATH: install one"):
            jvm.require_java()
        (tmp_path / "links").mkdir()
        (tmp_path / "links" / "java").symlink_to(jdk(tmp_path / "jdk", "11") / "bin" / "java")
        with pytest.raises(Fatal, match="is Java 11"):
            jvm.require_java()

    def test_java_home_without_java(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        with pytest.raises(Fatal, match="has no bin/java"):
            jvm.require_java()

    def test_a_job_needs_it_before_anything_else(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        monkeypatch.setattr(session, "is_session_running", lambda: False)
        monkeypatch.setattr(session, "is_started_by_spark_submit", lambda: False)
        assert jobs.main(["compact", "--lake", str(tmp_path)]) == job.FATAL
        shown = capsys.readouterr().err
        assert len(shown.splitlines()) == 1
        assert "Spark needs a JDK 17 or newer" in shown


PRINTS = "import sys; print('to stdout'); print('banner', file=sys.stderr)"
PRINTS_LATER = "import sys; input(); print('from an executor', file=sys.stderr); print('to stdout')"


class TestOutput:
    """Child processes stand in for the JVM: they inherit stdout and stderr."""

    def test_lines_of_the_start_are_hidden_and_later_ones_are_not(self, capfd: pytest.CaptureFixture[str]) -> None:
        with jvm.starting_jvm(shown=False):
            subprocess.run([sys.executable, "-c", PRINTS], check=True)
            child = subprocess.Popen([sys.executable, "-c", PRINTS_LATER], stdin=subprocess.PIPE)
            reader = next(thread for thread in threading.enumerate() if thread.name == jvm.READER)
        child.communicate(b"\n")
        reader.join()
        assert capfd.readouterr() == ("", "from an executor\n")

    def test_all_lines_go_to_stderr_if_they_are_shown(self, capfd: pytest.CaptureFixture[str]) -> None:
        with jvm.starting_jvm(shown=True):
            subprocess.run([sys.executable, "-c", PRINTS], check=True)
        os.write(1, b"report\n")
        shown = capfd.readouterr()
        assert shown.out == "report\n"
        assert sorted(shown.err.split("\n")) == ["", "banner", "to stdout"]

    def test_a_start_that_fails_says_why(self, capfd: pytest.CaptureFixture[str]) -> None:
        prints = "import sys; print('WARNING: x\\nInvalid maximum heap size: -Xmxzz\\nGoodbye', file=sys.stderr)"

        def start() -> None:
            with jvm.starting_jvm(shown=False):
                subprocess.run([sys.executable, "-c", prints], check=True)
                raise RuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited before sending its port number.")

        with pytest.raises(Fatal, match="did not start: Invalid maximum heap size: -Xmxzz; --spark-logs"):
            start()
        os.write(2, b"stderr is back\n")
        assert capfd.readouterr() == ("", "stderr is back\n")

    def test_another_configuration_of_log4j_may_follow_ours(self) -> None:
        assert jvm.log_options(shown=True) == {}
        (option,) = jvm.log_options(shown=False).values()
        assert Path(option.partition("=file://")[2]).read_text().count("rootLogger.level = off") == 1


class TestPython:
    """The Python of executors."""

    def test_the_drivers_unless_the_user_chose_another(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYSPARK_PYTHON", "")
        session.choose_python({})
        assert os.environ["PYSPARK_PYTHON"] == sys.executable
        monkeypatch.setenv("PYSPARK_PYTHON", "/their/python")
        session.choose_python({})
        assert os.environ["PYSPARK_PYTHON"] == "/their/python"
        session.choose_python({"spark.pyspark.python": "/another/python"})
        assert os.environ["PYSPARK_PYTHON"] == "/another/python"


JAVA_ERROR = """An error occurred while calling o123.save.
: org.apache.spark.SparkException: Job aborted due to stage failure
\tat org.apache.spark.scheduler.DAGScheduler.abort(DAGScheduler.scala:1)
Caused by: java.io.IOException: in between
\t... 12 more
Caused by: java.nio.file.NoSuchFileException: /lake/part-0.parquet
\t... 13 more
"""
PYTHON_ERROR = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "x.py", line 3, in decode
ValueError: bad thing

org.apache.spark.SparkException: again
"""


class TestErrors:
    def test_pyspark_does_not_log_what_it_raises(self, capsys: pytest.CaptureFixture[str]) -> None:
        from pyspark.logger import PySparkLogger

        logger = PySparkLogger.getLogger("SQLQueryContextLogger")
        try:
            jvm.silence_query_loggers()
            logger.error("a table is missing", errorClass="X")
        finally:
            logger.disabled = PySparkLogger.getLogger("DataFrameQueryContextLogger").disabled = False
        assert capsys.readouterr().err == ""

    def test_first_line_and_innermost_cause(self) -> None:
        assert summarize_error(Exception(JAVA_ERROR)) == (
            "org.apache.spark.SparkException: Job aborted due to stage failure / "
            "java.nio.file.NoSuchFileException: /lake/part-0.parquet"
        )
        assert summarize_error(Exception(PYTHON_ERROR)).endswith("from the Python worker / ValueError: bad thing")
        assert summarize_error(ValueError()) == "ValueError()"

    def test_an_error_of_spark_is_one_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from pyspark.errors import PySparkException

        monkeypatch.delenv("PCAPLAKE_DEBUG", raising=False)
        app = typer.Typer(add_completion=False)

        @app.command()
        def fail() -> None:
            raise PySparkException(JAVA_ERROR)

        assert job.run(app, []) == job.FATAL
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1
        assert shown.startswith("error: Spark failed: org.apache.spark.SparkException: Job aborted")
        assert "NoSuchFileException: /lake/part-0.parquet; --spark-logs" in shown

    def test_a_jvm_that_ended(self) -> None:
        from py4j.protocol import Py4JNetworkError

        assert is_spark_error(Py4JNetworkError("Answer from Java side is empty"))
        assert not is_spark_error(ValueError())
        for error in (Py4JNetworkError("Answer from Java side is empty"), ConnectionRefusedError(111, "refused")):
            assert "spark.driver.memory" in explain_spark_error(error)
