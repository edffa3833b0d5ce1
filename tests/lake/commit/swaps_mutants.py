"""Rules of swaps, each left out: a random history of swaps_model.py must find each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pcaplake.lake.commit.swap_records import LastSwap, RowSwap, find_half_swapped
from pcaplake.lake.commit.swaps import Swaps
from tests.mutants import ALWAYS, NEVER, Becomes, Mutant

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
    "a swap that is done again brings older rows of a capture back": Mutant(
        RowSwap.split_adds, "a swap that is done again leaves out captures that came back", ALWAYS
    ),
    "a table that was restored keeps older rows": Mutant(
        Swaps._put_back_restored_tables, "a table that was restored to before a swap gets the swap again", NEVER
    ),
    "a table that lost a swap gets a batch": Mutant(
        LastSwap.read_transaction,
        "a table that lost a swap gets no batch, which may have contents that the swap removed",
        Becomes(-1),
    ),
    "captures of a swap that was given up are forgotten": Mutant(
        find_half_swapped, "captures of a swap that was given up are read again", NEVER
    ),
}
