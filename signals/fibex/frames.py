"""The frames of a FIBEX file as messages: FlexRay frames by slot and cycle, CAN frames by identifier.

Layout: ASAM MCD-2 NET 3.1 and 4.1.2. BIT-POSITION counts as in a DBC (BIT-COUNTING-POLICY SAWTOOTH); with MONOTONE, big-endian
positions count from the most significant bit of the first byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pcaplake.signals.computations import signal_values, whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.model import Channel, Message, Schedule, Signal
from pcaplake.signals.pdus import Alternative, Pdu, PduInFrame, SignalInPdu, message_of
from pcaplake.signals.xml_elements import XmlElement

from .codings import is_text, number_of
from .frame_elements import Triggering
from .records import Coding, FibexFile


def messages_of(file: FibexFile) -> Iterator[Message]:
    """The messages of all frames. A frame that cannot be read is in `file.lost`."""
    elements = file.frames
    pdus = _PduReader(file)
    channels: dict[Triggering, list[Channel]] = {}
    for each in elements.triggerings:
        same = Triggering(
            frame=each.frame, number=each.number, extended=each.extended, base=each.base, repetition=each.repetition
        )
        sent = channels.setdefault(same, [])
        if each.channel is not None and each.channel not in sent:
            sent.append(each.channel)
    for triggering, sent in channels.items():
        frame = elements.frames.get(triggering.frame)
        if frame is None:
            file.lost[f"{file.name}, FRAME {triggering.frame}"] = "it is sent, and not in the file"
            continue
        name = frame.text_at("SHORT-NAME") or triggering.frame
        try:
            placed = pdus.find_pdus_of_frame(frame)
            length = whole_number(frame.text_at("BYTE-LENGTH") or "0", "BYTE-LENGTH")
        except DatabaseError as error:
            file.lose(frame.line, f"FRAME {name}", str(error))
            continue
        if not any(each.pdu.signals or each.pdu.selector for each in placed):
            continue
        if sent:
            schedule = Schedule(base=triggering.base, repetition=triggering.repetition, channels=tuple(sorted(sent)))
            yield message_of("flexray", triggering.number, name, length, placed, file.name, schedule)
        else:
            message = message_of("can", triggering.number, name, length, placed, file.name)
            yield replace(message, extended=triggering.extended)


class _PduReader:
    def __init__(self, file: FibexFile) -> None:
        self._file, self._elements = file, file.frames
        self._built: dict[str, Pdu] = {}
        self._open: list[str] = []

    def find_pdus_of_frame(self, frame: XmlElement) -> list[PduInFrame]:
        placed = []
        for each in frame.children_at("PDU-INSTANCES/PDU-INSTANCE"):
            update = each.text_at("PDU-UPDATE-BIT-POSITION")
            position = _position(each)
            placed.append(
                PduInFrame(
                    pdu=self._pdu(each.reference("PDU-REF") or ""),
                    position=position - position % 8 if _is_big_endian(each) else position,
                    update_bit=None if update is None else whole_number(update, "PDU-UPDATE-BIT-POSITION"),
                )
            )
        for each in frame.children_at("SIGNAL-INSTANCES/SIGNAL-INSTANCE"):  # FIBEX 2 has no PDUs
            signal = self._signal(each)
            placed.append(PduInFrame(pdu=Pdu(name=signal.signal.name, length=0, signals=(signal,))))
        return placed

    def _pdu(self, identifier: str) -> Pdu:
        if identifier in self._built:
            return self._built[identifier]
        element = self._elements.pdus.get(identifier)
        if element is None:
            raise DatabaseError(f"its PDU {identifier or '(none)'} is not in the file")
        if identifier in self._open:
            raise DatabaseError(f"its PDU {identifier} contains itself")
        self._open.append(identifier)
        try:
            built = self._build(element)
        finally:
            self._open.pop()
        self._built[identifier] = built
        return built

    def _build(self, element: XmlElement) -> Pdu:
        name = element.text_at("SHORT-NAME") or element.attributes.get("ID", "")
        signals = tuple(map(self._signal, element.children_at("SIGNAL-INSTANCES/SIGNAL-INSTANCE")))
        multiplexer = element.child("MULTIPLEXER")
        length = whole_number(element.text_at("BYTE-LENGTH") or "0", "BYTE-LENGTH")
        if multiplexer is None:
            return Pdu(name=name, length=length, signals=signals)
        switch = multiplexer.child("SWITCH")
        if switch is None:
            raise DatabaseError(f"the multiplexer of its PDU {name} has no SWITCH: add one")
        selector = Signal(
            name=switch.text_at("SHORT-NAME") or f"{name}_Switch",
            start=self._start(switch),
            length=whole_number(switch.text_at("BIT-LENGTH") or "0", "BIT-LENGTH"),
            big_endian=_is_big_endian(switch),
        )
        shift = _segment_position(multiplexer, "DYNAMIC-PART")
        alternatives = tuple(
            Alternative(
                selector=whole_number(each.text_at("SWITCH-CODE") or "0", "SWITCH-CODE"),
                pdu=self._pdu(each.reference("PDU-REF") or ""),
                position=shift,
            )
            for each in multiplexer.children_at("DYNAMIC-PART/SWITCHED-PDU-INSTANCES/SWITCHED-PDU-INSTANCE")
        )
        static = tuple(
            (self._pdu(each.reference("PDU-REF") or ""), _segment_position(multiplexer, "STATIC-PART"))
            for each in multiplexer.children_at("STATIC-PART/STATIC-PDU-INSTANCE")
        )
        return Pdu(
            name=name, length=length, signals=signals, selector=selector, static=static, alternatives=alternatives
        )

    def _signal(self, instance: XmlElement) -> SignalInPdu:
        identifier = instance.reference("SIGNAL-REF") or ""
        update = instance.text_at("SIGNAL-UPDATE-BIT-POSITION")
        name = self._file.signal_names.get(identifier, identifier)
        plain = Signal(name=name, start=self._start(instance), length=0, big_endian=_is_big_endian(instance))
        coding = self._file.codings.get(self._file.signals.get(identifier, ""))
        reason = None
        if coding is None:
            reason = f"the coding of the signal {identifier} is not in the file, or cannot be read"
        else:
            try:
                plain = _coded(self._file, plain, coding)
            except DatabaseError as error:
                reason = str(error)
        bit = None if update is None else whole_number(update, "SIGNAL-UPDATE-BIT-POSITION")
        return SignalInPdu(signal=plain, update_bit=bit, reason=reason)

    def _start(self, element: XmlElement) -> int:
        position = _position(element)
        if self._elements.monotone and _is_big_endian(element):
            return position - position % 8 + 7 - position % 8
        return position


def _coded(file: FibexFile, signal: Signal, coding: Coding) -> Signal:
    """A signal with the bits and the values that its coding says. Raises `DatabaseError`."""
    if is_text(coding):
        return replace(signal, length=coding.bit_length or 0, coding="ascii")
    kind, bits = number_of(coding)
    scales, choices, problems = signal_values(coding.computation, file.unit_of(coding), floats=kind == "float")
    for problem in problems:
        file.lose(coding.line, f"CODING {coding.name}", problem)
    return replace(
        signal,
        length=bits,
        signed=kind == "sint",
        coding="float" if kind == "float" else "integer",
        scales=scales,
        choices=choices,
        minimum=coding.low,
        maximum=coding.high,
    )


def _position(element: XmlElement) -> int:
    return whole_number(element.text_at("BIT-POSITION") or "0", "BIT-POSITION")


def _is_big_endian(element: XmlElement) -> bool:
    return (element.text_at("IS-HIGH-LOW-BYTE-ORDER") or "false").lower() in ("true", "1")


def _segment_position(multiplexer: XmlElement, part: str) -> int:
    """Where the PDUs of a part begin. Raises `DatabaseError` if they are in several pieces."""
    segments = list(multiplexer.children_at(f"{part}/SEGMENT-POSITIONS/SEGMENT-POSITION"))
    if len(segments) > 1:
        raise DatabaseError(f"{part} has {len(segments)} segments, and one is read")
    if not segments:
        return 0
    position = _position(segments[0])
    return position - position % 8 if _is_big_endian(segments[0]) else position
