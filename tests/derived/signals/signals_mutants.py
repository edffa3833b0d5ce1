"""Rules of `pcaplake signals`, each left out: a scene of scenes.py must find each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pcaplake.derived.signals import follow
from pcaplake.derived.signals.checks import Checks
from pcaplake.derived.signals.follow import Planner
from pcaplake.derived.signals.output import Output
from pcaplake.derived.signals.run import SignalsRun
from pcaplake.derived.signals.state import SignalState
from pcaplake.lake.delta.actions import Txn
from pcaplake.lake.follow.captures import find_first_ahead, read_changed_captures
from pcaplake.lake.follow.changes import Version, _ChangesReader
from pcaplake.lake.follow.table_files import TableFiles
from pcaplake.signals.definitions import DefinitionState
from tests.mutants import ALWAYS, DROP, NEVER, Argument, Becomes, Mutant

MUTANTS: Final[Mapping[str, Mutant]] = {
    "the position stays where it was": Mutant(
        Output.add,
        "the position moves in the version that adds the rows",
        Argument(lambda txns: [Txn(app_id="nobody", version=0)], 1),
    ),
    "an older run commits": Mutant(Output._commit, "only the newest run commits", Becomes({})),
    "an older run takes the commit of another one for its own": Mutant(
        Output._commit, "a transaction that another run has committed is not this run's", NEVER
    ),
    "an older run swaps rows": Mutant(Output._swap, "only the newest run swaps rows", Becomes(())),
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
    "rows that compaction moves are replaced": Mutant(Version.from_lines.__func__, "compaction touches nothing", DROP),
    "rows that another program replaces are new": Mutant(
        _ChangesReader.apply_version, "only a batch of pcaplake appends files without a look at older rows", ALWAYS
    ),
    "a version that removes rows is skipped": Mutant(
        _ChangesReader._touch, "rows that a version removes are touched", DROP
    ),
    "rows that another program adds are skipped": Mutant(
        _ChangesReader._touch, "rows that another program adds are touched", DROP
    ),
    "rows of deleted files are forgotten": Mutant(
        _ChangesReader._touch_days, "all rows of a day are touched if the files that changed are gone", DROP
    ),
    "rows that are replaced are appended too": Mutant(
        follow._not_touched, "what is replaced is not appended too", Becomes([])
    ),
    "a killed run forgets what it has begun": Mutant(
        Planner._plan_changes, "a range that is begun is done before another one begins", NEVER
    ),
    "files that are gone are read for ever": Mutant(
        Planner._plan_changes, "a range goes on only if all of its files are there", NEVER
    ),
    "a table that comes back counts as followed": Mutant(
        Output.position_txns, "a table that comes back in the place of another one has no position", Becomes([])
    ),
    "rows without frames count as made again": Mutant(
        Checks.check, "rows are made again when the frames that they lack are there again", NEVER
    ),
    "a table begins with an older position": Mutant(
        Output.begin,
        "a table that begins has no older position, not even one that a checkpoint forgot only in part",
        Becomes([]),
    ),
    "signals do not wait for captures": Mutant(
        find_first_ahead, "frames wait until `captures` has their batch", ALWAYS
    ),
    "a vehicle that changed is not noticed": Mutant(
        read_changed_captures, "frames of a capture whose URI or vehicle changed are touched", DROP
    ),
    "rows whose captures changed are left out of a range": Mutant(
        Planner._plan_changes,
        "rows whose captures changed are made again after a range that was begun before",
        Becomes(False),
    ),
    "a file that was read in part is passed": Mutant(
        TableFiles._read_batches, "a file has the rows that its log says, because the position moves past it", NEVER
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
    "rows that compaction moves are replaced": "compaction",
    "rows that another program replaces are new": "frames_are_lost_and_restored",
    "a version that removes rows is skipped": "frames_are_lost_and_restored",
    "rows that another program adds are skipped": "frames_are_lost_and_restored",
    "rows of deleted files are forgotten": "files_are_gone_before_they_are_read",
    "rows that are replaced are appended too": "new_rows_are_deleted_before_they_are_decoded",
    "a killed run forgets what it has begun": "rows_are_deleted_while_a_run_is_killed",
    "files that are gone are read for ever": "files_are_gone_before_a_killed_run_goes_on",
    "a table that comes back counts as followed": "a_table_of_frames_comes_back",
    "rows without frames count as made again": "rows_are_deleted_while_their_frames_are_away",
    "a table begins with an older position": "a_position_without_a_beginning",
    "signals do not wait for captures": "frames_are_there_before_their_captures",
    "a vehicle that changed is not noticed": "the_vehicle_of_a_capture_changes",
    "rows whose captures changed are left out of a range": "a_vehicle_changes_while_a_run_is_killed",
    "a file that was read in part is passed": "a_file_is_read_in_part",
}
