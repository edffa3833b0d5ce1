"""Messages that the operators' pages quote are those of the code."""

from __future__ import annotations

import ast
import functools
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUOTED = {
    "docs/troubleshooting.md": (
        "has been locked for",
        "holds its lock",
        "is damaged or is not a ledger",
        "creates an object twice: it ignores If-None-Match",
        "replaces an object that does not exist",
        "Allow it for the role that runs this command: docs/setup.md lists the permissions of each command",
        "the running Spark session is not configured for these lakes",
        "log stores on one table lose commits",
        "the jars for Spark are built with Maven, which is not installed",
        "another process changed the same files",
        "no rows are missing or duplicate",
        "rows are missing or duplicate: see the report",
        "are not in every table, and no process commits",
        "start a worker or a committer, or run `pcaplake ingest`, which commits them first",
        "no gap in",
    ),
    "docs/doctor.md": ("accepted_loss", "returned-captures", "not examined", "not allowed", "damaged-"),
    "docs/runbooks/captures-returned.md": ("no route", "gone", "read again"),
    "docs/runbooks/redelivery.md": ("released", "receipt_expired", "unreadable", "message "),
    "docs/runbooks/committer-fails.md": ("commit:",),
}


@functools.cache
def texts() -> str:
    """All string constants of the product, one to a line, without the values of f-strings."""
    names = subprocess.run(
        ["git", "ls-files", "--", "worker/*.py", "spark_jobs/*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = []
    for name in names.stdout.splitlines():
        nodes = ast.walk(ast.parse((ROOT / name).read_text()))
        found += [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return "\n".join(found)


@pytest.mark.parametrize("page", QUOTED)
def test_quoted_messages_are_those_of_the_code(page: str) -> None:
    shown, product = (ROOT / page).read_text(), texts()
    for message in QUOTED[page]:
        assert message in shown, f"{page} does not quote: {message}"
        assert message in product, f"the code does not say: {message}"
