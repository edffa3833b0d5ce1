"""Gives the pieces of a morsel to their assemblers, and decodes the messages that are whole with the morsel's other rows.

The messages are written behind the bytes of the morsel, each as a record of the layer `message` of its declaration, and the
same walk decodes them. Their rows have the packets of their last pieces; a slot of a row that no layer of the message fills has
the position that it has in the packet of the last piece. So every column is filled as for other rows, and no header is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .batch import BatchBuilder, Layout, Morsel
from .found_rows import FoundRows
from .kernels import encoding
from .kernels.raw_memory import SLACK
from .pieces import MessageHeader, Reassembly
from .reassembly import Assembler, Gap, Message, PieceRows, assembler_of
from .scratch import ScratchBuffers, Walker

Fault = tuple[int, str, str, int, int, int]  # ordinal of the packet, layer, reason, offset in the capture, need, have
LEAST_ROWS = 256  # of the smallest layout of pieces
TOO_MANY_ROWS = "too_many_rows"


@dataclass(frozen=True, slots=True)
class FoundPieces:
    """The pieces of one kind in a morsel.

    ordinals   int32[n], of their packets
    """

    rows: PieceRows
    ordinals: Any


def _copy_rows(rooms: Any, counts: Any) -> list[Any]:
    """The first rows of each array of int32[n, fields, room]."""
    return [room[:, :n].copy() if n else room[:, :0] for room, n in zip(rooms, counts.tolist(), strict=True)]


class MessageDecoder:
    """Puts the messages of one capture together and finds their rows.

    room: bytes for all that is incomplete. Every kind has its own share, so that what one kind loses does not depend on where
    morsels end.
    """

    def __init__(self, walk: Walker, room: int, buffers: ScratchBuffers) -> None:
        self.program, self._walk, self._buffers = walk.program, walk, buffers
        self._share = room // len(self.program.reassemblies)
        self.assemblers: dict[Reassembly, Assembler[Any]] = {}  # of the kinds that the capture has

    def put_together(self, found: FoundRows, morsel: Morsel) -> list[Fault]:
        """Add the rows of the messages that are whole now to those that were found. Returns the faults."""
        faults: list[Fault] = []
        for kind, table in self.program.piece_tables.items():
            if not found.table_rows[table]:
                continue
            if kind not in self.assemblers:
                self.assemblers[kind] = assembler_of(kind, self._share)
            pieces = self._read_pieces(kind, found, morsel)
            messages, gaps = self.assemblers[kind].add_pieces(pieces.rows)
            faults += [
                (int(pieces.ordinals[gap.piece]), kind.name, gap.reason, gap.offset, gap.need, gap.have) for gap in gaps
            ]
            if messages:
                faults += self._decode(kind, messages, pieces, found, morsel)
        return faults

    def finish(self) -> Iterator[tuple[str, Gap]]:
        """The layer and the gap of each message that is incomplete at the end of the capture."""
        for kind in self.program.reassemblies:
            if kind in self.assemblers:
                for gap in self.assemblers[kind].finish():
                    yield kind.name, gap

    def release(self) -> None:
        """Keep the working memory for the next capture."""
        self._buffers.release_buffers(self.program, self._buffers.clean)

    # -- pieces ---------------------------------------------------------------------------------------------------
    def _read_pieces(self, kind: Reassembly, found: FoundRows, morsel: Morsel) -> FoundPieces:
        program, t = self.program, self.program.piece_tables[kind]
        n = int(found.table_rows[t])
        table = found.tables[t]
        capacity = max(LEAST_ROWS, 1 << (n - 1).bit_length())
        names = list(kind.values())
        key = ("pieces", kind, capacity)
        if key not in program.layouts:
            program.layouts[key] = Layout(program, program.specs[kind.name], [*names, "interface"], capacity)
        layout: Layout = program.layouts[key]
        batch = BatchBuilder(layout, {})
        data = found.data_of(t)
        batch.append_morsel(table, n, morsel.with_rows(data, found.sources, found.source_rows, n), {})
        values = {name: batch.int64_values(i).tolist() for i, name in enumerate(names)}
        interfaces = batch.keys["interface"][:n].tolist()
        times = batch.keys["ts_ns"][:n].tolist()
        layout.release_arena(batch.arena)
        begins, ends = table[encoding.BODY, :n], table[encoding.BODY_END, :n]
        view = memoryview(data.data)
        rows = PieceRows(
            keys=list(zip(interfaces, *(values[f"key{i}"] for i in range(len(kind.key))), strict=True)),
            times=times,
            bodies=[view[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)],
            offsets=found.capture_offsets(t, begins.astype(np.int64)).tolist(),
            values=values,
        )
        return FoundPieces(rows, table[encoding.ORDINAL, :n].copy())

    # -- messages -------------------------------------------------------------------------------------------------
    def _decode(
        self, kind: Reassembly, messages: Sequence[Message], pieces: FoundPieces, found: FoundRows, morsel: Morsel
    ) -> list[Fault]:
        """Write the messages behind the morsel, walk them, and add their rows to `found`. Returns their faults."""
        last = np.array([message.piece for message in messages])
        records = [
            part
            for message in messages
            for part in (
                struct.pack(">IIII", len(message.body), message.value & 0xFFFFFFFF, message.pieces, 0),
                message.body,
            )
        ]
        written = np.frombuffer(b"".join([*records, bytes(SLACK)]), np.uint8)
        position = found.append_messages(written)
        end = position + len(written) - SLACK
        sizes = np.array([MessageHeader.__hdr_len__ + len(message.body) for message in messages], np.int64)
        begins = position + np.cumsum(sizes) - sizes
        found.messages += begins.tolist()
        found.offsets += [pieces.rows.offsets[message.piece] for message in messages]
        faults: list[Fault] = []
        walked = 0
        for more, deepest, wrong, most in self._walk_messages(kind, found, position, end):
            owners = last[walked : walked + len(deepest)]
            walked += len(deepest)
            packets = pieces.ordinals[owners]
            # rule: a packet is named after the innermost layer of its messages
            morsel.packets[encoding.DEEPEST, packets] = deepest
            for fault in wrong.T.tolist():
                message = max(fault[encoding.X_PACKET], 0)
                offset = pieces.rows.offsets[int(owners[message])]
                layer, reason = fault[encoding.X_LAYER], encoding.FAULTS[fault[encoding.X_REASON]]
                sizes_ = fault[encoding.X_NEED], fault[encoding.X_HAVE]
                faults.append((int(packets[message]), self.program.layers[layer].name, reason, offset, *sizes_))
            # the walk leaves room for the rows of a packet, and a message may be longer
            if most:
                offset = pieces.rows.offsets[int(owners[-1])]
                faults.append((int(packets[-1]), kind.name, TOO_MANY_ROWS, offset, most + 1, most))
            self._adopt(more, found, kind, owners, packets)
            found.merge_rows(more)
        return faults

    def _adopt(self, more: FoundRows, found: FoundRows, kind: Reassembly, owners: Any, packets: Any) -> None:
        """Give the rows of messages the packets of their last pieces, and the positions of the headers above these.

        owners, packets: for each message the number of its last piece, and the ordinal of that piece's packet.
        """
        carried: dict[int, Any] = {}
        for s in np.flatnonzero(more.source_rows).tolist():
            rows, source = more.sources[s], self.program.sources[s]
            message = more.tables[source.table][encoding.ORDINAL, rows[encoding.DEST]]
            for slot, place in enumerate(source.uses, encoding.STARTS):
                missing = rows[slot] < 0
                if missing.any():
                    if place not in carried:
                        carried[place] = self._positions_of_pieces(kind, found, place)
                    # rule: a header that the message lacks is the one above its last piece
                    rows[slot] = np.where(missing, carried[place][owners[message]], rows[slot])
        for t in np.flatnonzero(more.table_rows).tolist():
            table = more.tables[t]
            table[encoding.ORDINAL] = packets[table[encoding.ORDINAL]]

    def _positions_of_pieces(self, kind: Reassembly, found: FoundRows, place: int) -> Any:
        """int32[pieces]: what was at this index of `where` when the walk found each piece, -1 for nothing."""
        positions = np.full(found.table_rows[self.program.piece_tables[kind]], -1, np.int32)
        if place in self.program.carried[kind]:
            for s in self.program.piece_sources[kind]:
                rows = found.sources[s][encoding.DEST, : found.source_rows[s]]
                slot = encoding.STARTS + self.program.sources[s].uses.index(place)
                positions[rows] = found.slot_positions(s, slot)
        return positions

    def _walk_messages(
        self, kind: Reassembly, found: FoundRows, position: int, end: int
    ) -> Iterator[tuple[FoundRows, Any, Any, int]]:
        """Walk the records of joined[position:end]: rows, the deepest layer of each record, and faults int64[6, n].

        Last the rows that a table has room for, if the last message filled one, else 0.
        """
        data = found.joined
        assert data is not None
        room = self._buffers
        state = np.zeros(encoding.STATE_FIELDS, np.int64)
        state[encoding.POSITION], state[encoding.TRUSTED] = position, -1
        state[encoding.INTERFACES], state[encoding.LONGEST] = 1, end
        clocks = np.zeros((1, encoding.CLOCK_WIDTH), np.int64)
        status = encoding.FULL
        while status == encoding.FULL:
            status = self._walk(data, end, self.program.number[kind.message], -1, clocks, state, room)
            more = FoundRows(
                data=data,
                begin=position,
                end=end,
                base=0,
                tables=_copy_rows(room.tables, room.table_rows),
                sources=_copy_rows(room.sources, room.source_rows),
                table_rows=room.table_rows.copy(),
                source_rows=room.source_rows.copy(),
                owner=found.owner,
            )
            deepest = room.packets[encoding.DEEPEST, : int(state[encoding.N_PACKETS])].copy()
            most = room.tables.shape[2] - 1
            is_full = bool((room.table_rows >= most).any())
            yield more, deepest, room.faults[:, : int(state[encoding.N_FAULTS])].copy(), most if is_full else 0
