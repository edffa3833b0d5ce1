"""The options of pcapng blocks (draft-ietf-opsawg-pcapng, 3.5): code, length, value, padding to a multiple of 4 bytes."""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import Any

COMMENT = 1  # opt_comment, of blocks of every type


def read_options(
    buffer: Any, at: int, limit: int, order: str
) -> Generator[tuple[int, bytes], None, tuple[int, int] | None]:
    """Code and value of each option in buffer[at:limit], a uint8 array, until the end mark or an option that does not fit.

    order: "<" or ">". Returns the position and the bytes of the option that does not fit, None if each does.
    """
    while at + 4 <= limit:
        code, size = struct.unpack_from(order + "HH", buffer, at)
        if code == 0:
            break
        if at + 4 + size > limit:
            return at, 4 + size
        yield code, buffer[at + 4 : at + 4 + size].tobytes()
        at += 4 + (size + 3 & -4)
    return None


def read_comments(buffer: Any, at: int, limit: int, order: str) -> str:
    """The comments in buffer[at:limit], one in a line, "" if there is none. Bytes that are not UTF-8 become U+FFFD."""
    values = (value for code, value in read_options(buffer, at, limit, order) if code == COMMENT)
    texts = (value.rstrip(b"\0").decode("utf-8", "replace") for value in values)
    return "\n".join(text for text in texts if text)
