"""Collects the rows of the table `faults` while a capture is decoded, and makes batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pcaplake.parser.schemas import FAULTS

from .batch import NO_DAY
from .kernels import encoding
from .texts import Formatter

UNKNOWN = -1  # as a value of `decoded` and `recorder_dropped`
MAX_ROWS, MAX_PARTS = 65_536, 4096  # limits of a batch of faults; a part is the faults of one morsel


def _bools(values: Any) -> pa.Array:
    """Numbers that are 0, 1 or UNKNOWN."""
    return pa.array(values > 0, pa.bool_(), mask=values == UNKNOWN)


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
        words = {name: [w for p in parts for w in p[name]] for name in ("layer", "reason")}
        times, days = joined["ts_ns"].astype(np.int64), joined["day"].astype(np.int32)
        name_of = self._formatters["interface_names"]
        numbers, codes = np.unique(joined["interface"], return_inverse=True)
        names = pa.array([name_of(0, i) if i >= 0 else None for i in numbers.tolist()], pa.string())
        arrays = {
            **{key: pa.array([self._names[key]] * n, pa.string()) for key in ("capture_id", "vehicle_id")},
            "date": pa.array(days, pa.int32(), mask=days == NO_DAY).cast(pa.date32()),
            "ts": pa.array(times // 1000, pa.int64(), mask=times == encoding.NO_TIME).cast(
                pa.timestamp("us", tz="UTC")
            ),
            "ts_ns": pa.array(times, pa.int64(), mask=times == encoding.NO_TIME),
            "packet_no": pa.array(joined["packet_no"], pa.int64()),
            "sub_no": pa.array(joined["sub_no"], pa.int32()),
            "interface": names.take(pa.array(codes, pa.int64())),
            **{name: pa.array(words[name], pa.string()) for name in words},
            "decoded": _bools(joined["decoded"]),
            "offset": pa.array(joined["offset"], pa.int64(), mask=joined["offset"] < 0),
            "need": pa.array(joined["need"], pa.int64()),
            "have": pa.array(joined["have"], pa.int64()),
            "recorder_dropped": _bools(joined["recorder_dropped"]),
        }
        fields = [FAULTS.schema.field(name) for name in FAULTS.columns if name in self._columns]
        columns = [
            arrays[f.name].dictionary_encode()
            if pa.types.is_string(f.type) and arrays[f.name].null_count < n
            else arrays[f.name]
            for f in fields
        ]
        schema = pa.schema([pa.field(f.name, a.type, f.nullable) for f, a in zip(fields, columns, strict=True)])
        yield "faults", pa.RecordBatch.from_arrays(columns, schema=schema)
