"""Values of SOME/IP payloads as rows of `signals`. Rows of one path or array are adjacent, which keeps the files small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pcaplake.parser.table_spec import INT16, INT32, INT64
from pcaplake.signals.arrow_columns import TextDictionary, take_rows
from pcaplake.signals.compiled_signal import Ints
from pcaplake.signals.tables import KEYS, SIGNALS_SCHEMA

from .description import PayloadMessage
from .payloads import DecodedPayloads

_TYPES = {"value": np.float64, "raw": np.int64, "label": np.int32, "unit": np.int32, "signal": np.int32}


class _Labels(TextDictionary):
    """Keeps the empty text, which a message can contain."""

    def encode_text(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known))


class PayloadRowsBuilder:
    """Collects columns as numpy arrays and converts them to Arrow once. `frames`: rows of `someip_messages`."""

    def __init__(self, frames: pa.RecordBatch) -> None:
        self._frames = frames
        self._texts = {name: TextDictionary() for name in ("message", "signal", "unit")} | {"label": _Labels()}
        self._heads: list[tuple[int, int, int, int]] = []  # message, service id, method id, rows of each piece
        self._rows: list[Ints] = []
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in _TYPES}
        self._masks: dict[str, list[NDArray[np.bool_]]] = {name: [] for name in ("valid", "no value", "no raw", "list")}
        self._lists: list[NDArray[np.float64]] = []
        self._list_sizes: list[Ints] = []

    def add_values(self, message: PayloadMessage, rows: Ints, decoded: DecodedPayloads) -> None:
        """Add the values of one leaf; `rows`: the row of each payload in the input."""
        values = decoded.values.decoded
        count = len(values)
        rows = rows[decoded.rows]
        paths = self._texts["signal"].encode_texts(decoded.paths)
        labels = np.full(count, -1, np.int32)
        if values.labels is not None:
            labels = np.append(self._texts["label"].encode_texts(values.names), np.int32(-1))[values.labels]
        (unit,) = self._texts["unit"].encode_texts([values.signal.scales[0].unit or ""])
        columns: dict[str, NDArray[Any]] = {
            "value": values.value,
            "raw": np.zeros(count, np.int64) if values.raw is None else values.raw,
            "label": labels,
            "unit": np.full(count, unit, np.int32),
            "signal": np.full(count, paths[0], np.int32) if decoded.path_of is None else paths[decoded.path_of],
        }
        for name, column in columns.items():
            self._parts[name].append(column)
        nothing = np.zeros(count, np.bool_)
        masks = {
            "valid": ~nothing if values.valid is None else values.valid,
            "no value": nothing if values.known is None else ~values.known,
            "no raw": ~nothing if values.raw is None else nothing,
            "list": ~nothing if decoded.values.lists is not None else nothing,
        }
        for name, mask in masks.items():
            self._masks[name].append(mask)
        sizes = np.zeros(count, np.int64)
        if decoded.values.lists is not None:
            offsets, numbers = decoded.values.lists
            sizes = np.diff(offsets).astype(np.int64)
            self._lists.append(numbers)
        self._list_sizes.append(sizes)
        self._rows.append(rows)
        head = (self._texts["message"].encode_text(message.name), message.service_id, message.method_id, count)
        self._heads.append(head)

    def build_batch(self) -> pa.RecordBatch:
        if not self._rows:
            return pa.RecordBatch.from_pylist([], SIGNALS_SCHEMA)
        heads = np.array(self._heads, np.int64)
        counts = heads[:, 3]
        total = int(counts.sum())
        rows = pa.array(np.concatenate(self._rows))
        parts = {name: np.concatenate(arrays) for name, arrays in self._parts.items()}
        masks = {name: np.concatenate(arrays) for name, arrays in self._masks.items()}
        known = set(self._frames.schema.names)
        arrays = {name: take_rows(self._frames.column(name), rows) for name in KEYS if name in known} | {
            "message": self._texts["message"].to_arrow_array(np.repeat(heads[:, 0], counts)),
            "signal": self._texts["signal"].to_arrow_array(parts["signal"]),
            "can_id": pa.nulls(total, INT64),
            "lin_id": pa.nulls(total, INT16),
            "value": pa.array(parts["value"], mask=masks["no value"]),
            "label": self._texts["label"].to_arrow_array(parts["label"]),
            "raw_value": pa.array(parts["raw"], mask=masks["no raw"]),
            "unit": self._texts["unit"].to_arrow_array(parts["unit"]),
            "valid": pa.array(masks["valid"]),
            "service_id": pa.array(np.repeat(heads[:, 1], counts).astype(np.int32), INT32),
            "method_id": pa.array(np.repeat(heads[:, 2], counts).astype(np.int32), INT32),
            "values": self._build_lists(masks["list"]),
        }
        columns = [
            arrays[field.name] if field.name in arrays else pa.nulls(total, field.type) for field in SIGNALS_SCHEMA
        ]
        return pa.RecordBatch.from_arrays(columns, schema=SIGNALS_SCHEMA)

    def _build_lists(self, is_list: NDArray[np.bool_]) -> pa.Array:
        kind = SIGNALS_SCHEMA.field("values").type
        if not self._lists:
            return pa.nulls(len(is_list), kind)
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(self._list_sizes))]).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(offsets), pa.array(np.concatenate(self._lists)), type=kind, mask=pa.array(~is_list)
        )
