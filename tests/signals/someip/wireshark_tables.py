"""Writes descriptions as the configuration tables of Wireshark's SOME/IP dissector."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pcaplake.signals.someip.description import (
    Array,
    BaseType,
    Bitfield,
    Member,
    PayloadMessage,
    String,
    Struct,
    Type,
    Union,
)

NAMES = ("base_types", "strings", "arrays", "structs", "unions", "typedefs", "enums", "bitfields")


class TableWriter:
    """`typedefs`: whether each base type is reached through a typedef."""

    def __init__(self, *, typedefs: bool = False) -> None:
        self.rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in NAMES}
        self.next = 1
        self.rows["base_types"].append(("1", "uint8", "uint8", True, 8, 8))  # of which only tests of tshark know
        self.typedefs = typedefs

    def number(self) -> str:
        self.next += 1
        return f"{self.next:x}"

    def add(self, type_: Type) -> tuple[int, str]:
        """The kind and id of a type, which gets rows."""
        number = self.number()
        head: tuple[object, ...]
        if isinstance(type_, BaseType):
            return self.add_base(type_, number)
        if isinstance(type_, String):
            encoding, size = type_.encoding, type_.fixed_length
            row = (number, type_.name, encoding, bool(type_.length_bits), size, type_.length_bits, type_.big_endian)
            self.rows["strings"].append((*row, type_.alignment))
            return 2, number
        if isinstance(type_, Array):
            kind, element = self.add(type_.element)
            for place, one in enumerate(type_.dimensions):
                head = (number, type_.name, kind, element, len(type_.dimensions), f"array{number}")
                limits = (one.minimum if one.length_bits else one.maximum, one.maximum or 0)
                self.rows["arrays"].append((*head, place, *limits, one.length_bits, one.alignment))
            return 3, number
        if isinstance(type_, Struct):
            head = (number, type_.name, type_.length_bits, type_.alignment, type_.tagged)
            self.add_items("structs", head, type_.members, type_.tagged)
            return 4, number
        if isinstance(type_, Union):
            for variant in type_.variants:
                assert variant.type is not None
                kind, ref = self.add(variant.type)
                head = (
                    number,
                    type_.name,
                    type_.length_bits,
                    type_.selector_bits,
                    type_.alignment,
                    len(type_.variants),
                )
                self.rows["unions"].append(
                    (*head, variant.selector, variant.name, kind, ref, f"v{number}.{variant.name}")
                )
            return 5, number
        assert isinstance(type_, Bitfield)
        for bits in type_.members:
            head = (number, type_.name, type_.base.bits, len(type_.members), bits.bit, bits.name)
            self.rows["bitfields"].append((*head, f"b{number}.{bits.name}"))
        return 8, number

    def add_base(self, base: BaseType, number: str) -> tuple[int, str]:
        word = {"uint": "uint", "sint": "int", "float": "float"}[base.coding]
        row = (number, base.name, f"{word}{base.bits}", base.big_endian, base.bits, base.bits)
        self.rows["base_types"].append(row)
        kind, ref = 1, number
        if base.labels:
            enum = self.number()
            for raw, label in base.labels:
                value = f"{raw % (1 << 64):x}"
                self.rows["enums"].append((enum, base.name, kind, ref, len(base.labels), value, label))
            kind, ref = 7, enum
        if self.typedefs:
            alias = self.number()
            self.rows["typedefs"].append((alias, base.name, kind, ref))
            kind, ref = 6, alias
        return kind, ref

    def add_items(self, table: str, head: tuple[object, ...], members: tuple[Member, ...], tagged: bool) -> None:
        count = 1 + max((member.data_id or 0 for member in members), default=0) if tagged else len(members)
        for place, member in enumerate(members):
            kind, ref = self.add(member.type)
            position = member.data_id if tagged else place
            self.rows.setdefault(table, []).append(
                (*head, count, position, member.name, kind, ref, f"f{self.number()}.{member.name}")
            )

    def write(self, folder: Path, messages: Iterable[PayloadMessage]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        services: dict[int, str] = {}
        methods: list[tuple[object, ...]] = []
        for message in messages:
            services[message.service_id] = message.service
            methods.append((f"{message.service_id:04x}", f"{message.method_id:04x}", message.method))
            head = (
                f"{message.service_id:04x}",
                f"{message.method_id:04x}",
                message.interface_version,
                f"{message.message_type:x}",
                message.parameters.tagged,
            )
            self.add_items("list", head, message.parameters.members, message.parameters.tagged)
        tables = {f"SOMEIP_parameter_{name}": rows for name, rows in self.rows.items()}
        tables["SOMEIP_service_identifiers"] = [(f"{number:04x}", name) for number, name in services.items()]
        tables["SOMEIP_method_event_identifiers"] = methods
        for name, rows in tables.items():
            lines = [",".join(f'"{_text(value)}"' for value in row) for row in rows]
            (folder / name).write_text("\n".join(["# generated", *lines]) + "\n", encoding="utf-8")


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).upper()
    return str(value).replace("\\", r"\\").replace('"', r"\x22")
