"""Rules of the decoder of SOME/IP payloads, each left out: test_payload_rules.py must find each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pcaplake.signals.someip import decoder, end_to_end, payloads, values
from pcaplake.signals.someip.kernels.checksums import compute_checksums
from pcaplake.signals.someip.kernels.walk import walk_messages
from pcaplake.signals.someip.payloads import PayloadDecoder
from tests.mutants import ALWAYS, DROP, NEVER, Becomes, Change, Mutant, Through

_OF_THE_WALK: Final[Mapping[str, Change]] = {
    "a number that does not fit is not read": NEVER,
    "a length field that does not fit is not read": NEVER,
    "a length field is not trusted beyond what contains it": NEVER,
    "a text that is cut off is not read": NEVER,
    "padding follows a text of variable size": DROP,
    "an array without a length field has all its elements": NEVER,
    "elements beyond the maximum are skipped": NEVER,
    "what follows an array begins where its length field says": DROP,
    "padding follows an array of variable size": DROP,
    "a selector that is not described is counted": NEVER,
    "after a container with a length field the walk continues": DROP,
    "fewer elements than the minimum are counted": DROP,
    "a tagged member ends where its wire type or length field says": NEVER,
    "a member that is not described is counted": NEVER,
    "a member of another size than its type is not read": ALWAYS,
    "what follows a container begins where its length field says": DROP,
    "padding follows a container of variable size": DROP,
    "a message for which there is no room is found again as a whole": DROP,
    "bytes after the parameters are counted": NEVER,
}
MUTANTS: Final[Mapping[str, Mutant]] = {
    **{f"without: {rule}": Mutant(walk_messages, rule, change) for rule, change in _OF_THE_WALK.items()},
    "a member counts twice": Mutant(
        PayloadDecoder._read_walked, "of a member that a message has twice, the first counts", NEVER
    ),
    "a short payload is read beyond its end": Mutant(
        payloads._read_fixed, "a payload that is too short gives the values that fit", NEVER
    ),
    "a byte order mark is ignored": Mutant(values.decode_text, "a byte order mark tells the byte order", Becomes(None)),
    "a byte order mark is a character": Mutant(values.decode_text, "a byte order mark is no character", NEVER),
    "a text has what follows its terminator": Mutant(values.decode_text, "a text ends at its terminator", ALWAYS),
    "the flag of segments is part of the message type": Mutant(
        decoder.group_by_message, "the message of TP segments has the type of a message that was sent whole", DROP
    ),
    "a checksum covers its last byte": Mutant(
        compute_checksums,
        "a checksum does not cover itself",
        Through(lambda covered: range(covered.start - 1, covered.stop)),
    ),
    "any data id will do": Mutant(
        end_to_end.check_checksums, "the data id in the header is that of the message", NEVER
    ),
}
