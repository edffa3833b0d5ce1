"""The columns of the table of integers that `walk` reads, and of its results."""

from __future__ import annotations

from typing import Final

# -- kinds of nodes
NOTHING, NUMBER, TEXT, NUMBERS, ARRAY, STRUCT, TAGGED, UNION = range(8)

# -- columns of a node: sizes are bytes; MAXIMUM -1: any number; KEY: selector of a variant, data id of a tagged member
(
    KIND, FIRST, COUNT, SIZE, LENGTH_BYTES, LENGTH_LITTLE, SELECTOR_BYTES, SELECTOR_LITTLE,
    ALIGN, MINIMUM, MAXIMUM, LEAF, KEY, WHOLE,
) = range(14)  # fmt: skip
FIELDS: Final = 14

# -- columns of an open container on the stack
F_NODE, F_INSTANCE, F_DONE, F_END, F_OUTER, F_SIZED, F_NEXT, F_VARIANT = range(8)
FRAME: Final = 8

# -- state of a walk: where it continues, and what it has filled
MESSAGE, VALUES, INSTANCES, FULL = range(4)
NOT_FULL, VALUES_FULL, INSTANCES_FULL = range(3)

# -- flags of a message
SHORT, LONG, DAMAGED, UNKNOWN = 1, 2, 4, 8

HEADER: Final = 16
"""Bytes of the SOME/IP header before the payload: alignment counts from the start of the message."""
