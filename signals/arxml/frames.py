"""The frames of CAN, LIN and FlexRay clusters and the PDUs of PDU transport in an ARXML file, as messages.

    CAN, TTCAN, J1939, LIN: frame triggering (identifier) > frame > PDUs at their positions
    FlexRay: frame triggering (slot, cycles) > frame > PDUs at their positions
    PDU transport: header id > PDU triggering > PDU

What a SOME/IP transformer serializes is in `classic.py`. Layout: AUTOSAR TPS_SystemTemplate R22-11.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, TypeAlias

from pcaplake.signals.computations import whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.j1939 import NO_SOURCE, group_key, masked_identifier
from pcaplake.signals.model import FLEXRAY_CYCLES, Channel, Kind, Message, Schedule
from pcaplake.signals.pdus import PduInFrame, message_of

from .classic import SERVICE_DISCOVERY, header_ids
from .document import ArxmlDocument, path_of, short_name
from .element import ArxmlElement
from .i_signals import number_at
from .pdus import PduReader

_J1939: Final = "J-1939-CLUSTER"
_LIN: Final = "LIN-CLUSTER"
_CHANNELS_OF: Final = {"CAN-CLUSTER": "CAN", "TTCAN-CLUSTER": "TTCAN", _J1939: "CAN", _LIN: "LIN"}
CLUSTERS: Final = (*_CHANNELS_OF, "FLEXRAY-CLUSTER", "ETHERNET-CLUSTER")
KINDS: Final = (*CLUSTERS, "SOCKET-CONNECTION-IPDU-IDENTIFIER-SET", "SYSTEM")
_CHANNELS: Final = "FLEXRAY-CLUSTER-VARIANTS/FLEXRAY-CLUSTER-CONDITIONAL/PHYSICAL-CHANNELS/FLEXRAY-PHYSICAL-CHANNEL"
_TRIGGERINGS: Final = "FRAME-TRIGGERINGS/FLEXRAY-FRAME-TRIGGERING"
_TIMINGS: Final = "ABSOLUTELY-SCHEDULED-TIMINGS/FLEXRAY-ABSOLUTELY-SCHEDULED-TIMING"
Found: TypeAlias = tuple[str | None, Message | None]
"""Path of the cluster, or None if that is unknown, and message; None: it has no signals."""


def messages_of(document: ArxmlDocument) -> Iterator[Found]:
    """The messages of all clusters of a file. What cannot be read is in `document.lost`."""
    pdus = PduReader(document)
    for kind in _CHANNELS_OF:
        for cluster in document.all_of(kind):
            yield from _identified_messages(document, pdus, cluster)
    for cluster in document.all_of("FLEXRAY-CLUSTER"):
        yield from _flexray_messages(document, pdus, cluster)
    yield from _transported_pdus(document, pdus)


def _identified_messages(document: ArxmlDocument, pdus: PduReader, cluster: ArxmlElement) -> Iterator[Found]:
    here, kind, channel = path_of(cluster), cluster.name, _CHANNELS_OF[cluster.name]
    channels = f"{kind}-VARIANTS/{kind}-CONDITIONAL/PHYSICAL-CHANNELS/{channel}-PHYSICAL-CHANNEL"
    sent = "LIN-FRAME-TRIGGERING" if kind == _LIN else "CAN-FRAME-TRIGGERING"
    for triggering in cluster.children_at(f"{channels}/FRAME-TRIGGERINGS/{sent}"):
        extended = triggering.text_at("CAN-ADDRESSING-MODE") == "EXTENDED"
        try:
            number = _identifier(triggering, 6 if kind == _LIN else 29 if extended else 11)
            frame, placed, length = _frame(document, pdus, triggering.text_at("FRAME-REF"))
            mask = number_at(triggering, "RX-MASK")
        except DatabaseError as error:
            document.lose(path_of(triggering), str(error))
            continue
        j1939 = extended and kind == _J1939
        if j1939 and mask is not None:
            compared, _ = masked_identifier(group_key(number))
            if mask & 0xFF == 0:  # frames of all senders
                number, mask = number & ~0xFF | NO_SOURCE, mask | 0xFF
            mask |= ~(compared | 0xFF)  # priority and receiver are never compared
        if several := _more_identifiers(triggering, mask, 29 if extended else 11):
            document.lose(path_of(triggering), f"of its {several}, only frames with its IDENTIFIER are read")
        if not placed:
            yield here, None
            continue
        bus: Kind = "lin" if kind == _LIN else "can"
        message = message_of(bus, number, frame, length, placed, document.name, extended=extended)
        yield here, replace(message, j1939=j1939)


def _more_identifiers(triggering: ArxmlElement, mask: int | None, bits: int) -> str | None:
    """What says that frames with other identifiers are received too."""
    if triggering.child("RX-IDENTIFIER-RANGE") is not None:
        return "RX-IDENTIFIER-RANGE"
    every = (1 << bits) - 1
    return None if mask is None or mask & every == every else "RX-MASK"


def _frame(document: ArxmlDocument, pdus: PduReader, path: str | None) -> tuple[str, list[PduInFrame], int]:
    """Name, PDUs with signals and length of a frame. Raises `DatabaseError`."""
    frame = document.find(path) if path is not None else None
    if frame is None:
        raise DatabaseError(f"its frame {path} is not in the file")
    return short_name(frame), pdus.find_pdus_of_frame(frame), number_at(frame, "FRAME-LENGTH") or 0


def _identifier(triggering: ArxmlElement, bits: int) -> int:
    """The identifier of a frame triggering. Raises `DatabaseError`."""
    number = number_at(triggering, "IDENTIFIER")
    if number is None:
        raise DatabaseError("it has no IDENTIFIER: add one")
    if not 0 <= number < 1 << bits:
        raise DatabaseError(f"its identifier is {number}, and identifiers have {bits} bits")
    return number


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
