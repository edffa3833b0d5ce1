"""The services of an ARXML file as descriptions of SOME/IP payloads.

The adaptive platform deploys service interfaces: SOMEIP-SERVICE-INTERFACE-DEPLOYMENT. The classic platform sends them as PDUs:
`classic.py`. Both may be in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from pcaplake.signals.computations import whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.someip.description import (
    NOTIFICATION,
    REQUEST,
    REQUEST_NO_RETURN,
    RESPONSE,
    EndToEnd,
    Key,
    Member,
    PayloadMessage,
    Services,
    Struct,
)

from .classic import KINDS as CLASSIC
from .classic import classic_messages
from .document import ArxmlDocument, name_of, path_of, short_name
from .element import ArxmlElement
from .end_to_end import end_to_end
from .sizes import Properties, adaptive_sizes, data_ids
from .types import TypeBuilder

DEPLOYMENT: Final = "SOMEIP-SERVICE-INTERFACE-DEPLOYMENT"
_MAPPING: Final = "TRANSFORMATION-PROPS-TO-SERVICE-INTERFACE-ELEMENT-MAPPING"
_OVERRIDE: Final = "SOMEIP-DATA-PROTOTYPE-TRANSFORMATION-PROPS"
_PROTECTIONS: Final = ("END-2-END-EVENT-PROTECTION-PROPS", "END-2-END-METHOD-PROTECTION-PROPS")
KINDS: Final = (DEPLOYMENT, _MAPPING, _OVERRIDE, "DATA-TYPE-MAPPING-SET", *_PROTECTIONS, *CLASSIC)
_REFERENCES: Final = {
    "EVENT": "both",
    "FIELD": "both",
    "METHOD": "both",
    "METHOD-CALL": "call",
    "METHOD-RETURN": "return",
}


@dataclass(slots=True)
class DescribedPayloads:
    """`messages`: by cluster; None: of the adaptive platform, which has no clusters. Names as in `Services`."""

    messages: dict[str | None, list[PayloadMessage]] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    methods: dict[tuple[int, int], str] = field(default_factory=dict)

    def services_of(self, cluster: str | None) -> Services:
        return Services.from_messages(self.messages.get(cluster, ()), self.names, self.methods)


def payloads_of(document: ArxmlDocument) -> DescribedPayloads:
    """The SOME/IP messages of a file. A message that cannot be read is in `document.lost`."""
    types, described = TypeBuilder(document), DescribedPayloads()
    found: dict[tuple[str | None, Key], PayloadMessage] = {}
    for cluster, message in _all_payloads(document, types, described):
        other = found.setdefault((cluster, message.key), message)
        if other is message:
            described.messages.setdefault(cluster, []).append(message)
        elif other.definition_hash != message.definition_hash:
            document.lose(message.name, f"{other.name} has the same service, method and type, and is read instead")
    return described


def _all_payloads(
    document: ArxmlDocument, types: TypeBuilder, described: DescribedPayloads
) -> Iterator[tuple[str | None, PayloadMessage]]:
    deployments = _DeploymentReader(document, types, described.names, described.methods)
    for deployment in document.all_of(DEPLOYMENT):
        try:
            messages = list(deployments.read(deployment))
        except DatabaseError as error:
            document.lose(path_of(deployment), str(error))
            continue
        yield from ((None, message) for message in messages)
    yield from classic_messages(document, types, described.names, described.methods)


@dataclass(slots=True)
class _Mapped:
    """The properties of a call and of a return; those of an event or field are in both."""

    call: Properties = field(default_factory=Properties)
    answer: Properties = field(default_factory=Properties)


class _DeploymentReader:
    def __init__(
        self,
        document: ArxmlDocument,
        types: TypeBuilder,
        names: dict[int, str],
        methods: dict[tuple[int, int], str],
    ) -> None:
        self._document, self._types, self._names, self._methods = document, types, names, methods
        self._mapped: dict[str, _Mapped] = {}
        self._reasons: dict[str, str] = {}
        self._protections: dict[str, ArxmlElement] = {}
        for mapping in document.all_of(_MAPPING):
            self._read_or_list(mapping, self._read_mapping)
        for override in document.all_of(_OVERRIDE):
            self._read_or_list(override, self._read_override)
        for kind in _PROTECTIONS:
            for protection in document.all_of(kind):
                for reference in ("EVENT-REF", "NOTIFIER-REF", "METHOD-REF"):
                    if (path := protection.text_at(reference)) is not None:
                        self._protections[path] = protection

    def _read_or_list(self, element: ArxmlElement, read: Callable[[ArxmlElement], None]) -> None:
        try:
            read(element)
        except DatabaseError as error:
            self._document.lose(path_of(element), str(error))

    # -- properties -----------------------------------------------------------------------------------------------
    def _read_mapping(self, mapping: ArxmlElement) -> None:
        referred = [
            (each.text, which)
            for name, which in _REFERENCES.items()
            for each in mapping.children_at(f"{name}-REFS/{name}-REF")
        ]
        try:
            target = self._document.target(mapping, "TRANSFORMATION-PROPS-REF")
            properties = Properties(data_ids=data_ids(self._document, mapping))
            if target is not None:
                properties = replace(properties, sizes=adaptive_sizes(target))
        except DatabaseError as error:
            self._reasons |= dict.fromkeys((path for path, _ in referred), f"{path_of(mapping)}: {error}")
            raise
        for path, which in referred:
            mapped = self._mapped.setdefault(path, _Mapped())
            if which != "return":
                mapped.call = properties
            if which != "call":
                mapped.answer = properties

    def _read_override(self, override: ArxmlElement) -> None:
        target = self._document.target(override, "SOMEIP-TRANSFORMATION-PROPS-REF")
        sizes = adaptive_sizes(target) if target is not None else None
        for reference in override.children_at("DATA-PROTOTYPES/DATA-PROTOTYPE-IN-SERVICE-INTERFACE-REF"):
            for each in reference.children:
                root, place = each.text_at("ROOT-DATA-PROTOTYPE-REF"), each.text_at("TARGET-DATA-PROTOTYPE-REF")
                root = root or place
                if root is None:
                    raise DatabaseError("it has no ROOT-DATA-PROTOTYPE-REF, so nothing tells what it is about: add one")
                if override.child("NETWORK-REPRESENTATION") is not None:
                    self._reasons[root] = f"{path_of(override)} gives it a NETWORK-REPRESENTATION, which is not read"
                elif sizes is not None:
                    mapped = self._mapped.setdefault(root, _Mapped())
                    own = ((place or root, sizes),)
                    mapped.call = replace(mapped.call, overrides=mapped.call.overrides + own)
                    mapped.answer = replace(mapped.answer, overrides=mapped.answer.overrides + own)

    # -- messages -------------------------------------------------------------------------------------------------
    def read(self, deployment: ArxmlElement) -> Iterator[PayloadMessage]:
        """The messages of a deployed service. Raises `DatabaseError` if it has no interface or no id."""
        document = self._document
        interface = document.required_target(deployment, "SERVICE-INTERFACE-REF")
        service = PayloadMessage(
            service_id=_id(deployment, "SERVICE-INTERFACE-ID"),
            method_id=0,
            message_type=REQUEST,
            interface_version=_optional_id(deployment, "SERVICE-INTERFACE-VERSION/MAJOR-VERSION"),
            service=short_name(interface),
            method="-",
            parameters=Struct(name="", members=()),
            database=document.name,
        )
        self._names.setdefault(service.service_id, service.service)
        for kind, at, read in (
            ("EVENT", "EVENT-DEPLOYMENTS/SOMEIP-EVENT-DEPLOYMENT", self._event),
            ("METHOD", "METHOD-DEPLOYMENTS/SOMEIP-METHOD-DEPLOYMENT", self._method),
            ("FIELD", "FIELD-DEPLOYMENTS/SOMEIP-FIELD-DEPLOYMENT", self._field),
        ):
            for each in deployment.children_at(at):
                try:
                    target = document.required_target(each, f"{kind}-REF")
                    if (reason := self._reasons.get(path_of(target))) is not None:
                        raise DatabaseError(reason)
                    yield from list(read(service, each, target))
                except DatabaseError as error:
                    document.lose(name_of(each), str(error))

    def _message(
        self,
        service: PayloadMessage,
        method_id: int,
        message_type: int,
        prototype: ArxmlElement,
        members: tuple[Member, ...],
        protected: str | None = None,
    ) -> PayloadMessage:
        name = short_name(prototype)
        self._methods.setdefault((service.service_id, method_id), name)
        tagged = any(member.data_id is not None for member in members)
        return replace(
            service,
            method_id=method_id,
            message_type=message_type,
            method=name,
            parameters=Struct(name=name, members=members, tagged=tagged),
            e2e=self._protection(protected),
        )

    def _protection(self, path: str | None) -> EndToEnd | None:
        properties = self._protections.get(path or "")
        if properties is None:
            return None
        return end_to_end(self._document.required_target(properties, "E-2-E-PROFILE-CONFIGURATION-REF"), properties)

    def _event(
        self, service: PayloadMessage, deployment: ArxmlElement, event: ArxmlElement
    ) -> Iterator[PayloadMessage]:
        members = (self._types.member_of(event, self._properties(event).answer),)
        yield self._message(service, _id(deployment, "EVENT-ID"), NOTIFICATION, event, members, path_of(event))

    def _method(
        self, service: PayloadMessage, deployment: ArxmlElement, method: ArxmlElement
    ) -> Iterator[PayloadMessage]:
        number = _id(deployment, "METHOD-ID")
        mapped = self._properties(method)
        arguments = list(method.children_at("ARGUMENTS/ARGUMENT-DATA-PROTOTYPE"))
        silent = method.text_at("FIRE-AND-FORGET") == "true"
        for wanted, properties, message_type in (
            (("IN", "INOUT"), mapped.call, REQUEST_NO_RETURN if silent else REQUEST),
            (("OUT", "INOUT"), mapped.answer, RESPONSE),
        ):
            if message_type != RESPONSE or not silent:
                members = tuple(
                    self._types.member_of(each, properties)
                    for each in arguments
                    if (each.text_at("DIRECTION") or "IN") in wanted
                )
                yield self._message(service, number, message_type, method, members, path_of(method))

    def _field(
        self, service: PayloadMessage, deployment: ArxmlElement, value: ArxmlElement
    ) -> Iterator[PayloadMessage]:
        members = (self._types.member_of(value, self._properties(value).answer),)
        getter, setter = (_optional_id(deployment, f"{access}/METHOD-ID") for access in ("GET", "SET"))
        notifier = _optional_id(deployment, "NOTIFIER/EVENT-ID")
        if getter is not None:
            yield self._message(service, getter, REQUEST, value, ())
            yield self._message(service, getter, RESPONSE, value, members)
        if setter is not None:
            yield self._message(service, setter, REQUEST, value, members)
            yield self._message(service, setter, RESPONSE, value, members)
        if notifier is not None:
            yield self._message(service, notifier, NOTIFICATION, value, members, path_of(value))

    def _properties(self, element: ArxmlElement) -> _Mapped:
        return self._mapped.get(path_of(element)) or _Mapped()


def _optional_id(element: ArxmlElement, path: str) -> int | None:
    text = element.text_at(path)
    return None if text is None else whole_number(text, path)


def _id(element: ArxmlElement, path: str) -> int:
    number = _optional_id(element, path)
    if number is None:
        raise DatabaseError(f"{name_of(element)} has no {path}: add one")
    return number
