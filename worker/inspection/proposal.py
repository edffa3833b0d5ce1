"""Proposes a profile from what captures tell: YAML that the profile reader accepts, with a comment behind each line.

Facts (offers of service discovery, responses that follow requests, a byte order that is impossible) are lines. What only looks
like a protocol, and names that nobody but the user knows, are comments.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pcaplake.common.plain_text import counted, to_json

from .can_candidates import LEAST_FRAMES, CanProposals, identifier_text
from .evidence import BUS_SOURCES, Evidence
from .likely_ports import LikelyPort, LikelyPorts
from .likely_streams import LikelyStreams

BUS_LINK_TYPES = {227: "CAN", 212: "LIN", 210: "FlexRay"}  # tcpdump.org/linktypes
MOST_LINES = 64  # of a section
WIDTH = 44  # of a line before its comment
INTRODUCTION = """\
# A profile that `pcaplake profile init` proposes from {captures}.
# Lines that begin with # are guesses, or need a name that only you know: correct them, and remove the #.
# `pcaplake profile check FILE CAPTURES...` shows what the profile changes; `pcaplake docs profile` explains the keys.
"""
Line = tuple[str, str]  # YAML and comment


class Proposal:
    """What the captures of a run tell of a profile."""

    def __init__(self) -> None:
        self.captures, self.little_endian = 0, False
        self.offers: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.someip: dict[int, Counter[str]] = defaultdict(Counter)  # UDP port -> datagrams, fitting
        self.ports, self.streams = LikelyPorts(), LikelyStreams()
        self.buses: Counter[tuple[str, str]] = Counter()
        self.interfaces: Counter[tuple[str, str]] = Counter()  # name or number, and kind of bus -> packets
        self.can = CanProposals()
        self.stations: Counter[int] = Counter()  # TCP port -> responses of SDP

    def add(self, evidence: Evidence, found: Mapping[str, Any]) -> None:
        """Add a capture. found: what `inspect_capture` says of it."""
        self.captures += 1
        self.little_endian = self.little_endian or bool(found["can_identifiers"]["profile"])
        for key, services in evidence.offers.items():
            self.offers[key] |= services
        for one in found["someip_ports"]["ports"]:
            self.someip[one["port"]] += Counter(datagrams=one["datagrams"], fitting=one["fitting"])
        self.ports.merge(evidence.ports)
        self.streams.merge(evidence.streams)
        for one in found["v2gtp_ports"]["ports"]:
            self.stations[one["port"]] += one["responses"]
        self.buses += evidence.buses
        for one in found["interfaces"]:
            if one["link_type"] in BUS_LINK_TYPES and one["packets"]:
                name = to_json(one["name"]) if one["name"] else str(one["id"])
                self.interfaces[name, BUS_LINK_TYPES[one["link_type"]]] += one["packets"]
        can = evidence.can.find()
        self.can.isotp += can.isotp
        self.can.protocols += can.protocols
        self.can.j1939 += can.j1939

    # -- YAML ---------------------------------------------------------------------------------------------------------
    def render(self) -> str:
        """The profile."""
        someip = (LikelyPort(port=port, protocol="someip", **counts) for port, counts in self.someip.items())
        udp = [*self._offered("udp"), *self._likely("udp", [*someip, *self.ports.find()])]
        tcp = [*self._offered("tcp"), *self._announced(), *self._likely("tcp", self.streams.find())]
        can = [*self._section("protocols", self._can_protocols()), *self._section("isotp", self._isotp())]
        if self.little_endian:
            can.insert(0, ("  identifiers: little-endian", "many identifiers are impossible in the other byte order"))
        parts = [
            *self._section("ports", [*self._section("udp", udp), *self._section("tcp", tcp)], nested=True),
            *self._section("buses", list(self._bus_names()), nested=True),
            *([("can:", ""), *can] if can else []),
            ("# vehicle_id: '/(?P<vehicle_id>[^/]+)/[^/]+$'", "the folder of the capture, in its URI"),
        ]
        lines = [f"{text:<{WIDTH}}  # {why}" if why else text for text, why in parts]
        return INTRODUCTION.format(captures=counted(self.captures, "capture")) + "\n".join(lines) + "\n"

    @staticmethod
    def _section(name: str, lines: Sequence[Line], *, nested: bool = False) -> list[Line]:
        """A key and the lines below it, which are sections if it is `nested`. The key is a comment if all lines are."""
        if not lines:
            return []
        is_comment = all(text.lstrip().startswith("#") for text, _ in lines)
        shown = list(lines) if nested else list(lines[:MOST_LINES])
        if len(shown) < len(lines):
            shown.append((f"    # ... and {len(lines) - MOST_LINES:,} more", ""))
        return [(f"{'' if nested else '  '}{'# ' if is_comment else ''}{name}:", ""), *shown]

    def _offered(self, transport: str) -> Iterator[Line]:
        for (way, port), services in sorted(self.offers.items()):
            if way == transport:
                ids = ", ".join(f"0x{service:04X}" for service in sorted(services)[:3])
                more = ", ..." if len(services) > 3 else ""
                yield f"    {port}: someip", f"offered by service discovery for service {ids}{more}"

    def _likely(self, transport: str, likely: Sequence[LikelyPort]) -> Iterator[Line]:
        known = {port for way, port in self.offers if way == transport}
        known |= {*self.stations} if transport == "tcp" else set()
        for one in sorted(likely, key=lambda one: (one.port, one.protocol)):
            if one.port not in known:
                unit, do = (
                    ("datagram", "look like it") if transport == "udp" else ("segment", "begin with its messages")
                )
                why = f"{one.fitting:,} of {counted(one.datagrams, unit)} {do}"
                yield f"    {'' if one.protocol == 'someip' else '# '}{one.port}: {one.protocol}", why

    def _announced(self) -> Iterator[Line]:
        for port, count in sorted(self.stations.items()):
            if ("tcp", port) not in self.offers:
                yield f"    {port}: v2gtp", f"announced by {counted(count, 'response')} of a charging station"

    def _bus_names(self) -> Iterator[Line]:
        lines = [
            # YAML reads a key of more than 1,024 characters only behind a question mark
            (
                f"    # {name}: NAME" if len(name) < 1000 else f"    # ? {name}\n    # : NAME",
                f"{kind}, {counted(count, 'packet')}",
            )
            for (name, kind), count in sorted(self.interfaces.items())
        ]
        yield from self._section("interfaces", lines)
        for source in BUS_SOURCES:
            ids = sorted((int(bus), count) for (name, bus), count in self.buses.items() if name == source)
            yield from self._section(source, [(f"    # {bus}: NAME", counted(count, "frame")) for bus, count in ids])

    def _can_protocols(self) -> list[Line]:
        """Guesses, by identifier."""
        lines = (
            [("    # extended: j1939", f"{counted(self.can.j1939, 'frame')} look like it")] if self.can.j1939 else []
        )
        return lines + [
            (f"    # {identifier_text(identifier)}: {protocol}", f"{counted(count, 'frame')} look like it")
            for (identifier, protocol), count in sorted(self.can.protocols.items())
        ]

    def _isotp(self) -> list[Line]:
        lines = []
        for entry, count in sorted(self.can.isotp.items(), key=lambda item: -item[1]):
            facts = dict(entry)
            ids = {key: identifier_text(value) for key, value in facts.items() if key in ("request", "response")}
            if "tester" in facts:
                ids["tester"] = f"0x{facts['tester']:02X}"
            text = ", ".join(f"{key}: {value}" for key, value in (facts | ids).items())
            what = "frame" if list(facts) == ["request"] else "response"
            lines.append((f"    {'' if count >= LEAST_FRAMES else '# '}- {{{text}}}", counted(count, what)))
        return lines
