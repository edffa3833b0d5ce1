"""What SOME/IP payloads contain, as plain data: the same for Wireshark's tables, FIBEX and ARXML; can be pickled and hashed.

Layout: AUTOSAR PRS_SOMEIPProtocol R22-11; the header of end-to-end protection: PRS_E2EProtocol R22-11. `types` has the types.
Like them, everything here is checked when it is built: a wrong description raises `DescriptionError`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Final, Literal, TypeAlias

from .types import (
    DEEPEST,
    Array,
    BaseType,
    Bitfield,
    Bits,
    DescriptionError,
    Dimension,
    Member,
    String,
    Struct,
    Type,
    Union,
    Variant,
    require,
)

__all__ = [
    "DEEPEST",
    "Array",
    "BaseType",
    "Bitfield",
    "Bits",
    "DescriptionError",
    "Dimension",
    "EndToEnd",
    "Member",
    "PayloadMessage",
    "Services",
    "String",
    "Struct",
    "Type",
    "Union",
    "Variant",
]

DECODER_REVISION = 1
"""Part of every hash; increased when the same description gives other rows."""
REQUEST, REQUEST_NO_RETURN, NOTIFICATION, RESPONSE, ERROR = 0x00, 0x01, 0x02, 0x80, 0x81
MESSAGE_TYPES: Final[Mapping[int, str]] = {
    REQUEST: "request",
    REQUEST_NO_RETURN: "request_no_return",
    NOTIFICATION: "notification",
    RESPONSE: "response",
    ERROR: "error",
}

E2E_PATH: Final = "E2E"
"""What the paths of the fields of the header begin with."""
DataIdMode = Literal["both", "alternating", "low", "nibble"]
E2E_HEADER_BYTES: Final[Mapping[int, int]] = {1: 2, 2: 2, 4: 12, 5: 3, 6: 5, 7: 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToEnd:
    """The header of end-to-end protection at byte `offset` of the payload; the parameters start after it.

    `data_ids`: empty if unknown, then the CRC is not checked; profile 2 has 16 (its DataIDList), all others one.
    `data_id_mode`: profile 1 only. `covers_header`: the CRC and the length also cover the 8 bytes of the SOME/IP header from the
    client id to the return code, as with AUTOSAR's transformer (upperHeaderBitsToShift 64).
    """

    profile: Literal[1, 2, 4, 5, 6, 7]
    offset: int = 0
    data_ids: tuple[int, ...] = ()
    data_id_mode: DataIdMode = "both"
    covers_header: bool = True

    def __post_init__(self) -> None:
        known = ", ".join(map(str, E2E_HEADER_BYTES))
        require(self.profile in E2E_HEADER_BYTES, self, f"it is profile {self.profile}: the profiles {known} are read")
        require(0 <= self.offset <= 1 << 16, self, f"its offset is {self.offset} bytes: give 0 to 65,536")
        count = 16 if self.profile == 2 else 1
        require(len(self.data_ids) in (0, count), self, f"it has {len(self.data_ids)} data ids: give {count}, or none")
        most = {2: 1 << 8, 4: 1 << 32, 7: 1 << 32}.get(self.profile, 1 << 16)
        require(all(0 <= one < most for one in self.data_ids), self, f"a data id is not below {most:,}")
        modes = ("both", "alternating", "low", "nibble")
        require(
            self.data_id_mode in modes,
            self,
            f"its data id mode is {self.data_id_mode!r}: use one of {', '.join(modes)}",
        )

    @property
    def name(self) -> str:
        return f"E2E profile {self.profile}"

    @property
    def header_bytes(self) -> int:
        return E2E_HEADER_BYTES[self.profile]


Key: TypeAlias = tuple[int, int, int, int | None]
"""Service id, method id, message type, interface version (None: every version that has no entry of its own)."""


@dataclass(frozen=True, kw_only=True)
class PayloadMessage:
    """The payload of the messages of one method, event or field, and one message type.

    `parameters`: a struct without a length field (tagged: TLV parameters). `method` is the name of the method or event;
    `database`: the file that describes it.
    """

    service_id: int
    method_id: int
    message_type: int
    interface_version: int | None
    service: str
    method: str
    parameters: Struct
    e2e: EndToEnd | None = None
    database: str = ""

    def __post_init__(self) -> None:
        where = f"{self.service}.{self.method}"
        ids = 0 <= self.service_id < 1 << 16 and 0 <= self.method_id < 1 << 16
        require(bool(self.service) and bool(self.method), self, "its service or method has no name: give one")
        require(ids, self, f"the ids of {where} are not below 65,536")
        version = self.interface_version
        require(
            version is None or 0 <= version < 256,
            self,
            f"{where} has the version {version}: use 0 to 255, or None",
        )
        known = self.message_type in MESSAGE_TYPES
        require(
            known,
            self,
            f"{where} has the message type {self.message_type:#x}: use one of {', '.join(map(hex, MESSAGE_TYPES))}",
        )
        require(
            not self.parameters.length_bits,
            self,
            f"the parameters of {where} have a length field: nest them in a struct",
        )
        reserved = {E2E_PATH} if self.e2e is not None else set()
        _require_distinct_paths(self, self.parameters, reserved, set())

    @property
    def name(self) -> str:
        """The name in the column `message`."""
        return f"{self.service}.{self.method}"

    @property
    def typed_name(self) -> str:
        """With the message type, as of the notifier of a field, whose getter has the same name: `Vehicle.Speed.notification`."""
        return f"{self.name}.{MESSAGE_TYPES[self.message_type]}"

    @property
    def key(self) -> Key:
        return self.service_id, self.method_id, self.message_type, self.interface_version

    @cached_property
    def definition_hash(self) -> str:
        """A hash (16 hex digits) that changes when its rows change; independent of the file."""
        definition = asdict(self)
        del definition["database"]
        text = json.dumps([DECODER_REVISION, "someip", definition], sort_keys=True)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Services:
    """All messages that some files describe. `lost`: what a file says and is not read -> why.

    `service_names`: by service id; `method_names`: by service id and method id, also of those whose payload is not described.
    """

    messages: Mapping[Key, PayloadMessage] = field(default_factory=dict)
    service_names: Mapping[int, str] = field(default_factory=dict)
    method_names: Mapping[tuple[int, int], str] = field(default_factory=dict)
    lost: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_messages(
        cls,
        messages: Iterable[PayloadMessage],
        service_names: Mapping[int, str] | None = None,
        method_names: Mapping[tuple[int, int], str] | None = None,
        lost: Mapping[str, str] | None = None,
    ) -> Services:
        """Raises `DescriptionError` if two different messages have one key."""
        by_key: dict[Key, PayloadMessage] = {}
        services, methods = dict(service_names or {}), dict(method_names or {})
        for message in messages:
            other = by_key.setdefault(message.key, message)
            if other.definition_hash != message.definition_hash:
                raise DescriptionError(
                    f"{other.name} ({other.database}) and {message.name} ({message.database}) describe the same message "
                    f"(service {message.service_id:#06x}, method {message.method_id:#06x}, type {message.message_type:#04x}, "
                    f"version {message.interface_version}) differently: remove one of the files"
                )
            services.setdefault(message.service_id, message.service)
            methods.setdefault((message.service_id, message.method_id), message.method)
        return cls(messages=by_key, service_names=services, method_names=methods, lost=dict(lost or {}))

    @classmethod
    def join(cls, parts: Iterable[Services]) -> Services:
        """All of them. Raises `DescriptionError` if two describe one message differently."""
        parts = list(parts)
        return cls.from_messages(
            [message for part in parts for message in part],
            {number: name for part in reversed(parts) for number, name in part.service_names.items()},
            {number: name for part in reversed(parts) for number, name in part.method_names.items()},
            {place: reason for part in parts for place, reason in part.lost.items()},
        )

    def find_message(
        self, service_id: int, method_id: int, message_type: int, interface_version: int
    ) -> PayloadMessage | None:
        """The description of a message; None if there is none."""
        exact = self.messages.get((service_id, method_id, message_type, interface_version))
        return exact or self.messages.get((service_id, method_id, message_type, None))

    def __iter__(self) -> Iterator[PayloadMessage]:
        """In a stable order."""
        for key in sorted(self.messages, key=lambda key: (key[:3], -1 if key[3] is None else key[3])):
            yield self.messages[key]


def _require_distinct_paths(message: PayloadMessage, type_: Type | None, reserved: set[str], checked: set[int]) -> None:
    """No two values have one path, as `a.b` of a struct `a` and of a member with the name `a.b` would: a row has one key."""
    if id(type_) in checked:
        return
    checked.add(id(type_))
    if isinstance(type_, Array):
        _require_distinct_paths(message, type_.element, set(), checked)
    elif isinstance(type_, Struct | Union):
        parts = type_.members if isinstance(type_, Struct) else type_.variants
        names = reserved | {part.name for part in parts}
        for part in parts:
            starts = {part.name[:at] for at, letter in enumerate(part.name) if letter in ".["}
            clash = starts & names or {part.name} & reserved
            require(
                not clash, message, f"values of {part.name} have the same path as those of {clash}: rename one of them"
            )
            _require_distinct_paths(message, part.type, set(), checked)
