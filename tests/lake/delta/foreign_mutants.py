"""Mutants of the model of a table that other programs change (foreign_model.py)."""

from __future__ import annotations

from collections.abc import Mapping

from pcaplake.lake.delta.foreign_versions import _Judge
from pcaplake.lake.delta.log_state import LogState
from pcaplake.lake.delta.log_store import LogStore
from tests.mutants import ALWAYS, DROP, NEVER, Becomes, Mutant, Through

MUTANTS: Mapping[str, Mutant] = {
    "only a RESTORE is judged": Mutant(
        LogState._note_row_changes, "a version of another program that removes files is judged", DROP
    ),
    "what a checkpoint hides is not judged": Mutant(
        _Judge.find_losses, "versions that a checkpoint hides are judged too", NEVER
    ),
    "rows may be removed": Mutant(
        _Judge._judge_version, "a version of another program that removes more rows than it adds is a loss", NEVER
    ),
    "a RESTORE ends each loss": Mutant(
        _Judge._judge_version,
        "a table that is restored has the losses of the version that it is restored to",
        Becomes(()),
    ),
    "a RESTORE loses nothing": Mutant(
        _Judge._judge_version, "a batch that was committed after the version that a table is restored to is lost", NEVER
    ),
    "a RESTORE is believed": Mutant(
        _Judge._find_target, "a RESTORE counts as one only if the table has the files of that version", ALWAYS
    ),
    "a table that has lost rows gets batches": Mutant(
        LogStore._judge_before_commit, "a table from which another program has removed rows gets no batch", NEVER
    ),
    "what comes after is given up too": Mutant(
        LogStore._judge_before_commit,
        "rows are given up only as far as they were looked at",
        Through(lambda judged: judged + 1),
    ),
    "versions are cleaned away before they are judged": Mutant(
        LogStore.clean, "the version up to which a table is judged stays readable", DROP
    ),
}
