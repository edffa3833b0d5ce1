"""The vehicle profile: facts that a capture does not contain (ports, bus names, which vehicle it came from).

`profile_yaml` reads its file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .errors import ProfileError

PROTOCOLS: frozenset[str] = frozenset(
    {"someip", "doip", "hsfz", "dlt", "pdu", "pdu_short", "rtps", "mqtt", "v2gtp", "cmp", "caneth"}
    | {"nm", "nm_node_first", "nm_no_node", "nm_no_control", "xcp"}
)
"""The protocols that can be bound to a port."""

CAN_PROTOCOLS: frozenset[str] = frozenset(
    {"nm", "nm_node_first", "nm_no_node", "nm_no_control", "xcp_master", "xcp_slave", "j1939", "canopen"}
)
"""The protocols that can be bound to CAN identifiers."""

ONLY_UDP = frozenset({"rtps", "cmp", "caneth"})
ONLY_TCP = frozenset({"mqtt"})

BYTE_ORDERS = ("big-endian", "little-endian")
"""Byte orders of CAN identifiers in link type 227. Big-endian is that of the link type's definition."""

ADDRESSING = ("normal", "extended", "mixed", "normal_fixed", "mixed_fixed")
"""Addressing of ISO-TP (ISO 15765-2). With the fixed ones, the identifiers of 29 bits contain the addresses."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class IsoTpChannel:
    """CAN identifiers that carry ISO-TP; those above 0x7FF have 29 bits.

    `request`, `response`: -1 if there is none; a request to a group of control units has no response of its own.
    `tester`: with fixed addressing, the address of the tester, which all identifiers contain; otherwise -1.
    """

    addressing: str = ADDRESSING[0]
    request: int = -1
    response: int = -1
    tester: int = -1


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class CanIdentifiers:
    """CAN identifiers from `first` to `last`, of 29 bits if `extended`, else of 11, and the protocol that has them."""

    first: int
    last: int
    extended: bool
    protocol: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Facts about a vehicle's network. A port matches as source and as destination port.

    `udp_ports`, `tcp_ports`: port (0-65535) to protocol name; UDP 30490 (SOME/IP-SD) needs no entry.
    `service_discovery`: whether a port that SOME/IP service discovery offers is decoded as SOME/IP from the next packet
    on, and a port that SDP announces as V2GTP.
    `interface_buses`: capture interface (pcapng if_name, or its number as text) to bus name.
    `tecmp_buses`, `cmp_buses`, `acf_buses`: interface id of TECMP or ASAM CMP (u32), or ACF bus id, to bus name.
    `pdu_names`: id of a PDU in PDU transport (u32) to its name.
    `can_identifiers`: byte order of the identifiers in link type 227, one of `BYTE_ORDERS`.
    `can_protocols`: which protocol CAN identifiers carry. If ranges overlap, the narrower one counts.
    `isotp`: CAN identifiers that carry ISO-TP, whatever `can_protocols` says of them.
    `vehicle_id_pattern`: a regular expression with a group `vehicle_id`, searched in the capture's URI.
    `vehicle_id`: the vehicle of every capture, whatever its URI. A route can set it; a profile's file cannot.
    """

    name: str = "default"
    udp_ports: Mapping[int, str] = field(default_factory=dict)
    tcp_ports: Mapping[int, str] = field(default_factory=dict)
    service_discovery: bool = True
    interface_buses: Mapping[str, str] = field(default_factory=dict)
    tecmp_buses: Mapping[int, str] = field(default_factory=dict)
    cmp_buses: Mapping[int, str] = field(default_factory=dict)
    acf_buses: Mapping[int, str] = field(default_factory=dict)
    pdu_names: Mapping[int, str] = field(default_factory=dict)
    can_identifiers: str = BYTE_ORDERS[0]
    can_protocols: tuple[CanIdentifiers, ...] = ()
    isotp: tuple[IsoTpChannel, ...] = ()
    vehicle_id_pattern: re.Pattern[str] | None = None
    vehicle_id: str | None = None

    @classmethod
    def default(cls) -> Profile:
        """The profile that is used if none is given: built-in ports, buses with the names of their interfaces, no vehicle id."""
        return cls()

    @classmethod
    def load(cls, path: str | Path, *, protocols: Collection[str] = PROTOCOLS) -> Profile:
        """Read the profile in a YAML file, and name it after the file. Raises `ProfileError` if it is unreadable or wrong."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ProfileError(f"cannot read the profile {path}: {error.strerror}; give the path of a file") from error
        except UnicodeDecodeError as error:
            raise ProfileError(f"the profile {path} is not UTF-8 text; save it as UTF-8") from error
        return cls.parse(text, name=Path(path).stem, protocols=protocols)

    @classmethod
    def parse(cls, text: str, *, name: str = "profile", protocols: Collection[str] = PROTOCOLS) -> Profile:
        """Read the profile in a YAML text. Raises `ProfileError` with the line, the mistake, and what to write instead."""
        from .profile_yaml import read_facts  # imports yaml, which a command without a profile does not need

        names = {"udp": {*protocols} - ONLY_TCP, "tcp": {*protocols} - ONLY_UDP}
        facts = read_facts(text, names, CAN_PROTOCOLS, BYTE_ORDERS, ADDRESSING)
        identifiers = tuple(CanIdentifiers(**entry) for entry in facts.pop("can_protocols"))
        channels = tuple(IsoTpChannel(**channel) for channel in facts.pop("isotp"))
        return cls(name=name, can_protocols=identifiers, isotp=channels, **facts)

    def vehicle_id_of(self, uri: str) -> str | None:
        """`vehicle_id` if it is set, else what the pattern finds in a capture's URI; None without a pattern or a match."""
        if self.vehicle_id is not None:
            return self.vehicle_id
        match = self.vehicle_id_pattern.search(uri) if self.vehicle_id_pattern else None
        return match["vehicle_id"] or None if match else None

    @property
    def names_by_id(self) -> Mapping[str, Mapping[int, str]]:
        """The names of buses and PDUs by the kind of text that shows them (`Term.text`)."""
        return {"tecmp": self.tecmp_buses, "cmp": self.cmp_buses, "acf": self.acf_buses, "pdu": self.pdu_names}

    @property
    def hash(self) -> str:
        """12 hex digits that identify the content. The name, comments and the order do not change them."""
        facts = [
            *(sorted(m.items()) for m in (self.udp_ports, self.tcp_ports, self.interface_buses, self.tecmp_buses)),
            self.vehicle_id_pattern.pattern if self.vehicle_id_pattern else None,
            # facts of later versions: without them, the hash stays that of the versions before
            *([] if self.vehicle_id is None else [{"vehicle_id": self.vehicle_id}]),
            *([] if self.service_discovery else [{"service_discovery": False}]),
            *([] if self.can_identifiers == BYTE_ORDERS[0] else [{"can_identifiers": self.can_identifiers}]),
            *({name: sorted(ids.items())} for name, ids in self.names_by_id.items() if ids and name != "tecmp"),
            *(
                [{"can_protocols": [dataclasses.astuple(c) for c in sorted(self.can_protocols)]}]
                if self.can_protocols
                else []
            ),
            *([{"isotp": [dataclasses.astuple(channel) for channel in sorted(self.isotp)]}] if self.isotp else []),
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]

    def is_recorded_as(self, recorded: str | None) -> bool:
        """Whether a value of the column `captures.profile` is this profile. The content decides, not the name."""
        return recorded is not None and recorded.rpartition("@")[2] == self.hash

    def loses_names_of(self, recorded: str | None) -> bool:
        """Whether this is the default profile, while `recorded`, a value of `captures.profile`, names another. Reading
        the capture again would lose that profile's bus names and vehicle ids.
        """
        default = Profile.default()
        return self.hash == default.hash and recorded is not None and not default.is_recorded_as(recorded)

    def __str__(self) -> str:
        """`name@hash`, the value of the column `captures.profile`."""
        return f"{self.name}@{self.hash}"
