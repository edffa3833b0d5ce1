"""SOME/IP messages of AUTOSAR's classic platform: PDUs of socket connections whose one signal a SOME/IP transformer wrote.

    header id (service and method) > PDU triggering > PDU > signal > transformers, and the data element or operation

The name of a service is that of the PROVIDED-SERVICE-INSTANCE with its id, or its id.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Final

from pcaplake.signals.computations import whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.someip.description import (
    NOTIFICATION,
    REQUEST,
    REQUEST_NO_RETURN,
    RESPONSE,
    EndToEnd,
    PayloadMessage,
    Struct,
)

from .document import ArxmlDocument, name_of, path_of, short_name
from .element import ArxmlElement
from .end_to_end import end_to_end
from .sizes import Properties, classic_sizes, data_ids
from .types import TypeBuilder

KINDS: Final = ("SYSTEM", "ETHERNET-CLUSTER", "SOCKET-CONNECTION-IPDU-IDENTIFIER-SET", "PROVIDED-SERVICE-INSTANCE")
_TYPES: Final = {
    "NOTIFICATION": NOTIFICATION,
    "REQUEST": REQUEST,
    "REQUEST-NO-RETURN": REQUEST_NO_RETURN,
    "RESPONSE": RESPONSE,
}
_SOMEIP: Final = (
    "TRANSFORMATION-I-SIGNAL-PROPSS/SOMEIP-TRANSFORMATION-I-SIGNAL-PROPS/SOMEIP-TRANSFORMATION-I-SIGNAL-PROPS-VARIANTS"
)
_END_TO_END: Final = (
    "TRANSFORMATION-I-SIGNAL-PROPSS/END-TO-END-TRANSFORMATION-I-SIGNAL-PROPS/"
    "END-TO-END-TRANSFORMATION-I-SIGNAL-PROPS-VARIANTS/END-TO-END-TRANSFORMATION-I-SIGNAL-PROPS-CONDITIONAL"
)
SERVICE_DISCOVERY: Final = 0xFFFF8100
_MOST_HEADER_ID: Final = (1 << 32) - 1


def classic_messages(
    document: ArxmlDocument, types: TypeBuilder, names: dict[int, str], methods: dict[tuple[int, int], str]
) -> Iterator[tuple[str | None, PayloadMessage]]:
    """Path of the cluster and message of all socket connections; adds the names of their services and methods."""
    for instance in document.all_of("PROVIDED-SERVICE-INSTANCE"):
        if (number := instance.text_at("SERVICE-IDENTIFIER")) is not None:
            try:
                names.setdefault(whole_number(number, "SERVICE-IDENTIFIER"), short_name(instance))
            except DatabaseError as error:
                document.lose(path_of(instance), str(error))
    reader = _ClassicReader(document, types, names)
    seen = set()
    for cluster, header, path in header_ids(document):
        if (cluster, header, path) in seen or header == SERVICE_DISCOVERY:
            continue
        seen.add((cluster, header, path))
        try:
            message = reader.read(header, path)
        except DatabaseError as error:
            document.lose(path, str(error))
            continue
        if message is not None:
            methods.setdefault((message.service_id, message.method_id), message.method)
            yield cluster, message


def header_ids(document: ArxmlDocument) -> Iterator[tuple[str | None, int, str]]:
    """(path of the cluster, header id, path of the PDU triggering) of each PDU of a socket connection.

    A set of identifiers is in no cluster: then it is that of the PDU triggering, or None. Ids that are none are listed.
    """
    clusters = set()
    for cluster in document.all_of("ETHERNET-CLUSTER"):
        clusters.add(here := path_of(cluster))
        for found in cluster.descendants("SOCKET-CONNECTION-IPDU-IDENTIFIER"):
            yield from ((here, *each) for each in _header_id(document, found))
    for identifiers in document.all_of("SOCKET-CONNECTION-IPDU-IDENTIFIER-SET"):
        for found in identifiers.descendants("SO-CON-I-PDU-IDENTIFIER"):
            for header, path in _header_id(document, found):
                above = itertools.accumulate(path.split("/"), lambda one, part: f"{one}/{part}")
                yield next((each for each in above if each in clusters), None), header, path


def _header_id(document: ArxmlDocument, identifier: ArxmlElement) -> Iterator[tuple[int, str]]:
    text, path = identifier.text_at("HEADER-ID"), identifier.text_at("PDU-TRIGGERING-REF")
    if text is not None and path is not None:
        try:
            header = whole_number(text, "HEADER-ID")
            if not 0 <= header <= _MOST_HEADER_ID:
                raise DatabaseError(f"its header id is {header}, and header ids have 32 bits")
        except DatabaseError as error:
            document.lose(path, str(error))
        else:
            yield header, path


class _ClassicReader:
    def __init__(self, document: ArxmlDocument, types: TypeBuilder, names: dict[int, str]) -> None:
        self._document, self._types, self._names = document, types, names
        self._data: dict[str, str] = {}  # system signal -> data element
        self._calls: dict[str, tuple[str, bool]] = {}  # system signal -> operation, and whether it is the response
        for system in document.all_of("SYSTEM"):
            for mapping in system.descendants("SENDER-RECEIVER-TO-SIGNAL-MAPPING"):
                signal = mapping.text_at("SYSTEM-SIGNAL-REF")
                for target in mapping.descendants("TARGET-DATA-PROTOTYPE-REF"):
                    if signal is not None:
                        self._data[signal] = target.text
            for mapping in system.descendants("CLIENT-SERVER-TO-SIGNAL-MAPPING"):
                for target in mapping.descendants("TARGET-OPERATION-REF"):
                    for reference, response in (("CALL-SIGNAL-REF", False), ("RETURN-SIGNAL-REF", True)):
                        if (signal := mapping.text_at(reference)) is not None:
                            self._calls[signal] = target.text, response

    def read(self, header: int, path: str) -> PayloadMessage | None:
        """The message of a PDU; None if no SOME/IP transformer wrote it. Raises `DatabaseError`."""
        document = self._document
        triggering = document.find(path)
        if triggering is None:
            raise DatabaseError(f"a socket connection refers to {path}, which is not in the file")
        pdu = document.required_target(triggering, "I-PDU-REF")
        mappings = list(pdu.children_at("I-SIGNAL-TO-PDU-MAPPINGS/I-SIGNAL-TO-I-PDU-MAPPING"))
        signals = [document.target(mapping, "I-SIGNAL-REF") for mapping in mappings]
        written = [(signal, found) for signal in signals if signal is not None and (found := self._someip(signal))]
        if not written:
            return None
        if len(written) != 1:
            raise DatabaseError(f"{path_of(pdu)} has {len(written)} signals of a SOME/IP transformer, and one is read")
        ((signal, (description, properties)),) = written
        service_id, method_id = header >> 16, header & 0xFFFF
        system = path_of(document.required_target(signal, "SYSTEM-SIGNAL-REF"))
        serialized = Properties(
            sizes=classic_sizes(properties, description),
            data_ids=data_ids(document, properties) if properties is not None else (),
        )
        prototypes, name, usual = self._prototypes(system, signal)
        members = tuple(self._types.member_of(each, serialized) for each in prototypes)
        message_type = properties.text_at("MESSAGE-TYPE") if properties is not None else None
        version = (properties.text_at("INTERFACE-VERSION") if properties is not None else None) or (
            description.text_at("INTERFACE-VERSION")
        )
        return PayloadMessage(
            service_id=service_id,
            method_id=method_id,
            message_type=_TYPES.get(message_type or "", usual),
            interface_version=None if version is None else whole_number(version, "INTERFACE-VERSION"),
            service=self._names.setdefault(service_id, f"service_{service_id:04x}"),
            method=name,
            parameters=Struct(name=name, members=members, tagged=any(one.data_id is not None for one in members)),
            e2e=self._protection(signal),
            database=document.name,
        )

    def _prototypes(self, system: str, signal: ArxmlElement) -> tuple[list[ArxmlElement], str, int]:
        """What a signal carries, the name of the method, and the message type if the signal does not say one."""
        document = self._document
        if system in self._data:
            element = document.find(self._data[system])
            if element is None:
                raise DatabaseError(f"{system} is mapped to {self._data[system]}, which is not in the file")
            return [element], short_name(element), NOTIFICATION
        if system in self._calls:
            path, response = self._calls[system]
            operation = document.find(path)
            if operation is None:
                raise DatabaseError(f"{system} is mapped to {path}, which is not in the file")
            wanted = ("OUT", "INOUT") if response else ("IN", "INOUT")
            arguments = operation.children_at("ARGUMENTS/ARGUMENT-DATA-PROTOTYPE")
            chosen = [each for each in arguments if (each.text_at("DIRECTION") or "IN") in wanted]
            return chosen, short_name(operation), RESPONSE if response else REQUEST
        raise DatabaseError(f"{name_of(signal)} is mapped to no data element or operation, so its type is unknown")

    def _technologies(self, signal: ArxmlElement) -> Iterator[ArxmlElement]:
        for reference in signal.descendants("DATA-TRANSFORMATION-REF"):
            transformation = self._document.find(reference.text)
            if transformation is None:
                raise DatabaseError(f"{name_of(signal)} refers to {reference.text}, which is not in the file")
            for chained in transformation.children_at("TRANSFORMER-CHAIN-REFS/TRANSFORMER-CHAIN-REF"):
                technology = self._document.find(chained.text)
                if technology is None:
                    raise DatabaseError(f"{path_of(transformation)} refers to {chained.text}, which is not in the file")
                yield technology

    def _someip(self, signal: ArxmlElement) -> tuple[ArxmlElement, ArxmlElement | None] | None:
        """The description of its SOME/IP transformer, and the properties of the signal."""
        for technology in self._technologies(signal):
            found = technology.child("TRANSFORMATION-DESCRIPTIONS/SOMEIP-TRANSFORMATION-DESCRIPTION")
            if found is not None:
                return found, signal.child(_SOMEIP)
        return None

    def _protection(self, signal: ArxmlElement) -> EndToEnd | None:
        for technology in self._technologies(signal):
            found = technology.child("TRANSFORMATION-DESCRIPTIONS/END-TO-END-TRANSFORMATION-DESCRIPTION")
            properties = signal.child(_END_TO_END)
            if found is not None:
                return end_to_end(found, found if properties is None else properties)
        return None
