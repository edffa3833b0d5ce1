"""Ranges and null counts of the columns of a file, and the per-file statistics of the Delta protocol that consist of them."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from json.encoder import encode_basestring as _encode_text
from operator import or_
from typing import Any

import pyarrow as pa
from pyarrow import lib

from pcaplake.parser.arrow_types import FEW

INDEXED_COLUMNS = 32  # delta.dataSkippingNumIndexedCols
TEXT_LIMIT = 32  # characters of a string bound, as Spark cuts them
LONGEST_TEXT = 256  # characters of a string bound if no shorter string is above the value
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_KINDS = ("minValues", "maxValues", "nullCount")
UNBOUNDED = "1e400"  # a JSON number that every reader takes for infinity, which JSON does not have

Value = bool | int | float | Decimal | str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetFileSummary:
    """A closed file: bytes, rows and the `stats` JSON of its Delta `add` action."""

    size: int
    rows: int
    stats: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRange:
    """Number of nulls, least and greatest value of a column. The values are None if all are null or the type has none.

    Timestamps and dates are integers: microseconds and days since 1970. A column with a NaN ranges from -inf to inf.
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
    """Whether the type has a least and a greatest value that Delta keeps."""
    types = pa.types
    return bool(
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_timestamp(kind)
        or types.is_date32(kind)
    )


def has_null_count_only(kind: pa.DataType) -> bool:
    """Whether Delta keeps nothing but the number of nulls of the type: binary, lists and maps."""
    return bool(pa.types.is_nested(kind) or "binary" in str(kind)) and not pa.types.is_struct(kind)


def compute_range(array: pa.Array) -> ColumnRange:
    """The range of an array of any type but a dictionary."""
    nulls, kind = array.null_count, array.type
    if not has_min_max_statistics(kind) or nulls == len(array):
        return ColumnRange(nulls=nulls)
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        array = array.view(f"int{kind.bit_width}")
    elif pa.types.is_string_view(kind):
        array = array.cast(pa.large_string())
    elif pa.types.is_floating(kind):
        values = array.drop_null().to_numpy()
        low, high = values.min().item(), values.max().item()
        unordered = math.isnan(low)  # numpy returns a NaN if there is one
        return ColumnRange(nulls=nulls, low=-math.inf if unordered else low, high=math.inf if unordered else high)
    if len(array) <= FEW:
        there = [value for value in array.to_pylist() if value is not None]
        return ColumnRange(nulls=nulls, low=min(there), high=max(there))
    import pyarrow.compute as pc

    extremes = pc.min_max(array)
    return ColumnRange(nulls=nulls, low=extremes["min"].as_py(), high=extremes["max"].as_py())


def truncate_text_floor(text: str) -> str:
    """A string of at most TEXT_LIMIT characters that is not above `text`."""
    return text[:TEXT_LIMIT]


def truncate_text_ceiling(text: str) -> str:
    """A short string that is not below `text` in the order of UTF-8: at most TEXT_LIMIT characters, if there is such a string.

    Above a prefix of U+10FFFF there is none. Raises OverflowError if LONGEST_TEXT characters are not enough.
    """
    if len(text) <= TEXT_LIMIT:
        return text
    for end in [*range(TEXT_LIMIT, 0, -1), *range(TEXT_LIMIT + 1, min(len(text), LONGEST_TEXT) + 1)]:
        after = ord(text[end - 1]) + 1
        if after <= 0x10FFFF:
            return text[: end - 1] + chr(0xE000 if after == 0xD800 else after)  # surrogates are not characters
    if len(text) > LONGEST_TEXT:
        raise OverflowError(f"no string of {LONGEST_TEXT} characters is above the text")
    return text


def _format_millisecond(microseconds: int) -> str:
    """The last millisecond that begins at or before `microseconds` since 1970. Raises OverflowError as `_format_bounds`."""
    instant = EPOCH + timedelta(milliseconds=microseconds // 1000)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _format_date(days: int) -> str:
    return (EPOCH + timedelta(days=days)).date().isoformat()


def _format_float(value: float) -> str:
    if math.isinf(value):
        return UNBOUNDED if value > 0 else f"-{UNBOUNDED}"
    return repr(value)


def _format_bounds(kind: pa.DataType, column: ColumnRange) -> tuple[str, str]:
    """The bounds as JSON. Raises OverflowError if there are none: of a struct, or of a time after the year 9999."""
    match column.low, column.high:
        case None, _:
            raise OverflowError(f"no bounds of {kind}")
        case str(low), str(high):
            return _encode_text(truncate_text_floor(low)), _encode_text(truncate_text_ceiling(high))
        case bool(low), bool(high):
            return str(low).lower(), str(high).lower()
        case float(low), float(high):  # some readers take -0.0 for less than 0.0
            return _format_float(low or -0.0), _format_float(high or 0.0)
        case int(low), int(high) if kind.id == lib.Type_TIMESTAMP:
            # Delta has milliseconds: round down, round up
            return f'"{_format_millisecond(low)}"', f'"{_format_millisecond(high + 999)}"'
        case int(low), int(high) if kind.id == lib.Type_DATE32:
            return f'"{_format_date(low)}"', f'"{_format_date(high)}"'
        case Decimal() as low, Decimal() as high:
            return f"{low:f}", f"{high:f}"
        case low, high:
            return str(low), str(high)


def format_delta_statistics(schema: pa.Schema, rows: int, ranges: Mapping[str, ColumnRange]) -> str:
    """The `stats` of an `add` action (Delta protocol, Per-file Statistics) for the first 32 columns of `schema`.

    A reader may take a bound that is missing for null, which no value matches, and then skips the file: deltalake's dataset
    does. So each indexed column has both bounds, or nothing but nulls. If a column cannot have them, the statistics are the
    number of rows alone, by which no reader skips a file.
    """
    return _format_statistics(pa.schema(list(schema)[:INDEXED_COLUMNS]), rows, ranges, {})


def _format_statistics(
    schema: pa.Schema, rows: int, ranges: Mapping[str, ColumnRange], known: Mapping[str, Mapping[str, Any]]
) -> str:
    """`known`: minValues, maxValues and nullCount of other columns."""
    lows, highs, nulls = (
        [
            {name: _encode_known(value) for name, value in (known.get(kind) or {}).items() if name not in ranges}
            for kind in _KINDS
        ]
        if known
        else ({}, {}, {})
    )
    for field in schema:
        if (column := ranges.get(field.name)) is None:
            continue
        nulls[field.name] = str(column.nulls)
        is_struct = pa.types.is_struct(field.type)  # readers expect counts of its fields, and fail on a number
        if not is_struct and (column.nulls == rows or (column.low is None and has_null_count_only(field.type))):
            continue
        try:
            lows[field.name], highs[field.name] = _format_bounds(field.type, column)
        except OverflowError:
            # rule: each column with values has both bounds, or none has any
            return f'{{"numRecords":{rows}}}'
    return _encode_members(
        {"numRecords": str(rows)} | dict(zip(_KINDS, map(_encode_members, (lows, highs, nulls)), strict=True))
    )


def _encode_members(members: Mapping[str, str]) -> str:
    pairs = zip(map(_encode_text, members), members.values(), strict=True)
    return "{" + ",".join(map("%s:%s".__mod__, pairs)) + "}"


def _encode_known(value: Any) -> str:
    """What `_parse` has read."""
    if isinstance(value, dict):
        return _encode_members({name: _encode_known(member) for name, member in value.items()})
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


def _parse(stats: str) -> dict[str, Any]:
    """Statistics with all digits of their numbers. Raises ValueError."""
    found = json.loads(stats, parse_float=Decimal, parse_constant=lambda constant: None)
    if not isinstance(found, dict) or any(not isinstance(found.get(kind) or {}, dict) for kind in _KINDS):
        raise ValueError("these are no statistics")
    return found


def select_indexed_columns(schema: pa.Schema, configuration: Mapping[str, str]) -> pa.Schema:
    """The columns of which readers of a table with these properties expect bounds. `schema`: without partition columns."""
    chosen = configuration.get("delta.dataSkippingStatsColumns")
    if chosen is not None:
        names = {name.strip().strip("`") for name in chosen.split(",")}
        return pa.schema([field for field in schema if field.name in names])
    try:
        count = int(configuration.get("delta.dataSkippingNumIndexedCols", INDEXED_COLUMNS))
    except ValueError:
        count = INDEXED_COLUMNS
    return pa.schema(list(schema)[: count if count >= 0 else len(schema)])


def find_unbounded_columns(indexed: pa.Schema, stats: str) -> list[str]:
    """The indexed columns of which statistics hide rows: those that may have values, and lack a bound."""
    try:
        found = _parse(stats)
    except ValueError:
        return list(indexed.names)
    lows, highs, nulls = (found.get(kind) or {} for kind in _KINDS)
    if not any(kind in found for kind in _KINDS):
        return []  # the number of rows alone
    return [
        field.name
        for field in indexed
        if has_min_max_statistics(field.type)
        and not (_is_bound(field.type, lows.get(field.name)) and _is_bound(field.type, highs.get(field.name)))
        and (nulls.get(field.name) is None or nulls[field.name] != found.get("numRecords"))
    ]


def _is_bound(kind: pa.DataType, value: object) -> bool:
    """Some writers write a NaN as a text, others a null."""
    if pa.types.is_boolean(kind):
        return isinstance(value, bool)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return isinstance(value, int | Decimal) and not isinstance(value, bool)
    return isinstance(value, str)


def complete_statistics(indexed: pa.Schema, stats: str, rows: int, ranges: Mapping[str, ColumnRange]) -> str:
    """Statistics of a file with the ranges of some columns, and what they said of the other ones."""
    try:
        return _format_statistics(indexed, rows, ranges, _parse(stats))
    except ValueError:
        return _format_statistics(indexed, rows, ranges, {})


def count_nulls_of_absent_columns(indexed: pa.Schema, stats: str) -> str:
    """Statistics that count each row as null in the indexed columns that the file does not have.

    `stats`: of a file of this package, which counts the nulls of all of its first 32 columns.
    """
    found = json.loads(stats) if stats else {}
    counted = found.get("nullCount", {})
    # the number of rows alone hides nothing, and of more columns than are counted some may be in the file
    if not counted or len(counted) >= INDEXED_COLUMNS:
        return stats
    absent = {
        field.name: ColumnRange(nulls=found["numRecords"])
        for field in indexed
        if field.name not in counted and not pa.types.is_struct(field.type)
    }
    return complete_statistics(indexed, stats, found["numRecords"], absent) if absent else stats


def delta_statistics(rows: pa.Table) -> str:
    """The `stats` of an `add` action for a file with these rows, without its partition columns. Times are microseconds."""
    columns = zip(rows.column_names, rows.columns, strict=True)
    ranges = {name: functools.reduce(or_, map(compute_range, column.chunks), ColumnRange()) for name, column in columns}
    return format_delta_statistics(rows.schema, rows.num_rows, ranges)
