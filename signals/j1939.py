"""J1939: which message of a database a CAN frame of 29 bits is.

A parameter group is found by its number. The priority is never compared, and the destination address of a group that is sent to
one receiver (PDU1) neither. The source address is compared if the database names one: 0xFE (no address) and 0xFF (all) in an
identifier name none. Layout: SAE J1939-21, section 5.2.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

GROUP_KEYS: Final = 1 << 40
"""Added to the number of a message that is found by its parameter group: above every CAN identifier."""
ANY_SOURCE: Final = 0x100
NO_SOURCE: Final = 0xFE
_NO_SOURCE: Final = (NO_SOURCE, 0xFF)
_FIRST_BROADCAST: Final = 240  # PDU2: bits 8 to 15 belong to the number
BROADCAST_MASK: Final = 0x3FFFF00
ADDRESSED_MASK: Final = 0x3FF0000
"""Bits of an identifier that say which group it is, for both kinds of groups."""


def parameter_group(can_id: int) -> int:
    """The number of the parameter group of an identifier, without the destination address."""
    number = can_id >> 8 & 0x3FFFF
    return number if number >> 8 & 0xFF >= _FIRST_BROADCAST else number & 0x3FF00


def group_key(can_id: int) -> int:
    """The number of a message with this identifier in the database."""
    source = can_id & 0xFF
    return GROUP_KEYS | parameter_group(can_id) << 9 | (ANY_SOURCE if source in _NO_SOURCE else source)


def frame_keys(can_id: int) -> tuple[int, int]:
    """The numbers of messages that a frame with this identifier may be: with its source address, or with any."""
    group = GROUP_KEYS | parameter_group(can_id) << 9
    return group | can_id & 0xFF, group | ANY_SOURCE


def masked_identifier(key: int) -> tuple[int, int]:
    """(mask, bits): all identifiers of the group of this number have these bits, of which some other identifiers may too."""
    number = key >> 9 & 0x3FFFF
    mask = BROADCAST_MASK if number >> 8 & 0xFF >= _FIRST_BROADCAST else ADDRESSED_MASK
    return mask, number << 8


def masked_group(key: int) -> tuple[int, int]:
    """(mask, bits): all numbers of parameter groups that are the group of this number of a message have these bits."""
    mask, bits = masked_identifier(key)
    return mask >> 8, bits >> 8


def identifiers(
    priority: NDArray[Any], group: NDArray[Any], source: NDArray[Any], destination: NDArray[Any]
) -> NDArray[np.int64]:
    """The identifier that a frame with a message would have, int64. Not for groups of more than 18 bits."""
    to_all = (group >> 8 & 0xFF) >= _FIRST_BROADCAST
    number = np.where(to_all, group, group & 0x3FF00 | destination)
    result: NDArray[np.int64] = priority << 26 | number << 8 | source
    return result
