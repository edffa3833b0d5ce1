"""Puts messages together from their pieces. Pure: pieces in, messages and gaps out; nothing here knows a protocol.

`assembler_of` makes the assembler of a declaration (`pieces.Reassembly`). An assembler keeps what it has of incomplete
messages within its share of memory; the oldest ones go first. It gets the pieces of one capture in the order of their
packets, so where a morsel ends makes no difference.
"""

from __future__ import annotations

from typing import Any

from pcaplake.parser.engine.pieces import Fragments, Reassembly, Segments, Stream

from .assembler import GAP, TOO_LONG, Assembler, Gap, Message
from .fragments import FragmentAssembler
from .piece_rows import PieceRows
from .segments import SegmentAssembler
from .streams import StreamAssembler

__all__ = ["GAP", "TOO_LONG", "Assembler", "Gap", "Message", "PieceRows", "assembler_of"]


def assembler_of(declaration: Reassembly, room: int) -> Assembler[Any]:
    """The assembler of a declaration. room: bytes that it may keep of incomplete messages."""
    match declaration:
        case Fragments():
            return FragmentAssembler(declaration, room)
        case Segments():
            return SegmentAssembler(declaration, room)
        case Stream():
            return StreamAssembler(declaration, room)
    raise TypeError(f"no assembler for {type(declaration).__name__}")
