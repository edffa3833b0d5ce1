"""Decodes batches of frames to rows of `signals`, on executors.

Groups the frames of a batch by bus and id, decodes each group at once, and joins the results. Remote frames, error frames and
frames that no database describes are not decoded. Signals of a LIN frame with errors are decoded and not `valid`. Rows of one
signal are adjacent, which keeps the files small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pcaplake.parser.schemas import INT16, INT64, STRING

from .compiled import Bytes, CompiledMessage, DecodedSignal, Ints
from .database import Databases
from .model import Kind, Message
from .tables import KEYS, SIGNALS_SCHEMA, wide_columns, wide_schema

FRAMES_AT_ONCE = 131_072
ROWS_OUT = 65_536


class FrameDecoder:
    """Decodes all messages of all buses; compiles a message at its first frame. Not thread-safe."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._compiled: dict[str, CompiledMessage] = {}

    def decode_signals(self, kind: Kind, frames: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of `signals`. `frames` has the columns INPUT[kind] in any order; other columns are ignored."""
        builder = _SignalRowsBuilder(kind, frames)
        for message, rows, decoded in self._decode_groups(kind, frames):
            for decoded_signal in decoded:
                builder.add_signal(message, rows, decoded_signal)
        return builder.build_batch()

    def decode_wide_rows(self, kind: Kind, name: str, frames: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of `signals_<name>`, one per frame of that message."""
        messages = messages_named(self._databases, name)
        columns, schema = wide_columns(messages), wide_schema(messages)
        parts = [schema.empty_table()]
        for message, rows, decoded in self._decode_groups(kind, frames, name):
            keys = frames.select(list(KEYS)).take(pa.array(rows))
            arrays_by_column: dict[str, pa.Array] = dict(zip(KEYS, keys.columns, strict=True))
            arrays_by_column |= _id_columns(kind, message.id, len(rows))
            for decoded_signal in decoded:
                value, label = _spread_over_frames(decoded_signal, len(rows))
                arrays_by_column[columns[decoded_signal.signal.name]] = value
                arrays_by_column[f"{columns[decoded_signal.signal.name]}_label"] = label
            arrays = [arrays_by_column.get(field.name, pa.nulls(len(rows), field.type)) for field in schema]
            parts.append(pa.Table.from_arrays(arrays, schema=schema))
        return _to_single_batch(pa.concat_tables(parts))

    def _decode_groups(
        self, kind: Kind, frames: pa.RecordBatch, only: str | None = None
    ) -> Iterator[tuple[Message, Ints, list[DecodedSignal]]]:
        payloads = _Payloads(frames.column("payload"))
        for bus, extended, frame_id, rows in _group_by_id(kind, frames):
            network = self._databases.network_of_bus(bus)
            message = None if network is None else network.messages.get((kind, frame_id, extended))
            if message is None or (only is not None and message.name != only):
                continue
            compiled = self._compiled.get(message.definition_hash)
            if compiled is None:
                compiled = self._compiled[message.definition_hash] = CompiledMessage(message)
            yield (
                message,
                rows,
                compiled.decode_frames(payloads.payload_matrix(rows, compiled.width), payloads.lengths[rows]),
            )


def messages_named(databases: Databases, name: str) -> list[Message]:
    """All distinct definitions with that name."""
    return list({message.definition_hash: message for _, message in databases if message.name == name}.values())


def decode_batches(
    databases: Databases, kind: Kind, batches: Iterable[pa.RecordBatch], wide: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`: joins small batches before decoding, and yields the rows in parts."""
    decoder = FrameDecoder(databases)
    for frames in _gather_batches(batches):
        decoded_rows = (
            decoder.decode_signals(kind, frames) if wide is None else decoder.decode_wide_rows(kind, wide, frames)
        )
        for start in range(0, decoded_rows.num_rows, ROWS_OUT):
            yield decoded_rows.slice(start, ROWS_OUT)


def _gather_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    gathered: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        gathered.append(batch)
        count += batch.num_rows
        if count >= FRAMES_AT_ONCE:
            yield _to_single_batch(pa.Table.from_batches(gathered))
            gathered, count = [], 0
    if count:
        yield _to_single_batch(pa.Table.from_batches(gathered))


def _to_single_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


# -- frames -----------------------------------------------------------------------------------------------------------
def _group_by_id(kind: Kind, frames: pa.RecordBatch) -> Iterator[tuple[str | None, bool, int, Ints]]:
    """(bus, extended, id, row numbers of its frames in order); skips remote frames and frames without an id."""
    ids = frames.column("can_id" if kind == "can" else "lin_id")
    is_decodable = pc.is_valid(ids)
    extended = np.zeros(frames.num_rows, np.int64)
    if kind == "can":
        is_decodable = pc.and_(is_decodable, pc.invert(pc.fill_null(frames.column("rtr"), False)))
        extended = _to_numpy(pc.fill_null(frames.column("extended"), False).cast(pa.int64()))
    bus = frames.column("bus")
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


def _to_numpy(array: pa.Array) -> NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


class _Payloads:
    """A binary column as a matrix of bytes, built without a Python loop over rows."""

    def __init__(self, column: pa.Array) -> None:
        column = column.cast(pa.large_binary())
        _, offsets, data = column.buffers()
        self._offsets = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self.lengths = np.diff(self._offsets)
        if column.null_count:
            self.lengths[~column.is_valid().to_numpy(zero_copy_only=False)] = 0
        self._data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        self._padded = np.zeros(0, np.uint8)

    def payload_matrix(self, rows: Ints, width: int) -> Bytes:
        """uint8 of shape (rows, width); bytes after the end of a payload are arbitrary."""
        needed = len(self._data) + width
        if len(self._padded) < needed:
            self._padded = np.concatenate([self._data, np.zeros(max(width, 256), np.uint8)])
        windows = np.ndarray((len(self._data) + 1,), f"V{width}", self._padded, 0, (1,))
        return np.frombuffer(windows[self._offsets[rows]].tobytes(), np.uint8).reshape(len(rows), width)


# -- rows -------------------------------------------------------------------------------------------------------------
class _SignalRowsBuilder:
    """Collects the columns of `signals` as numpy arrays for each signal, and converts them to Arrow once."""

    def __init__(self, kind: Kind, frames: pa.RecordBatch) -> None:
        self._kind, self._frames = kind, frames
        self._messages = _TextDictionary()
        self._signals = _TextDictionary()
        self._units = _TextDictionary()
        self._labels = _TextDictionary()
        self._heads: list[tuple[int, int, int, int]] = []  # message, signal, id, rows of each piece
        self._rows: list[Ints] = []
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in ("value", "raw", "label", "unit")}
        self._valid: list[NDArray[np.bool_]] = []
        self._unknown: list[tuple[int, NDArray[np.bool_]]] = []  # where values are null, by piece
        self._wide: list[int] = []  # pieces without raw values
        errors = None if kind == "can" else frames.column("errors")
        self._error_mask = None if errors is None else _to_numpy(pc.fill_null(errors, 0)) != 0

    def add_signal(self, message: Message, rows: Ints, decoded: DecodedSignal) -> None:
        frame_rows = rows if decoded.rows is None else rows[decoded.rows]
        count, piece = len(decoded), len(self._heads)
        valid = np.ones(count, np.bool_) if decoded.valid is None else decoded.valid
        if self._error_mask is not None:
            valid = valid & ~self._error_mask[frame_rows]
        if decoded.known is not None and not decoded.known.all():
            self._unknown.append((piece, ~decoded.known))
        if decoded.raw is None:
            self._wide.append(piece)
        labels = np.full(count, -1, np.int32)
        if decoded.labels is not None:
            codes = self._labels.encode_texts(decoded.names)
            labels = np.append(codes, np.int32(-1))[decoded.labels]
        units = self._units.encode_texts([scale.unit or "" for scale in decoded.signal.scales])
        parts = self._parts
        parts["value"].append(decoded.value)
        parts["raw"].append(np.zeros(count, np.int64) if decoded.raw is None else decoded.raw)
        parts["label"].append(labels)
        parts["unit"].append(np.full(count, units[0]) if decoded.units is None else units[decoded.units])
        self._valid.append(valid)
        self._rows.append(frame_rows)
        self._heads.append(
            (
                self._messages.encode_text(message.name),
                self._signals.encode_text(decoded.signal.name),
                message.id,
                count,
            )
        )

    def build_batch(self) -> pa.RecordBatch:
        if not self._rows:
            return pa.RecordBatch.from_pylist([], SIGNALS_SCHEMA)
        heads = np.array(self._heads, np.int64)
        counts = heads[:, 3]
        starts = np.concatenate([[0], np.cumsum(counts)])
        total = int(starts[-1])
        rows = pa.array(np.concatenate(self._rows))
        numbers = np.repeat(heads[:, 2], counts)
        unknown = wide = None
        if self._unknown:
            unknown = np.zeros(total, np.bool_)
            for piece, mask in self._unknown:
                unknown[starts[piece] : starts[piece + 1]] = mask
        if self._wide:
            wide = np.zeros(total, np.bool_)
            for piece in self._wide:
                wide[starts[piece] : starts[piece + 1]] = True
        arrays_by_column = {name: _take_rows(self._frames.column(name), rows) for name in KEYS} | {
            "message": self._messages.to_arrow_array(np.repeat(heads[:, 0], counts)),
            "signal": self._signals.to_arrow_array(np.repeat(heads[:, 1], counts)),
            "can_id": pa.array(numbers) if self._kind == "can" else pa.nulls(total, INT64),
            "lin_id": pa.array(numbers.astype(np.int16)) if self._kind == "lin" else pa.nulls(total, INT16),
            "value": pa.array(np.concatenate(self._parts["value"]), mask=unknown),
            "label": self._labels.to_arrow_array(np.concatenate(self._parts["label"])),
            "raw_value": pa.array(np.concatenate(self._parts["raw"]), mask=wide),
            "unit": self._units.to_arrow_array(np.concatenate(self._parts["unit"])),
            "valid": pa.array(np.concatenate(self._valid)),
        }
        return pa.RecordBatch.from_arrays(
            [arrays_by_column[name] for name in SIGNALS_SCHEMA.names], schema=SIGNALS_SCHEMA
        )


class _TextDictionary:
    """Stores texts as codes while rows are collected; the empty text becomes null."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def encode_text(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known)) if text else -1

    def encode_texts(self, texts: Iterable[str]) -> NDArray[np.int32]:
        return np.array([self.encode_text(text) for text in texts], np.int32)

    def to_arrow_array(self, codes: NDArray[Any]) -> pa.Array:
        absent = codes < 0
        if absent.all():
            return pa.nulls(len(codes), STRING)
        return pa.array(list(self._known), STRING).take(pa.array(codes, mask=absent))


def _take_rows(column: pa.Array, rows: pa.Array) -> pa.Array:
    """`take`, but faster if all values are equal: most batches have one capture, one day and one bus."""
    if column.null_count == len(column):
        return pa.nulls(len(rows), column.type)
    if not column.null_count and column[0] == column[-1] and pc.all(pc.equal(column, column[0])).as_py():
        return pa.repeat(column[0], len(rows))
    return column.take(rows)


def _id_columns(kind: Kind, number: int, count: int) -> dict[str, pa.Array]:
    return {
        "can_id": pa.repeat(pa.scalar(number, INT64), count) if kind == "can" else pa.nulls(count, INT64),
        "lin_id": pa.repeat(pa.scalar(number, INT16), count) if kind == "lin" else pa.nulls(count, INT16),
    }


def _value_array(decoded: DecodedSignal) -> pa.Array:
    return pa.array(decoded.value) if decoded.known is None else pa.array(decoded.value, mask=~decoded.known)


def _label_array(decoded: DecodedSignal) -> pa.Array:
    if decoded.labels is None or not (decoded.labels >= 0).any():
        return pa.nulls(len(decoded), STRING)
    return pa.array(list(decoded.names), STRING).take(pa.array(decoded.labels, mask=decoded.labels < 0))


def _spread_over_frames(decoded: DecodedSignal, count: int) -> tuple[pa.Array, pa.Array]:
    """Value and label for every frame, null where the frame does not hold the signal."""
    value, label = _value_array(decoded), _label_array(decoded)
    if decoded.rows is None:
        return value, label
    places = np.full(count, -1, np.int64)
    places[decoded.rows] = np.arange(len(decoded.rows))
    at = pa.array(places, mask=places < 0)
    return value.take(at), label.take(at)
