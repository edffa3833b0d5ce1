"""The vehicle profile: what a capture cannot say about itself (ports, bus names, which vehicle it came from).

Knows: the YAML of a profile, where each value stands in it, and what to write instead of a wrong one. Must not know:
protocols (their names are handed in), the environment, where profiles are kept.

Read with `yaml.compose`: its nodes carry line numbers and keep duplicate keys, which a loaded dictionary has lost.
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

_KINDS = {"null": "nothing", "int": "a number", "float": "a number", "bool": "a truth value", "seq": "a list"}
_KINDS |= {"map": "a map", "str": "a text", "timestamp": "a date", "binary": "binary data"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Facts about a vehicle's network. All ports count as source or as destination port.

    `udp_ports`, `tcp_ports`: port (0-65535) to protocol name; UDP 30490 (SOME/IP-SD) is known without being listed.
    `interface_buses`: capture interface (pcapng if_name, or its number as text) to bus name.
    `tecmp_buses`: TECMP interface id (u32) to bus name.
    `vehicle_id_pattern`: a regular expression with a group `vehicle_id`, searched in the capture's URI.
    `vehicle_id`: the vehicle of every capture, whatever its URI; a profile's file cannot say it, a route can.
    """

    name: str = "default"
    udp_ports: Mapping[int, str] = field(default_factory=dict)
    tcp_ports: Mapping[int, str] = field(default_factory=dict)
    interface_buses: Mapping[str, str] = field(default_factory=dict)
    tecmp_buses: Mapping[int, str] = field(default_factory=dict)
    vehicle_id_pattern: re.Pattern[str] | None = None
    vehicle_id: str | None = None

    @classmethod
    def default(cls) -> Profile:
        """What holds without a profile: the built-in ports, buses named by their interface, no vehicle id."""
        return cls()

    @classmethod
    def load(cls, path: str | Path, *, protocols: Collection[str] = PROTOCOLS) -> Profile:
        """The profile in a YAML file, named after the file; `ProfileError` when it cannot be read or is wrong."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise ProfileError(f"cannot read the profile {path}: {error.strerror}; give the path of a file") from error
        except UnicodeDecodeError as error:
            raise ProfileError(f"the profile {path} is not UTF-8 text; save it as UTF-8") from error
        return cls.parse(text, name=Path(path).stem, protocols=protocols)

    @classmethod
    def parse(cls, text: str, *, name: str = "profile", protocols: Collection[str] = PROTOCOLS) -> Profile:
        """The profile in a text; `ProfileError` with the line says what is wrong and what to write instead."""
        top = _sections(_compose(text), "the profile", ("ports", "buses", "vehicle_id"))
        ports = _sections(top.get("ports"), "ports", ("udp", "tcp"))
        buses = _sections(top.get("buses"), "buses", ("interfaces", "tecmp"))
        return cls(
            name=name,
            udp_ports=_ports(ports.get("udp"), "ports.udp", protocols),
            tcp_ports=_ports(ports.get("tcp"), "ports.tcp", protocols),
            interface_buses=_interface_buses(buses.get("interfaces")),
            tecmp_buses=_tecmp_buses(buses.get("tecmp")),
            vehicle_id_pattern=_pattern(top.get("vehicle_id")),
        )

    def vehicle_id_of(self, uri: str) -> str | None:
        """The one vehicle id, or what the pattern finds in a capture's URI; None without a pattern or a match."""
        if self.vehicle_id is not None:
            return self.vehicle_id
        match = self.vehicle_id_pattern.search(uri) if self.vehicle_id_pattern else None
        return match["vehicle_id"] or None if match else None

    @property
    def hash(self) -> str:
        """12 hex digits that stay the same while the profile means the same; name, comments and order do not count."""
        facts = [
            *(sorted(m.items()) for m in (self.udp_ports, self.tcp_ports, self.interface_buses, self.tecmp_buses)),
            self.vehicle_id_pattern.pattern if self.vehicle_id_pattern else None,
            *([] if self.vehicle_id is None else [{"vehicle_id": self.vehicle_id}]),
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        """`name@hash`, as it stands in the column `captures.profile`."""
        return f"{self.name}@{self.hash}"


def _compose(text: str) -> yaml.Node | None:
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


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _kind(node: yaml.Node) -> str:
    return str(node.tag).rsplit(":", 1)[-1]


def _shown(node: yaml.Node) -> str:
    kind = _KINDS.get(_kind(node), f"a value tagged {node.tag}")
    return f"{kind} ({node.value})" if isinstance(node, yaml.ScalarNode) and node.value else kind


def _items(node: yaml.Node | None, where: str) -> Iterator[tuple[yaml.ScalarNode, yaml.Node]]:
    """Keys and values of a map; nothing for an absent or empty one."""
    if node is None or _kind(node) == "null":
        return
    if not isinstance(node, yaml.MappingNode):
        raise ProfileError(f"{where} must be a map of `key: value` lines, not {_shown(node)}", _line(node))
    seen: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise ProfileError(f"a key of {where} must be a plain word or number, not {_shown(key)}", _line(key))
        text = str(_number(key)) if _kind(key) == "int" else key.value
        if text in seen:
            raise ProfileError(
                f"{where} has {key.value} twice (first in line {seen[text]}); keep one of them", _line(key)
            )
        seen[text] = _line(key)
        yield key, value


def _sections(node: yaml.Node | None, where: str, known: tuple[str, ...]) -> dict[str, yaml.Node]:
    found = {}
    for key, value in _items(node, where):
        if key.value not in known:
            raise ProfileError(f"{where} has no key {key.value!r}; {_suggest(key.value, known)}", _line(key))
        found[key.value] = value
    return found


def _suggest(word: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(word, sorted(known), 1)
    return f"did you mean {close[0]!r}?" if close else f"write one of: {', '.join(sorted(known))}"


def _number(node: yaml.Node) -> int | None:
    """The integer a scalar stands for in YAML 1.1 (decimal, 0x, 0o with underscores), None for anything else."""
    if _kind(node) != "int":
        return None
    try:
        return int(node.value.replace("_", ""), 0)
    except ValueError:  # YAML's leading-zero octals and 1:30 sexagesimals: nobody means these
        return None


def _bounded(node: yaml.Node, where: str, highest: int) -> int:
    number = _number(node)
    if number is not None and not 0 <= number <= highest:
        raise ProfileError(
            f"{number} is too {'low' if number < 0 else 'high'} for a key of {where}: 0 to {highest}", _line(node)
        )
    if number is None:
        raise ProfileError(f"a key of {where} must be a number from 0 to {highest}, not {_shown(node)}", _line(node))
    return number


def _text(node: yaml.Node, where: str) -> str:
    if _kind(node) != "str":
        hint = f"; write it in quotes: '{node.value}'" if isinstance(node, yaml.ScalarNode) and node.value else ""
        raise ProfileError(f"{where} must be a text, not {_shown(node)}{hint}", _line(node))
    if not node.value:
        raise ProfileError(f"{where} is empty; write a text or remove the line", _line(node))
    return str(node.value)


def _ports(node: yaml.Node | None, where: str, protocols: Collection[str]) -> dict[int, str]:
    ports = {}
    for key, value in _items(node, where):
        port = _bounded(key, where, 65535)
        protocol = _text(value, f"{where}.{port}")
        if protocol not in protocols:
            raise ProfileError(f"unknown protocol {protocol!r}; {_suggest(protocol, protocols)}", _line(value))
        ports[port] = protocol
    return ports


def _interface_buses(node: yaml.Node | None) -> dict[str, str]:
    where = "buses.interfaces"
    return {key.value: _text(value, f"{where}.{key.value}") for key, value in _items(node, where)}


def _tecmp_buses(node: yaml.Node | None) -> dict[int, str]:
    where = "buses.tecmp"
    return {
        _bounded(key, where, 0xFFFFFFFF): _text(value, f"{where}.{key.value}") for key, value in _items(node, where)
    }


def _pattern(node: yaml.Node | None) -> re.Pattern[str] | None:
    if node is None or _kind(node) == "null":
        return None
    text = _text(node, "vehicle_id")
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ProfileError(f"vehicle_id is no regular expression: {error}; mend {text!r}", _line(node)) from error
    if "vehicle_id" not in pattern.groupindex:
        raise ProfileError(
            "vehicle_id needs a group of that name; write for example '/(?P<vehicle_id>[^/]+)/[^/]+$'", _line(node)
        )
    return pattern
