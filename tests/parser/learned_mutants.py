"""Mutants of what is learned from messages (tests/mutants.py); tests/parser/test_learned_ports.py kills them."""

from __future__ import annotations

from collections.abc import Mapping

from pcaplake.parser.engine.decoder import Decoder
from pcaplake.parser.engine.learned_keys import LearnedKeys
from tests.mutants import NEVER, Becomes, Mutant

MUTANTS: Mapping[str, Mutant] = {
    "a key counts from the next morsel on": Mutant(
        Decoder.decode_records, "the packets after one that names keys are walked again, with these keys", NEVER
    ),
    "packets are walked again to the end of a morsel": Mutant(
        Decoder.decode_records, "packets that are walked again are bounded", NEVER
    ),
    "a packet that names keys ends a morsel in which bytes were skipped": Mutant(
        Decoder.decode_records, "packets that may name keys begin a morsel, if bytes were skipped before them", NEVER
    ),
    "the keys of two packets are learned at once": Mutant(
        LearnedKeys._find_lesson_of,
        "a key counts from the next packet on, and what that one names is found when it is decoded",
        NEVER,
    ),
    "a low port is learned": Mutant(LearnedKeys._is_new, "a low port keeps its meaning", NEVER),
    "a key leads elsewhere": Mutant(
        LearnedKeys._is_new, "a key that already leads to a layer is not learned", Becomes(True)
    ),
    "keys are learned without end": Mutant(LearnedKeys.learn, "a capture names so many keys, and no more", NEVER),
}
