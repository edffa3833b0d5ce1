"""The order of rows in compacted files: by vehicle, by ten minutes, by the table's key, by time.

Rows of one bus and id then follow each other, so that columns are smaller and a query of one id reads a part of the file; the ten
minutes keep what happened at the same time close together. Nulls are last. Rows that are equal in all of this stay as they were.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import numpy as np
import pyarrow as pa

from pcaplake.parser.schemas import TABLES
from pcaplake.signals.tables import CATALOG, SIGNALS

VEHICLE, TIME = "vehicle_id", "ts"
PERIOD: Final = f"{TIME}/10min"
PERIOD_US: Final = 600_000_000
ORDER_KEY: Final = "pcaplake.order"
"""Where a file says how its rows are sorted: in the tags of its `add`, and in the key-values of its footer."""
SORTED: Final = "sorted"
"""In the name of a file: the footer has ORDER_KEY. It says so if a writer of checkpoints has dropped the tags."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PERIOD: Final = timedelta(microseconds=PERIOD_US)
_DIGIT: Final = 16  # bits; numpy sorts these by radix

Array = np.ndarray[Any, np.dtype[Any]]
Key = tuple[tuple[bool, Any], ...]
"""Of a row: whether the value of each sort column is null, and the value. Keys compare as rows are sorted."""
_SIGNALS: Final[Mapping[str, tuple[str, ...]]] = {SIGNALS: ("bus", "message", "signal"), CATALOG: ()}


def sort_columns(table: str, columns: Sequence[str]) -> tuple[str, ...]:
    """By what the rows of a table are sorted, of the columns that its files have. PERIOD is no column."""
    spec = TABLES.get(table)
    key = _SIGNALS.get(table, ("bus",)) if spec is None else spec.order
    wanted = (VEHICLE, PERIOD, *key, TIME)
    return tuple(name for name in wanted if (TIME if name == PERIOD else name) in columns)


def describe_order(columns: Sequence[str]) -> str:
    """What a file with rows in this order says of itself, under ORDER_KEY."""
    return ",".join(columns)


def sort_indices(columns: Mapping[str, pa.Array], by: Sequence[str]) -> Array | None:
    """The numbers of the rows in their order; None: they are in order. `columns`: arrays, which may be dictionaries."""
    words, used = list[Array](), 64  # the last one is the most significant
    for name in reversed(by):
        codes, bits = _ranks(columns[TIME if name == PERIOD else name], period=name == PERIOD)
        if not bits:
            continue
        if used + bits > 64:
            words.append(codes)
            used = bits
        else:
            words[-1] |= codes << np.uint64(used)
            used += bits
    if _are_in_order(words):
        return None
    order: Array | None = None
    for word in words:
        for shift in range(0, 64, _DIGIT):
            digit = (word >> np.uint64(shift)).astype(np.uint16)
            if order is not None:
                digit = digit[order]
            if (digit[1:] >= digit[:-1]).all():
                continue
            step = np.argsort(digit, kind="stable")
            order = step if order is None else order[step]
    return order


def _are_in_order(words: Sequence[Array]) -> bool:
    if not words:
        return True
    fits = np.ones(len(words[0]) - 1, bool)
    for word in words:
        fits = (word[1:] > word[:-1]) | ((word[1:] == word[:-1]) & fits)
    return bool(fits.all())


def _ranks(array: pa.Array, *, period: bool) -> tuple[Array, int]:
    """Unsigned numbers in the order of the values, and how many bits they have."""
    n, nulls = len(array), array.null_count
    if nulls == n:
        return np.zeros(n, np.uint64), 0
    if not _is_number(array.type):
        array = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        return _text_ranks(array)
    values = _numbers(array)
    if period:
        values = values // PERIOD_US
    valid = array.is_valid().to_numpy(zero_copy_only=False) if nulls else None
    there = values if valid is None else values[valid]
    low, high = int(there.min()), int(there.max())
    ranks = values.astype(np.uint64) - np.uint64(low % (1 << 64))  # wraps, so that any range fits
    most = high - low
    if valid is not None:
        most = min(most + 1, (1 << 64) - 1)
        ranks[~valid] = most
    return ranks, most.bit_length()


def _text_ranks(array: pa.DictionaryArray) -> tuple[Array, int]:
    values = array.dictionary.to_pylist()
    by_value = sorted((number for number, value in enumerate(values) if value is not None), key=values.__getitem__)
    by_value += [number for number, value in enumerate(values) if value is None]
    ranks = np.empty(len(values) + 1, np.uint64)
    ranks[by_value] = np.arange(len(values))
    ranks[-1] = len(values)
    codes = array.indices.cast(pa.int64()).fill_null(len(values)).to_numpy()
    return ranks[codes], len(values).bit_length() if len(values) > 1 or array.null_count else 0


def _numbers(array: pa.Array) -> Array:
    """Values of numbers, times and booleans; any number for a null."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    elif not pa.types.is_integer(array.type):
        array = array.view(f"int{array.type.bit_width}")
    values: Array = array.fill_null(0).to_numpy()
    return values


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_boolean(kind) or types.is_timestamp(kind) or types.is_date32(kind))


class SortKeys(Sequence[Key]):
    """The keys of rows, to find a place among sorted ones."""

    def __init__(self, columns: Mapping[str, pa.Array], by: Sequence[str]) -> None:
        self._rows = len(next(iter(columns.values())))
        arrays = [(columns[TIME if name == PERIOD else name], name == PERIOD) for name in by]
        self._columns = [
            (array.view(f"int{array.type.bit_width}") if pa.types.is_temporal(array.type) else array, period)
            for array, period in arrays
        ]

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, row: Any) -> Any:
        return tuple(_key_part(array[row].as_py(), period=period) for array, period in self._columns)


def _key_part(value: Any, *, period: bool) -> tuple[bool, Any]:
    if value is None:
        return True, 0
    return False, value // PERIOD_US if period else value


def remember_start(path: str, values: Mapping[str, str | None], stats: str) -> str | None:
    """What a plan remembers of the statistics of a file that is not sorted: where its rows begin. None: nothing."""
    if f"-{SORTED}." in path or not stats:
        return None
    try:
        lows = json.loads(stats).get("minValues") or {}
        return json.dumps({name: lows[name] for name in (VEHICLE, TIME) if isinstance(lows.get(name), str)})
    except (ValueError, AttributeError):
        return None


def start_key(start: str | None, by: Sequence[str]) -> Key:
    """A key that is not above that of any row of a file. `start`: from `remember_start`."""
    lows = {} if start is None else json.loads(start)
    key = list[tuple[bool, Any]]()
    for name in by:
        if name == VEHICLE and VEHICLE in lows:
            key.append((False, lows[VEHICLE]))
        elif name == PERIOD and (period := _period_of(lows.get(TIME))) is not None:
            key.append((False, period))
        else:
            break
    return tuple(key)


def _period_of(bound: str | None) -> int | None:
    """The ten minutes of a bound of `ts`; None if it cannot be read: bounds of other programs only decide what is read first."""
    try:
        instant = datetime.fromisoformat(bound or "")
    except ValueError:
        return None
    return ((instant if instant.tzinfo else instant.replace(tzinfo=UTC)) - _EPOCH) // _PERIOD
