"""Frames -> rows of `signals`, batch by batch: what runs on executors.

Groups the frames of a batch by bus and id, decodes each group at once, and puts the groups together. Knows Arrow and
compiled messages. Must not know Spark sessions, tables' places or streams.

Not decoded: remote frames, error frames, and frames that no database describes. Signals of a LIN frame with errors are
there, and not `valid`. Rows of one signal stand together: they are alike, so the files are small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from parser.tables import INT16, INT64, STRING

from .compiled import Bytes, CompiledMessage, Decoded, Ints
from .database import Databases
from .model import Kind, Message
from .tables import KEYS, SIGNALS_SCHEMA, wide_columns, wide_schema

FRAMES_AT_ONCE = 131_072
ROWS_OUT = 65_536


class Decoder:
    """All messages of all buses, compiled when the first frame of one comes. For one process, one thread."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._compiled: dict[str, CompiledMessage] = {}

    def signals(self, kind: Kind, frames: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of `signals`. `frames`: with the columns INPUT[kind], in any order, others are passed over."""
        builder = _Long(kind, frames)
        for message, rows, decoded in self._groups(kind, frames):
            for one in decoded:
                builder.add(message, rows, one)
        return builder.finish()

    def wide(self, kind: Kind, name: str, frames: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of `signals_<name>`, one per frame of that message."""
        messages = messages_of(self._databases, name)
        columns, schema = wide_columns(messages), wide_schema(messages)
        parts = [schema.empty_table()]
        for message, rows, decoded in self._groups(kind, frames, name):
            keys = frames.select(list(KEYS)).take(pa.array(rows))
            made: dict[str, pa.Array] = dict(zip(KEYS, keys.columns, strict=True))
            made |= _ids(kind, message.id, len(rows))
            for one in decoded:
                value, label = _spread(one, len(rows))
                made[columns[one.signal.name]] = value
                made[f"{columns[one.signal.name]}_label"] = label
            arrays = [made.get(field.name, pa.nulls(len(rows), field.type)) for field in schema]
            parts.append(pa.Table.from_arrays(arrays, schema=schema))
        return _one(pa.concat_tables(parts))

    def _groups(
        self, kind: Kind, frames: pa.RecordBatch, only: str | None = None
    ) -> Iterator[tuple[Message, Ints, list[Decoded]]]:
        payloads = _Payloads(frames.column("payload"))
        for bus, extended, frame_id, rows in _by_id(kind, frames):
            network = self._databases.at(bus)
            message = None if network is None else network.messages.get((kind, frame_id, extended))
            if message is None or (only is not None and message.name != only):
                continue
            compiled = self._compiled.get(message.hash)
            if compiled is None:
                compiled = self._compiled[message.hash] = CompiledMessage(message)
            yield message, rows, compiled.decode(payloads.matrix(rows, compiled.width), payloads.lengths[rows])


def messages_of(databases: Databases, name: str) -> list[Message]:
    """All definitions of that name, without repeats."""
    return list({one.hash: one for _, one in databases if one.name == name}.values())


def decode_all(
    databases: Databases, kind: Kind, batches: Iterable[pa.RecordBatch], wide: str | None = None
) -> Iterator[pa.RecordBatch]:
    """What `mapInArrow` calls: few large batches are decoded instead of many small ones, and given in parts."""
    decoder = Decoder(databases)
    for frames in _gathered(batches):
        found = decoder.signals(kind, frames) if wide is None else decoder.wide(kind, wide, frames)
        for start in range(0, found.num_rows, ROWS_OUT):
            yield found.slice(start, ROWS_OUT)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    held: list[pa.RecordBatch] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += batch.num_rows
        if count >= FRAMES_AT_ONCE:
            yield _one(pa.Table.from_batches(held))
            held, count = [], 0
    if count:
        yield _one(pa.Table.from_batches(held))


def _one(table: pa.Table) -> pa.RecordBatch:
    found = table.combine_chunks().to_batches()
    return found[0] if found else pa.RecordBatch.from_pylist([], table.schema)


# -- frames -----------------------------------------------------------------------------------------------------------
def _by_id(kind: Kind, frames: pa.RecordBatch) -> Iterator[tuple[str | None, bool, int, Ints]]:
    """(bus, extended, id, places of its frames in their order); frames without an id, and remote ones, are left out."""
    ids = frames.column("can_id" if kind == "can" else "lin_id")
    wanted = pc.is_valid(ids)
    extended = np.zeros(frames.num_rows, np.int64)
    if kind == "can":
        wanted = pc.and_(wanted, pc.invert(pc.fill_null(frames.column("rtr"), False)))
        extended = _numbers(pc.fill_null(frames.column("extended"), False).cast(pa.int64()))
    bus = frames.column("bus")
    coded = (bus if pa.types.is_dictionary(bus.type) else bus.dictionary_encode()) if len(bus) else None
    if coded is None:
        return
    names: list[str | None] = [*coded.dictionary.to_pylist(), None]
    codes = _numbers(coded.indices.cast(pa.int64()).fill_null(len(names) - 1))
    key = _numbers(ids.cast(pa.int64()).fill_null(0)) | extended << 32 | codes << 33
    places = np.flatnonzero(wanted.to_numpy(zero_copy_only=False))
    if not len(places):
        return
    ids = pa.array(key[places]).dictionary_encode()
    found = _numbers(ids.dictionary)
    group = _numbers(ids.indices)
    if len(found) <= 1 << 16:
        group = group.astype(np.uint16)  # numpy sorts these by radix
    order = places[np.argsort(group, kind="stable")]
    ends = np.cumsum(np.bincount(group, minlength=len(found)))
    for one, start, end in zip(found.tolist(), [0, *ends[:-1]], ends, strict=True):
        yield names[one >> 33], bool(one >> 32 & 1), one & 0xFFFFFFFF, order[start:end]


def _numbers(array: pa.Array) -> NDArray[Any]:
    return np.asarray(array.to_numpy(zero_copy_only=False))


class _Payloads:
    """A binary column as rows of bytes, without Python for a row."""

    def __init__(self, column: pa.Array) -> None:
        column = column.cast(pa.large_binary())
        _, offsets, data = column.buffers()
        self._offsets = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        self.lengths = np.diff(self._offsets)
        if column.null_count:
            self.lengths[~column.is_valid().to_numpy(zero_copy_only=False)] = 0
        self._data = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
        self._padded = np.zeros(0, np.uint8)

    def matrix(self, rows: Ints, width: int) -> Bytes:
        """uint8 of shape (rows, width); behind a payload stands whatever stood there."""
        needed = len(self._data) + width
        if len(self._padded) < needed:
            self._padded = np.concatenate([self._data, np.zeros(max(width, 256), np.uint8)])
        windows = np.ndarray((len(self._data) + 1,), f"V{width}", self._padded, 0, (1,))
        return np.frombuffer(windows[self._offsets[rows]].tobytes(), np.uint8).reshape(len(rows), width)


# -- rows -------------------------------------------------------------------------------------------------------------
class _Long:
    """Collects the columns of `signals`: per signal a few numpy arrays, Arrow's only once at the end."""

    def __init__(self, kind: Kind, frames: pa.RecordBatch) -> None:
        self._kind, self._frames = kind, frames
        self._messages, self._signals, self._units, self._labels = _Texts(), _Texts(), _Texts(), _Texts()
        self._heads: list[tuple[int, int, int, int]] = []  # message, signal, id, rows of each piece
        self._rows: list[Ints] = []
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in ("value", "raw", "label", "unit")}
        self._valid: list[NDArray[np.bool_]] = []
        self._unknown: list[tuple[int, NDArray[np.bool_]]] = []  # where values are null, by piece
        self._wide: list[int] = []  # pieces without raw values
        errors = None if kind == "can" else frames.column("errors")
        self._bad = None if errors is None else _numbers(pc.fill_null(errors, 0)) != 0

    def add(self, message: Message, rows: Ints, one: Decoded) -> None:
        mine = rows if one.rows is None else rows[one.rows]
        count, piece = len(one), len(self._heads)
        valid = np.ones(count, np.bool_) if one.valid is None else one.valid
        if self._bad is not None:
            valid = valid & ~self._bad[mine]
        if one.known is not None and not one.known.all():
            self._unknown.append((piece, ~one.known))
        if one.raw is None:
            self._wide.append(piece)
        labels = _nothing(count)
        if one.labels is not None:
            codes = self._labels.codes(one.names)
            labels = np.append(codes, np.int32(-1))[one.labels]
        units = self._units.codes([scale.unit or "" for scale in one.signal.scales])
        parts = self._parts
        parts["value"].append(one.value)
        parts["raw"].append(np.zeros(count, np.int64) if one.raw is None else one.raw)
        parts["label"].append(labels)
        parts["unit"].append(np.full(count, units[0]) if one.units is None else units[one.units])
        self._valid.append(valid)
        self._rows.append(mine)
        self._heads.append((self._messages.code(message.name), self._signals.code(one.signal.name), message.id, count))

    def finish(self) -> pa.RecordBatch:
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
        made = {name: _take(self._frames.column(name), rows) for name in KEYS} | {
            "message": self._messages.array(np.repeat(heads[:, 0], counts)),
            "signal": self._signals.array(np.repeat(heads[:, 1], counts)),
            "can_id": pa.array(numbers) if self._kind == "can" else pa.nulls(total, INT64),
            "lin_id": pa.array(numbers.astype(np.int16)) if self._kind == "lin" else pa.nulls(total, INT16),
            "value": pa.array(np.concatenate(self._parts["value"]), mask=unknown),
            "label": self._labels.array(np.concatenate(self._parts["label"])),
            "raw_value": pa.array(np.concatenate(self._parts["raw"]), mask=wide),
            "unit": self._units.array(np.concatenate(self._parts["unit"])),
            "valid": pa.array(np.concatenate(self._valid)),
        }
        return pa.RecordBatch.from_arrays([made[name] for name in SIGNALS_SCHEMA.names], schema=SIGNALS_SCHEMA)


class _Texts:
    """Texts as numbers while rows are collected; the empty text is null."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def code(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known)) if text else -1

    def codes(self, texts: Iterable[str]) -> NDArray[np.int32]:
        return np.array([self.code(text) for text in texts], np.int32)

    def array(self, codes: NDArray[Any]) -> pa.Array:
        absent = codes < 0
        if absent.all():
            return pa.nulls(len(codes), STRING)
        return pa.array(list(self._known), STRING).take(pa.array(codes, mask=absent))


def _nothing(count: int) -> NDArray[np.int32]:
    return np.full(count, -1, np.int32)


def _take(column: pa.Array, rows: pa.Array) -> pa.Array:
    """`take`, and quicker where all values are one: most batches are of one capture, one day and one bus."""
    if column.null_count == len(column):
        return pa.nulls(len(rows), column.type)
    if not column.null_count and column[0] == column[-1] and pc.all(pc.equal(column, column[0])).as_py():
        return pa.repeat(column[0], len(rows))
    return column.take(rows)


def _ids(kind: Kind, number: int, count: int) -> dict[str, pa.Array]:
    return {
        "can_id": pa.repeat(pa.scalar(number, INT64), count) if kind == "can" else pa.nulls(count, INT64),
        "lin_id": pa.repeat(pa.scalar(number, INT16), count) if kind == "lin" else pa.nulls(count, INT16),
    }


def _values(one: Decoded) -> pa.Array:
    return pa.array(one.value) if one.known is None else pa.array(one.value, mask=~one.known)


def _labels(one: Decoded) -> pa.Array:
    if one.labels is None or not (one.labels >= 0).any():
        return pa.nulls(len(one), STRING)
    return pa.array(list(one.names), STRING).take(pa.array(one.labels, mask=one.labels < 0))


def _spread(one: Decoded, count: int) -> tuple[pa.Array, pa.Array]:
    """Value and label for every frame, null where it does not hold the signal."""
    value, label = _values(one), _labels(one)
    if one.rows is None:
        return value, label
    places = np.full(count, -1, np.int64)
    places[one.rows] = np.arange(len(one.rows))
    at = pa.array(places, mask=places < 0)
    return value.take(at), label.take(at)
