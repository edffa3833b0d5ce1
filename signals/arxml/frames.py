"""The frames of CAN and FlexRay clusters and the PDUs of PDU transport in an ARXML file, as messages.

    CAN: frame triggering (identifier) > frame > PDUs at their positions
    FlexRay: frame triggering (slot, cycles) > frame > PDUs at their positions
    PDU transport: header id > PDU triggering > PDU

What a SOME/IP transformer serializes is in `classic.py`. Layout: AUTOSAR TPS_SystemTemplate R22-11.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from pcaplake.signals.computations import whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.model import FLEXRAY_CYCLES, Channel, Message, Schedule
from pcaplake.signals.pdus import PduInFrame, message_of

from .classic import SERVICE_DISCOVERY, header_ids
from .document import ArxmlDocument, path_of, short_name
from .element import ArxmlElement
from .i_signals import number_at
from .pdus import PduReader

KINDS: Final = ("FLEXRAY-CLUSTER", "ETHERNET-CLUSTER", "SOCKET-CONNECTION-IPDU-IDENTIFIER-SET", "CAN-CLUSTER", "SYSTEM")
_CHANNELS: Final = "FLEXRAY-CLUSTER-VARIANTS/FLEXRAY-CLUSTER-CONDITIONAL/PHYSICAL-CHANNELS/FLEXRAY-PHYSICAL-CHANNEL"
_CAN_CHANNELS: Final = "CAN-CLUSTER-VARIANTS/CAN-CLUSTER-CONDITIONAL/PHYSICAL-CHANNELS/CAN-PHYSICAL-CHANNEL"
_TRIGGERINGS: Final = "FRAME-TRIGGERINGS/FLEXRAY-FRAME-TRIGGERING"
_TIMINGS: Final = "ABSOLUTELY-SCHEDULED-TIMINGS/FLEXRAY-ABSOLUTELY-SCHEDULED-TIMING"
Found: TypeAlias = tuple[str | None, Message | None]
"""Path of the cluster, or None if that is unknown, and message; None: it has no signals."""


def messages_of(document: ArxmlDocument) -> Iterator[Found]:
    """The messages of all clusters of a file. What cannot be read is in `document.lost`."""
    pdus = PduReader(document)
    for cluster in document.all_of("CAN-CLUSTER"):
        yield from _can_messages(document, pdus, cluster)
    for cluster in document.all_of("FLEXRAY-CLUSTER"):
        yield from _flexray_messages(document, pdus, cluster)
    yield from _transported_pdus(document, pdus)


def _can_messages(document: ArxmlDocument, pdus: PduReader, cluster: ArxmlElement) -> Iterator[Found]:
    here = path_of(cluster)
    for triggering in cluster.children_at(f"{_CAN_CHANNELS}/FRAME-TRIGGERINGS/CAN-FRAME-TRIGGERING"):
        try:
            number, extended = _can_id(triggering)
            frame, placed, length = _frame(document, pdus, triggering.text_at("FRAME-REF"))
        except DatabaseError as error:
            document.lose(path_of(triggering), str(error))
            continue
        if placed:
            yield here, message_of("can", number, frame, length, placed, document.name, extended=extended)
        else:
            yield here, None


def _frame(document: ArxmlDocument, pdus: PduReader, path: str | None) -> tuple[str, list[PduInFrame], int]:
    """Name, PDUs with signals and length of a frame. Raises `DatabaseError`."""
    frame = document.find(path) if path is not None else None
    if frame is None:
        raise DatabaseError(f"its frame {path} is not in the file")
    return short_name(frame), pdus.place(frame), number_at(frame, "FRAME-LENGTH") or 0


def _can_id(triggering: ArxmlElement) -> tuple[int, bool]:
    """The identifier of a frame triggering, and whether it has 29 bits. Raises `DatabaseError`."""
    number, extended = number_at(triggering, "IDENTIFIER"), triggering.text_at("CAN-ADDRESSING-MODE") == "EXTENDED"
    bits = 29 if extended else 11
    if number is None:
        raise DatabaseError("it has no IDENTIFIER: add one")
    if not 0 <= number < 1 << bits:
        raise DatabaseError(f"its identifier is {number}, and identifiers have {bits} bits")
    return number, extended


def _flexray_messages(document: ArxmlDocument, pdus: PduReader, cluster: ArxmlElement) -> Iterator[Found]:
    sent: dict[tuple[str, int, int, int], list[Channel]] = {}
    for channel in cluster.children_at(_CHANNELS):
        letter: Channel = "B" if channel.text_at("CHANNEL-NAME") == "CHANNEL-B" else "A"
        for triggering in channel.children_at(_TRIGGERINGS):
            try:
                for key in _schedules(triggering):
                    sent.setdefault(key, []).append(letter)
            except DatabaseError as error:
                document.lose(path_of(triggering), str(error))
    for (path, slot, base, repetition), channels in sent.items():
        try:
            name, placed, length = _frame(document, pdus, path)
        except DatabaseError as error:
            document.lose(path, str(error))
            continue
        if placed:
            schedule = Schedule(base=base, repetition=repetition, channels=tuple(sorted(set(channels))))
            yield path_of(cluster), message_of("flexray", slot, name, length, placed, document.name, schedule)
        else:
            yield path_of(cluster), None


def _schedules(triggering: ArxmlElement) -> Iterator[tuple[str, int, int, int]]:
    """Path of the frame, slot, base cycle, repetition."""
    frame = triggering.text_at("FRAME-REF")
    for timing in triggering.children_at(_TIMINGS):
        slot = number_at(timing, "SLOT-ID")
        if frame is None or slot is None:
            continue
        counter = number_at(timing, "COMMUNICATION-CYCLE/CYCLE-COUNTER/CYCLE-COUNTER")
        base = number_at(timing, "COMMUNICATION-CYCLE/CYCLE-REPETITION/BASE-CYCLE") if counter is None else counter
        repeated = timing.text_at("COMMUNICATION-CYCLE/CYCLE-REPETITION/CYCLE-REPETITION")
        every = FLEXRAY_CYCLES
        if counter is None:
            every = 1 if repeated is None else whole_number(repeated.rpartition("-")[2], "CYCLE-REPETITION")
        if not 0 <= (base or 0) < FLEXRAY_CYCLES or not 1 <= every <= FLEXRAY_CYCLES:
            raise DatabaseError(f"it is sent in cycle {base} and every {every} cycles: there are cycles 0 to 63")
        yield frame, slot, base or 0, every


def _transported_pdus(document: ArxmlDocument, pdus: PduReader) -> Iterator[Found]:
    seen: dict[tuple[str | None, int], str] = {}
    for cluster, header, path in header_ids(document):
        if header == SERVICE_DISCOVERY:
            continue
        triggering = document.find(path)
        pdu = triggering.text_at("I-PDU-REF") if triggering is not None else None
        other = seen.get((cluster, header))
        if pdu is None or other == pdu:
            continue
        if other is not None:
            document.lose(pdu, f"{other} has the same header id {header:#x}, and is read instead")
            continue
        seen[cluster, header] = pdu
        try:
            placed = PduInFrame(pdu=pdus.read(pdu))
        except DatabaseError as error:
            document.lose(pdu, str(error))
            continue
        if placed.pdu.holds_signals:
            yield cluster, message_of("pdu", header, placed.pdu.name, placed.pdu.length, [placed], document.name)
