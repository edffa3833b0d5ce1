"""The requirements of pcaplake and of each extra are what their modules import."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import files, packages_distributions
from typing import NamedTuple

import pytest

from pcaplake.worker.cli.app import SUMMARIES
from tests.wheels import ROOT, required
from tools import ROOMS

# Where an installation with these extras begins. A module below "" imports the others' entries only in functions, where it
# can tell which extra is missing.
ENTRIES = {
    "": (
        "pcaplake.parser",
        "pcaplake.parser.can_errors",
        "pcaplake.signals",
        "pcaplake.signals.read",
        "pcaplake.worker.__main__",
        "pcaplake.lake.lake",
        *(f"pcaplake.worker.cli.{command}" for command in SUMMARIES),
    ),
    "aws": ("pcaplake.worker.service.run",),
    "query": (
        "pcaplake.worker.cli.query_prompt",
        "pcaplake.worker.query.results",
        "pcaplake.worker.query.statements",
    ),
    "aws cluster": (
        "pcaplake.worker.kubernetes.deletion_cost",
        "pcaplake.worker.kubernetes.election",
        "pcaplake.worker.kubernetes.operate",
        "pcaplake.worker.kubernetes.plan",
    ),
    "spark": ("pcaplake.spark_jobs",),  # with all modules below it, because each runs on executors or starts a job
}
# Functions of these modules need other extras, and tell which one is missing.
EXTRAS_OF_FUNCTIONS = {
    "pcaplake.signals.arxml.element": "signals",
    "pcaplake.signals.cantools_reader": "signals",
    "pcaplake.signals.ldf": "signals",
    "pcaplake.worker.admin.aws_clients": "aws",
    "pcaplake.worker.admin.setup.setup": "aws",
    "pcaplake.ingest.captures.objects_signed": "aws",
    "pcaplake.lake.dynamodb_table": "aws",
    "pcaplake.lake.store.credentials": "aws",
    "pcaplake.worker.service.queue.sqs": "aws",
    "pcaplake.common.traces": "otel",
    "pcaplake.worker.query.connection": "query",
}
EXTENSIONS = {f"duckdb-extension-{name}" for name in ("aws", "delta", "httpfs")}
DISTRIBUTIONS = packages_distributions()


class Import(NamedTuple):
    name: str  # a module, or something in one
    in_function: bool


def find_imports(package: str, node: ast.AST, *, in_function: bool = False) -> Iterator[Import]:
    """Those for type checkers alone do not count."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, in_function) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = ".".join(part for part in (package if child.level else "", child.module) if part)
            yield from (Import(f"{base}.{alias.name}", in_function) for alias in child.names)
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from find_imports(package, child, in_function=in_function or is_function)


@cache
def modules() -> dict[str, tuple[Import, ...]]:
    found = {}
    for path in (path for folder in ROOMS for path in (ROOT / folder).rglob("*.py")):
        parts = ["pcaplake", *path.relative_to(ROOT).with_suffix("").parts]
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        package = module if is_package else module.rpartition(".")[0]
        found[module] = tuple(find_imports(package, ast.parse(path.read_text())))
    return found


def entries(extras: str) -> set[str]:
    return (
        {module for module in modules() if module.startswith(ENTRIES[extras])}
        if extras == "spark"
        else {*ENTRIES[extras]}
    )


def reach(extras: str) -> set[str]:
    """The modules that an installation with these extras imports, at its start or in a function."""
    others = set().union(*(entries(other) for other in ENTRIES if other != extras))
    found, todo = set(), entries(extras)
    while todo:
        module = todo.pop()
        found.add(module)
        for name, in_function in modules()[module]:
            parts = name.split(".")
            above = {".".join(parts[:length]) for length in range(1, len(parts) + 1)} & modules().keys()
            todo |= above - found - (others if in_function else set())
    return found


@cache
def distribution(name: str) -> str | None:
    """The distribution that has this module; None: it is part of Python, or of pcaplake."""
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names or top == "pcaplake":
        return None
    candidates = set(DISTRIBUTIONS[top])
    while len(candidates) > 1 and name:  # a package whose parts come from several
        module = name.replace(".", "/")
        files_of_module = {f"{module}.py", f"{module}/__init__.py"}
        owners = {one for one in candidates if files_of_module & {str(path) for path in files(one) or ()}}
        candidates = owners or candidates
        name = name.rpartition(".")[0]
    return re.sub(r"[-_.]+", "-", candidates.pop()).lower()


def imported(module: str, *, in_function: bool) -> set[str]:
    """The distributions from which this module imports something."""
    names = [one.name for one in modules()[module] if one.in_function == in_function]
    return {found for name in names if (found := distribution(name)) is not None}


@pytest.mark.slow
@pytest.mark.parametrize("extras", ENTRIES)
def test_extras_require_all_that_their_modules_import(extras: str) -> None:
    available = required(*extras.split())
    missing = {}
    for module in reach(extras):
        more = required(*extras.split(), *EXTRAS_OF_FUNCTIONS.get(module, "").split())
        if lacking := (imported(module, in_function=False) - available) | (imported(module, in_function=True) - more):
            missing[module] = lacking
    assert not missing


@pytest.mark.slow
def test_every_module_is_below_an_entry() -> None:
    assert set().union(*map(reach, ENTRIES)) == modules().keys()


@pytest.mark.slow
def test_each_requirement_is_imported() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = [one for extra, names in project["optional-dependencies"].items() if extra != "dev" for one in names]
    declared = {re.split(r"[^\w.-]", one)[0].lower() for one in [*project["dependencies"], *optional]}
    used = {
        one
        for module in modules()
        for in_function in (True, False)
        for one in imported(module, in_function=in_function)
    }
    assert declared - used == {"pandas", "pytz", *EXTENSIONS}, "see the next tests"


def test_duckdb_has_its_extensions_and_what_returns_times() -> None:
    """They are no modules that are imported: tests/worker/query/test_query.py uses all of them."""
    assert {"pytz", *EXTENSIONS} <= required("query")


def test_pyspark_has_what_its_arrow_functions_need() -> None:
    """`mapInArrow` fails without pandas when it is called, but pyspark requires pandas only in an extra of its own."""
    assert {"pandas", "pyarrow"} <= required("sql", of="pyspark") <= required("spark")
