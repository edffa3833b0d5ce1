"""What CAN frames carry, by their identifiers: a profile says which protocol has which of them, whatever carries the frames."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.engine.key_spaces import Claim
from pcaplake.parser.engine.layer import Case, Column, Layer, Term, packet_field
from pcaplake.parser.profile import CanIdentifiers

from . import asam_cmp, avtp, caneth, tecmp
from .can import CAN_WORD, EXTENDED, GATES, SOURCE, STANDARD, WORD, can_identifier_cases, split_identifier_cases

STANDARD_WORDS, EXTENDED_WORDS = range(0x800), range(EXTENDED, EXTENDED | 0x2000_0000)
SOCKETCAN, TECMP = GATES, (tecmp.TECMP_CAN, tecmp.TECMP_CAN_FD)
CMP, ACF, CANETH = (asam_cmp.CMP_CAN, asam_cmp.CMP_CAN_FD), avtp.CAN_LAYERS, caneth.FRAME
FLAGGED, SPLIT = (
    (*SOCKETCAN, *TECMP, *CMP),
    (*ACF, CANETH),
)  # with the flag of 29 bits in `word`, and with one beside it
CARRIERS = (*FLAGGED, *SPLIT)  # the lower 29 bits of their `word` are an identifier of 29 bits
# programs with and without identifiers have the same tables
ANY_IDENTIFIER = CAN_WORD[:0]


def _each(carriers: Iterable[Layer], read: Callable[[Layer], tuple[Case | Term, ...]]) -> tuple[Case | Term, ...]:
    return tuple(case for carrier in carriers for case in read(carrier))


def _in(carrier: Layer, value: Term | Case) -> Case:
    """A value of another layer, in frames of this carrier only: it may be that of a packet around the frame's."""
    case = Case(value) if isinstance(value, Term) else value
    return case.where(carrier.word.between(-(2**62), 2**62))


# -- of a frame: the word that CAN_WORD has of it, its identifier, its bus -------------------------------------------------
WORDS = (
    *(carrier.word & WORD for carrier in (*SOCKETCAN, *TECMP)),
    *_each(CMP, asam_cmp.can_word_cases),
    *_each(ACF, lambda carrier: split_identifier_cases(carrier, carrier.extended == 1, EXTENDED)),
    *split_identifier_cases(CANETH, CANETH.extended >= 1, EXTENDED),
)
CAN_ID = (
    *_each((*SOCKETCAN, *TECMP), can_identifier_cases),
    *_each(CMP, asam_cmp.can_identifier_cases),
    *_each(ACF, lambda carrier: split_identifier_cases(carrier, carrier.extended == 1)),
    *split_identifier_cases(CANETH, CANETH.extended >= 1),
)
STANDARD_ID = (
    *(carrier.word & STANDARD for carrier in (*SOCKETCAN, *TECMP)),
    *_each(CMP, asam_cmp.standard_identifier_cases),
    *(carrier.word & STANDARD for carrier in SPLIT),
)  # where it is known to have 11 bits
_INTERFACE = packet_field(encoding.NAMED).text("interface")
CAN_BUS = (
    *(_in(carrier, _INTERFACE) for carrier in (*SOCKETCAN, CANETH)),
    *(_in(carrier, tecmp.ENTRY.interface.text("tecmp")) for carrier in TECMP),
    *(_in(carrier, asam_cmp.MESSAGE.interface.text("cmp")) for carrier in CMP),
    *(carrier.bus_id.text("acf") for carrier in ACF),
)
BUS_COLUMNS: dict[str, Column] = dict(
    bus=CAN_BUS,
    bus_time_ns=(
        *(_in(carrier, tecmp.ENTRY_TIME) for carrier in TECMP),
        *(_in(carrier, asam_cmp.MESSAGE.time) for carrier in CMP),
        *(carrier.time.where(carrier.time_valid == 1) for carrier in ACF if carrier.packet in avtp.STAMPED),
    ),
    source=(
        *(
            carrier(source)
            for source, carriers in {"tecmp": TECMP, "cmp": CMP, "acf": ACF, "caneth": (CANETH,)}.items()
            for carrier in carriers
        ),
        *SOURCE,  # SLL also carries capture modules
    ),
)


def fixed_word_cases(read: Callable[[Term], Term], *uppers: int) -> tuple[Case, ...]:
    """A value of the words whose upper halves are these, of 29 bits."""
    flagged = ((carrier, 0x9FFF) for carrier in FLAGGED)
    split = ((carrier, 0x1FFF) for carrier in SPLIT)
    return tuple(
        read(carrier.word).where(carrier.word >> 16 & mask == upper & mask)
        for carrier, mask in (*flagged, *split)
        for upper in uppers
    )


def identifier_claims(
    identifiers: Iterable[CanIdentifiers], protocols: Mapping[str, Sequence[tuple[range, Layer]]]
) -> list[tuple[Claim, Layer]]:
    """What identifiers of a profile lead to; those of a narrow range count more than those of a wide one.

    protocols: for each protocol the layers that ranges of words lead to
    """
    claims = []
    for entry in sorted(identifiers, key=lambda entry: entry.first - entry.last):
        flag = EXTENDED if entry.extended else 0
        for words, layer in protocols[entry.protocol]:
            first, after = max(words.start, entry.first | flag), min(words.stop, (entry.last | flag) + 1)
            if first < after:
                claims.append((CAN_WORD[first:after], layer))
    return claims
