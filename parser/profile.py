"""The vehicle profile: facts that a capture does not contain (ports, bus names, which vehicle it came from).

This module reads the YAML of a profile. An error names the line, and says what to write instead of the wrong value. The
caller passes the names of the protocols.

It reads with `yaml.compose`, because nodes keep line numbers and duplicate keys, and a dictionary does not.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from .errors import ProfileError

PROTOCOLS: frozenset[str] = frozenset({"someip"})
"""The protocols that can be bound to a port."""

BYTE_ORDERS = ("big-endian", "little-endian")
"""Byte orders of CAN identifiers in link type 227. Big-endian is that of the link type's definition."""

_KINDS = {"null": "nothing", "int": "a number", "float": "a number", "bool": "a boolean", "seq": "a list"}
_KINDS |= {"map": "a map", "str": "a string", "timestamp": "a date", "binary": "binary data"}


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
        top = _read_sections(_compose_yaml(text), "the profile", ("ports", "buses", "can", "vehicle_id"))
        ports = _read_sections(top.get("ports"), "ports", ("udp", "tcp"))
        buses = _read_sections(top.get("buses"), "buses", ("interfaces", "tecmp"))
        can = _read_sections(top.get("can"), "can", ("identifiers",))
        return cls(
            name=name,
            udp_ports=_read_port_protocols(ports.get("udp"), "ports.udp", protocols),
            tcp_ports=_read_port_protocols(ports.get("tcp"), "ports.tcp", protocols),
            interface_buses=_read_interface_buses(buses.get("interfaces")),
            tecmp_buses=_read_tecmp_buses(buses.get("tecmp")),
            can_identifiers=_read_byte_order(can.get("identifiers"), "can.identifiers"),
            vehicle_id_pattern=_compile_vehicle_pattern(top.get("vehicle_id")),
        )

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


def _compose_yaml(text: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise ProfileError(f"not YAML: {error.problem or error.context}; write `key: value` lines", line) from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ProfileError("a character that YAML does not allow; remove it", line) from error
    except RecursionError as error:
        raise ProfileError("nested too deeply; a profile is three levels deep") from error
    return node


def _line_number(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _describe_node_type(node: yaml.Node) -> str:
    return str(node.tag).rsplit(":", 1)[-1]


def _describe_node(node: yaml.Node) -> str:
    kind = _KINDS.get(_describe_node_type(node), f"a value tagged {node.tag}")
    return f"{kind} ({node.value})" if isinstance(node, yaml.ScalarNode) and node.value else kind


def _iterate_mapping(node: yaml.Node | None, where: str) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """Keys and values of a map; none if it is missing or empty."""
    if node is None or _describe_node_type(node) == "null":
        return
    if not isinstance(node, yaml.MappingNode):
        raise ProfileError(
            f"{where} must be a map of `key: value` lines, not {_describe_node(node)}", _line_number(node)
        )
    seen: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ProfileError(
                f"a key of {where} must be a plain word or number, not {_describe_node(key)}", _line_number(key)
            )
        text = str(_parse_integer(key)) if _describe_node_type(key) == "int" else key.value
        if text in seen:
            raise ProfileError(
                f"{where} has {key.value} twice (first in line {seen[text]}); keep one of them", _line_number(key)
            )
        seen[text] = _line_number(key)
        yield key, value


def _read_sections(node: yaml.Node | None, where: str, known: tuple[str, ...]) -> dict[str, yaml.Node]:
    sections = {}
    for key, value in _iterate_mapping(node, where):
        if key.value not in known:
            raise ProfileError(
                f"{where} has no key {key.value!r}; {_suggest_spelling(key.value, known)}", _line_number(key)
            )
        sections[key.value] = value
    return sections


def _suggest_spelling(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, sorted(known), 1)
    return f"did you mean {close[0]!r}?" if close else f"write one of: {', '.join(sorted(known))}"


def _parse_integer(node: yaml.Node) -> int | None:
    """The integer that a scalar means in YAML 1.1 (decimal, 0x, 0o with underscores); None for anything else."""
    if _describe_node_type(node) != "int":
        return None
    try:
        return int(node.value.replace("_", ""), 0)
    except ValueError:  # octals with a leading zero and sexagesimals such as 1:30, which are never intended here
        return None


def _read_bounded_integer(node: yaml.Node, where: str, highest: int) -> int:
    number = _parse_integer(node)
    if number is not None and not 0 <= number <= highest:
        raise ProfileError(
            f"{number} is too {'low' if number < 0 else 'high'} for a key of {where}: 0 to {highest}",
            _line_number(node),
        )
    if number is None:
        raise ProfileError(
            f"a key of {where} must be a number from 0 to {highest}, not {_describe_node(node)}", _line_number(node)
        )
    return number


def _read_text_scalar(node: yaml.Node, where: str) -> str:
    if _describe_node_type(node) != "str":
        hint = f"; write it in quotes: '{node.value}'" if isinstance(node, yaml.ScalarNode) and node.value else ""
        raise ProfileError(f"{where} must be a string, not {_describe_node(node)}{hint}", _line_number(node))
    if not node.value:
        raise ProfileError(f"{where} is empty; write a string or remove the line", _line_number(node))
    return str(node.value)


def _read_port_protocols(node: yaml.Node | None, where: str, protocols: Collection[str]) -> dict[int, str]:
    ports = {}
    for key, value in _iterate_mapping(node, where):
        port = _read_bounded_integer(key, where, 65535)
        protocol = _read_text_scalar(value, f"{where}.{port}")
        if protocol not in protocols:
            raise ProfileError(
                f"unknown protocol {protocol!r}; {_suggest_spelling(protocol, protocols)}", _line_number(value)
            )
        ports[port] = protocol
    return ports


def _read_interface_buses(node: yaml.Node | None) -> dict[str, str]:
    where = "buses.interfaces"
    return {key.value: _read_text_scalar(value, f"{where}.{key.value}") for key, value in _iterate_mapping(node, where)}


def _read_tecmp_buses(node: yaml.Node | None) -> dict[int, str]:
    where = "buses.tecmp"
    return {
        _read_bounded_integer(key, where, 0xFFFFFFFF): _read_text_scalar(value, f"{where}.{key.value}")
        for key, value in _iterate_mapping(node, where)
    }


def _read_byte_order(node: yaml.Node | None, where: str) -> str:
    if node is None or _describe_node_type(node) == "null":
        return BYTE_ORDERS[0]
    text = _read_text_scalar(node, where)
    if text not in BYTE_ORDERS:
        raise ProfileError(f"{where} is {text!r}; {_suggest_spelling(text, BYTE_ORDERS)}", _line_number(node))
    return text


def _compile_vehicle_pattern(node: yaml.Node | None) -> re.Pattern[str] | None:
    if node is None or _describe_node_type(node) == "null":
        return None
    text = _read_text_scalar(node, "vehicle_id")
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ProfileError(
            f"vehicle_id is not a regular expression: {error}; correct {text!r}", _line_number(node)
        ) from error
    if "vehicle_id" not in pattern.groupindex:
        raise ProfileError(
            "vehicle_id needs a group of that name; write for example '/(?P<vehicle_id>[^/]+)/[^/]+$'",
            _line_number(node),
        )
    return pattern
