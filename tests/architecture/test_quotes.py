"""Messages that the operators' pages quote are those of the code, and messages name pages as an installation shows them."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from pathlib import Path

import pytest

from tools import ROOMS

ROOT = Path(__file__).parents[2]
QUOTED = {
    "docs/troubleshooting.md": (
        "has been locked for",
        "holds its lock",
        "is damaged or is not a ledger",
        "creates an object twice: it ignores If-None-Match",
        "replaces an object that does not exist",
        "Allow it for the role that runs this command: `pcaplake docs permissions` lists what each role may do",
        "the running Spark session is not configured for these lakes",
        "log stores on one table lose commits",
        "the jars for Spark are built with Maven, which is not installed",
        "another process changed the same files",
        "no rows are missing or duplicate",
        "rows are missing or duplicate: see the report",
        ", and no process commits",
        "start a worker or a committer, or run `pcaplake ingest`, which commits them first",
        "no gap in",
        "cannot be loaded",
        "was compiled from other sources",
    ),
    "docs/doctor.md": ("accepted_loss", "returned-captures", "not examined", "not allowed", "damaged-"),
    "docs/runbooks/captures-returned.md": ("no route", "gone", "read again"),
    "docs/runbooks/redelivery.md": ("released", "receipt_expired", "unreadable", "message "),
    "docs/runbooks/committer-fails.md": ("commit failed",),
}


@functools.cache
def strings(within: str = "") -> dict[str, list[str]]:
    """File that contains `within` -> all string constants of the product in it, but no docstrings and values of f-strings."""
    names = subprocess.run(
        ["git", "ls-files", "--", *(f"{room}/*.py" for room in ROOMS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found = {}
    for name in names.stdout.splitlines():
        source = (ROOT / name).read_text()
        if within not in source:
            continue
        nodes = list(ast.walk(ast.parse(source)))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        constants = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in docstrings]
        found[name] = [node.value for node in constants if isinstance(node.value, str)]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("page", QUOTED)
def test_quoted_messages_are_those_of_the_code(page: str) -> None:
    shown, product = (ROOT / page).read_text(), "\n".join(text for texts in strings().values() for text in texts)
    for message in QUOTED[page]:
        assert message in shown, f"{page} does not quote: {message}"
        assert message in product, f"the code does not say: {message}"


def test_messages_name_pages_that_an_installation_has() -> None:
    """A wheel has no repository: messages say `pcaplake docs PAGE`. Files that users have get this text from the fields."""
    named = {
        (name, text) for name, texts in strings(".md").items() for text in texts if re.search(r"[\w-]\.md\b", text)
    }
    assert not named
    for path in (ROOT / "helm/pcaplake/values.schema.json", ROOT / "helm/pcaplake/templates/NOTES.txt"):
        assert not re.findall(r"docs/\S+\.md", path.read_text()), path
