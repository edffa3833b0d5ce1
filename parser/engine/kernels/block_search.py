"""The search for the next whole pcapng block behind bytes that cannot be read."""

from __future__ import annotations

from pcaplake.parser.engine.kernel_types import Bytes, Int64s

from . import kernel
from .encoding import BYTE_ORDER_MAGIC, SECTION_HEADER, SECTION_LEAST
from .raw_memory import load, swap


@kernel
def find_pcapng_block(
    data: Bytes, start: int, until: int, end: int, big: int, least: int, longest: int, types: Int64s
) -> int:
    """The first position in start <= at < until where a pcapng block of one of `types` lies whole before `end`; or -1.

    Its two lengths are equal and between `least` and `longest`, and a section header states the byte order in which it is
    read. The reader must accept what is found here: else it searches the same bytes again.
    """
    for at in range(start, min(until, end - least + 1)):
        word = load(data, at)
        if big:
            word = swap(word)
            kind, size = (word >> 32) & 0xFFFFFFFF, word & 0xFFFFFFFF
        else:
            kind, size = word & 0xFFFFFFFF, (word >> 32) & 0xFFFFFFFF
        # rule: a block lies whole before the end
        if size < least or size > longest or size & 3 or at + size > end:
            continue
        known = False
        for k in range(types.size):
            # rule: the block has one of the types
            known = known or types[k] == kind
        if kind == SECTION_HEADER:
            mark = load(data, at + 8)
            known &= size >= SECTION_LEAST and (swap(mark) >> 32 if big else mark) & 0xFFFFFFFF == BYTE_ORDER_MAGIC
        if known:
            echo = load(data, at + size - 4)
            echo = (swap(echo) >> 32 if big else echo) & 0xFFFFFFFF
            # rule: both lengths of the block are equal
            if echo == size:
                return at
    return -1
