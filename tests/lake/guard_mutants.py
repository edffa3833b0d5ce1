"""What keeps a lake from being read or begun wrongly, each left out: a scene of test_guards.py must find each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pcaplake.ingest.rebuild_files import _require_same_reading
from pcaplake.lake.commit.history import accept_removed_rows
from pcaplake.lake.delta.checkpoint_repair import read_checkpoint_state
from pcaplake.lake.identity import refuse_deleted_lake
from pcaplake.lake.store.object_store import ObjectStore
from pcaplake.lake.store.place import refuse_ambiguous_folder, refuse_ambiguous_uri
from tests.mutants import DROP, NEVER, Becomes, Mutant

_ONE_SPELLING = "a place that programs spell in different ways holds no lake"

MUTANTS: Final[Mapping[str, Mutant]] = {
    "a folder has two spellings": Mutant(refuse_ambiguous_folder, _ONE_SPELLING, NEVER),
    "a URI has two spellings": Mutant(refuse_ambiguous_uri, _ONE_SPELLING, NEVER),
    "a lake that was deleted begins again": Mutant(
        refuse_deleted_lake, "no lake begins where the ledger knows one that is gone", DROP
    ),
    "another profile rebuilds files": Mutant(
        _require_same_reading, "files are rebuilt by the profile and the version that read them", DROP
    ),
    "swaps of a generation that was overwritten begin again": Mutant(
        accept_removed_rows, "a table whose swaps are done again has the same generation still", DROP
    ),
    "a list begins where the service likes": Mutant(
        ObjectStore.list, "a list begins behind the name that was asked for", Becomes("")
    ),
    "an empty checkpoint is believed": Mutant(
        read_checkpoint_state, "a checkpoint without the files of its table is damaged", NEVER
    ),
}
