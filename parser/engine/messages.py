"""Gives the pieces of a morsel to their assemblers, and decodes the messages that are whole with the morsel's other rows.

The messages are written behind the bytes of the morsel, each as a record of the layer `message` of its declaration, and the
same walk decodes them. Their rows have the packets of their last pieces; a slot of a row that no layer of the message fills has
the position that it has in the packet of the last piece. So every column is filled as for other rows, and no header is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .batch import Morsel
from .found_rows import FoundRows
from .kernels import carried, encoding
from .kernels.raw_memory import SLACK
from .pieces import MessageHeader, Reassembly
from .reassembly import Assembler, Gap, Message, PieceRows, assembler_of
from .row_keys import key_words
from .row_values import RowValueReader
from .scratch import ScratchBuffers, Walker


class Fault(NamedTuple):
    """A fault that is not of the walk over a morsel. code: of the reason, as the walk of a message found it."""

    ordinal: int  # of the packet; -1 - n: behind n packets of the morsel
    layer: str
    reason: str
    offset: int  # in the capture
    need: int
    have: int
    code: int = 0


TOO_MANY_ROWS = "too_many_rows"
HEADER = struct.Struct(MessageHeader.__hdr_fmt__)


@dataclass(frozen=True, slots=True)
class FoundPieces:
    """The pieces of one kind in a morsel.

    ordinals   int32[n], of their packets
    """

    rows: PieceRows
    ordinals: Any


class MessageDecoder:
    """Puts the messages of one capture together and finds their rows.

    room: bytes for all that is incomplete. Every kind has its own share, so that what one kind loses does not depend on where
    morsels end.
    """

    def __init__(self, walk: Walker, room: int, buffers: ScratchBuffers) -> None:
        self.program, self._walk, self._buffers = walk.program, walk, buffers
        self._share = room // len(self.program.reassemblies)
        # of the kinds that the capture has
        self.assemblers: dict[Reassembly, Assembler[Any]] = {}
        self._readers: dict[Reassembly, RowValueReader] = {}

    def put_together(self, found: FoundRows, morsel: Morsel) -> list[Fault]:
        """Add the rows of the messages that are whole now to those that were found. Returns the faults."""
        faults: list[Fault] = []
        for kind, table in self.program.piece_tables.items():
            found.merge_table(table)
            if not found.table_rows[table]:
                continue
            if kind not in self.assemblers:
                self.assemblers[kind] = assembler_of(kind, self._share)
            pieces = self._read_pieces(kind, found, morsel)
            messages, gaps = self.assemblers[kind].add_pieces(pieces.rows)
            faults += [
                Fault(int(pieces.ordinals[gap.piece]), kind.name, gap.reason, gap.offset, gap.need, gap.have)
                for gap in gaps
            ]
            if messages:
                faults += self._decode(kind, messages, pieces, found, morsel)
        for table in list(found.added):
            found.merge_table(table)
        return faults

    def finish(self) -> Iterator[tuple[str, Gap]]:
        """The layer and the gap of each message that is incomplete at the end of the capture, in the order of the capture."""
        gaps = [
            (kind.name, gap)
            for kind in self.program.reassemblies
            if kind in self.assemblers
            for gap in self.assemblers[kind].finish()
        ]
        # what is left of the messages has the order in which their assemblers may forget them, which is another one
        yield from sorted(gaps, key=lambda found: (found[1].offset, found[1].need, found[1].have))

    def release(self) -> None:
        """Keep the working memory for the next capture."""
        self._buffers.release_buffers(self.program, self._buffers.clean)

    # -- pieces ---------------------------------------------------------------------------------------------------
    def _read_pieces(self, kind: Reassembly, found: FoundRows, morsel: Morsel) -> FoundPieces:
        t = self.program.piece_tables[kind]
        n = int(found.table_rows[t])
        table, data = found.tables[t], found.data_of(t)
        buses = list(self.program.buses[kind.name])
        if kind not in self._readers:
            self._readers[kind] = RowValueReader(self.program, kind.name, [*kind.values(), *buses])
        read = self._readers[kind].read(found, morsel)
        begins, ends = table[encoding.BODY, :n], table[encoding.BODY_END, :n]
        # rule: pieces of two buses have nothing in common
        keys = [*(f"key{i}" for i in range(len(kind.key))), *buses]
        begins, ends = begins.astype(np.int64), ends.astype(np.int64)
        rows = PieceRows(
            words=key_words([read.interfaces, *(read.columns[name] for name in keys)]),
            packet_times=read.times,
            data=data,
            begins=begins,
            ends=ends,
            places=found.capture_offsets(t, begins),
            columns={name: column for name, column in read.columns.items() if name not in keys},
        )
        return FoundPieces(rows, table[encoding.ORDINAL, :n].copy())

    # -- messages -------------------------------------------------------------------------------------------------
    def _decode(
        self, kind: Reassembly, messages: Sequence[Message], pieces: FoundPieces, found: FoundRows, morsel: Morsel
    ) -> list[Fault]:
        """Write the messages behind the morsel, walk them, and add their rows to `found`. Returns their faults."""
        last = np.array([message.piece for message in messages])
        sizes = np.array([MessageHeader.__hdr_len__ + len(message.body) for message in messages], np.int64)
        begins = np.cumsum(sizes) - sizes
        size = int(begins[-1] + sizes[-1])
        position, memory = found.append_messages(size + SLACK)
        written = memoryview(memory.data)
        for at, message in zip(begins.tolist(), messages, strict=True):
            HEADER.pack_into(written, at, len(message.body), message.value & 0xFFFFFFFF, message.pieces, 0)
            at += MessageHeader.__hdr_len__
            written[at : at + len(message.body)] = message.body
        written[size:] = bytes(SLACK)
        end, begins = position + size, position + begins
        found.messages += begins.tolist()
        found.offsets += pieces.rows.places[last].tolist()
        faults: list[Fault] = []
        room, before = self._buffers, 0
        slots, positions = self._carried_positions(kind, found)
        for walked, n_faults in self._walk_messages(kind, found, position, end):
            owners = last[before : before + walked]
            before += walked
            packets = pieces.ordinals[owners]
            # rule: a packet is named after the innermost layer of its messages
            morsel.packets[encoding.DEEPEST, packets] = room.packets[encoding.DEEPEST, :walked]
            for fault in room.faults[:, :n_faults].T.tolist():
                message = max(fault[encoding.X_PACKET], 0)
                offset = pieces.rows.offsets[int(owners[message])]
                layer, code = self.program.layers[fault[encoding.X_LAYER]].name, fault[encoding.X_REASON]
                values = encoding.FAULTS[code], offset, fault[encoding.X_NEED], fault[encoding.X_HAVE], code
                faults.append(Fault(int(packets[message]), layer, *values))
            # the walk leaves room for the rows of a packet, and a message may be longer
            most = room.tables.shape[2] - 1
            if (room.table_rows >= most).any():
                offset = pieces.rows.offsets[int(owners[-1])]
                faults.append(Fault(int(packets[-1]), kind.name, TOO_MANY_ROWS, offset, most + 1, most))
            program, tables, sources = self.program, room.tables, room.all_slots
            places = program.owner, program.first_slots, slots, positions
            carried.adopt_rows(tables, room.table_rows, sources, room.source_rows, *places, owners, packets)
            found.add_rows(tables, room.table_rows, room.sources, room.source_rows)
        return faults

    def _carried_positions(self, kind: Reassembly, found: FoundRows) -> tuple[Any, Any]:
        """What rows of messages take from their last pieces, as `adopt_rows` wants it.

        slots       int64[sources, slots]
        positions   int32[places, pieces]: what was at each of the places `Program.carried` when the walk found each piece
        """
        program, places = self.program, self.program.carried[kind]
        slots, own = program.keep(("carried", kind), lambda: self._carried_slots(kind))
        table = program.piece_tables[kind]
        positions = np.full((len(places), found.table_rows[table]), -1, np.int32)
        shift = 0 if table in found.moved else found.begin
        for s, own_slots in own.items():
            if found.source_rows[s]:
                carried.read_carried_positions(found.sources[s], found.source_rows[s], own_slots, shift, positions)
        return slots, positions

    def _carried_slots(self, kind: Reassembly) -> tuple[Any, dict[int, Any]]:
        """`slots` for `adopt_rows`; for each source of pieces the slots of `Program.carried`."""
        program, places = self.program, self.program.carried[kind]
        index = np.full(encoding.PLACES * len(program.layers) + 1, -1)
        index[list(places)] = np.arange(len(places))
        return index[program.uses], {
            s: np.array([encoding.STARTS + program.sources[s].uses.index(place) for place in places], np.int64)
            for s in program.piece_sources[kind]
        }

    def _walk_messages(self, kind: Reassembly, found: FoundRows, position: int, end: int) -> Iterator[tuple[int, int]]:
        """Walk the records of joined[position:end], a part at a time. Yields the numbers of records and of faults."""
        data = found.joined
        assert data is not None
        state = np.zeros(encoding.STATE_FIELDS, np.int64)
        state[encoding.POSITION], state[encoding.TRUSTED] = position, -1
        state[encoding.INTERFACES], state[encoding.LONGEST] = 1, end
        state[encoding.MOST_ROWS] = self._buffers.morsel_rows
        clocks = np.zeros((1, encoding.CLOCK_WIDTH), np.int64)
        status = encoding.FULL
        while status == encoding.FULL:
            status = self._walk(data, end, self.program.number[kind.message], -1, clocks, state, self._buffers)
            yield int(state[encoding.N_PACKETS]), int(state[encoding.N_FAULTS])
