"""Reads the elements of a FIBEX file to records. One that cannot be read is listed with its line, and costs no other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from sys import intern
from typing import Final, TypeVar

from pcaplake.signals.computations import read_computation, read_physical_limit, signal_values, whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.xml_elements import XmlElement, read_elements

from .records import (
    ArrayDimension,
    Attributes,
    Coding,
    Datatype,
    FibexFile,
    FieldIds,
    Interface,
    Operation,
    Use,
)

WANTED: Final = (
    "SERVICE-INTERFACE", "DATATYPE", "CODING", "UNIT", "SIGNAL", "CLUSTER", "CHANNEL", "FRAME", "PDU",
)  # fmt: skip
_PROSE: Final = frozenset(  # says nothing about bytes or values
    """
    SHORT-NAME LONG-NAME DESC SHORT-LABEL REMARKS ANNOTATIONS ADMIN-DATA ELEMENT-REVISIONS EXTERNAL-REFERENCES PRODUCT-REF
    PRODUCT-REFS PACKAGE-REF RELIABLE PRIORITY ACCESS-PERMISSION EVENT-GROUPS RETURN-CODE MAX-RETENTION-TIME
    DEBOUNCE-TIME-RANGE DISPLAY-NAME INITIAL-VALUE
    """.split()  # noqa: SIM905  a list of names is easier to read without quotes
)
_USE: Final = (
    "DATATYPE-REF", "SIGNAL-REF", "ARRAY-DECLARATION", "UTILIZATION", "POSITION", "INDEX", "MANDATORY", "DATA-ID",
)  # fmt: skip
_OPERATION: Final = (
    "METHOD-IDENTIFIER", "CALL-SEMANTIC", "INPUT-PARAMETERS", "RETURN-PARAMETERS", "SERIALIZATION-ATTRIBUTES",
)  # fmt: skip
_ATTRIBUTES: Final = (
    "LENGTH-FIELD-SIZE", "TYPE-FIELD-SIZE", "ARRAY-LENGTH-FIELD-SIZE", "BIT-ALIGNMENT", "PASS-ON-TO-SUBELEMENTS",
)  # fmt: skip
_UTILIZATION: Final = (
    "CODING-REF", "IS-HIGH-LOW-BYTE-ORDER", "BIT-LENGTH", "MIN-BIT-LENGTH", "MAX-BIT-LENGTH", "SERIALIZATION-ATTRIBUTES",
)  # fmt: skip

T = TypeVar("T")


def read_fibex(path: Path) -> FibexFile:
    """All records of a file. Raises `DatabaseError` for a file that is not XML."""
    reader = FibexReader(path.name)
    for element in read_elements(path, WANTED):
        reader.add_element(element)
    return reader.finish()


class FibexReader:
    """Takes elements one after the other. `finish` returns what they say."""

    def __init__(self, source: str) -> None:
        self._file = FibexFile(name=source)
        self._unread: dict[str, tuple[int, int]] = {}

    def add_element(self, element: XmlElement) -> None:
        for _ in self._collect([element], "", self._read_element):
            pass

    def finish(self) -> FibexFile:
        for what, (line, count) in self._unread.items():
            self._file.lose(line, what, f"it is not read (found {count:,} times)")
        return self._file

    def _read_element(self, element: XmlElement) -> None:
        file = self._file
        if element.name == "SERVICE-INTERFACE":
            file.interfaces.append(self._interface(element))
            return
        identifier = element.attributes.get("ID")
        if identifier is None:
            raise DatabaseError("it has no ID, so nothing can refer to it: add one")
        if element.name == "DATATYPE":
            file.datatypes[identifier] = self._datatype(element)
        elif element.name == "CODING":
            file.codings[identifier] = self._coding(element)
        elif element.name == "UNIT":
            file.units[identifier] = element.text_at("DISPLAY-NAME") or _name(element)
        elif element.name == "SIGNAL":
            file.signal_names[identifier] = _name(element)
            if coding := element.reference("CODING-REF"):
                file.signals[identifier] = coding
        else:
            file.frames.add_element(element)

    def _collect(self, elements: Iterable[XmlElement], owner: str, read: Callable[[XmlElement], T]) -> Iterator[T]:
        """What `read` makes of each element; those that it refuses are lost."""
        for element in elements:
            try:
                yield read(element)
            except ValueError as error:
                name = element.text_at("SHORT-NAME") or element.attributes.get("ID", "")
                where = ".".join(filter(None, (owner, name)))
                self._file.lose(element.line, f"{element.name} {where}".strip(), str(error))

    def _check(self, element: XmlElement, known: Collection[str]) -> None:
        """Count the children of an element that are not read."""
        for child in element.children:
            if child.name not in known and child.name not in _PROSE:
                what = f"{child.name} in {element.name}"
                line, count = self._unread.get(what, (child.line, 0))
                self._unread[what] = line, count + 1

    # -- services -------------------------------------------------------------------------------------------------
    def _interface(self, element: XmlElement) -> Interface:
        self._check(element, ("SERVICE-IDENTIFIER", "API-VERSION", "METHODS", "EVENTS", "FIELDS"))
        name = _name(element)
        return Interface(
            name=name,
            line=element.line,
            id=_required_number(element, "SERVICE-IDENTIFIER"),
            major=_number(element, "API-VERSION/MAJOR"),
            methods=tuple(self._collect(element.children_at("METHODS/METHOD"), name, self._operation)),
            events=tuple(self._collect(element.children_at("EVENTS/EVENT"), name, self._operation)),
            fields=tuple(self._collect(element.children_at("FIELDS/FIELD"), name, self._field)),
        )

    def _operation(self, element: XmlElement) -> Operation:
        self._check(element, _OPERATION)
        return Operation(
            name=_name(element),
            line=element.line,
            id=_required_number(element, "METHOD-IDENTIFIER"),
            answered=element.text_at("CALL-SEMANTIC") != "FIRE_AND_FORGET",
            given=self._uses(element.children_at("INPUT-PARAMETERS/INPUT-PARAMETER")),
            returned=self._uses(element.children_at("RETURN-PARAMETERS/RETURN-PARAMETER")),
            attributes=self._attributes(element.child("SERIALIZATION-ATTRIBUTES")),
        )

    def _field(self, element: XmlElement) -> FieldIds:
        self._check(element, (*_USE, "GETTER", "SETTER", "NOTIFIER"))
        return FieldIds(
            value=self._use(element),
            getter=_number(element, "GETTER/METHOD-IDENTIFIER"),
            setter=_number(element, "SETTER/METHOD-IDENTIFIER"),
            notifier=_number(element, "NOTIFIER/NOTIFICATION-IDENTIFIER"),
        )

    # -- data types -----------------------------------------------------------------------------------------------
    def _uses(self, elements: Iterable[XmlElement]) -> tuple[Use, ...]:
        """Uses in the order of their positions. One that cannot be read makes its owner unreadable: bytes after it would move."""
        uses = []
        for element in elements:
            self._check(element, _USE)
            uses.append(self._use(element))
        return tuple(sorted(uses, key=lambda use: use.position))

    def _use(self, element: XmlElement) -> Use:
        datatype = element.reference("DATATYPE-REF")
        name = _name(element)
        if datatype is None:
            raise DatabaseError(f"{name} (line {element.line}) has no DATATYPE-REF: name its data type")
        utilization = element.child("UTILIZATION")
        if utilization is not None:
            self._check(utilization, _UTILIZATION)
        order = element.text_at("UTILIZATION/IS-HIGH-LOW-BYTE-ORDER")
        return Use(
            name=name,
            line=element.line,
            datatype=intern(datatype),
            position=_number(element, "POSITION") or 0,
            index=_number(element, "INDEX"),
            data_id=_number(element, "DATA-ID"),
            mandatory=_truth(element.text_at("MANDATORY"), True),
            dimensions=tuple(
                sorted(
                    map(self._dimension, element.children_at("ARRAY-DECLARATION/ARRAY-DIMENSION")),
                    key=lambda dimension: dimension.number,
                )
            ),
            attributes=self._attributes(element.child("UTILIZATION/SERIALIZATION-ATTRIBUTES")),
            big_endian=None if order is None else _truth(order, True),
            coding=element.reference("UTILIZATION/CODING-REF"),
            signal=element.reference("SIGNAL-REF"),
            bit_length=_number(element, "UTILIZATION/BIT-LENGTH"),
        )

    def _dimension(self, element: XmlElement) -> ArrayDimension:
        self._check(element, ("DIMENSION", "MINIMUM-SIZE", "MAXIMUM-SIZE", "BIT-ALIGNMENT"))
        return ArrayDimension(
            number=_number(element, "DIMENSION") or 1,
            minimum=_number(element, "MINIMUM-SIZE") or 0,
            maximum=_number(element, "MAXIMUM-SIZE"),
            alignment=_number(element, "BIT-ALIGNMENT") or 0,
        )

    def _attributes(self, element: XmlElement | None) -> Attributes:
        if element is None:
            return Attributes()
        self._check(element, _ATTRIBUTES)
        return Attributes(
            length_bits=_number(element, "LENGTH-FIELD-SIZE"),
            type_bits=_number(element, "TYPE-FIELD-SIZE"),
            array_length_bits=_number(element, "ARRAY-LENGTH-FIELD-SIZE"),
            alignment=_number(element, "BIT-ALIGNMENT"),
            passed_on=_truth(element.text_at("PASS-ON-TO-SUBELEMENTS"), False),
        )

    def _datatype(self, element: XmlElement) -> Datatype:
        self._check(element, ("CODING-REF", "ENUMERATION-ELEMENTS", "COMPLEX-DATATYPE-CLASS", "MEMBERS"))
        kind = element.attributes.get("type", "").rpartition(":")[2].removesuffix("-DATATYPE-TYPE")
        if kind == "COMPLEX":
            kind = element.text_at("COMPLEX-DATATYPE-CLASS") or "STRUCTURE"
        labels = {}
        for each in element.children_at("ENUMERATION-ELEMENTS/ENUM-ELEMENT"):
            value = _required_number(each, "VALUE")
            labels[value] = each.text_at("SYNONYM") or each.text_at("SHORT-NAME") or str(value)
        return Datatype(
            name=_name(element),
            line=element.line,
            kind=kind,
            coding=element.reference("CODING-REF"),
            labels=tuple(sorted(labels.items())),
            members=self._uses(element.children_at("MEMBERS/MEMBER")),
        )

    def _coding(self, element: XmlElement) -> Coding:
        self._check(element, ("CODED-TYPE", "PHYSICAL-TYPE", "COMPU-METHODS"))
        coded = element.child("CODED-TYPE")
        if coded is None:
            raise DatabaseError("it has no CODED-TYPE, so its size is unknown: add one")
        physical = element.child("PHYSICAL-TYPE")
        methods = list(element.children_at("COMPU-METHODS/COMPU-METHOD"))
        bounds = [limits for method in methods if (limits := method.child("PHYS-CONSTRS/SCALE-CONSTR")) is not None]
        base, computation = coded.attributes.get("BASE-DATA-TYPE", ""), read_computation(methods)
        scales, _, _ = signal_values(computation, None)
        low, high = (
            read_physical_limit(bounds[0], name, scales, floats=base.startswith("A_FLOAT")) if bounds else None
            for name in ("LOWER-LIMIT", "UPPER-LIMIT")
        )
        return Coding(
            name=element.text_at("SHORT-NAME") or element.attributes["ID"],
            line=element.line,
            base=base,
            physical=physical.attributes.get("BASE-DATA-TYPE") if physical is not None else None,
            category=coded.attributes.get("CATEGORY"),
            encoding=coded.attributes.get("ENCODING"),
            bit_length=_number(coded, "BIT-LENGTH"),
            minimum_length=_number(coded, "MIN-LENGTH"),
            computation=computation,
            unit=next((unit for method in methods if (unit := method.reference("UNIT-REF"))), None),
            low=low,
            high=high,
        )


# -- numbers ----------------------------------------------------------------------------------------------------------
def _name(element: XmlElement) -> str:
    name = element.text_at("SHORT-NAME")
    if name is None:
        raise DatabaseError("it has no SHORT-NAME: add one")
    return intern(name)


def _truth(text: str | None, otherwise: bool) -> bool:
    return otherwise if text is None else text.lower() in ("true", "1")


def _number(element: XmlElement, path: str) -> int | None:
    text = element.text_at(path)
    return None if text is None else whole_number(text, path)


def _required_number(element: XmlElement, path: str) -> int:
    number = _number(element, path)
    if number is None:
        raise DatabaseError(f"it has no {path}: add one")
    return number
