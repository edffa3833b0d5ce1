"""The properties of AUTOSAR's SOME/IP transformer: sizes of length fields, alignment, byte order, data ids.

Layout: AUTOSAR TPS_SystemTemplate and TPS_ManifestSpecification R22-11. Sizes of length fields are bytes there (1, 2 or 4; files
with 8, 16 or 32 mean bits), alignments are bits. Defaults are those of SWS_SOMEIPTransformer: 32 bits for strings, unions and
arrays of variable length, none for structs and fixed arrays; most significant byte first, also for length fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from pcaplake.signals.computations import whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.someip.types import Encoding

from .document import ArxmlDocument, name_of
from .element import ArxmlElement

_ENCODINGS: Final[dict[str, Encoding]] = {
    "UTF-8": "utf-8",
    "UTF-16": "utf-16",
    "UTF-16LE": "utf-16",
    "UTF-16BE": "utf-16",
    "UCS-2": "utf-16",
    "US-ASCII": "ascii",
    "ASCII": "ascii",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bits; None: not said. `encoding`: of strings."""

    arrays: int | None = None
    strings: int | None = None
    structs: int | None = None
    unions: int | None = None
    selectors: int | None = None
    alignment: int | None = None
    big_endian: bool | None = None
    encoding: Encoding | None = None

    def over(self, others: Sizes) -> Sizes:
        """A copy that takes what is None here from `others`."""
        said = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        return replace(others, **said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """How one event, method or field is serialized. `data_ids`: path of a member -> its id; `overrides`: path -> its sizes."""

    sizes: Sizes = Sizes()
    data_ids: tuple[tuple[str, int], ...] = ()
    overrides: tuple[tuple[str, Sizes], ...] = field(default=())

    def sizes_at(self, path: str, sizes: Sizes) -> Sizes:
        for place, own in self.overrides:
            if place == path:
                return own.over(sizes)
        return sizes

    def data_id_at(self, path: str) -> int | None:
        for place, number in self.data_ids:
            if place == path:
                return number
        return None


def adaptive_sizes(element: ArxmlElement) -> Sizes:
    """Of an AP-SOMEIP-TRANSFORMATION-PROPS, or a SOMEIP-TRANSFORMATION-PROPS."""
    return Sizes(
        arrays=_length_bits(element, "SIZE-OF-ARRAY-LENGTH-FIELD"),
        strings=_length_bits(element, "SIZE-OF-STRING-LENGTH-FIELD"),
        structs=_length_bits(element, "SIZE-OF-STRUCT-LENGTH-FIELD"),
        unions=_length_bits(element, "SIZE-OF-UNION-LENGTH-FIELD"),
        selectors=_length_bits(element, "SIZE-OF-UNION-TYPE-SELECTOR-FIELD"),
        alignment=_number(element, "ALIGNMENT"),
        big_endian=byte_order(element),
        encoding=encoding_of(element.text_at("STRING-ENCODING")),
    )


def classic_sizes(properties: ArxmlElement | None, description: ArxmlElement | None) -> Sizes:
    """Of a SOMEIP-TRANSFORMATION-I-SIGNAL-PROPS-CONDITIONAL and a SOMEIP-TRANSFORMATION-DESCRIPTION."""
    sizes = Sizes()
    if properties is not None:
        sizes = Sizes(
            arrays=_length_bits(properties, "SIZE-OF-ARRAY-LENGTH-FIELDS"),
            strings=_length_bits(properties, "SIZE-OF-STRING-LENGTH-FIELDS"),
            structs=_length_bits(properties, "SIZE-OF-STRUCT-LENGTH-FIELDS"),
            unions=_length_bits(properties, "SIZE-OF-UNION-LENGTH-FIELDS"),
        )
    if description is not None:
        sizes = replace(sizes, alignment=_number(description, "ALIGNMENT"), big_endian=byte_order(description))
    return sizes


def data_ids(document: ArxmlDocument, element: ArxmlElement) -> tuple[tuple[str, int], ...]:
    """Path of a member or argument -> its data id, of the definitions in `element` and those that it refers to."""
    definitions = list(element.children_at("TLV-DATA-IDS/TLV-DATA-ID-DEFINITION"))
    for reference in element.children_at("TLV-DATA-ID-DEFINITION-REFS/TLV-DATA-ID-DEFINITION-REF"):
        found = document.find(reference.text)
        if found is None:
            raise DatabaseError(f"{name_of(element)} refers to {reference.text}, which is not in the file")
        definitions += found.children_at("TLV-DATA-ID-DEFINITIONS/TLV-DATA-ID-DEFINITION")
    ids: dict[str, int] = {}
    for definition in definitions:
        number = _number(definition, "ID")
        for child in definition.children:
            if number is not None and child.name.endswith("-REF"):
                ids[child.text] = number
            elif child.name.endswith(("-IREF", "-ELEMENT")):
                document.lose(name_of(element), f"{child.name} of a data id is not read")
    return tuple(sorted(ids.items()))


def byte_order(element: ArxmlElement) -> bool | None:
    """Whether the most significant byte is first; None: not said. Opaque data have no order, and are read as big endian."""
    order = element.text_at("BYTE-ORDER")
    return None if order is None else order != "MOST-SIGNIFICANT-BYTE-LAST"


def encoding_of(text: str | None) -> Encoding | None:
    """Raises `DatabaseError` for an encoding that is not read."""
    if text is None:
        return None
    known = _ENCODINGS.get(text.upper())
    if known is None:
        raise DatabaseError(f"its texts are encoded as {text}: ASCII, UTF-8 and UTF-16 are read")
    return known


def _length_bits(element: ArxmlElement, name: str) -> int | None:
    size = _number(element, name)
    return size if size is None or size in (16, 32) or size == 8 else size * 8


def _number(element: ArxmlElement, name: str) -> int | None:
    text = element.text_at(name)
    return None if text is None else whole_number(text, name)
