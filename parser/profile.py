"""The vehicle profile: facts that a capture does not contain (ports, bus names, which vehicle it came from).

`profile_yaml` reads its file.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .errors import ProfileError

PROTOCOLS: frozenset[str] = frozenset({"someip"})
"""The protocols that can be bound to a port."""

BYTE_ORDERS = ("big-endian", "little-endian")
"""Byte orders of CAN identifiers in link type 227. Big-endian is that of the link type's definition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Facts about a vehicle's network. A port matches as source and as destination port.

    `udp_ports`, `tcp_ports`: port (0-65535) to protocol name; UDP 30490 (SOME/IP-SD) needs no entry.
    `interface_buses`: capture interface (pcapng if_name, or its number as text) to bus name.
    `tecmp_buses`: TECMP interface id (u32) to bus name.
    `can_identifiers`: byte order of the identifiers in link type 227, one of `BYTE_ORDERS`.
    `vehicle_id_pattern`: a regular expression with a group `vehicle_id`, searched in the capture's URI.
    `vehicle_id`: the vehicle of every capture, whatever its URI. A route can set it; a profile's file cannot.
    """

    name: str = "default"
    udp_ports: Mapping[int, str] = field(default_factory=dict)
    tcp_ports: Mapping[int, str] = field(default_factory=dict)
    interface_buses: Mapping[str, str] = field(default_factory=dict)
    tecmp_buses: Mapping[int, str] = field(default_factory=dict)
    can_identifiers: str = BYTE_ORDERS[0]
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

        return cls(name=name, **read_facts(text, protocols, BYTE_ORDERS))

    def vehicle_id_of(self, uri: str) -> str | None:
        """`vehicle_id` if it is set, else what the pattern finds in a capture's URI; None without a pattern or a match."""
        if self.vehicle_id is not None:
            return self.vehicle_id
        match = self.vehicle_id_pattern.search(uri) if self.vehicle_id_pattern else None
        return match["vehicle_id"] or None if match else None

    @property
    def hash(self) -> str:
        """12 hex digits that identify the content. The name, comments and the order do not change them."""
        facts = [
            *(sorted(m.items()) for m in (self.udp_ports, self.tcp_ports, self.interface_buses, self.tecmp_buses)),
            self.vehicle_id_pattern.pattern if self.vehicle_id_pattern else None,
            # facts of later versions: without them, the hash stays that of the versions before
            *([] if self.vehicle_id is None else [{"vehicle_id": self.vehicle_id}]),
            *([] if self.can_identifiers == BYTE_ORDERS[0] else [{"can_identifiers": self.can_identifiers}]),
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]

    def is_recorded_as(self, recorded: str | None) -> bool:
        """Whether a value of the column `captures.profile` is this profile. The content decides, not the name."""
        return recorded is not None and recorded.rpartition("@")[2] == self.hash

    def loses(self, recorded: str | None) -> bool:
        """Whether this is no profile, while the value of `captures.profile` names one. Its bus names and vehicle ids
        would be lost.
        """
        default = Profile.default()
        return self.hash == default.hash and recorded is not None and not default.is_recorded_as(recorded)

    def __str__(self) -> str:
        """`name@hash`, the value of the column `captures.profile`."""
        return f"{self.name}@{self.hash}"
