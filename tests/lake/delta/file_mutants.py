"""Mutants of what is checked of the files of a commit (tests/mutants.py); test_file_checks.py kills them."""

from __future__ import annotations

from collections.abc import Mapping

from pcaplake.lake.delta.commit_content import build_write_commit
from pcaplake.lake.delta.file_checks import check_files, check_live_paths
from tests.mutants import DROP, NEVER, Mutant

MUTANTS: Mapping[str, Mutant] = {
    "what no reader could use is committed": Mutant(
        build_write_commit, "a file that no reader could use is not committed", DROP
    ),
    "a commit adds a file twice": Mutant(check_files, "a commit adds a file once", NEVER),
    "a live file is added again": Mutant(check_live_paths, "a file that the table has is not added again", NEVER),
}
