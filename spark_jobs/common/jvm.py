"""The JVM of a session that is started here: the Java that it needs, and the lines that it prints."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import threading
import uuid
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from pcaplake.common.errors import Fatal
from pcaplake.worker.config.environment import read_java_home

from .spark_errors import summarize_error

JAVA_VERSION = 17
READER = "output of the JVM"  # the name of the thread
QUIET_LOG = Path(__file__).with_name("quiet.log4j2.properties")
_WHAT_TO_DO = "install one (Debian: apt-get install openjdk-17-jdk-headless), or set JAVA_HOME to its folder"
_VERSION = re.compile(r'^JAVA_VERSION="(?:1\.)?(\d+)', re.MULTILINE)


def require_java() -> None:
    """Raises Fatal if Spark would find no Java, or one that is too old."""
    home = read_java_home()
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if program is None or not Path(program).is_file():
        where = f"JAVA_HOME={home} has no bin/java" if home else "no program java is on the PATH"
        raise Fatal(f"Spark needs a JDK {JAVA_VERSION} or newer, and {where}: {_WHAT_TO_DO}")
    version = _read_version(Path(program))
    if version is not None and version < JAVA_VERSION:
        raise Fatal(f"Spark needs a JDK {JAVA_VERSION} or newer, and {program} is Java {version}: {_WHAT_TO_DO}")


def _read_version(program: Path) -> int | None:
    """The major version of a JDK from its file `release`, because starting Java takes longer; None: unknown."""
    try:
        found = _VERSION.search((program.resolve().parent.parent / "release").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return None
    return int(found[1]) if found else None


def log_options(*, shown: bool) -> dict[str, str]:
    """The setting that turns Spark's log off unless it is `shown`."""
    # these options precede spark.driver.extraJavaOptions, so a user can name another configuration of log4j
    return {} if shown else {"spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={QUIET_LOG.as_uri()}"}


def silence_query_loggers() -> None:
    """pyspark logs an error of a query as JSON with a traceback before it raises it, which is enough."""
    from pyspark.logger import PySparkLogger

    for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


@contextlib.contextmanager
def starting_jvm(*, shown: bool) -> Iterator[None]:
    """Start a JVM in the body. Its lines go to stderr if they are `shown`, and never to stdout, which is for the report.

    If they are not shown, stderr gets only what the JVM and its Python processes print to stderr after the start. Raises
    Fatal with the reason if the start fails.
    """
    lines: deque[str] = deque(maxlen=1000)
    # the JVM writes to the same pipe: what is before the mark is from the start, however late this process reads it
    mark = f"{uuid.uuid4()}\n".encode()
    stderr, stdout = os.dup(2), os.dup(1)
    sys.stdout.flush()
    sys.stderr.flush()
    reader: threading.Thread | None = None
    try:
        if shown:
            os.dup2(2, 1)
        else:
            read, write = os.pipe()
            reader = threading.Thread(target=_forward, args=(read, os.dup(2), lines, mark), name=READER, daemon=True)
            reader.start()
            with open(os.devnull, "w") as nothing:
                os.dup2(nothing.fileno(), 1)
            os.dup2(write, 2)
            os.close(write)
        yield
        if reader is not None:
            os.write(2, mark)
    except Exception as error:
        if reader is not None:
            os.dup2(stderr, 2)  # a JVM that has ended and this process held the pipe open
            reader.join(1.0)
        raise Fatal(f"Spark did not start: {_reason(error, list(lines))}") from error
    finally:
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        os.close(stdout)
        os.close(stderr)


def _forward(pipe: int, target: int, lines: deque[str], mark: bytes) -> None:
    """Keep the lines before the mark, and forward those after it to the file `target`."""
    with open(pipe, "rb") as output, open(target, "wb", buffering=0) as stderr:
        for line in output:
            if line.endswith(mark):
                break
            lines.append(line.decode(errors="replace").strip())
        for line in output:
            stderr.write(line)


def _reason(error: Exception, lines: list[str]) -> str:
    """Why a JVM did not start: the first line that it printed if it ended, because the others follow from that one."""
    if "JAVA_GATEWAY_EXITED" in str(error):
        causes = [line for line in lines if line and not line.startswith(("WARNING:", "Using Spark's"))]
        return f"{causes[0] if causes else 'its JVM ended at once'}; --spark-logs shows all of its output"
    return summarize_error(error)
