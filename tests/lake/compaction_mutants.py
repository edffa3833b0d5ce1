"""Rules of compaction and VACUUM, each left out: a test of test_compaction.py must find each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pcaplake.lake import compaction, maintenance
from tests.mutants import DROP, NEVER, Mutant

MUTANTS: Final[Mapping[str, Mutant]] = {
    "a file was read in part": Mutant(
        compaction._Rewriter._read_batches, "a compacted file has all rows of the files that it replaces", DROP
    ),
    "new files are gone": Mutant(compaction._commit_rewritten, "compaction commits only files that exist", NEVER),
    "a live file is deleted": Mutant(maintenance._vacuum_table, "VACUUM deletes no live file", DROP),
}
