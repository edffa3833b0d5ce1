"""The service interfaces of a FIBEX 4 file as descriptions of SOME/IP payloads."""

from __future__ import annotations

from collections.abc import Iterator

from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.someip.description import (
    NOTIFICATION,
    REQUEST,
    REQUEST_NO_RETURN,
    RESPONSE,
    PayloadMessage,
    Services,
)

from .records import Attributes, FibexFile, Interface, Use
from .types import TypeBuilder


def services_of(file: FibexFile) -> Services:
    """The services of a file. A message that cannot be read is in `lost`."""
    messages = _MessageBuilder(file)
    found: dict[tuple[int, int, int, int | None], PayloadMessage] = {}
    names: dict[tuple[int, int], str] = {}
    for interface in file.interfaces:
        for line, message in messages.build(interface, names):
            other = found.setdefault(message.key, message)
            if other.definition_hash != message.definition_hash:
                file.lose(
                    line, message.name, f"{other.name} has the same service, method and type, and is read instead"
                )
    return Services.from_messages(
        found.values(), {interface.id: interface.name for interface in file.interfaces}, names, file.lost
    )


class _MessageBuilder:
    def __init__(self, file: FibexFile) -> None:
        self._file = file
        self._types = TypeBuilder(file)

    def build(self, interface: Interface, names: dict[tuple[int, int], str]) -> Iterator[tuple[int, PayloadMessage]]:
        """(line, message) of each message; adds the names of its methods, also of those that cannot be read."""
        for line, method_id, name, message_type, uses, attributes in _payloads(interface):
            names.setdefault((interface.id, method_id), name)
            try:
                yield (
                    line,
                    PayloadMessage(
                        service_id=interface.id,
                        method_id=method_id,
                        message_type=message_type,
                        interface_version=interface.major,
                        service=interface.name,
                        method=name,
                        parameters=self._types.struct_of(name, uses, attributes),
                        database=self._file.name,
                    ),
                )
            except DatabaseError as error:
                self._file.lose(line, f"{interface.name}.{name}", str(error))


def _payloads(interface: Interface) -> Iterator[tuple[int, int, str, int, tuple[Use, ...], Attributes]]:
    """Line, method id, name, message type, parameters and what applies to all of them, of each message."""
    for method in interface.methods:
        request = REQUEST if method.answered else REQUEST_NO_RETURN
        yield method.line, method.id, method.name, request, method.given, method.attributes
        if method.answered:
            yield method.line, method.id, method.name, RESPONSE, method.returned, method.attributes
    for event in interface.events:
        yield event.line, event.id, event.name, NOTIFICATION, event.given, event.attributes
    for field in interface.fields:
        value, nothing = (field.value,), Attributes()
        name, line = field.value.name, field.value.line
        if field.getter is not None:
            yield line, field.getter, name, REQUEST, (), nothing
            yield line, field.getter, name, RESPONSE, value, nothing
        if field.setter is not None:
            yield line, field.setter, name, REQUEST, value, nothing
            yield line, field.setter, name, RESPONSE, value, nothing
        if field.notifier is not None:
            yield line, field.notifier, name, NOTIFICATION, value, nothing
