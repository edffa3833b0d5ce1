"""Collects the rows of the table `faults` while a capture is decoded, and makes batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pcaplake.parser.schemas import FAULTS

from .arrays import array_of_runs, constant_dictionary_array, primitive_array
from .batch import NO_DAY
from .kernels import encoding
from .texts import Formatter

UNKNOWN = -1  # as a value of `decoded` and `recorder_dropped`
MAX_ROWS, MAX_PARTS = 65_536, 4096  # limits of a batch of faults; a part is the faults of one morsel


class FaultRows:
    """The faults of one capture.

    columns: of the table `faults`, None if faults are only counted. names, formatters: as for `Decoder`.
    """

    def __init__(
        self, columns: Sequence[str] | None, names: Mapping[str, str | None], formatters: Mapping[str, Formatter]
    ) -> None:
        self.by_reason: dict[str, int] = {}  # reason -> count
        self._columns, self._names, self._formatters = columns, names, formatters
        self._parts: list[dict[str, Any]] = []
        self._count = 0  # rows of these parts
        self._last_packet = (-1, 0)  # the last packet that had faults, and how many

    @property
    def is_batch_full(self) -> bool:
        return self._count >= MAX_ROWS or len(self._parts) >= MAX_PARTS

    def append_rows(self, **part: Any) -> int:
        """Add faults as columns, in the order of their packets, and return how many rows the table gets."""
        for reason in part["reason"]:
            self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
        if self._columns is None:
            return 0
        numbers = part["packet_no"]
        sub = np.empty(numbers.size, np.int32)
        last, count = self._last_packet
        for i, number in enumerate(numbers.tolist()):
            count = count + 1 if number == last else 0
            sub[i], last = count, number
        self._last_packet = (last, count)
        part["sub_no"] = sub
        self._parts.append(part)
        self._count += len(sub)
        return len(sub)

    def build_batch(self) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows since the last batch, if there are any."""
        parts, n = self._parts, self._count
        self._parts, self._count = [], 0
        if not n or self._columns is None:
            return
        joined = {
            name: np.concatenate([p[name] for p in parts])
            for name in (
                *("packet_no", "sub_no", "ts_ns", "day", "interface"),
                *("decoded", "offset", "need", "have", "recorder_dropped"),
            )
        }
        times, days = joined["ts_ns"].astype(np.int64), joined["day"].astype(np.int32)
        numbers, name_of = joined["interface"].tolist(), self._formatters["interface_names"]
        names = {number: name_of(0, number) if number >= 0 else None for number in set(numbers)}
        words = {name: [w for p in parts for w in p[name]] for name in ("layer", "reason")}
        words["interface"] = [names[number] for number in numbers]
        # not Arrow's own conversions, which import numpy.ma and pyarrow.compute: longer than to decode a small capture
        arrays = {
            **{key: constant_dictionary_array(self._names[key], n) for key in ("capture_id", "vehicle_id")},
            **{name: array_of_runs([*enumerate(of_rows)], n) for name, of_rows in words.items()},
            "date": primitive_array(pa.date32(), days, days != NO_DAY),
            "ts": primitive_array(pa.timestamp("us", tz="UTC"), times // 1000, times != encoding.NO_TIME),
            "ts_ns": primitive_array(pa.int64(), times, times != encoding.NO_TIME),
            "sub_no": primitive_array(pa.int32(), joined["sub_no"], None),
            "offset": primitive_array(pa.int64(), joined["offset"].astype(np.int64), joined["offset"] >= 0),
            **{
                name: primitive_array(pa.int64(), joined[name].astype(np.int64), None)
                for name in ("packet_no", "need", "have")
            },
            **{
                name: primitive_array(pa.bool_(), joined[name] > 0, joined[name] != UNKNOWN)
                for name in ("decoded", "recorder_dropped")
            },
        }
        fields = [FAULTS.schema.field(name) for name in FAULTS.columns if name in self._columns]
        columns = [arrays[field.name] for field in fields]
        schema = pa.schema([pa.field(f.name, a.type, f.nullable) for f, a in zip(fields, columns, strict=True)])
        yield "faults", pa.RecordBatch.from_arrays(columns, schema=schema)
