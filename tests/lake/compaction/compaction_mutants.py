"""Rules of compaction and VACUUM, each left out: a test of test_run.py or test_plan.py must find each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pcaplake.lake import maintenance
from pcaplake.lake.compaction import plan, run
from pcaplake.lake.compaction.rewrite import Rewriter
from pcaplake.lake.compaction.run import Compactor
from pcaplake.lake.delta.commit_content import AsRead
from tests.mutants import ALWAYS, DROP, NEVER, Becomes, Mutant

MUTANTS: Final[Mapping[str, Mutant]] = {
    "a file was read in part": Mutant(
        Rewriter._read_file, "a compacted file has all rows of the files that it replaces", DROP
    ),
    "new files are gone": Mutant(Compactor._commit, "compaction commits only files that exist", NEVER),
    "rows are lost on the way": Mutant(Rewriter.rewrite, "a compacted file has as many rows as were read", NEVER),
    "it counts as a change": Mutant(Compactor._commit, "compaction changes no row", DROP),
    "a file that was written anew is replaced": Mutant(
        AsRead.check, "compaction replaces only files that are as they were read", NEVER
    ),
    "another schema": Mutant(AsRead.check, "compaction commits only to the table whose files it has read", NEVER),
    "tags were dropped": Mutant(run.plan, "a file whose tags were dropped is not rewritten again", Becomes([])),
    "large files are rewritten": Mutant(plan._plan_partition, "a large file that is sorted is not rewritten", DROP),
    "merged too often": Mutant(
        plan._count_due, "sorted files are merged only when they grow by a factor, or become large", ALWAYS
    ),
    "a live file is deleted": Mutant(maintenance._vacuum_table, "VACUUM deletes no live file", DROP),
}
OF_PLANS: Final = ("large files are rewritten", "merged too often")
"""Those that test_plan.py finds; test_run.py finds the others."""
