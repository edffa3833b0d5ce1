"""Errors of Spark as one line: what failed, and the innermost cause. Spark's own texts have a hundred lines."""

from __future__ import annotations

import re

_PYTHON_ERROR = re.compile(r"(?!org\.|java\.)[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)\b")
_CALL = "An error occurred while calling"
_LONGEST = 500


def is_spark_error(error: BaseException) -> bool:
    """Whether Spark, Delta or the connection to the JVM raised this error."""
    return any(kind.__module__.partition(".")[0] in ("pyspark", "py4j", "delta") for kind in type(error).__mro__)


def summarize_error(error: BaseException) -> str:
    """The first line of an error, the last `Caused by` below it, and the last line of a Python traceback in it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
    if lines[0].startswith(_CALL) and len(lines) > 1:  # of py4j; the error itself is in the next line
        lines = lines[1:]
    first = lines[0].removeprefix(": ")
    causes = [line.removeprefix("Caused by: ") for line in lines[1:] if line.startswith("Caused by: ")]
    raised = [line for line in lines[1:] if _PYTHON_ERROR.match(line)]
    parts = dict.fromkeys(line[:_LONGEST].rstrip(";:") for line in (first, *causes[-1:], *raised[-1:]))
    return " / ".join(parts)


def explain_spark_error(error: BaseException) -> str:
    """What to tell the user about an error of Spark."""
    if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
        return (
            "Spark's JVM has ended: it was killed or ran out of memory. Give it more with --conf spark.driver.memory=4g; "
            "--spark-logs shows what it prints"
        )
    return f"Spark failed: {summarize_error(error)}; --spark-logs shows Spark's log"
