"""The PDUs of an ARXML file: of signals, multiplexed PDUs, the payload of secured PDUs, and containers with and without headers.

Layout: AUTOSAR TPS_SystemTemplate R22-11.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pcaplake.signals.assemble import cycle_time, limit_to_float64
from pcaplake.signals.computations import (
    Computation,
    decimal_number,
    read_computation,
    read_limit,
    signal_values,
    whole_number,
)
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.model import Signal
from pcaplake.signals.pdus import Alternative, Headers, Pdu, PduInFrame, SignalInPdu

from .document import ArxmlDocument, path_of, short_name
from .element import ArxmlElement
from .meaning import Meaning, meaning_of, number_of, unit_of

_MAPPINGS: Final = (
    "I-SIGNAL-TO-PDU-MAPPINGS/I-SIGNAL-TO-I-PDU-MAPPING",
    "I-SIGNAL-TO-I-PDU-MAPPINGS/I-SIGNAL-TO-I-PDU-MAPPING",  # of a NM-PDU
)
_PERIOD: Final = (
    "I-PDU-TIMING-SPECIFICATIONS/I-PDU-TIMING/TRANSMISSION-MODE-DECLARATION/TRANSMISSION-MODE-TRUE-TIMING/"
    "CYCLIC-TIMING/TIME-PERIOD/VALUE"
)
_ALTERNATIVES: Final = "DYNAMIC-PARTS/DYNAMIC-PART/DYNAMIC-PART-ALTERNATIVES/DYNAMIC-PART-ALTERNATIVE"
_REPRESENTATION: Final = "NETWORK-REPRESENTATION-PROPS/SW-DATA-DEF-PROPS-VARIANTS/SW-DATA-DEF-PROPS-CONDITIONAL"
_PHYSICAL: Final = "PHYSICAL-PROPS/SW-DATA-DEF-PROPS-VARIANTS/SW-DATA-DEF-PROPS-CONDITIONAL"
_CONTAINED: Final = "CONTAINED-PDU-TRIGGERING-REFS/CONTAINED-PDU-TRIGGERING-REF"
_HEADERS: Final = {"SHORT-HEADER": 24, "LONG-HEADER": 32}  # bits of the id


class PduReader:
    def __init__(self, document: ArxmlDocument) -> None:
        self._document = document
        self._built: dict[str, Pdu] = {}
        self._open: list[str] = []
        orders = [system.text_at("CONTAINER-I-PDU-HEADER-BYTE-ORDER") for system in document.all_of("SYSTEM")]
        self._big_endian = next((order for order in orders if order), "") != "MOST-SIGNIFICANT-BYTE-LAST"
        """Of the headers in containers."""

    def place(self, frame: ArxmlElement) -> list[PduInFrame]:
        """The PDUs of a frame; those without signals are left out."""
        placed = []
        for mapping in frame.children_at("PDU-TO-FRAME-MAPPINGS/PDU-TO-FRAME-MAPPING"):
            path = mapping.text_at("PDU-REF")
            if path is not None:
                position = number_at(mapping, "START-POSITION") or 0
                pdu = self.read(path)
                if pdu.holds_signals:
                    update = number_at(mapping, "UPDATE-INDICATION-BIT-POSITION")
                    if min(position, update or 0) < 0:
                        raise DatabaseError(f"its PDU {pdu.name} or the update bit of it begins before the frame")
                    placed.append(PduInFrame(pdu=pdu, position=position - position % 8, update_bit=update))
        return placed

    def read(self, path: str) -> Pdu:
        """A PDU by its path. Raises `DatabaseError`."""
        if path in self._built:
            return self._built[path]
        element = self._document.find(path)
        if element is None:
            raise DatabaseError(f"the PDU {path} is not in the file")
        if path in self._open:
            raise DatabaseError(f"the PDU {path} contains itself")
        self._open.append(path)
        try:
            built = self._build(element)
        finally:
            self._open.pop()
        self._built[path] = built
        return built

    def _build(self, element: ArxmlElement) -> Pdu:
        document, name = self._document, short_name(element)
        length = number_at(element, "LENGTH") or 0
        if element.name == "MULTIPLEXED-I-PDU":
            return self._build_multiplexed(element, name, length)
        if element.name == "SECURED-I-PDU":
            return self._build_secured(element, name, length)
        if element.name == "CONTAINER-I-PDU":
            return self._build_container(element, name, length)
        signals = []
        for mapping in (each for path in _MAPPINGS for each in element.children_at(path)):
            signal = document.target(mapping, "I-SIGNAL-REF")
            if (
                signal is not None and signal.child("DATA-TRANSFORMATIONS") is None
            ):  # what transformers write: classic.py
                signals.append(self._signal(mapping, signal))
        period = element.text_at(_PERIOD)
        cycle = None if period is None else cycle_time(round(decimal_number(period, "TIME-PERIOD") * 1000, 6))
        return Pdu(name=name, length=length, signals=tuple(signals), cycle_ms=cycle)

    def _build_secured(self, element: ArxmlElement, name: str, length: int) -> Pdu:
        """Authenticated, not encrypted: the payload comes first, then what is sent of the freshness value and authenticator."""
        inner = self._triggered(element.text_at("PAYLOAD-REF"))
        if inner is None:
            return Pdu(name=name, length=length)
        footer, at = [], 8 * inner.length
        for signal, reference, size in (
            ("Freshness", "FRESHNESS-PROPS-REF", "FRESHNESS-VALUE-TX-LENGTH"),
            ("Authenticator", "AUTHENTICATION-PROPS-REF", "AUTH-INFO-TX-LENGTH"),
        ):
            properties = self._document.target(element, reference)
            bits = (properties and number_at(properties, size)) or 0
            if bits > 0:
                footer.append(Signal(name=signal, start=at // 8 * 8 + 7 - at % 8, length=bits, big_endian=True))
                at += bits
        return Pdu(name=name, length=length, static=((inner, 0),), footer=tuple(footer), cycle_ms=inner.cycle_ms)

    def _triggered(self, path: str | None) -> Pdu | None:
        """The PDU of a triggering."""
        triggering = self._document.find(path) if path is not None else None
        pdu = triggering.text_at("I-PDU-REF") if triggering is not None else None
        return self.read(pdu) if pdu is not None else None

    def _build_multiplexed(self, element: ArxmlElement, name: str, length: int) -> Pdu:
        start, size = number_at(element, "SELECTOR-FIELD-START-POSITION"), number_at(element, "SELECTOR-FIELD-LENGTH")
        if start is None or size is None:
            raise DatabaseError(f"{path_of(element)} has no position or length of its selector: add them")
        order = element.text_at("SELECTOR-FIELD-BYTE-ORDER")
        selector = Signal(name="", start=start, length=size, big_endian=order == "MOST-SIGNIFICANT-BYTE-FIRST")
        static = tuple(
            (self._read_part(path, element), 0)
            for part in element.children_at("STATIC-PARTS/STATIC-PART")
            if (path := part.text_at("I-PDU-REF")) is not None
        )
        alternatives = []
        choices: dict[int, str] = {}
        for each in element.children_at(_ALTERNATIVES):
            if (path := each.text_at("I-PDU-REF")) is not None:
                pdu, own = _without_selector(self._read_part(path, element), selector)
                choices |= dict(own.choices if own is not None else ())
                if own is not None and own.invalid is not None:
                    selector = replace(selector, invalid=own.invalid)
                alternatives.append(Alternative(selector=number_at(each, "SELECTOR-FIELD-CODE") or 0, pdu=pdu))
        cycles = [each.pdu.cycle_ms for each in alternatives if each.pdu.cycle_ms is not None]
        return Pdu(
            name=name,
            length=length,
            selector=replace(selector, choices=tuple(sorted(choices.items()))),
            static=static,
            alternatives=tuple(alternatives),
            cycle_ms=min(cycles, default=None),
        )

    def _read_part(self, path: str, element: ArxmlElement) -> Pdu:
        part = self._document.find(path)
        if part is None:
            raise DatabaseError(f"the PDU {path} is not in the file")
        return self._read_inside(part, element)

    def _build_container(self, element: ArxmlElement, name: str, length: int) -> Pdu:
        header = element.text_at("HEADER-TYPE") or "LONG-HEADER"
        if header == "NO-HEADER":
            placed = [
                (self._read_inside(contained, element), 8 * (number_at(contained, "CONTAINED-I-PDU-PROPS/OFFSET") or 0))
                for contained in self._contained(element)
            ]
            return Pdu(name=name, length=length, static=tuple(placed))
        if header not in _HEADERS:
            raise DatabaseError(f"it is a container with the header type {header}, which is unknown")
        pdus: dict[int, Pdu] = {}
        for contained in self._contained(element):
            header_id = number_at(contained, f"CONTAINED-I-PDU-PROPS/HEADER-ID-{header}")
            try:
                if header_id is None or not 0 < header_id < 1 << _HEADERS[header]:
                    raise DatabaseError(f"its header id in {name} is {header_id}, and ids have {_HEADERS[header]} bits")
                if header_id in pdus:
                    raise DatabaseError(f"{pdus[header_id].name} has the same header id {header_id:#x} in {name}")
                pdus[header_id] = self._read_inside(contained, element)
            except DatabaseError as error:
                self._document.lose(path_of(contained), str(error))
        headers = Headers(long=header == "LONG-HEADER", big_endian=self._big_endian, contained=tuple(pdus.items()))
        return Pdu(name=name, length=length, headers=headers)

    def _contained(self, element: ArxmlElement) -> Iterator[ArxmlElement]:
        """The PDUs of a container."""
        for reference in element.children_at(_CONTAINED):
            triggering = self._document.find(reference.text)
            path = triggering.text_at("I-PDU-REF") if triggering is not None else None
            if path is not None and (contained := self._document.find(path)) is not None:
                yield contained

    def _read_inside(self, contained: ArxmlElement, container: ArxmlElement) -> Pdu:
        """A PDU in another one. Raises `DatabaseError` for a container with headers."""
        pdu = self.read(path_of(contained))
        if pdu.holds_headers:
            raise DatabaseError(f"it is a container with headers in {path_of(container)}, which is not read")
        return pdu

    def _signal(self, mapping: ArxmlElement, signal: ArxmlElement) -> SignalInPdu:
        order = mapping.text_at("PACKING-BYTE-ORDER")
        update = number_at(mapping, "UPDATE-INDICATION-BIT-POSITION")
        plain = Signal(
            name=short_name(signal),
            start=number_at(mapping, "START-POSITION") or 0,
            length=number_at(signal, "LENGTH") or 0,
            big_endian=order == "MOST-SIGNIFICANT-BYTE-FIRST",
        )
        reason = None
        try:
            if order == "OPAQUE":
                raise DatabaseError("it is an array of bytes (OPAQUE), which has no value")
            plain = self._coded(plain, signal)
        except DatabaseError as error:
            reason = str(error)
        return SignalInPdu(signal=plain, update_bit=update, reason=reason)

    def _coded(self, plain: Signal, signal: ArxmlElement) -> Signal:
        document = self._document
        system = document.target(signal, "SYSTEM-SIGNAL-REF")
        meaning = meaning_of(signal, _REPRESENTATION)
        if system is not None:
            meaning = meaning.over(meaning_of(system, _PHYSICAL))
        kind = "uint"
        if meaning.base is not None:
            number = number_of(document, Meaning(base=meaning.base), plain.name)
            if number.encoding is not None:
                return replace(plain, coding="ascii")
            kind = number.coding
        method = document.find(meaning.computation) if meaning.computation is not None else None
        computation = read_computation([] if method is None else [method])
        scales, choices, problems = signal_values(computation, unit_of(document, meaning))
        for problem in problems:
            document.lose(meaning.computation or plain.name, problem)
        low, high = self._limits(meaning) or _limits_of(computation)
        return replace(
            plain,
            signed=kind == "sint",
            coding="float" if kind == "float" else "integer",
            scales=scales,
            choices=choices,
            minimum=low,
            maximum=high,
            invalid=self._invalid(signal),
        )

    def _invalid(self, signal: ArxmlElement) -> float | None:
        """The raw value that means invalid."""
        try:
            invalid = number_at(signal, f"{_REPRESENTATION}/INVALID-VALUE/NUMERICAL-VALUE-SPECIFICATION/VALUE")
        except DatabaseError as error:
            self._document.lose(path_of(signal), str(error))
            return None
        return None if invalid is None else limit_to_float64(invalid)

    def _limits(self, meaning: Meaning) -> tuple[float | None, float | None] | None:
        constraint = self._document.find(meaning.limits) if meaning.limits is not None else None
        if constraint is not None:
            for physical in constraint.children_at("DATA-CONSTR-RULES/DATA-CONSTR-RULE/PHYS-CONSTRS"):
                return read_limit(physical, "LOWER-LIMIT"), read_limit(physical, "UPPER-LIMIT")
        return None


def _limits_of(computation: Computation) -> tuple[float | None, float | None]:
    """The physical values of the limits of its only linear scale; with several, they choose the scale."""
    linear = [scale for scale in computation.scales if scale.text is None]
    if len(linear) != 1 or computation.problems:
        return None, None
    (scale,) = linear
    bounds = [None if limit is None else limit * scale.factor + scale.offset for limit in (scale.low, scale.high)]
    return (bounds[1], bounds[0]) if scale.factor < 0 else (bounds[0], bounds[1])


def _without_selector(pdu: Pdu, selector: Signal) -> tuple[Pdu, Signal | None]:
    """A PDU without its signal in the place of the selector, and this signal: each alternative has one, with its texts."""
    for each in pdu.signals:
        if (each.signal.start, each.signal.length) == (selector.start, selector.length):
            return replace(pdu, signals=tuple(one for one in pdu.signals if one is not each)), each.signal
    return pdu, None


def number_at(element: ArxmlElement, path: str) -> int | None:
    """The number in an element at a path; None without it. Raises `DatabaseError`."""
    text = element.text_at(path)
    return None if text is None else arxml_number(text, path)


def arxml_number(text: str, what: str) -> int:
    """A whole number as AUTOSAR writes it: one that begins with 0 is octal, as in C. Raises `DatabaseError`."""
    octal = len(text) > 1 and text[0] == "0" and set(text) <= set("01234567")
    return int(text, 8) if octal else whole_number(text, what)
