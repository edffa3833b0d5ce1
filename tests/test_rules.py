"""Every rule that product code marks is taken out by a mutant, and every mutant that there ever was is still there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutants import Mutant, marks
from tests.parser import test_mutants as test_parser_mutants
from tests.worker import test_fleet_model
from tests.worker.lake.commit import test_model as test_committer_model
from tests.worker.lake.delta import test_lock_table_model

ROOT = Path(__file__).parents[1]
KERNELS = ROOT / "parser" / "engine" / "kernels"  # their rules are not about exactly once
MODELS = {
    "fleet": test_fleet_model.MUTANTS,
    "committer": test_committer_model.MUTANTS,
    "lock table": test_lock_table_model.MUTANTS,
    "parser": test_parser_mutants.MUTANTS,
    "parser declarations": test_parser_mutants.CLAIMS,
}
MUTANTS = {
    f"{model}: {name}": mutant
    for model, mutants in MODELS.items()
    for name, mutant in mutants.items()
    if isinstance(mutant, Mutant)
}


def marked() -> set[tuple[Path, str]]:
    """Each file and a rule that it marks."""
    return {
        (path, rule)
        for folder in ("parser", "worker", "spark_jobs")
        for path in (ROOT / folder).rglob("*.py")
        if "# rule:" in (source := path.read_text(encoding="utf-8"))
        for rule, _ in marks(source)
    }


def test_every_mark_is_taken_out() -> None:
    assert marked() == {(mutant.file, mutant.rule) for mutant in MUTANTS.values()}


def test_the_page_lists_every_rule() -> None:
    page = (ROOT / "docs" / "exactly-once.md").read_text(encoding="utf-8")
    section = page.partition("\n## 8. The rules in the code\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| \d(?:\.\w+)? \| ([^|]+) \|", section, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == {rule for file, rule in marked() if KERNELS not in file.parents}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_the_marked_rule(name: str) -> None:
    compile(MUTANTS[name].tree(), name, "exec", dont_inherit=True)


def test_no_mutant_was_lost() -> None:
    """`mutants.txt` lists all that there are, by model: who takes one out takes its line out, too."""
    listed = (Path(__file__).parent / "mutants.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(listed) == sorted(f"{model}: {name}" for model, mutants in MODELS.items() for name in mutants)
