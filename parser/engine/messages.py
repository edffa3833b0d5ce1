"""Gives the pieces of a morsel to their assemblers, and decodes the messages that are whole with the morsel's other rows.

The messages are written behind the bytes of the morsel, each as a record of the layer `message` of its declaration, and the
same walk decodes them. Their rows have the packets of their last pieces; a slot of a row that no layer of the message fills has
the position that it has in the packet of the last piece. So every column is filled as for other rows, and no header is copied.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .batch import BatchBuilder, Layout, Morsel
from .kernels import encoding
from .kernels.raw_memory import SLACK
from .objects import Bytes
from .pieces import MessageHeader, Reassembly
from .reassembly import Assembler, Gap, Message, PieceRows, assembler_of
from .scratch import ScratchBuffers, Walker

Fault = tuple[int, str, str, int, int, int]  # ordinal of the packet, layer, reason, offset in the capture, need, have
LEAST_ROWS = 256  # of the smallest layout of pieces


@dataclass(frozen=True, slots=True)
class FoundPieces:
    """The pieces of one kind in a morsel.

    ordinals   int32[n], of their packets
    """

    rows: PieceRows
    ordinals: Any


@dataclass(slots=True)
class FoundRows:
    """The rows that the walk found in a morsel.

    data             where they are
    tables           for each table int32[TABLE_FIELDS, >= rows]
    sources          for each source int32[STARTS + slots, >= rows]
    table_rows, source_rows   int64: how many rows of these are used
    first            offset in the capture of data[0]
    messages, offsets   where each message begins in `data`, and the offset in the capture of its last piece
    """

    data: Bytes
    tables: Any
    sources: Any
    table_rows: Any
    source_rows: Any
    first: int
    messages: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def capture_offsets(self, positions: Any) -> Any:
        """The offsets in the capture of positions in `data`; in a message, that of its last piece."""
        if not self.messages:
            return positions + self.first
        message = np.searchsorted(np.array(self.messages), positions, side="right")
        return np.where(message > 0, np.array([0, *self.offsets])[message], positions + self.first)

    def copy_from(self, begin: int, end: int, late: int) -> FoundRows:
        """A copy of data[begin:end] and of the rows in it, whose positions begin at 0. The slots of `late` are cleared."""
        tables, sources = [], []
        for table, n in zip(self.tables, self.table_rows.tolist(), strict=True):
            copied = table[:, :n].copy()
            copied[encoding.BODY : encoding.BODY_END + 1] -= begin
            tables.append(copied)
        for number, (source, n) in enumerate(zip(self.sources, self.source_rows.tolist(), strict=True)):
            copied = source[:, :n].copy()
            starts = copied[encoding.STARTS :]
            np.subtract(starts, begin, out=starts, where=starts >= 0)
            sources.append(copied)
            if number == late:
                source[encoding.STARTS :, :n] = -1  # as `columns.clear_row_slots` does
        return FoundRows(
            self.data[begin:end], tables, sources, self.table_rows.copy(), self.source_rows.copy(), self.first + begin
        )


def merge_rows(found: FoundRows, more: FoundRows, owner: Sequence[int]) -> None:
    """Add the rows of messages to those that were found, in the order of packets, behind the packet's other rows.

    owner: for each table the list of its sources is given by `owner`, the table of each source.
    """
    for t, n in enumerate(more.table_rows.tolist()):
        if not n:
            continue
        table = np.concatenate([found.tables[t], more.tables[t]], axis=1)
        before = found.tables[t].shape[1]
        order = np.argsort(table[encoding.ORDINAL], kind="stable")
        rank = np.empty(order.size, np.int32)
        rank[order] = np.arange(order.size, dtype=np.int32)
        table = np.take(table, order, axis=1)
        ordinals = table[encoding.ORDINAL]
        # rule: plain rows and rows of messages are numbered together
        table[encoding.SUB] = np.arange(order.size) - np.searchsorted(ordinals, ordinals)
        found.tables[t] = table
        found.table_rows[t] = order.size
        for s in (s for s, its in enumerate(owner) if its == t):
            added = more.sources[s].copy()
            added[encoding.DEST] += before
            source = np.concatenate([found.sources[s], added], axis=1)
            source[encoding.DEST] = rank[source[encoding.DEST]]
            found.sources[s] = np.take(source, np.argsort(source[encoding.DEST]), axis=1)
            found.source_rows[s] = source.shape[1]


class MessageDecoder:
    """Puts the messages of one capture together and finds their rows. room: bytes for all that is incomplete."""

    def __init__(self, walk: Walker, buffers: Callable[[], ScratchBuffers], room: int) -> None:
        self.program, self._walk, self._new_buffers = walk.program, walk, buffers
        self._buffers: ScratchBuffers | None = None
        program, kinds = self.program, self.program.reassemblies
        # every kind has its own share, so that what one kind loses does not depend on where morsels end
        self.assemblers: dict[Reassembly, Assembler[Any]] = {k: assembler_of(k, room // len(kinds)) for k in kinds}
        self._tables = {kind: program.tables.index(kind.name) for kind in kinds}
        self.first_table = min(self._tables.values(), default=len(program.tables))
        self._owner = program.owner.tolist()

    def put_together(self, found: FoundRows, begin: int, end: int, morsel: Morsel) -> tuple[FoundRows, list[Fault]]:
        """The rows of data[begin:end] with those of the messages that are whole now, and their faults."""
        faults: list[Fault] = []
        copied = False
        for kind, assembler in self.assemblers.items():
            table = self._tables[kind]
            if not found.table_rows[table]:
                continue
            pieces = self._read_pieces(kind, found, morsel)
            messages, gaps = assembler.add_pieces(pieces.rows)
            faults += [
                (int(pieces.ordinals[gap.piece]), kind.name, gap.reason, gap.offset, gap.need, gap.have) for gap in gaps
            ]
            if not messages:
                continue
            if not copied:
                found, copied = found.copy_from(begin, end, self.program.late), True
            faults += self._decode(kind, messages, pieces, found, morsel)
        return found, faults

    def finish(self) -> Iterator[tuple[str, Gap]]:
        """The layer and the gap of each message that is incomplete at the end of the capture."""
        for kind, assembler in self.assemblers.items():
            for gap in assembler.finish():
                yield kind.name, gap

    def release(self) -> None:
        """Keep the working memory for the next capture."""
        if self._buffers is not None:
            self._buffers.release_buffers(self.program, self._buffers.clean)
            self._buffers = None

    # -- pieces ---------------------------------------------------------------------------------------------------
    def _read_pieces(self, kind: Reassembly, found: FoundRows, morsel: Morsel) -> FoundPieces:
        program, t = self.program, self._tables[kind]
        n = int(found.table_rows[t])
        table = found.tables[t]
        capacity = max(LEAST_ROWS, 1 << (n - 1).bit_length())
        names = list(kind.values())
        key = ("pieces", kind, capacity)
        if key not in program.layouts:
            program.layouts[key] = Layout(program, program.specs[kind.name], [*names, "interface"], capacity)
        layout: Layout = program.layouts[key]
        batch = BatchBuilder(layout, {})
        batch.append_morsel(table, n, morsel.with_rows(found.data, found.sources, found.source_rows, n), {})
        values = {name: batch.int64_values(i).tolist() for i, name in enumerate(names)}
        interfaces = batch.keys["interface"][:n].tolist()
        times = batch.keys["ts_ns"][:n].tolist()
        layout.release_arena(batch.arena)
        begins, ends = table[encoding.BODY, :n], table[encoding.BODY_END, :n]
        view = memoryview(found.data.data)
        rows = PieceRows(
            keys=list(zip(interfaces, *(values[f"key{i}"] for i in range(len(kind.key))), strict=True)),
            times=times,
            bodies=[view[a:b] for a, b in zip(begins.tolist(), ends.tolist(), strict=True)],
            offsets=found.capture_offsets(begins.astype(np.int64)).tolist(),
            values=values,
        )
        return FoundPieces(rows, table[encoding.ORDINAL, :n].copy())

    def _carriers(self, kind: Reassembly, found: FoundRows) -> dict[int, Any]:
        """For each index in `where` that the pieces carry, these positions: int32[n] in the order of the pieces."""
        program, n = self.program, int(found.table_rows[self._tables[kind]])
        carried = {place: np.full(n, -1, np.int32) for place in program.carried[kind]}
        for number, source in enumerate(program.sources):
            if source.rows.table == kind.name and found.source_rows[number]:
                rows = found.sources[number][:, : found.source_rows[number]]
                for place, starts in carried.items():
                    starts[rows[encoding.DEST]] = rows[encoding.STARTS + source.uses.index(place)]
        return carried

    # -- messages -------------------------------------------------------------------------------------------------
    def _decode(
        self, kind: Reassembly, messages: Sequence[Message], pieces: FoundPieces, found: FoundRows, morsel: Morsel
    ) -> list[Fault]:
        """Write the messages behind `found.data`, walk them, and add their rows to `found`. Returns their faults."""
        carriers = self._carriers(kind, found)
        position, last = len(found.data), np.array([message.piece for message in messages])
        records = [
            part
            for message in messages
            for part in (
                struct.pack(">IIII", len(message.body), message.value & 0xFFFFFFFF, message.pieces, 0),
                message.body,
            )
        ]
        written = np.frombuffer(b"".join([*records, bytes(SLACK)]), np.uint8)
        data = np.concatenate([found.data, written])
        end = len(data) - SLACK
        sizes = np.array([MessageHeader.__hdr_len__ + len(message.body) for message in messages], np.int64)
        begins = position + np.cumsum(sizes) - sizes
        found.data = data
        found.messages += begins.tolist()
        found.offsets += [pieces.rows.offsets[message.piece] for message in messages]
        faults: list[Fault] = []
        walked = 0
        for more, deepest, wrong in self._walk_messages(kind, data, position, end):
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
            self._adopt(more, owners, packets, carriers)
            merge_rows(found, more, self._owner)
        return faults

    def _adopt(self, more: FoundRows, owners: Any, packets: Any, carriers: dict[int, Any]) -> None:
        """Give the rows of messages the packets of their last pieces, and the positions of the headers above these."""
        for s, source in enumerate(self.program.sources):
            rows = more.sources[s]
            if not rows.shape[1]:
                continue
            piece = owners[more.tables[source.table][encoding.ORDINAL, rows[encoding.DEST]]]
            for slot, place in enumerate(source.uses, encoding.STARTS):
                if place in carriers:
                    # rule: a header that the message lacks is the one above its last piece
                    rows[slot] = np.where(rows[slot] < 0, carriers[place][piece], rows[slot])
        for table in more.tables:
            table[encoding.ORDINAL] = packets[table[encoding.ORDINAL]]

    def _walk_messages(
        self, kind: Reassembly, data: Bytes, position: int, end: int
    ) -> Iterator[tuple[FoundRows, Any, Any]]:
        """Walk the records of data[position:end]: rows, the deepest layer of each record, and faults int64[6, n]."""
        if self._buffers is None:
            self._buffers = self._new_buffers()
        room = self._buffers
        state = np.zeros(encoding.STATE_FIELDS, np.int64)
        state[encoding.POSITION], state[encoding.TRUSTED] = position, -1
        state[encoding.INTERFACES], state[encoding.LONGEST] = 1, end
        clocks = np.zeros((1, encoding.CLOCK_WIDTH), np.int64)
        status = encoding.FULL
        while status == encoding.FULL:
            status = self._walk(data, end, self.program.number[kind.message], -1, clocks, state, room)
            more = FoundRows(
                data,
                [room.tables[t, :, :n].copy() for t, n in enumerate(room.table_rows.tolist())],
                [room.sources[s, :, :n].copy() for s, n in enumerate(room.source_rows.tolist())],
                room.table_rows.copy(),
                room.source_rows.copy(),
                0,
            )
            deepest = room.packets[encoding.DEEPEST, : int(state[encoding.N_PACKETS])].copy()
            yield more, deepest, room.faults[:, : int(state[encoding.N_FAULTS])].copy()
