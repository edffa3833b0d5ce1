"""Reads the YAML of a profile. An error names the line, and says what to write instead of the wrong value.

The caller passes the names that a profile may use. `yaml.compose` is used because nodes keep line numbers and duplicate keys,
and a dictionary does not.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import yaml

from .errors import ProfileError

_KINDS = {"null": "nothing", "int": "a number", "float": "a number", "bool": "a boolean", "seq": "a list"}
_KINDS |= {"map": "a map", "str": "a string", "timestamp": "a date", "binary": "binary data"}


def read_facts(text: str, protocols: Collection[str], byte_orders: Sequence[str]) -> dict[str, Any]:
    """The fields of `Profile` in a YAML text. Raises `ProfileError` with the line, the mistake, and what to write instead.

    protocols: names that a port may have. byte_orders: of CAN identifiers, the default first.
    """
    top = _read_sections(_compose_yaml(text), "the profile", ("ports", "buses", "can", "vehicle_id"))
    ports = _read_sections(top.get("ports"), "ports", ("udp", "tcp"))
    buses = _read_sections(top.get("buses"), "buses", ("interfaces", "tecmp"))
    can = _read_sections(top.get("can"), "can", ("identifiers",))
    return {
        "udp_ports": _read_port_protocols(ports.get("udp"), "ports.udp", protocols),
        "tcp_ports": _read_port_protocols(ports.get("tcp"), "ports.tcp", protocols),
        "interface_buses": _read_interface_buses(buses.get("interfaces")),
        "tecmp_buses": _read_tecmp_buses(buses.get("tecmp")),
        "can_identifiers": _read_byte_order(can.get("identifiers"), "can.identifiers", byte_orders),
        "vehicle_id_pattern": _compile_vehicle_pattern(top.get("vehicle_id")),
    }


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


def _read_byte_order(node: yaml.Node | None, where: str, known: Sequence[str]) -> str:
    if node is None or _describe_node_type(node) == "null":
        return known[0]
    text = _read_text_scalar(node, where)
    if text not in known:
        raise ProfileError(f"{where} is {text!r}; {_suggest_spelling(text, known)}", _line_number(node))
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
