"""Ranges and null counts of the columns of a file, and the per-file statistics of the Delta protocol that consist of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

import pyarrow as pa

INDEXED_COLUMNS = 32  # delta.dataSkippingNumIndexedCols
TEXT_LIMIT = 32  # characters of a string bound, as Spark cuts them
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Value = int | str | bool | date


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFileSummary:
    """A closed file: bytes, rows and the `stats` JSON of its Delta `add` action."""

    size: int
    rows: int
    stats: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRange:
    """Number of nulls, least and greatest value of a column. The values are None if all are null or the type has none.

    Timestamps are integers: microseconds since 1970.
    """

    nulls: int = 0
    low: Value | None = None
    high: Value | None = None

    def __or__(self, other: ColumnRange) -> ColumnRange:
        if self.low is None or self.high is None:
            low, high = other.low, other.high
        elif other.low is None or other.high is None:
            low, high = self.low, self.high
        else:
            low, high = min(self.low, other.low), max(self.high, other.high)
        return ColumnRange(nulls=self.nulls + other.nulls, low=low, high=high)


def has_min_max_statistics(kind: pa.DataType) -> bool:
    """Whether Delta keeps minValues and maxValues for the type (strings, integers, dates, timestamps)."""
    return bool(
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind)
    )


def truncate_text_floor(text: str) -> str:
    """A string of at most TEXT_LIMIT characters that is not above `text`."""
    return text[:TEXT_LIMIT]


def truncate_text_ceiling(text: str) -> str | None:
    """A string of at most TEXT_LIMIT characters that is not below `text` in the order of UTF-8; None if there is none."""
    if len(text) <= TEXT_LIMIT:
        return text
    for end in range(TEXT_LIMIT, 0, -1):
        after = ord(text[end - 1]) + 1
        if after <= 0x10FFFF:
            return text[: end - 1] + chr(0xE000 if after == 0xD800 else after)  # surrogates are not characters
    return None


def _format_millisecond(microseconds: int) -> str | None:
    """The last millisecond that begins at or before `microseconds` since 1970; None outside of the years 1 to 9999."""
    try:
        instant = EPOCH + timedelta(milliseconds=microseconds // 1000)
    except OverflowError:
        return None
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _statistics_bounds(kind: pa.DataType, low: Value, high: Value) -> tuple[object, object]:
    if isinstance(low, str) and isinstance(high, str):
        return truncate_text_floor(low), truncate_text_ceiling(high)
    if pa.types.is_timestamp(kind) and isinstance(low, int) and isinstance(high, int):
        return _format_millisecond(low), _format_millisecond(high + 999)  # Delta has milliseconds: round down, round up
    if isinstance(low, date) and isinstance(high, date):
        return low.isoformat(), high.isoformat()
    return low, high


def format_delta_statistics(schema: pa.Schema, rows: int, ranges: Mapping[str, ColumnRange]) -> str:
    """The `stats` of an `add` action (Delta protocol, Per-file Statistics) for the first 32 columns of `schema`."""
    lows: dict[str, object] = {}
    highs: dict[str, object] = {}
    nulls: dict[str, int] = {}
    for field in list(schema)[:INDEXED_COLUMNS]:
        column_range = ranges[field.name]
        nulls[field.name] = column_range.nulls
        if has_min_max_statistics(field.type) and column_range.low is not None and column_range.high is not None:
            low, high = _statistics_bounds(field.type, column_range.low, column_range.high)
            if low is not None:
                lows[field.name] = low
            if high is not None:
                highs[field.name] = high
    found_stats = {"numRecords": rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    return json.dumps(found_stats, separators=(",", ":"), ensure_ascii=False)
