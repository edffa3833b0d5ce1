"""Reads the configuration tables of Wireshark's SOME/IP dissector: a folder with files named `SOMEIP_*`.

Layout: Wireshark packet-someip.c (4.0 and later), one CSV line per row, quoted, `\\xhh` for special characters, `#` for comments.
The table of bitfields is what FibexConverter writes; Wireshark does not read it yet.

Padding is AUTOSAR's alignment: Wireshark has a column for it and ignores it. Everything else that is not read is listed in
`lost`, by file and line or by name, with the reason; messages whose types are lost are lost, and all others stay.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from pcaplake.signals.errors import DatabaseError

from .description import (
    Array,
    BaseType,
    Bitfield,
    Bits,
    DescriptionError,
    Dimension,
    Member,
    PayloadMessage,
    Services,
    String,
    Struct,
    Type,
    Union,
    Variant,
)

PREFIX: Final = "SOMEIP_"
SERVICES, METHODS, MESSAGES = (
    "SOMEIP_service_identifiers",
    "SOMEIP_method_event_identifiers",
    "SOMEIP_parameter_list",
)
# the columns of each table: d decimal, x hexadecimal, b TRUE or FALSE, s text
_ITEM = "pos:d name:s type:d ref:x filter:s"
_COLUMNS: Final = {
    SERVICES: "id:x name:s",
    METHODS: "id:x method:x name:s",
    MESSAGES: f"service:x method:x version:d message_type:x tagged:b items:d {_ITEM}",
    "SOMEIP_parameter_base_types": "id:x name:s coding:s big_endian:b bits:d encoded_bits:d",
    "SOMEIP_parameter_strings": "id:x name:s encoding:s dynamic:b bytes:d length_bits:d big_endian:b alignment:d",
    "SOMEIP_parameter_arrays": (
        "id:x type_name:s type:d ref:x items:d filter:s pos:d least:d most:d length_bits:d alignment:d"
    ),
    "SOMEIP_parameter_structs": f"id:x type_name:s length_bits:d alignment:d tagged:b items:d {_ITEM}",
    "SOMEIP_parameter_unions": f"id:x type_name:s length_bits:d selector_bits:d alignment:d items:d {_ITEM}",
    "SOMEIP_parameter_typedefs": "id:x name:s type:d ref:x",
    "SOMEIP_parameter_enums": "id:x type_name:s type:d ref:x items:d value:x label:s",
    "SOMEIP_parameter_bitfields": "id:x type_name:s bits:d items:d pos:d name:s filter:s",
}
_TYPE_TABLES: Final = dict(
    enumerate(("base_types", "strings", "arrays", "structs", "unions", "typedefs", "enums", "bitfields"), 1)
)
_NOT_READ: Final = {
    "SOMEIP_eventgroup_identifiers": "names of event groups are in no column",
    "SOMEIP_client_identifiers": "names of clients are in no column",
}
_FIELD = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^",]*))\s*(,|$)')
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|(.))")
_CODINGS: Final = (("uint", "uint"), ("int", "sint"), ("sint", "sint"), ("float", "float"), ("bool", "uint"))
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """A row of a table. `place`: its file and line."""

    place: str
    values: Mapping[str, Any]

    def __getitem__(self, column: str) -> Any:
        return self.values[column]


def is_table_folder(folder: str | Path) -> bool:
    """Whether a folder has a table of messages."""
    return Path(folder, MESSAGES).is_file()


def load_wireshark_tables(folder: str | Path) -> Services:
    """Read the tables of a folder. Raises `DatabaseError` if it describes no message that can be read."""
    folder = Path(folder)
    if not is_table_folder(folder):
        raise DatabaseError(
            f"{folder} has no file {MESSAGES}: give a profile folder of Wireshark with the tables of its SOME/IP dissector"
        )
    lost: dict[str, str] = {}
    tables: dict[str, list[_Row]] = {name: [] for name in _COLUMNS}
    for path in sorted(folder.glob(f"{PREFIX}*")):
        if path.name in _COLUMNS:
            tables[path.name] = _read_rows(path, lost)
        elif path.is_file():
            lost[path.name] = _NOT_READ.get(path.name, "it is not a table that is read")
    messages, services, methods = _Reader(tables, lost, str(folder.name)).read_messages()
    if not messages:
        (place, reason), *others = lost.items() or [(MESSAGES, "it is empty")]
        more = f", and {len(others):,} more" if others else ""
        raise DatabaseError(
            f"{folder} describes no message that can be read ({place}: {reason}{more}): export it again"
        )
    return Services.from_messages(messages, services, methods, lost)


# -- rows -------------------------------------------------------------------------------------------------------------
def _read_rows(path: Path, lost: dict[str, str]) -> list[_Row]:
    columns = [column.split(":") for column in _COLUMNS[path.name].split()]
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        place = f"{path.name}, line {number}"
        try:
            fields = _split_line(line)
            if len(fields) != len(columns):
                raise ValueError(f"it has {len(fields)} columns, and {len(columns)} are expected")
            values = {name: _PARSERS[kind](name, text) for (name, kind), text in zip(columns, fields, strict=True)}
        except ValueError as error:
            lost[place] = str(error)
        else:
            rows.append(_Row(place=place, values=values))
    return rows


def _split_line(line: str) -> list[str]:
    fields: list[str] = []
    at = 0
    while True:
        match = _FIELD.match(line, at)
        if match is None:
            raise ValueError(f"a quote is missing after column {len(fields)}")
        fields.append(match[2].strip() if match[1] is None else _ESCAPE.sub(_unescape, match[1]))
        if not match[3]:
            return fields
        at = match.end()


def _unescape(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else match[2]


def _parse_number(base: int, name: str, text: str) -> int:
    try:
        number = int(text, base)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 64:
        raise ValueError(
            f"{name} is {text!r}, and not a {'decimal' if base == 10 else 'hexadecimal'} number of 64 bits"
        )
    return number


def _parse_flag(name: str, text: str) -> bool:
    if text.upper() not in ("TRUE", "FALSE"):
        raise ValueError(f"{name} is {text!r}, and neither TRUE nor FALSE")
    return text.upper() == "TRUE"


_PARSERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "d": partial(_parse_number, 10),
    "x": partial(_parse_number, 16),
    "b": _parse_flag,
    "s": lambda _, text: text,
}


def _group(rows: Iterable[_Row], key: Callable[[_Row], Key]) -> dict[Key, list[_Row]]:
    grouped: dict[Key, list[_Row]] = {}
    for row in rows:
        grouped.setdefault(key(row), []).append(row)
    return grouped


# -- types and messages -----------------------------------------------------------------------------------------------
class _Reader:
    """Builds the types that messages refer to, each once. `lost` grows."""

    def __init__(self, tables: Mapping[str, list[_Row]], lost: dict[str, str], database: str) -> None:
        self._tables, self._lost, self._database = tables, lost, database
        self._rows = {
            kind: _group(tables[f"SOMEIP_parameter_{name}"], lambda row: int(row["id"]))
            for kind, name in _TYPE_TABLES.items()
        }
        self._types: dict[tuple[int, int], Type | str] = {}  # a text says why it cannot be used
        self._used: set[tuple[int, int]] = set()

    def read_messages(self) -> tuple[list[PayloadMessage], dict[int, str], dict[tuple[int, int], str]]:
        services = {row["id"]: row["name"] for row in self._tables[SERVICES]}
        methods = {(row["id"], row["method"]): row["name"] for row in self._tables[METHODS]}
        messages = []
        keys = _group(
            self._tables[MESSAGES], lambda row: (row["service"], row["method"], row["message_type"], row["version"])
        )
        for (service, method, message_type, version), rows in keys.items():
            service_name = services.get(service) or f"0x{service:04x}"
            method_name = methods.get((service, method)) or f"0x{method:04x}"
            try:
                parameters = Struct(name="parameters", members=self._members(rows), tagged=rows[0]["tagged"])
                messages.append(
                    PayloadMessage(
                        service_id=service,
                        method_id=method,
                        message_type=message_type,
                        interface_version=version,
                        service=service_name,
                        method=method_name,
                        parameters=parameters,
                        database=self._database,
                    )
                )
            except DescriptionError as error:
                self._lost[f"{service_name}.{method_name} ({rows[0].place})"] = str(error)
        for kind, by_id in self._rows.items():
            for number, rows in by_id.items():
                if (kind, number) not in self._used:
                    self._lost[rows[0].place] = "no message that is read uses this type"
        return messages, services, methods

    def _members(self, rows: list[_Row]) -> tuple[Member, ...]:
        ordered = self._in_order(rows, gaps=rows[0]["tagged"])
        return tuple(
            Member(
                name=row["name"],
                type=self._find_type(row["type"], row["ref"]),
                data_id=row["pos"] if row["tagged"] else None,
            )
            for row in ordered
        )

    @staticmethod
    def _in_order(rows: list[_Row], *, gaps: bool) -> list[_Row]:
        """The rows of one type by position: 0, 1, ... without `gaps`."""
        ordered = sorted(rows, key=lambda row: int(row["pos"]))
        positions = [row["pos"] for row in ordered]
        if len(set(positions)) < len(positions):
            raise DescriptionError(f"{rows[0].place}: two rows have the same position: remove one")
        if not gaps and positions != list(range(rows[0]["items"])):
            raise DescriptionError(
                f"{rows[0].place}: it has the positions {positions}, of {rows[0]['items']}: add the others"
            )
        return ordered

    def _find_type(self, kind: int, number: int) -> Type:
        key = (kind, number)
        self._used.add(key)
        if key not in self._types:
            self._types[key] = "it contains itself: break the circle"
            try:
                self._types[key] = self._build_type(kind, number)
            except DescriptionError as error:
                self._types[key] = str(error)
        found = self._types[key]
        if isinstance(found, str):
            raise DescriptionError(found)
        return found

    def _build_type(self, kind: int, number: int) -> Type:
        rows = self._rows.get(kind, {}).get(number)
        if rows is None:
            table = f"SOMEIP_parameter_{_TYPE_TABLES[kind]}" if kind in _TYPE_TABLES else f"types of kind {kind}"
            raise DescriptionError(f"{table} has no id {number:x}: add it")
        build = (
            _base_type,
            _string,
            self._array,
            self._struct,
            self._union,
            self._typedef,
            self._enumeration,
            _bitfield,
        )
        return build[kind - 1](rows)

    def _array(self, rows: list[_Row]) -> Array:
        dimensions = []
        for row in self._in_order(rows, gaps=False):
            if not row["length_bits"] and row["least"] != row["most"]:
                raise DescriptionError(
                    f"{row.place}: it has {row['least']} to {row['most']} elements and no length field"
                )
            dimensions.append(
                Dimension(
                    minimum=row["least"],
                    maximum=row["most"] or None,
                    length_bits=row["length_bits"],
                    alignment=row["alignment"],
                )
            )
        first = rows[0]
        element = self._find_type(first["type"], first["ref"])
        return Array(name=first["type_name"], element=element, dimensions=tuple(dimensions))

    def _struct(self, rows: list[_Row]) -> Struct:
        first = rows[0]
        return Struct(
            name=first["type_name"],
            members=self._members(rows),
            length_bits=first["length_bits"],
            alignment=first["alignment"],
            tagged=first["tagged"],
        )

    def _union(self, rows: list[_Row]) -> Union:
        first = rows[0]
        return Union(
            name=first["type_name"],
            variants=tuple(
                Variant(selector=row["pos"], name=row["name"], type=self._find_type(row["type"], row["ref"]))
                for row in self._in_order(rows, gaps=True)
            ),
            length_bits=first["length_bits"],
            selector_bits=first["selector_bits"],
            alignment=first["alignment"],
        )

    def _typedef(self, rows: list[_Row]) -> Type:
        return self._find_type(rows[0]["type"], rows[0]["ref"])

    def _enumeration(self, rows: list[_Row]) -> BaseType:
        base = self._find_type(rows[0]["type"], rows[0]["ref"])
        if not isinstance(base, BaseType):
            raise DescriptionError(f"{rows[0].place}: an enumeration is a number: refer to a base type")
        labels: dict[int, str] = {}
        for row in rows:
            raw = row["value"]
            if base.coding == "sint" and raw >> (base.bits - 1):  # negative numbers are written as their bits
                raw -= 1 << (64 if raw >> base.bits else base.bits)
            labels.setdefault(raw, row["label"])  # of two, Wireshark shows the first
        return replace(base, name=rows[0]["type_name"], labels=tuple(sorted(labels.items())))


def _base_type(rows: list[_Row]) -> BaseType:
    row = rows[0]
    for prefix, coding in _CODINGS:
        if row["coding"].lower().startswith(prefix):
            return BaseType(name=row["name"], coding=coding, bits=row["bits"], big_endian=row["big_endian"])  # type: ignore[arg-type]
    raise DescriptionError(f"{row.place}: its data type is {row['coding']!r}: use uint, int or float and the bits")


def _string(rows: list[_Row]) -> String:
    row = rows[0]
    return String(
        name=row["name"],
        encoding=row["encoding"].lower(),
        fixed_length=0 if row["length_bits"] else row["bytes"],
        length_bits=row["length_bits"],
        big_endian=row["big_endian"],
        alignment=row["alignment"],
    )


def _bitfield(rows: list[_Row]) -> Bitfield:
    first = rows[0]
    base = BaseType(name=first["type_name"], coding="uint", bits=first["bits"])
    return Bitfield(
        name=first["type_name"], base=base, members=tuple(Bits(name=row["name"], bit=row["pos"]) for row in rows)
    )
