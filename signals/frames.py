"""Decodes batches of frames to rows of `signals`.

Groups the frames of a batch by bus and id, decodes each group at once, and joins the results. Remote frames, error frames and
frames that no database describes are not decoded. Signals of a LIN frame with errors are decoded and not `valid`. Rows of one
signal are adjacent, which keeps the files small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pcaplake.parser.table_spec import STRING

from .choice import Choice
from .compiled import CompiledMessage
from .compiled_signal import Bytes, DecodedSignal, Ints
from .containers import ContainerCounts, find_contained
from .database import UNKNOWN_CHANNEL, Databases
from .j1939 import identifiers
from .model import FLEXRAY_CYCLES, Kind, Message
from .rows import SignalRowsBuilder
from .tables import FRAME_IDS, KEYS, ROW_IDS, wide_columns, wide_schema
from .wide_arrays import spread_over_frames, to_label_array, to_value_array

_COPIED: Final = (*KEYS, "tp_packets")
"""The columns of a frame that its signals have too."""


class FrameDecoder:
    """Decodes all messages of all buses, or a choice of their signals; compiles a message at its first frame. Not thread-safe.

    `counts` grows: what containers had."""

    def __init__(self, databases: Databases, choice: Choice | None = None) -> None:
        self._databases, self._choice = databases, choice
        self._compiled: dict[str, CompiledMessage] = {}
        self.counts = ContainerCounts()

    def decode_signals(self, kind: Kind, frames: pa.RecordBatch) -> pa.Table:
        """Rows of `signals`. `frames` has the columns INPUT[kind] in any order; other columns are ignored."""
        builder, column = SignalRowsBuilder(frames, _COPIED), ROW_IDS[kind]
        errors = frames.column("errors") if kind in ("lin", "flexray") else None
        faulty = None if errors is None else _to_numpy(pc.fill_null(errors, 0)) != 0
        for group in self._decode_groups(kind, frames):
            for decoded in group.signals:
                rows, places, valid = group.rows, group.places, decoded.valid
                if decoded.rows is not None:
                    rows, places = rows[decoded.rows], None if places is None else places[decoded.rows]
                if faulty is not None:
                    valid = ~faulty[rows] if valid is None else valid & ~faulty[rows]
                (signal,) = builder.encode_signals([decoded.signal.name])
                builder.add(
                    rows,
                    decoded,
                    message=group.message.name,
                    signal=int(signal),
                    valid=valid,
                    places=places,
                    ids={column: group.number},
                )
        return builder.build_table()

    def decode_wide_rows(self, kind: Kind, name: str, frames: pa.RecordBatch) -> pa.Table:
        """Rows of `signals_<name>`, one per frame of that message."""
        messages = messages_named(self._databases, name)
        columns, schema = wide_columns(messages), wide_schema(messages)
        parts = [schema.empty_table()]
        for group in self._decode_groups(kind, frames, name):
            rows = group.rows
            names = [name for name in KEYS if name in frames.schema.names]
            keys = frames.select(names).take(pa.array(rows))
            arrays_by_column: dict[str, pa.Array] = dict(zip(names, keys.columns, strict=True))
            arrays_by_column[ROW_IDS[kind]] = pa.repeat(
                pa.scalar(group.number, schema.field(ROW_IDS[kind]).type), len(rows)
            )
            if group.places is not None:
                arrays_by_column["contained_no"] = pa.array(group.places.astype(np.int32))
            for decoded_signal in group.signals:
                column, its_rows = columns[decoded_signal.signal.name], decoded_signal.rows
                value, label = to_value_array(decoded_signal), to_label_array(decoded_signal)
                arrays_by_column[column] = spread_over_frames(value, its_rows, len(rows))
                arrays_by_column[f"{column}_label"] = spread_over_frames(label, its_rows, len(rows))
            arrays = [arrays_by_column.get(field.name, pa.nulls(len(rows), field.type)) for field in schema]
            parts.append(pa.Table.from_arrays(arrays, schema=schema))
        return pa.concat_tables(parts).combine_chunks()

    def _decode_groups(self, kind: Kind, frames: pa.RecordBatch, only: str | None = None) -> Iterator[_DecodedGroup]:
        payloads = Payloads(frames.column("payload"))
        for message, number, rows in self._group_by_message(kind, frames):
            group = _DecodedGroup(message, number, rows)
            if compiled := self._compile(message, only):
                lengths = payloads.lengths[rows]
                matrix = payloads.payload_matrix(rows, compiled.width(int(lengths.max())))
                yield replace(group, signals=compiled.decode_frames(matrix, lengths))
            for container in message.containers:
                wanted = {key: part for key, part in container.contained if self._compile(part, only)}
                if not wanted:
                    continue
                offsets, lengths = payloads.offsets[rows], payloads.lengths[rows]
                for header_id, pdus in find_contained(container, payloads.data, offsets, lengths, self.counts):
                    if (part := wanted.get(header_id)) is not None:
                        compiled = self._compiled[part.definition_hash]
                        matrix = payloads.gather_bytes(pdus.offsets, compiled.width(int(pdus.lengths.max())))
                        signals = compiled.decode_frames(matrix, pdus.lengths)
                        yield replace(group, message=part, rows=rows[pdus.rows], places=pdus.places, signals=signals)

    def _group_by_message(self, kind: Kind, frames: pa.RecordBatch) -> Iterator[tuple[Message, int, Ints]]:
        """Each message, the id of its rows, and the frames that have it, in order."""
        cycles: defaultdict[tuple[str | None, str], list[tuple[Message, Ints]]] = defaultdict(list)
        for bus, extended, frame_id, rows in group_by_id(kind, frames):
            network = self._databases.network_of_bus(bus)
            message = None if network is None else network.find_message(kind, frame_id, extended)
            if message is None:
                continue
            if kind == "flexray":  # whose groups are single cycles
                cycles[bus, message.definition_hash].append((message, rows))
            else:
                yield message, frame_id if message.kind == "can" else message.id, rows
        for parts in cycles.values():
            yield parts[0][0], parts[0][0].id, np.sort(np.concatenate([rows for _, rows in parts]))

    def _compile(self, message: Message, only: str | None) -> CompiledMessage | None:
        """None if no signal of the message itself is wanted."""
        if (message.containers and not message.signals) or (only is not None and message.name != only):
            return None
        definition = message.definition_hash
        if self._choice is not None and definition not in self._choice:
            return None
        compiled = self._compiled.get(definition)
        if compiled is None:
            chosen = None if self._choice is None else self._choice[definition]
            compiled = self._compiled[definition] = CompiledMessage(message, chosen)
        return compiled


@dataclass(frozen=True, slots=True)
class _DecodedGroup:
    """The signals of one message in some rows of frames, which may repeat. `number`: in the column of ids. `places`: of the PDUs
    in their containers; None outside of containers."""

    message: Message
    number: int
    rows: Ints
    signals: Sequence[DecodedSignal] = ()
    places: Ints | None = None


def messages_named(databases: Databases, name: str) -> list[Message]:
    """All distinct definitions with that name."""
    parts = (part for _, message in databases for part in message.parts)
    return list({part.definition_hash: part for part in parts if part.name == name}.values())


# -- frames -----------------------------------------------------------------------------------------------------------
def group_by_id(kind: Kind, frames: pa.RecordBatch) -> Iterator[tuple[str | None, bool, int, Ints]]:
    """(bus, extended, id, row numbers of its frames in order); skips frames without an id, remote and null frames.

    Of FlexRay: slot * 64 + cycle, and whether the channel is B; plus UNKNOWN_CHANNEL if it is unknown.
    """
    ids, is_decodable, extended = _IDS[kind](frames)
    bus = frames.column("bus") if "bus" in frames.schema.names else pa.nulls(frames.num_rows, pa.string())
    coded = (bus if pa.types.is_dictionary(bus.type) else bus.dictionary_encode()) if len(bus) else None
    if coded is None:
        return
    names: list[str | None] = [*coded.dictionary.to_pylist(), None]
    codes = _to_numpy(coded.indices.cast(pa.int64()).fill_null(len(names) - 1))
    key = _to_numpy(ids.cast(pa.int64()).fill_null(0)) | extended << 32 | codes << 33
    places = np.flatnonzero(is_decodable.to_numpy(zero_copy_only=False))
    if not len(places):
        return
    ids = pa.array(key[places]).dictionary_encode()
    distinct_keys = _to_numpy(ids.dictionary)
    group = _to_numpy(ids.indices)
    if len(distinct_keys) <= 1 << 16:
        group = group.astype(np.uint16)  # numpy sorts these by radix
    order = places[np.argsort(group, kind="stable")]
    ends = np.cumsum(np.bincount(group, minlength=len(distinct_keys)))
    for frame_key, start, end in zip(distinct_keys.tolist(), [0, *ends[:-1]], ends, strict=True):
        yield names[frame_key >> 33], bool(frame_key >> 32 & 1), frame_key & 0xFFFFFFFF, order[start:end]


def _can_ids(frames: pa.RecordBatch) -> tuple[pa.Array, pa.Array, NDArray[Any]]:
    ids = frames.column("can_id")
    is_decodable = pc.and_(pc.is_valid(ids), pc.invert(pc.fill_null(frames.column("rtr"), False)))
    return ids, is_decodable, _to_numpy(pc.fill_null(frames.column("extended"), False).cast(pa.int64()))


def _flexray_ids(frames: pa.RecordBatch) -> tuple[pa.Array, pa.Array, NDArray[Any]]:
    slots, cycles = frames.column("frame_id"), frames.column("cycle")
    channel = frames.column("channel").cast(STRING)
    is_decodable = pc.and_(
        pc.and_(pc.is_valid(slots), pc.is_valid(cycles)), pc.invert(pc.fill_null(frames.column("null_frame"), False))
    )
    unknown = pc.is_null(channel).cast(pa.int64())
    ids = pc.add(pc.multiply(slots.cast(pa.int64()), FLEXRAY_CYCLES), cycles.cast(pa.int64()))
    ids = pc.add(ids, pc.multiply(unknown, UNKNOWN_CHANNEL))
    return ids, is_decodable, _to_numpy(pc.fill_null(pc.equal(channel, "B"), False).cast(pa.int64()))


def _plain_ids(kind: Kind) -> Callable[[pa.RecordBatch], tuple[pa.Array, pa.Array, NDArray[Any]]]:
    def read(frames: pa.RecordBatch) -> tuple[pa.Array, pa.Array, NDArray[Any]]:
        ids = frames.column(FRAME_IDS[kind])
        return ids, pc.is_valid(ids), np.zeros(frames.num_rows, np.int64)

    return read


def _j1939_ids(frames: pa.RecordBatch) -> tuple[pa.Array, pa.Array, NDArray[Any]]:
    """Identifiers of J1939 messages that have several frames; messages of one frame are in `can_frames`."""
    names = ("priority", "pgn", "source_address", "destination_address")
    fields = [_to_numpy(pc.fill_null(frames.column(name), 0).cast(pa.int64())) for name in names]
    is_group = pc.fill_null(pc.less(frames.column("pgn"), 1 << 18), False)
    # rule: messages of one frame come from `can_frames` alone
    is_of_several = pc.is_valid(frames.column("tp_packets"))
    ids = pa.array(identifiers(*fields))
    return ids, pc.and_(is_group, is_of_several), np.ones(frames.num_rows, np.int64)


_IDS: Final[dict[Kind, Callable[[pa.RecordBatch], tuple[pa.Array, pa.Array, NDArray[Any]]]]] = {
    "can": _can_ids,
    "lin": _plain_ids("lin"),
    "flexray": _flexray_ids,
    "pdu": _plain_ids("pdu"),
    "j1939": _j1939_ids,
}


def _to_numpy(array: pa.Array) -> NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


class Payloads:
    """A binary column as a matrix of bytes, built without a Python loop over rows. `data`: all bytes; `offsets`, `lengths`: where
    the payload of each row is in it."""

    def __init__(self, column: pa.Array) -> None:
        column = column.cast(pa.large_binary())
        _, offsets, data = column.buffers()
        self.offsets = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self.lengths = np.diff(self.offsets)
        if column.null_count:
            self.lengths[~column.is_valid().to_numpy(zero_copy_only=False)] = 0
        self.data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        self._padded = np.zeros(0, np.uint8)

    def payload_matrix(self, rows: Ints, width: int) -> Bytes:
        """uint8 of shape (rows, width); bytes after the end of a payload are arbitrary."""
        return self.gather_bytes(self.offsets[rows], width)

    def gather_bytes(self, offsets: Ints, width: int) -> Bytes:
        """The bytes of `data` from each of these offsets on: uint8 of shape (offsets, width); arbitrary after the end."""
        needed = len(self.data) + width
        if len(self._padded) < needed:
            self._padded = np.concatenate([self.data, np.zeros(max(width, 256), np.uint8)])
        windows = np.ndarray((len(self.data) + 1,), f"V{width}", self._padded, 0, (1,))
        return np.frombuffer(windows[offsets].tobytes(), np.uint8).reshape(len(offsets), width)
