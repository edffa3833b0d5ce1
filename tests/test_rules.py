"""Every rule that product code marks is taken out by a mutant, and every mutant that there ever was is still there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.derived.signals import signals_mutants
from tests.lake import correction_mutants, guard_mutants
from tests.lake.commit import committer_mutants, removals_mutants, swaps_mutants
from tests.lake.compaction import compaction_mutants
from tests.lake.delta import file_mutants, foreign_mutants, lock_table_mutants
from tests.mutants import Mutant, marks
from tests.parser import declaration_mutants, kernel_mutants, learned_mutants, pairing_mutants, reassembly_mutants
from tests.signals import frame_mutants
from tests.signals.someip import payload_mutants
from tests.worker.model import mutants as fleet_mutants
from tools import ROOMS

ROOT = Path(__file__).parents[1]
DECODERS = {
    ROOT / "parser",
    ROOT / "signals" / "someip",
    ROOT / "signals" / "containers.py",
}  # their rules are not about exactly once
MODELS = {
    "fleet": fleet_mutants.MUTANTS,
    "committer": committer_mutants.MUTANTS,
    "swaps": swaps_mutants.MUTANTS,
    "removals": removals_mutants.MUTANTS,
    "files": file_mutants.MUTANTS,
    "lock table": lock_table_mutants.MUTANTS,
    "foreign versions": foreign_mutants.MUTANTS,
    "parser": kernel_mutants.MUTANTS,
    "reassembly": reassembly_mutants.MUTANTS,
    "parser declarations": declaration_mutants.CLAIMS,
    "pairing": pairing_mutants.MUTANTS,
    "learned keys": learned_mutants.MUTANTS,
    "payloads": payload_mutants.MUTANTS,
    "frames": frame_mutants.MUTANTS,
    "signals": signals_mutants.MUTANTS,
    "compaction": compaction_mutants.MUTANTS,
    "corrections": correction_mutants.MUTANTS,
    "guards": guard_mutants.MUTANTS,
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
        for folder in (*ROOMS, "tests/worker/adapters")
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
    assert set(listed) == {rule for file, rule in marked() if not DECODERS & {file, *file.parents}}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_the_marked_rule(name: str) -> None:
    compile(MUTANTS[name].tree(), name, "exec", dont_inherit=True)


def test_no_mutant_was_lost() -> None:
    """`mutants.txt` lists all that there are, by model: who takes one out takes its line out, too."""
    listed = (Path(__file__).parent / "mutants.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(listed) == sorted(f"{model}: {name}" for model, mutants in MODELS.items() for name in mutants)
