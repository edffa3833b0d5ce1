"""Decodes rows of `someip_messages` to rows of `signals`. The payloads stay where Arrow has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pcaplake.signals.compiled_signal import Bytes, Ints
from pcaplake.signals.rows import SignalRowsBuilder
from pcaplake.signals.tables import KEYS

from .choice import PathChoice
from .description import PayloadMessage, Services
from .kernels import encoding as E
from .payloads import DecodedPayloads, PayloadDecoder
from .wide import WidePayloads

INPUT: Final = (
    *(name for name in KEYS if name not in ("bus", "bus_time_ns", "source")),
    "service_id",
    "method_id",
    "client_id",
    "session_id",
    "protocol_version",
    "interface_version",
    "message_type",
    "return_code",
    "tp_complete",
    "payload",
)
"""The columns of `someip_messages` that are read."""
SERVICE_DISCOVERY_ID: Final = 0xFFFF
_SEGMENTED: Final = 0x20
_FLAGS: Final = {"short": E.SHORT, "long": E.LONG, "damaged": E.DAMAGED, "unknown_members": E.UNKNOWN}


@dataclass(kw_only=True)
class PayloadCounts:
    """What the decoder met: numbers of messages. One message may count under several of the lower four.

    `unknown`: by service id, method id, message type and interface version, that no description has. `short`: a member did
    not fit in the payload; `long`: bytes were left, or elements beyond the maximum; `damaged`: a length field contradicts what
    contains it; `unknown_members`: a selector or data id is not described. `wrong_checksums`: of end-to-end protection.
    """

    decoded: int = 0
    unknown: Counter[tuple[int, int, int, int]] = field(default_factory=Counter)
    short: Counter[str] = field(default_factory=Counter)
    long: Counter[str] = field(default_factory=Counter)
    damaged: Counter[str] = field(default_factory=Counter)
    unknown_members: Counter[str] = field(default_factory=Counter)
    wrong_checksums: Counter[str] = field(default_factory=Counter)

    def add(self, other: PayloadCounts) -> None:
        """Add the numbers of another decoder."""
        self.decoded += other.decoded
        self.unknown += other.unknown
        for name in (*_FLAGS, "wrong_checksums"):
            getattr(self, name).update(getattr(other, name))


class SomeipDecoder:
    """Decodes all messages that `services` describes; compiles a message at its first payload. Not thread-safe.

    `choice`: which signals are wanted; None: all. `counts` grows.
    """

    def __init__(self, services: Services, choice: PathChoice | None = None) -> None:
        self._services, self._choice = services, choice
        self._compiled: dict[str, PayloadDecoder] = {}
        self.counts = PayloadCounts()

    def decode_signals(self, frames: pa.RecordBatch) -> pa.Table:
        """Rows of `signals`. `frames` has the columns INPUT in any order; other columns are ignored."""
        builder = SignalRowsBuilder(frames, KEYS, empty_labels=True)
        for message, rows, decoded in self._decode_groups(frames):
            for part in decoded:
                values, codes = part.values.decoded, builder.encode_signals(part.paths)
                whole = part.path_of is None and len(part.rows) == len(rows)  # each payload has one such value
                builder.add(
                    rows if whole else rows[part.rows],
                    values,
                    message=message.name,
                    signal=int(codes[0]) if part.path_of is None else codes[part.path_of],
                    valid=values.valid,
                    lists=part.values.lists,
                    ids={"service_id": message.service_id, "method_id": message.method_id},
                )
        return builder.build_table()

    def decode_wide_rows(self, table: WidePayloads, frames: pa.RecordBatch) -> pa.Table:
        """Rows of a wide table, one for each of its messages; `frames` as above."""
        parts = [table.schema.empty_table()]
        for message, rows, decoded in self._decode_groups(frames, table.definitions):
            parts.append(table.build_rows(frames, message, rows, decoded))
        return pa.concat_tables(parts).combine_chunks()

    def _decode_groups(
        self, frames: pa.RecordBatch, only: Container[str] | None = None
    ) -> Iterator[tuple[PayloadMessage, Ints, list[DecodedPayloads]]]:
        """`only`: the definitions of the messages that are decoded; None: all."""
        data, offsets = _payload_bytes(frames.column("payload"))
        for key, rows in group_by_message(frames):
            message = self._services.find_message(*key)
            if message is None:
                if key[0] != SERVICE_DISCOVERY_ID:
                    self.counts.unknown[key] += len(rows)
                continue
            if only is not None and message.definition_hash not in only:
                continue
            if self._choice is not None and not self._choice.takes_any_of(message):
                continue
            compiled = self._compiled.get(message.definition_hash)
            if compiled is None:
                compiled = PayloadDecoder(message)
                if self._choice is not None:
                    compiled = PayloadDecoder(message, self._choice.leaves_of(message))
                self._compiled[message.definition_hash] = compiled
            headers = np.zeros((len(rows), 8), np.uint8) if message.e2e is None else _header_bytes(frames, rows)
            decoded, flags = compiled.decode_payloads(data, offsets[rows], offsets[rows + 1], headers)
            self._count(message, flags, decoded)
            if self._choice is not None:
                decoded = [kept for part in decoded if (kept := _only_chosen(part, self._choice, message)) is not None]
            yield message, rows, decoded

    def _count(self, message: PayloadMessage, flags: NDArray[np.int32], decoded: list[DecodedPayloads]) -> None:
        self.counts.decoded += len(flags)
        for name, flag in _FLAGS.items():
            if number := int(np.count_nonzero(flags & flag)):
                getattr(self.counts, name)[message.name] += number
        if message.e2e is not None and decoded and decoded[0].paths[0] == "E2E.crc":
            valid = decoded[0].values.decoded.valid
            if valid is not None and (number := int(np.count_nonzero(~valid))):
                self.counts.wrong_checksums[message.name] += number


def _only_chosen(part: DecodedPayloads, choice: PathChoice, message: PayloadMessage) -> DecodedPayloads | None:
    """The values of the chosen paths; None: no path is chosen."""
    chosen = np.array([choice.takes(message, path) for path in part.paths])
    if not chosen.any():
        return None
    if chosen.all() or part.path_of is None:
        return part
    kept = np.flatnonzero(chosen[part.path_of])
    values, decoded = part.values, part.values.decoded
    columns: dict[str, Any] = {
        name: None if (column := getattr(decoded, name)) is None else column[kept]
        for name in ("value", "raw", "known", "valid", "labels", "units")
    }
    lists = values.lists
    if lists is not None:
        offsets, numbers = lists
        whole = pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers)).take(pa.array(kept))
        lists = np.asarray(whole.offsets), np.asarray(whole.values)
    return replace(
        part,
        rows=part.rows[kept],
        path_of=part.path_of[kept],
        values=replace(values, decoded=replace(decoded, **columns), lists=lists),
    )


def group_by_message(frames: pa.RecordBatch) -> Iterator[tuple[tuple[int, int, int, int], Ints]]:
    """(service id, method id, message type, interface version) and the rows that have them, in order.

    Skips TP segments, whose message has a row of its own, and rows without a payload.
    """
    whole = pc.and_(pc.fill_null(frames.column("tp_complete"), True), pc.is_valid(frames.column("payload")))
    places = np.flatnonzero(whole.to_numpy(zero_copy_only=False))
    if not len(places):
        return
    columns = ("service_id", "method_id", "message_type", "interface_version")
    service, method, message_type, version = (_integers(frames.column(name)) for name in columns)
    # rule: the message of TP segments has the type of a message that was sent whole
    message_type = message_type & ~_SEGMENTED
    key = (service << 32 | method << 16 | message_type << 8 | version)[places]
    coded = pa.array(key).dictionary_encode()
    distinct, group = _integers(coded.dictionary), _integers(coded.indices)
    if len(distinct) <= 1 << 16:
        group = group.astype(np.uint16)  # numpy sorts these by radix
    order = places[np.argsort(group, kind="stable")]
    ends = np.cumsum(np.bincount(group, minlength=len(distinct)))
    for number, start, end in zip(distinct.tolist(), [0, *ends[:-1]], ends, strict=True):
        yield (number >> 32, number >> 16 & 0xFFFF, number >> 8 & 0xFF, number & 0xFF), order[start:end]


def _integers(column: pa.Array) -> NDArray[Any]:
    return np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))


def _payload_bytes(column: pa.Array) -> tuple[Bytes, Ints]:
    """All bytes of a binary column, and where each row begins, int64 of rows + 1. Nothing is copied but small offsets."""
    large = pa.types.is_large_binary(column.type)
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        return np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int64)
    places = np.frombuffer(offsets, np.int64 if large else np.int32)[column.offset : column.offset + len(column) + 1]
    return np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8), places.astype(np.int64)


def _header_bytes(frames: pa.RecordBatch, rows: Ints) -> Bytes:
    """The SOME/IP header of each row from the client id on: 8 bytes."""
    column = {name: _integers(frames.column(name))[rows] for name in ("client_id", "session_id")}
    single = ("protocol_version", "interface_version", "message_type", "return_code")
    pairs = [half for values in column.values() for half in (values >> 8, values & 255)]
    others = [_integers(frames.column(name))[rows] for name in single]
    others[2] = others[2] & ~_SEGMENTED
    return np.stack([*pairs, *others], axis=1).astype(np.uint8)
