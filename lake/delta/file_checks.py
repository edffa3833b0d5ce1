"""Refuses files and transactions that would make a table unreadable, or hide rows of it, before they are in its log.

Nobody checks an action again once it is committed: from then on readers fail on a partition value that is no date, skip a
file whose bounds are too narrow, and delete a file that has two names. The rules are those of the Delta transaction
protocol, sections "Add File", "Partition Value Serialization" and "Per-file Statistics". Nothing here reads the files;
file_contents.py does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import Any

from pcaplake.lake.store.store import is_nameable, is_utf8

from .actions import AddFile, Metadata, Txn, parse_num_records
from .errors import InvalidFile
from .schema import DECIMAL, INTEGER_BITS

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_INTEGER = re.compile(r"-?[0-9]+")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?|nan|-?inf(inity)?", re.IGNORECASE)
_PLAIN_NUMBER = re.compile(r"-?([0-9]+)(?:\.([0-9]+))?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INSTANT = re.compile(r"([0-9-]{10})[ T]([0-9:]{8})(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})?")
_LONGEST = 2**63 - 1  # of what the log keeps as a long
END_OF_TIME = 253_402_300_800_000  # the year 10000 in ms since 1970: more is a time in microseconds or nanoseconds
_UNORDERED = ("timestamp", "binary")  # as texts: instants are written with and without fractions
_COUNTED = ("minValues", "maxValues", "nullCount")


def _refuse_constant(name: str) -> None:
    """NaN is no JSON, and neither is Infinity; 1e400 is, and readers take it for the latter."""
    raise ValueError(f"{name} is no JSON; a bound that is infinite is 1e400 or -1e400")


_STRICT_JSON = json.JSONDecoder(parse_constant=_refuse_constant)


def check_files(table: str, adds: Sequence[AddFile], metadata: Metadata) -> None:
    """Raise InvalidFile, which names the file and the field, for the first one that the table cannot have.

    `metadata`: of the table after the commit.
    """
    fields = {field["name"]: field for field in metadata.schema["fields"]}
    partitions = {name: fields.get(name, {"type": "string"}) for name in metadata.partition_columns}
    measured = {name: field["type"] for name, field in fields.items() if name not in partitions}
    seen: set[str] = set()
    for add in adds:
        for problem in _list_problems(add, partitions, measured):
            raise InvalidFile(f"{table}: the file {add.path!r} cannot be added: {problem}")
        # rule: a commit adds a file once
        if add.path in seen:
            raise InvalidFile(f"{table}: the file {add.path!r} is twice in this commit: its rows would be, too")
        seen.add(add.path)


def check_transactions(table: str, txns: Iterable[Txn | None]) -> None:
    """Raise ValueError for a transaction that the log cannot keep, or that would never count as committed."""
    for txn in txns:
        if txn is not None and not (isinstance(txn.app_id, str) and txn.app_id and is_utf8(txn.app_id)):
            raise ValueError(f"{table}: app_id of a transaction is {txn.app_id!r}; give it a name")
        if txn is not None and not _is_count(txn.version):
            raise ValueError(f"{table}: version of the transaction {txn.app_id} is {txn.version!r}; count from 0")


def check_live_paths(table: str, adds: Sequence[AddFile], live: Collection[str]) -> None:
    """Raise InvalidFile for a file that the table has already. With `data_change` False it only gets other statistics."""
    for add in adds:
        # rule: a file that the table has is not added again
        if add.data_change and add.path in live:
            raise InvalidFile(f"{table}: the file {add.path!r} cannot be added: it is in the table already")


def _list_problems(
    add: AddFile, partitions: Mapping[str, Mapping[str, Any]], measured: Mapping[str, Any]
) -> Iterator[str]:
    if problem := _find_path_problem(add.path):
        yield f"its path {problem}"
    if not _is_count(add.size) or add.size == 0:
        yield f"size is {add.size!r}; it is the length of the file in bytes"
    if not _is_count(add.modification_time) or add.modification_time >= END_OF_TIME:
        yield f"modification_time is {add.modification_time!r}; it is in milliseconds since 1970"
    if not isinstance(add.data_change, bool):
        yield f"data_change is {add.data_change!r}; it is True or False"
    if not isinstance(add.partition_values, Mapping) or add.partition_values.keys() != partitions.keys():
        have = list(add.partition_values) if isinstance(add.partition_values, Mapping) else add.partition_values
        yield f"the partition columns of the table are {list(partitions)}, and those of the file are {have}"
    else:
        for name, value in add.partition_values.items():
            if problem := _find_partition_value_problem(value, partitions[name]):
                yield f"its partition value {name}={value!r} {problem}"
    if add.stats != "":
        yield from _list_statistics_problems(add.stats, measured)


def _find_path_problem(path: object) -> str | None:
    if not isinstance(path, str) or not path:
        return "is empty; it is the file's name below the folder of the table"
    if path.startswith("/") or _SCHEME.match(path):
        return "is absolute; it is relative to the folder of the table"
    if not is_nameable(path) or not is_utf8(path):
        return "has an empty part, '.', '..', a control character or a character that is no Unicode"
    if path.startswith("_delta_log/"):
        return "is in the log"
    return None


def _find_partition_value_problem(value: object, field: Mapping[str, Any]) -> str | None:
    if value is None:
        return None if field.get("nullable", True) else "is null, and the column is NOT NULL"
    kind = field["type"] if isinstance(field["type"], str) else field["type"]["type"]
    if not isinstance(value, str) or not is_utf8(value):
        return f"is no text; write the {kind} as the protocol does, for example {_example(kind)!r}"
    if value == "":
        return "is empty, which readers read as null; write None for null"
    return None if _is_partition_value(value, kind) else f"is no {kind}; write for example {_example(kind)!r}"


_EXAMPLES: Mapping[str, str] = {
    **dict.fromkeys(INTEGER_BITS, "5"),
    "boolean": "true",
    "date": "2026-11-21",
    "timestamp": "2026-11-21T10:00:00.123456Z",
    **dict.fromkeys(("float", "double"), "1.5"),
}


def _example(kind: str) -> str:
    """A partition value of this type, as it is accepted."""
    decimal = DECIMAL.fullmatch(kind)
    return f"{0:.{int(decimal[2])}f}" if decimal else _EXAMPLES.get(kind, "a")


def _is_partition_value(value: str, kind: str) -> bool:
    if kind in INTEGER_BITS:
        return _INTEGER.fullmatch(value) is not None and _fits_integer(int(value), kind)
    if kind in ("float", "double"):
        return _NUMBER.fullmatch(value) is not None
    if kind == "boolean":
        return value in ("true", "false")
    if kind == "date":
        return _is_date(value)
    if kind == "timestamp":
        return _is_instant(value)
    if decimal := DECIMAL.fullmatch(kind):
        number = _PLAIN_NUMBER.fullmatch(value)
        precision, scale = int(decimal[1]), int(decimal[2])
        # readers refuse a fraction with fewer digits than the column has
        return number is not None and len(number[1].lstrip("0")) <= precision - scale and len(number[2] or "") == scale
    return True  # string, binary


def _list_statistics_problems(text: object, types: Mapping[str, Any]) -> Iterator[str]:
    try:
        stats = _parse_strict_json(text)
    except (TypeError, ValueError) as error:
        yield f"its statistics are not JSON: {error}"
        return
    if not isinstance(stats, dict):
        yield "its statistics are no JSON object"
        return
    rows = stats.get("numRecords")
    if rows is not None and not _is_count(rows):
        yield f"numRecords of its statistics is {rows!r}; it is a number of rows"
        return
    if parse_num_records(str(text)) != rows:
        yield "numRecords of its statistics is there twice, or behind a column of this name; write it first"
    parts = {name: stats.get(name) or {} for name in _COUNTED}
    for name, part in parts.items():
        if not isinstance(part, dict):
            yield f"{name} of its statistics is {part!r}; it is an object of columns"
            return
    yield from _list_null_count_problems(parts["nullCount"], rows, types, "")
    yield from _list_bound_problems(parts["minValues"], parts["maxValues"], types, "")


def _parse_strict_json(text: object) -> Any:
    if not isinstance(text, str):
        raise TypeError(f"{text!r} is no text")
    if not is_utf8(text):
        raise ValueError("it has a character that is no Unicode")
    stats = _STRICT_JSON.decode(text)
    if "\\u" in text and not is_utf8(json.dumps(stats, ensure_ascii=False)):
        raise ValueError("it has half a character")
    return stats


def _list_null_count_problems(
    counts: Mapping[str, Any], rows: int | None, types: Mapping[str, Any], prefix: str
) -> Iterator[str]:
    most = _LONGEST if rows is None else rows
    for name, count in counts.items():
        kind = types.get(name)
        if isinstance(kind, Mapping) and kind["type"] == "struct":
            if isinstance(count, dict):
                inner = {field["name"]: field["type"] for field in kind["fields"]}
                yield from _list_null_count_problems(count, rows, inner, f"{prefix}{name}.")
            else:
                yield f"nullCount of {prefix}{name} is {count!r}; a struct has an object with the counts of its fields"
        elif kind is None and isinstance(count, dict):
            continue  # nobody reads what the statistics say of columns that the table does not have
        elif type(count) is int and 0 <= count <= most:
            continue
        else:
            yield f"nullCount of {prefix}{name} is {count!r}; it is a number of rows, of which the file has {rows}"


def _list_bound_problems(
    lows: Mapping[str, Any], highs: Mapping[str, Any], types: Mapping[str, Any], prefix: str
) -> Iterator[str]:
    """Bounds of columns that the table does not have are not read by anybody."""
    for key, bounds in (("minValues", lows), ("maxValues", highs)):
        for name, bound in bounds.items():
            kind = types.get(name)
            if isinstance(kind, str):
                if bound is not None and not _is_bound(bound, kind):
                    yield f"{key} of {prefix}{name} is {bound!r}, which is no {kind}"
                    return
            elif kind is not None and kind["type"] == "struct" and not isinstance(bound, dict | None):
                yield f"{key} of {prefix}{name} is {bound!r}; a struct has an object with the bounds of its fields"
                return
    for name in lows.keys() | highs.keys():
        kind, low, high = types.get(name), lows.get(name), highs.get(name)
        if isinstance(kind, str):
            if low is not None and high is not None and kind not in _UNORDERED and low > high:
                yield f"minValues of {prefix}{name} is {low!r}, above maxValues, {high!r}: it would hide rows"
        elif kind is not None and kind["type"] == "struct":
            inner = {field["name"]: field["type"] for field in kind["fields"]}
            yield from _list_bound_problems(low or {}, high or {}, inner, f"{prefix}{name}.")


def _is_bound(value: object, kind: str) -> bool:
    if kind in INTEGER_BITS:
        return type(value) is int and _fits_integer(value, kind)
    if kind in ("float", "double") or kind.startswith("decimal"):
        return type(value) in (int, float)
    if kind == "boolean":
        return type(value) is bool
    if type(value) is not str:
        return False
    return _is_date(value) if kind == "date" else _is_instant(value) if kind == "timestamp" else True


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _LONGEST


def _fits_integer(value: int, kind: str) -> bool:
    return value.bit_length() < INTEGER_BITS[kind] or value == -(1 << INTEGER_BITS[kind] - 1)


def _is_date(text: str) -> bool:
    try:
        return _DATE.fullmatch(text) is not None and date.fromisoformat(text) is not None
    except ValueError:
        return False


def _is_instant(text: str) -> bool:
    try:
        parts = _INSTANT.fullmatch(text)
        return parts is not None and datetime.fromisoformat(f"{parts[1]}T{parts[2]}") is not None
    except ValueError:
        return False
