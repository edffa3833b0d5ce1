"""Rules of removals, each left out: a random history of removals_model.py must find each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pcaplake.lake.commit import removals
from tests.mutants import DROP, NEVER, Mutant
from tests.worker.adapters.fleet_ledger import FleetLedger

MUTANTS: Final[Mapping[str, Mutant]] = {
    "a content that leaves is seen again": Mutant(
        FleetLedger._see_again, "a content that leaves is not seen again", NEVER
    ),
    "a content leaves before a later one is in every table": Mutant(
        removals.find_older_contents, "a content is removed only if a later one is in every table", NEVER
    ),
    "a content leaves although it was seen again": Mutant(
        removals.find_older_contents,
        "a content that was seen again later than the current one is not removed",
        NEVER,
    ),
    "a content leaves although it was seen again meanwhile": Mutant(
        FleetLedger.begin_removal, "a capture leaves only if it is as it was when that was decided", DROP
    ),
}
