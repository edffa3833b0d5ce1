"""Imports point down, the parser is pure, and only the settings read the environment."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools import ROOMS

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path for package in (*ROOMS, "src") if package != "spark_jobs" for path in (ROOT / package).rglob("*.py")
)


READ_THE_ENVIRONMENT = {
    ROOT / "worker" / "config" / "environment.py",
}


def test_import_contracts_are_kept() -> None:
    """The contracts of pyproject.toml, among them the floors."""
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert re.search(r"Contracts: (\d\d|[5-9]) kept, 0 broken", done.stdout), done.stdout


def test_each_module_has_its_floor() -> None:
    """A contract of floors refuses a module that it does not list: a new one is put on a floor, or the test above fails."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = [contract for contract in contracts if contract["type"] == "layers"]
    assert len(floors) >= 11
    assert not [contract["name"] for contract in floors if not contract.get("exhaustive")]


def _imported(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _environment(tree: ast.AST) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in ("environ", "environb", "getenv", "putenv")
    ]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_one_module_reads_the_environment(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert path in READ_THE_ENVIRONMENT or not _environment(tree)
    assert not any(isinstance(node, ast.ImportFrom) and node.module == "os" for node in ast.walk(tree))


@pytest.mark.parametrize("path", [p for p in SOURCES if p.is_relative_to(ROOT / "parser")], ids=lambda path: path.name)
def test_parser_has_no_clock(path: Path) -> None:
    text = path.read_text()
    assert not _imported(ast.parse(text)) & {"time", "asyncio", "random"}
    assert not re.search(r"\bthreading\.(?!Lock\b)", text), "only a lock, because threads share compiled programs"
    assert not re.search(r"\b(datetime\.now|datetime\.utcnow|date\.today)\b", text)


IMPORT_FROM_TESTS = re.compile(r"^[ \t]*((?:from|import) tests\b(?:[^\n(]*\([^)]*\)|[^\n(]*))", re.MULTILINE)
TEST_MODULE = re.compile(r"^tests\.(?:\w+\.)*test_\w+$")
OWN = re.compile(r"^\s*(?:from|import) (?:parser|signals|worker|spark_jobs)\b", re.MULTILINE)


@pytest.mark.parametrize("name", ["parser/errors.py", "import worker", "    from spark_jobs.jars import x"])
def test_the_pattern_of_the_next_test_finds_names_without_pcaplake(name: str) -> None:
    assert bool(OWN.search(name)) == ("/" not in name)


def test_everything_is_imported_by_its_whole_name() -> None:
    """In a clone, `import parser` would work by accident and load every module a second time."""
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    older = "tests/lake/versions.py"  # runs in older versions, too
    wrong = [name for name in tracked.split() if name != older and OWN.search((ROOT / name).read_text())]
    assert not wrong


@pytest.mark.parametrize(
    "statement",
    [
        "from tests.worker.test_kill import x",
        "    from tests.worker import test_kill",
        "import tests.worker.test_kill as x",
        "from tests.worker import (\n    lakes,\n    test_kill,\n)",
    ],
)
def test_the_next_test_finds_imports_of_modules_of_tests(statement: str) -> None:
    assert _imported_test_modules(f"import os\n{statement}\n") == {"tests.worker.test_kill"}
    assert not _imported_test_modules(f"import os\n{statement}\n".replace("test_kill", "lakes"))


def _imported_test_modules(text: str) -> set[str]:
    """Only import statements are parsed, because to parse every file takes eight seconds."""
    found = set()
    for statement in IMPORT_FROM_TESTS.findall(text):
        found |= set(filter(TEST_MODULE.search, _imported(ast.parse(statement))))
    return found


def test_helpers_of_tests_are_not_in_modules_of_tests() -> None:
    """What two modules of tests share is in a module of its own, so that no test runs twice or moves with its helper."""
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    imported = {name: _imported_test_modules((ROOT / name).read_text()) for name in tracked.split()}
    assert not {name: found for name, found in imported.items() if found}
