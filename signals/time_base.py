"""Signals on one time base: a row for each time, a column for each signal, with the last value at that time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_NS = 1_000_000_000
_KEYS = ("bus", "message", "signal")
_COLUMNS = ("ts_ns", *_KEYS, "value", "valid")
MOST_ROWS = 1 << 28
"""Rows of a regular time base; a smaller interval than this allows is a mistake."""
Series: TypeAlias = tuple[str | None, str, str]
"""Bus, message and signal."""


def spread_over_time(
    batches: Iterable[pa.RecordBatch], named: Sequence[tuple[str, str]], every: float | None
) -> pa.Table:
    """A wide table of rows of `signals`. `named`: (message, signal) that get a column even without a value.

    `every`: seconds between rows; None: a row for each time of a value. A value that is not valid, and the time until the
    next one, is null. Rows without a time are left out. Raises `ValueError` for a time base of more than MOST_ROWS rows.
    """
    parts = [batch.select(list(_COLUMNS)) for batch in batches]
    series, times, values = _collect_series(parts)
    base = _time_base(times, every)
    missing: list[Series] = [
        (None, *one) for one in dict.fromkeys(named) if one not in {(message, name) for _, message, name in series}
    ]
    names = _column_names([*series, *missing])
    columns: dict[str, pa.Array] = {"ts_ns": pa.array(base), "ts": pa.array(base).cast(pa.timestamp("ns", "UTC"))}
    for name, its_times, its_values in zip(names, times, values, strict=False):
        at = np.searchsorted(its_times, base, side="right") - 1
        found = its_values[at] if len(its_values) else np.zeros(len(base))
        columns[name] = pa.array(found, mask=(at < 0) | np.isnan(found))
    for name in names[len(series) :]:
        columns[name] = pa.nulls(len(base), pa.float64())
    return pa.table(columns)


def _collect_series(
    parts: Sequence[pa.RecordBatch],
) -> tuple[list[Series], list[NDArray[np.int64]], list[NDArray[np.float64]]]:
    """The series in the order of their names, and the times and values (NaN: not valid) of each, in the order of time."""
    if not parts:
        return [], [], []
    rows = pa.Table.from_batches(parts)
    rows = rows.filter(pc.is_valid(rows["ts_ns"]))
    codes = [_encode(rows[name]) for name in _KEYS]
    code = np.zeros(len(rows), np.int64)
    for number, names in codes:
        code = code * len(names) + number
    present = np.unique(code)
    times = rows["ts_ns"].to_numpy()
    values = np.where(rows["valid"].to_numpy(), rows["value"].to_numpy(), np.nan)  # a null is NaN in numpy, too
    found: list[tuple[Series, NDArray[np.int64], NDArray[np.float64]]] = []
    order = np.lexsort((times, code))  # stable: of equal times, the later packet counts
    ends = np.searchsorted(code[order], present, side="right")
    for key, start, end in zip(present.tolist(), [0, *ends[:-1]], ends, strict=True):
        name: list[Any] = []
        for _, names in reversed(codes):
            key, place = divmod(key, len(names))
            name.insert(0, names[place])
        where = order[start:end]
        found.append(((name[0], name[1], name[2]), times[where], values[where]))
    found.sort(key=lambda one: (one[0][0] or "", one[0][1], one[0][2]))
    return [one[0] for one in found], [one[1] for one in found], [one[2] for one in found]


def _encode(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[str | None]]:
    coded = column.combine_chunks().dictionary_encode()
    names = [*coded.dictionary.to_pylist(), None]
    return coded.indices.cast(pa.int64()).fill_null(len(names) - 1).to_numpy(zero_copy_only=False), names


def _time_base(times: Sequence[NDArray[np.int64]], every: float | None) -> NDArray[np.int64]:
    if not times:
        return np.zeros(0, np.int64)
    if every is None:
        return np.unique(np.concatenate(times))
    first, last = min(int(one[0]) for one in times), max(int(one[-1]) for one in times)
    step = max(1, round(every * _NS))
    if (last - first) // step >= MOST_ROWS:
        raise ValueError(f"every: {every:g} s would give more than {MOST_ROWS:,} rows; give a longer interval")
    return np.arange(first, last + step, step, dtype=np.int64)  # the last row is not before the last value


def _column_names(series: Sequence[Series]) -> list[str]:
    """The shortest name that tells each series from the others."""
    spelled = [(name, f"{message}.{name}", f"{bus or '(no bus)'}.{message}.{name}") for bus, message, name in series]
    counts = [Counter(one[length] for one in spelled) for length in range(3)]
    counts[0].update(("ts", "ts_ns"))
    return [next((one[length] for length in range(2) if counts[length][one[length]] == 1), one[2]) for one in spelled]
