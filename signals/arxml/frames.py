"""The frames of FlexRay clusters and the PDUs of PDU transport in an ARXML file, as messages.

    FlexRay: frame triggering (slot, cycles) > frame > PDUs at their positions
    PDU transport: header id > PDU triggering > PDU

PDUs are those of signals, multiplexed PDUs, the payload of secured PDUs, and container PDUs without headers. What a SOME/IP
transformer serializes is in `classic.py`. Layout: AUTOSAR TPS_SystemTemplate R22-11.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from pcaplake.signals.computations import read_computation, read_limit, signal_values, whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.model import FLEXRAY_CYCLES, Channel, Message, Schedule, Signal
from pcaplake.signals.pdus import Alternative, Pdu, PduInFrame, SignalInPdu, message_of
from pcaplake.signals.xml_elements import XmlElement

from .classic import SERVICE_DISCOVERY, header_ids
from .document import ArxmlDocument, path_of, short_name
from .meaning import Meaning, meaning_of, number_of, unit_of

KINDS: Final = ("FLEXRAY-CLUSTER", "ETHERNET-CLUSTER", "SOCKET-CONNECTION-IPDU-IDENTIFIER-SET")
_CHANNELS: Final = "FLEXRAY-CLUSTER-VARIANTS/FLEXRAY-CLUSTER-CONDITIONAL/PHYSICAL-CHANNELS/FLEXRAY-PHYSICAL-CHANNEL"
_TRIGGERINGS: Final = "FRAME-TRIGGERINGS/FLEXRAY-FRAME-TRIGGERING"
_TIMINGS: Final = "ABSOLUTELY-SCHEDULED-TIMINGS/FLEXRAY-ABSOLUTELY-SCHEDULED-TIMING"
_MAPPINGS: Final = "I-SIGNAL-TO-PDU-MAPPINGS/I-SIGNAL-TO-I-PDU-MAPPING"
_REPRESENTATION: Final = "NETWORK-REPRESENTATION-PROPS/SW-DATA-DEF-PROPS-VARIANTS/SW-DATA-DEF-PROPS-CONDITIONAL"
_PHYSICAL: Final = "PHYSICAL-PROPS/SW-DATA-DEF-PROPS-VARIANTS/SW-DATA-DEF-PROPS-CONDITIONAL"
_MOST_PDU_ID: Final = (1 << 32) - 1


def messages_of(document: ArxmlDocument) -> Iterator[Message]:
    """The messages of a file. What cannot be read is in `document.lost`."""
    pdus = _PduReader(document)
    yield from _flexray_messages(document, pdus)
    yield from _transported_pdus(document, pdus)


def _flexray_messages(document: ArxmlDocument, pdus: _PduReader) -> Iterator[Message]:
    sent: dict[tuple[str, int, int, int], list[Channel]] = {}
    for cluster in document.all_of("FLEXRAY-CLUSTER"):
        for channel in cluster.children_at(_CHANNELS):
            letter: Channel = "B" if channel.text_at("CHANNEL-NAME") == "CHANNEL-B" else "A"
            for triggering in channel.children_at(_TRIGGERINGS):
                try:
                    for key in _schedules(triggering):
                        sent.setdefault(key, []).append(letter)
                except DatabaseError as error:
                    document.lose(path_of(triggering), str(error))
    for (path, slot, base, repetition), channels in sent.items():
        frame = document.find(path)
        if frame is None:
            document.lose(path, "it is sent, and not in the file")
            continue
        try:
            placed = pdus.place(frame)
            length = _number(frame, "FRAME-LENGTH") or 0
        except DatabaseError as error:
            document.lose(path, str(error))
            continue
        if placed:
            schedule = Schedule(base=base, repetition=repetition, channels=tuple(sorted(set(channels))))
            yield message_of("flexray", slot, short_name(frame), length, placed, document.name, schedule)


def _schedules(triggering: XmlElement) -> Iterator[tuple[str, int, int, int]]:
    """Path of the frame, slot, base cycle, repetition."""
    frame = triggering.text_at("FRAME-REF")
    for timing in triggering.children_at(_TIMINGS):
        slot = _number(timing, "SLOT-ID")
        if frame is None or slot is None:
            continue
        counter = _number(timing, "COMMUNICATION-CYCLE/CYCLE-COUNTER/CYCLE-COUNTER")
        base = _number(timing, "COMMUNICATION-CYCLE/CYCLE-REPETITION/BASE-CYCLE") if counter is None else counter
        repeated = timing.text_at("COMMUNICATION-CYCLE/CYCLE-REPETITION/CYCLE-REPETITION")
        every = FLEXRAY_CYCLES
        if counter is None:
            every = 1 if repeated is None else whole_number(repeated.rpartition("-")[2], "CYCLE-REPETITION")
        if not 0 <= (base or 0) < FLEXRAY_CYCLES or not 1 <= every <= FLEXRAY_CYCLES:
            raise DatabaseError(f"it is sent in cycle {base} and every {every} cycles: there are cycles 0 to 63")
        yield frame, slot, base or 0, every


def _transported_pdus(document: ArxmlDocument, pdus: _PduReader) -> Iterator[Message]:
    seen: dict[int, str] = {}
    for header, path in header_ids(document):
        if header == SERVICE_DISCOVERY or not 0 <= header <= _MOST_PDU_ID:
            continue
        triggering = document.find(path)
        pdu = triggering.text_at("I-PDU-REF") if triggering is not None else None
        if pdu is None or seen.get(header) == pdu:
            continue
        if header in seen:
            document.lose(pdu, f"{seen[header]} has the same header id {header:#x}, and is read instead")
            continue
        seen[header] = pdu
        try:
            placed = PduInFrame(pdu=pdus.read(pdu))
        except DatabaseError as error:
            document.lose(pdu, str(error))
            continue
        if placed.pdu.signals or placed.pdu.selector or placed.pdu.static:
            yield message_of("pdu", header, placed.pdu.name, placed.pdu.length, [placed], document.name)


class _PduReader:
    def __init__(self, document: ArxmlDocument) -> None:
        self._document = document
        self._built: dict[str, Pdu] = {}
        self._open: list[str] = []

    def place(self, frame: XmlElement) -> list[PduInFrame]:
        """The PDUs of a frame; those without signals are left out."""
        placed = []
        for mapping in frame.children_at("PDU-TO-FRAME-MAPPINGS/PDU-TO-FRAME-MAPPING"):
            path = mapping.text_at("PDU-REF")
            if path is not None:
                position = _number(mapping, "START-POSITION") or 0
                pdu = self.read(path)
                if pdu.signals or pdu.selector is not None or pdu.static:
                    update = _number(mapping, "UPDATE-INDICATION-BIT-POSITION")
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

    def _build(self, element: XmlElement) -> Pdu:
        document, name = self._document, short_name(element)
        length = _number(element, "LENGTH") or 0
        if element.name == "MULTIPLEXED-I-PDU":
            return self._build_multiplexed(element, name, length)
        if element.name == "SECURED-I-PDU":  # authenticated, not encrypted: the payload comes first
            inner = self._triggered(element.text_at("PAYLOAD-REF"))
            return Pdu(name=name, length=length, static=() if inner is None else ((inner, 0),))
        if element.name == "CONTAINER-I-PDU":
            return self._build_container(element, name, length)
        signals = []
        for mapping in element.children_at(_MAPPINGS):
            signal = document.target(mapping, "I-SIGNAL-REF")
            if (
                signal is not None and signal.child("DATA-TRANSFORMATIONS") is None
            ):  # what transformers write: classic.py
                signals.append(self._signal(mapping, signal))
        return Pdu(name=name, length=length, signals=tuple(signals))

    def _triggered(self, path: str | None) -> Pdu | None:
        """The PDU of a triggering."""
        triggering = self._document.find(path) if path is not None else None
        pdu = triggering.text_at("I-PDU-REF") if triggering is not None else None
        return self.read(pdu) if pdu is not None else None

    def _build_multiplexed(self, element: XmlElement, name: str, length: int) -> Pdu:
        start, size = _number(element, "SELECTOR-FIELD-START-POSITION"), _number(element, "SELECTOR-FIELD-LENGTH")
        if start is None or size is None:
            raise DatabaseError(f"{path_of(element)} has no position or length of its selector: add them")
        order = element.text_at("SELECTOR-FIELD-BYTE-ORDER")
        selector = Signal(
            name=f"{name}_Selector", start=start, length=size, big_endian=order == "MOST-SIGNIFICANT-BYTE-FIRST"
        )
        static = tuple(
            (self.read(path), 0)
            for part in element.children_at("STATIC-PARTS/STATIC-PART")
            if (path := part.text_at("I-PDU-REF")) is not None
        )
        alternatives = tuple(
            Alternative(selector=_number(each, "SELECTOR-FIELD-CODE") or 0, pdu=self.read(path))
            for each in element.children_at(
                "DYNAMIC-PARTS/DYNAMIC-PART/DYNAMIC-PART-ALTERNATIVES/DYNAMIC-PART-ALTERNATIVE"
            )
            if (path := each.text_at("I-PDU-REF")) is not None
        )
        return Pdu(name=name, length=length, selector=selector, static=static, alternatives=alternatives)

    def _build_container(self, element: XmlElement, name: str, length: int) -> Pdu:
        header = element.text_at("HEADER-TYPE") or "LONG-HEADER"
        if header != "NO-HEADER":
            raise DatabaseError(f"it is a container with headers ({header}), which are not read")
        placed = []
        for reference in element.children_at("CONTAINED-PDU-TRIGGERING-REFS/CONTAINED-PDU-TRIGGERING-REF"):
            triggering = self._document.find(reference.text)
            path = triggering.text_at("I-PDU-REF") if triggering is not None else None
            contained = self._document.find(path) if path is not None else None
            if contained is not None and path is not None:
                offset = _number(contained, "CONTAINED-I-PDU-PROPS/OFFSET") or 0
                placed.append((self.read(path), 8 * offset))
        return Pdu(name=name, length=length, static=tuple(placed))

    def _signal(self, mapping: XmlElement, signal: XmlElement) -> SignalInPdu:
        order = mapping.text_at("PACKING-BYTE-ORDER")
        update = _number(mapping, "UPDATE-INDICATION-BIT-POSITION")
        plain = Signal(
            name=short_name(signal),
            start=_number(mapping, "START-POSITION") or 0,
            length=_number(signal, "LENGTH") or 0,
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

    def _coded(self, plain: Signal, signal: XmlElement) -> Signal:
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
        low, high = self._limits(meaning)
        return replace(
            plain,
            signed=kind == "sint",
            coding="float" if kind == "float" else "integer",
            scales=scales,
            choices=choices,
            minimum=low,
            maximum=high,
        )

    def _limits(self, meaning: Meaning) -> tuple[float | None, float | None]:
        constraint = self._document.find(meaning.limits) if meaning.limits is not None else None
        if constraint is not None:
            for physical in constraint.children_at("DATA-CONSTR-RULES/DATA-CONSTR-RULE/PHYS-CONSTRS"):
                return read_limit(physical, "LOWER-LIMIT"), read_limit(physical, "UPPER-LIMIT")
        return None, None


def _number(element: XmlElement, path: str) -> int | None:
    text = element.text_at(path)
    return None if text is None else whole_number(text, path)
