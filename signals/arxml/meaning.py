"""What the values of an ARXML data type mean: base type, computation method, unit and limits of SW-DATA-DEF-PROPS."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from pcaplake.signals.computations import (
    BITFIELDS,
    Computation,
    bits_of,
    physical_values,
    read_computation,
    read_limit,
    read_physical_limit,
    whole_number,
)
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.model import Scale
from pcaplake.signals.someip.types import BaseType, Bitfield, Coding, Encoding

from .document import ArxmlDocument, short_name
from .element import ArxmlElement
from .sizes import encoding_of

_PROPERTIES: Final = "SW-DATA-DEF-PROPS/SW-DATA-DEF-PROPS-VARIANTS/SW-DATA-DEF-PROPS-CONDITIONAL"
_CODINGS: Final[dict[str, Coding]] = {"NONE": "uint", "2C": "sint", "IEEE754": "float", "BOOLEAN": "uint"}
_AS_TWOS_COMPLEMENT: Final = {"1C": "ones' complement", "SM": "sign and magnitude"}  # as cantools reads them
_TEXTS: Final = ("UTF", "UCS", "ISO", "WINDOWS", "ASCII", "US-ASCII")
_NAMES: Final[dict[str, tuple[Coding, int]]] = {  # of the types of C++, which need no base type
    **{f"uint{bits}{end}": ("uint", bits) for bits in (8, 16, 32, 64) for end in ("", "_t")},
    **{
        f"{kind}{bits}{end}": ("sint", bits)
        for kind in ("int", "sint")
        for bits in (8, 16, 32, 64)
        for end in ("", "_t")
    },
    "float": ("float", 32),
    "float32": ("float", 32),
    "double": ("float", 64),
    "float64": ("float", 64),
    "bool": ("uint", 8),
    "boolean": ("uint", 8),
    "byte": ("uint", 8),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """AUTOSAR paths of what the properties refer to; None: not said."""

    base: str | None = None
    computation: str | None = None
    unit: str | None = None
    limits: str | None = None

    def over(self, other: Meaning) -> Meaning:
        """This meaning; where it says nothing, the other."""
        return Meaning(
            base=self.base or other.base,
            computation=self.computation or other.computation,
            unit=self.unit or other.unit,
            limits=self.limits or other.limits,
        )


def properties_of(element: ArxmlElement) -> ArxmlElement | None:
    """The SW-DATA-DEF-PROPS of an element."""
    return element.child(_PROPERTIES)


def meaning_of(element: ArxmlElement, at: str = _PROPERTIES) -> Meaning:
    found = element.child(at)
    if found is None:
        return Meaning()
    return Meaning(
        base=found.text_at("BASE-TYPE-REF") or found.text_at("SW-TEXT-PROPS/BASE-TYPE-REF"),
        computation=found.text_at("COMPU-METHOD-REF"),
        unit=found.text_at("UNIT-REF"),
        limits=found.text_at("DATA-CONSTR-REF"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A SW-BASE-TYPE. `encoding`: of the texts whose characters it is, if it is one."""

    name: str
    coding: Coding
    bits: int
    encoding: Encoding | None = None


def number_of(document: ArxmlDocument, meaning: Meaning, name: str) -> Number:
    """The base type of a value; without one, by the name of its type. Raises `DatabaseError`."""
    if meaning.base is None:
        if name in _NAMES:
            return Number(name=name, coding=_NAMES[name][0], bits=_NAMES[name][1])
        raise DatabaseError(f"{name} has no BASE-TYPE-REF, so its size is unknown: add one")
    element = document.find(meaning.base)
    if element is None:
        raise DatabaseError(f"its base type {meaning.base} is not in the file")
    size = element.text_at("BASE-TYPE-SIZE")
    encoding = (element.text_at("BASE-TYPE-ENCODING") or "NONE").upper()
    found = _NAMES.get(short_name(element))
    bits = whole_number(size, "BASE-TYPE-SIZE") if size is not None else found[1] if found else None
    if bits is None:
        raise DatabaseError(f"its base type {meaning.base} has no BASE-TYPE-SIZE: add one")
    if encoding.startswith(_TEXTS):
        return Number(name=short_name(element), coding="uint", bits=bits, encoding=encoding_of(encoding))
    if encoding in _AS_TWOS_COMPLEMENT:
        document.lose(
            meaning.base, f"{_AS_TWOS_COMPLEMENT[encoding]} is read as two's complement: negative values differ"
        )
        encoding = "2C"
    if encoding not in _CODINGS:
        raise DatabaseError(f"its base type {meaning.base} has numbers encoded as {encoding}, which are not read")
    coding = _CODINGS[encoding]
    if encoding == "NONE" and found is not None and element.text_at("BASE-TYPE-ENCODING") is None:
        coding = found[0]
    return Number(name=short_name(element), coding=coding, bits=bits)


def value_type(
    document: ArxmlDocument, name: str, number: Number, meaning: Meaning, big_endian: bool
) -> BaseType | Bitfield:
    """A number with its texts, factor, unit and limits; a bitfield if its texts are of single bits."""
    computation = computation_of(document, meaning)
    plain = BaseType(name=number.name, coding=number.coding, bits=number.bits, big_endian=big_endian)
    if computation.category in BITFIELDS:
        return Bitfield(name=name, base=plain, members=bits_of(computation))
    scale, labels, problems = physical_values(computation, unit_of(document, meaning))
    for problem in problems:
        document.lose(meaning.computation or name, problem)
    low, high = _limits(document, meaning, plain, scale)
    return replace(plain, name=name, labels=labels, scale=scale, minimum=low, maximum=high)


def computation_of(document: ArxmlDocument, meaning: Meaning) -> Computation:
    """Its COMPU-METHOD; without scales if it has none, or if that is not in the file, which is listed."""
    if meaning.computation is None:
        return Computation()
    method = document.find(meaning.computation)
    if method is None:
        document.lose(meaning.computation, "this COMPU-METHOD is not in the file: values are raw")
        return Computation()
    return read_computation([method])


def unit_of(document: ArxmlDocument, meaning: Meaning) -> str | None:
    path = meaning.unit
    if path is None and meaning.computation is not None and (method := document.find(meaning.computation)) is not None:
        path = method.text_at("UNIT-REF")
    if path is None:
        return None
    unit = document.find(path)
    name = (unit and unit.text_at("DISPLAY-NAME")) or path.rpartition("/")[2]
    return None if name == "NoUnit" or path.endswith("/NoUnit") else name


def constraint_of(document: ArxmlDocument, meaning: Meaning) -> ArxmlElement | None:
    """The DATA-CONSTR with the limits of a meaning. A reference to one that is not in the file is listed."""
    found = document.find(meaning.limits) if meaning.limits is not None else None
    if found is None and meaning.limits is not None:
        document.lose(meaning.limits, "this DATA-CONSTR is not in the file: values have no limits of it")
    return found


def _limits(
    document: ArxmlDocument, meaning: Meaning, number: BaseType, scale: Scale
) -> tuple[float | None, float | None]:
    """Physical limits, and those of raw values that are narrower than what the bits can say."""
    constraint = constraint_of(document, meaning)
    floats = number.coding == "float"
    if constraint is None:
        return None, None
    for rule in constraint.children_at("DATA-CONSTR-RULES/DATA-CONSTR-RULE"):
        if (physical := rule.child("PHYS-CONSTRS")) is not None:
            low, high = (
                read_physical_limit(physical, name, (scale,), floats=floats) for name in ("LOWER-LIMIT", "UPPER-LIMIT")
            )
            return low, high
        if (internal := rule.child("INTERNAL-CONSTRS")) is not None:
            low, high = (read_limit(internal, name, floats=floats) for name in ("LOWER-LIMIT", "UPPER-LIMIT"))
            if not floats:
                signed = number.coding == "sint"
                least = -(1 << number.bits - 1) if signed else 0
                low = None if low is not None and low <= least else low
                high = None if high is not None and high >= least + (1 << number.bits) - 1 else high
            bounds = [None if one is None else one * scale.factor + scale.offset for one in (low, high)]
            return (bounds[1], bounds[0]) if scale.factor < 0 else (bounds[0], bounds[1])
    return None, None
