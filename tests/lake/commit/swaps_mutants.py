"""Rules of swaps, each left out: a random history of swaps_model.py must find each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pcaplake.lake.commit.swaps import Swaps
from tests.mutants import ALWAYS, NEVER, Mutant
from tests.worker.adapters.memory_ledger import MemoryLedger

MUTANTS: Final[Mapping[str, Mutant]] = {
    "rows of a removed capture come back": Mutant(
        Swaps._record, "rows of a capture that leaves the lake do not come back", NEVER
    ),
    "old rows are removed although new ones are gone": Mutant(
        Swaps._finish_swap, "rows are removed only if all new ones are there", NEVER
    ),
    "a swap that was given up comes to `captures`": Mutant(
        Swaps._finish_swap, "a swap that was given up in one table does not come to `captures`", NEVER
    ),
    "a table gets a later swap first": Mutant(Swaps._finish_swap, "a table gets swaps in order", ALWAYS),
    "a table gets a swap again": Mutant(Swaps._attempt_swap, "a table has each swap once", NEVER),
    "a ledger forgets captures again": Mutant(MemoryLedger.forget_captures, "a ledger has each swap once", NEVER),
}
