"""Rules of the decoder of frames, each left out: the tests of containers and of J1939 must find each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from pcaplake.signals import frames
from pcaplake.signals.containers import find_contained
from tests.mutants import Argument, Mutant, Through

MUTANTS: Final[Mapping[str, Mutant]] = {
    "what follows padding is read": Mutant(find_contained, "the id 0 ends a container", Through(np.ones_like)),
    "a length in a header is trusted": Mutant(
        find_contained, "a length ends with its container", Argument(lambda left: left + (1 << 40), index=1)
    ),
    "a message of one frame comes twice": Mutant(
        frames._j1939_ids,
        "messages of one frame come from `can_frames` alone",
        Through(lambda each: pa.repeat(True, len(each))),
    ),
}
