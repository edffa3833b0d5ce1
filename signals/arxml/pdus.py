"""The PDUs of an ARXML file: of signals, multiplexed PDUs, the payload of secured PDUs, and containers with and without headers.

Layout: AUTOSAR TPS_SystemTemplate R22-11.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pcaplake.signals.assemble import cycle_time
from pcaplake.signals.computations import decimal_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.model import Signal
from pcaplake.signals.pdus import Alternative, Headers, Pdu, PduInFrame, SignalInPdu

from .document import ArxmlDocument, path_of, short_name
from .element import ArxmlElement
from .i_signals import number_at, signal_in_pdu

_MAPPINGS: Final = (
    "I-SIGNAL-TO-PDU-MAPPINGS/I-SIGNAL-TO-I-PDU-MAPPING",
    "I-SIGNAL-TO-I-PDU-MAPPINGS/I-SIGNAL-TO-I-PDU-MAPPING",  # of a NM-PDU
)
_PERIOD: Final = (
    "I-PDU-TIMING-SPECIFICATIONS/I-PDU-TIMING/TRANSMISSION-MODE-DECLARATION/TRANSMISSION-MODE-TRUE-TIMING/"
    "CYCLIC-TIMING/TIME-PERIOD/VALUE"
)
_ALTERNATIVES: Final = "DYNAMIC-PARTS/DYNAMIC-PART/DYNAMIC-PART-ALTERNATIVES/DYNAMIC-PART-ALTERNATIVE"
_CONTAINED: Final = "CONTAINED-PDU-TRIGGERING-REFS/CONTAINED-PDU-TRIGGERING-REF"
_DEEPEST: Final = 16  # most PDUs around a PDU
_MOST_SIGNALS: Final = 1 << 14  # of a PDU and those in it
_UPDATE: Final = "UPDATE-INDICATION-BIT-POSITION"
_HEADERS: Final = {"SHORT-HEADER": 24, "LONG-HEADER": 32}  # bits of the id


class PduReader:
    def __init__(self, document: ArxmlDocument) -> None:
        self._document = document
        self._built: dict[str, Pdu] = {}
        self._open: list[str] = []
        self._transformed: set[str] = set()  # PDUs with signals that transformers write, and those around them
        orders = [system.text_at("CONTAINER-I-PDU-HEADER-BYTE-ORDER") for system in document.all_of("SYSTEM")]
        self._big_endian = next((order for order in orders if order), "") != "MOST-SIGNIFICANT-BYTE-LAST"
        """Byte order of the headers in containers."""

    def find_pdus_of_frame(self, frame: ArxmlElement) -> list[PduInFrame]:
        """The PDUs of a frame; those without signals are left out, and of one that comes twice, the second is listed."""
        placed: list[PduInFrame] = []
        for mapping in frame.children_at("PDU-TO-FRAME-MAPPINGS/PDU-TO-FRAME-MAPPING"):
            path = mapping.text_at("PDU-REF")
            if path is not None:
                position = number_at(mapping, "START-POSITION") or 0
                pdu = self.read(path)
                if path in self._transformed:
                    self._document.lose(path, "what SOME/IP transformers write into CAN and FlexRay frames is not read")
                if any(each.pdu is pdu for each in placed):
                    self._document.lose(
                        path_of(mapping), f"its PDU {pdu.name} is in the frame twice: the first is read"
                    )
                elif pdu.holds_signals:
                    update = number_at(mapping, _UPDATE)
                    if min(position, update or 0) < 0:
                        raise DatabaseError(f"its PDU {pdu.name} or the update bit of it begins before the frame")
                    placed.append(PduInFrame(pdu=pdu, position=position - position % 8, update_bit=update))
        return placed

    def read(self, path: str) -> Pdu:
        """A PDU by its path. Raises `DatabaseError`."""
        if path in self._built:
            if path in self._transformed:
                self._transformed |= {*self._open}
            return self._built[path]
        element = self._document.find(path)
        if element is None:
            raise DatabaseError(f"the PDU {path} is not in the file")
        if path in self._open:
            raise DatabaseError(f"the PDU {path} contains itself")
        if len(self._open) == _DEEPEST:
            raise DatabaseError(f"the PDU {path} is inside more than {_DEEPEST} others")
        self._open.append(path)
        try:
            built = self._build(element)
        finally:
            self._open.pop()
        if (count := built.count_signals()) > _MOST_SIGNALS:
            raise DatabaseError(f"the PDU {path} has {count:,} signals, and at most {_MOST_SIGNALS:,} are read")
        self._built[path] = built
        return built

    def _build(self, element: ArxmlElement) -> Pdu:
        name = short_name(element)
        length = number_at(element, "LENGTH") or 0
        if element.name == "MULTIPLEXED-I-PDU":
            return self._build_multiplexed(element, name, length)
        if element.name == "SECURED-I-PDU":
            return self._build_secured(element, name, length)
        if element.name == "CONTAINER-I-PDU":
            return self._build_container(element, name, length)
        signals = tuple(self._signals(element))
        period = element.text_at(_PERIOD)
        cycle = None if period is None else cycle_time(round(decimal_number(period, "TIME-PERIOD") * 1000, 6))
        return Pdu(name=name, length=length, signals=signals, cycle_ms=cycle)

    def _signals(self, element: ArxmlElement) -> Iterator[SignalInPdu]:
        """Without those that transformers write: `classic.py`. A signal that is not in the file is listed."""
        document = self._document
        mappings = [each for path in _MAPPINGS for each in element.children_at(path)]
        group_bits: dict[str, int] = {}  # path of a signal -> update bit of its group
        for mapping in mappings:
            try:
                group, bit = document.target(mapping, "I-SIGNAL-GROUP-REF"), number_at(mapping, _UPDATE)
            except DatabaseError as error:
                document.lose(path_of(mapping), str(error))
                continue
            if group is not None and bit is not None:
                group_bits |= {each.text: bit for each in group.children_at("I-SIGNAL-REFS/I-SIGNAL-REF")}
        for mapping in mappings:
            try:
                signal = document.target(mapping, "I-SIGNAL-REF")
            except DatabaseError as error:
                document.lose(path_of(mapping), str(error))
                continue
            if signal is not None and signal.child("DATA-TRANSFORMATIONS") is not None:
                self._transformed |= {*self._open}
            elif signal is not None:
                yield signal_in_pdu(document, mapping, signal, group_bits.get(path_of(signal)))

    def _build_secured(self, element: ArxmlElement, name: str, length: int) -> Pdu:
        """Authenticated, not encrypted: the payload comes first, then what is sent of the freshness value and authenticator."""
        for part, usual in (("USE-AS-CRYPTOGRAPHIC-I-PDU", "false"), ("USE-SECURED-PDU-HEADER", "NO-HEADER")):
            if (said := element.text_at(part) or usual) != usual:
                raise DatabaseError(f"the secured PDU {path_of(element)} has {part} {said}, and only {usual} is read")
        triggering = self._document.required_target(element, "PAYLOAD-REF")
        inner = self.read(path_of(self._document.required_target(triggering, "I-PDU-REF")))
        if inner.length == 0:
            self._document.lose(
                path_of(element), f"{inner.name} has no LENGTH, so the places of what follows are unknown"
            )
            return Pdu(name=name, length=length, static=((inner, 0),), cycle_ms=inner.cycle_ms)
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
                code = number_at(each, "SELECTOR-FIELD-CODE")
                if code is None:
                    self._document.lose(path, f"as an alternative of {name} it has no SELECTOR-FIELD-CODE: add one")
                    continue
                pdu, own = _without_selector(self._read_part(path, element), selector)
                choices |= dict(own.choices if own is not None else ())
                if own is not None and own.invalid is not None:
                    selector = replace(selector, invalid=own.invalid)
                alternatives.append(Alternative(selector=code, pdu=pdu))
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
            placed = []
            for contained in self._contained(element):
                offset = number_at(contained, "CONTAINED-I-PDU-PROPS/OFFSET")
                if offset is None:
                    raise DatabaseError(f"{path_of(contained)} in {name} has no OFFSET: add one")
                placed.append((self._read_inside(contained, element), 8 * offset))
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
        """The PDUs of a container. One that is not in the file is listed."""
        for reference in element.children_at(_CONTAINED):
            triggering = self._document.find(reference.text)
            path = triggering.text_at("I-PDU-REF") if triggering is not None else None
            contained = self._document.find(path) if path is not None else None
            if contained is not None:
                yield contained
            else:
                self._document.lose(reference.text, f"this PDU of {path_of(element)} is not in the file")

    def _read_inside(self, contained: ArxmlElement, container: ArxmlElement) -> Pdu:
        """A PDU in another one. Raises `DatabaseError` for a container with headers."""
        pdu = self.read(path_of(contained))
        if pdu.holds_headers:
            raise DatabaseError(f"it is a container with headers in {path_of(container)}, which is not read")
        return pdu


def _without_selector(pdu: Pdu, selector: Signal) -> tuple[Pdu, Signal | None]:
    """A PDU without its signal in the place of the selector, and this signal: each alternative has one, with its texts."""
    for each in pdu.signals:
        if (each.signal.start, each.signal.length) == (selector.start, selector.length):
            return replace(pdu, signals=tuple(one for one in pdu.signals if one is not each)), each.signal
    return pdu, None
