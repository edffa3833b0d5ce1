"""Rules of `pcaplake signals`, each left out: a scene of scenes.py must find each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pcaplake.signals.definitions import DefinitionState
from pcaplake.worker.signals.frames import FrameTable
from pcaplake.worker.signals.output import Output
from pcaplake.worker.signals.run import SignalsRun
from pcaplake.worker.signals.state import SignalState
from tests.mutants import DROP, NEVER, Becomes, Mutant, Through

MUTANTS: Final[Mapping[str, Mutant]] = {
    "the position stays where it was": Mutant(
        Output.add,
        "the position moves in the version that adds the rows",
        Through(lambda txn: replace(txn, app_id="nobody", version=0)),
    ),
    "an older run commits": Mutant(Output._commit, "only the newest run commits", Becomes({})),
    "an older run takes the commit of another one for its own": Mutant(
        Output._commit, "a transaction that another run has committed is not this run's", NEVER
    ),
    "an older run swaps rows": Mutant(Output.swap, "only the newest run swaps rows", Becomes(())),
    "an older run begins a swap": Mutant(Output.read_snapshot, "an older run does not begin a swap", DROP),
    "files that VACUUM has deleted are committed": Mutant(
        Output._require_files, "only files that exist are committed", NEVER
    ),
    "a run goes on with a state that somebody deleted": Mutant(
        SignalsRun._begin, "a run that lost the state changes no row", DROP
    ),
    "a run goes on with wide tables of an older state": Mutant(
        SignalsRun._take_over_wide_tables, "a run that lost the ids of wide tables changes no row", NEVER
    ),
    "a wide table keeps rows of other definitions": Mutant(
        SignalState.with_wide_tables, "other definitions give a wide table another id", DROP
    ),
    "definitions are not marked": Mutant(
        SignalsRun._update_definitions, "definitions are marked before frames are decoded with other ones", DROP
    ),
    "rows of other cycles of a slot stay": Mutant(
        DefinitionState.from_databases.__func__,
        "the rows of a slot are replaced together, because they do not say their cycle",
        NEVER,
    ),
    "rows that another writer replaces are decoded twice": Mutant(
        FrameTable._read_version, "a version that replaces rows adds no frames", NEVER
    ),
    "rows that compaction moves are decoded twice": Mutant(FrameTable._read_version, "compaction adds no frames", DROP),
    "frames that come back are decoded twice": Mutant(FrameTable._read_version, "a RESTORE adds no frames", NEVER),
    "a run begins while frames are lost": Mutant(
        FrameTable.find_new_files, "no frames are decoded while a table lacks rows that may come back", NEVER
    ),
    "a file that was read in part is passed": Mutant(
        FrameTable._read_batches, "a file has the rows that its log says, because the position moves past it", NEVER
    ),
}

FOUND_BY: Final[Mapping[str, str]] = {
    "the position stays where it was": "new_frames",
    "an older run commits": "another_run_commits_less",
    "an older run takes the commit of another one for its own": "two_runs_take_over_at_once",
    "an older run swaps rows": "another_run_swaps_first",
    "an older run begins a swap": "another_run_ends_before_a_swap",
    "files that VACUUM has deleted are committed": "files_are_deleted_before_they_are_committed",
    "a run goes on with a state that somebody deleted": "the_state_is_deleted",
    "a run goes on with wide tables of an older state": "another_run_begins_the_wide_table",
    "a wide table keeps rows of other definitions": "other_definitions",
    "definitions are not marked": "definitions_return_after_a_kill",
    "rows of other cycles of a slot stay": "other_cycles",
    "rows that another writer replaces are decoded twice": "another_writer_replaces_rows",
    "rows that compaction moves are decoded twice": "compaction",
    "frames that come back are decoded twice": "frames_are_lost_and_restored",
    "a run begins while frames are lost": "a_run_begins_while_frames_are_lost",
    "a file that was read in part is passed": "a_file_is_read_in_part",
}
