"""The keys that a profile claims: its ports, CAN identifiers and their byte order."""

from __future__ import annotations

from pcaplake.parser import protocols
from pcaplake.parser.engine.key_spaces import Claim
from pcaplake.parser.engine.layer import Layer
from pcaplake.parser.profile import Profile
from pcaplake.parser.protocols.can_content import identifier_claims
from pcaplake.parser.protocols.ethernet import TCP_PORT, UDP_PORT
from pcaplake.parser.protocols.isotp import claims_and_partners


def profile_claims(profile: Profile) -> tuple[list[tuple[Claim, Layer]], dict[int, int]]:
    """What the keys that a profile names lead to, and the partners of a `Pairing`. The last claim of a key counts."""
    claims = [
        (space[port], layers[name])
        for space, named, layers in (
            (UDP_PORT, profile.udp_ports, protocols.UDP_PROTOCOLS),
            (TCP_PORT, profile.tcp_ports, protocols.TCP_PROTOCOLS),
        )
        for port, name in named.items()
    ]
    claims += [
        (space[port], layer)
        for named in (profile.udp_ports, profile.tcp_ports)
        for port, name in named.items()
        for space, layer in protocols.PORT_ENDS.get(name, ())
    ]
    claims += protocols.CAN_IDENTIFIERS[profile.can_identifiers]
    claims += identifier_claims(profile.can_protocols, protocols.CAN_PROTOCOLS)
    by_identifier, partners = claims_and_partners(profile.isotp)
    return [*claims, *by_identifier], partners
