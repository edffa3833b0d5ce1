"""Reads the YAML of a profile. An error names the line, and says what to write instead of the wrong value.

The caller passes the names that a profile may use. `yaml.compose` is used because nodes keep line numbers and duplicate keys,
and a dictionary does not.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import yaml

from pcaplake.suggestions import suggest_name

from .errors import ProfileError

_KINDS = {"null": "nothing", "int": "a number", "float": "a number", "bool": "a boolean", "seq": "a list"}
_LAST_STANDARD, _LAST_EXTENDED = 0x7FF, 0x1FFF_FFFF  # CAN identifiers of 11 and of 29 bits
_ALL_IDENTIFIERS = {"standard": (0, _LAST_STANDARD), "extended": (0, _LAST_EXTENDED)}
_KINDS |= {"map": "a map", "str": "a string", "timestamp": "a date", "binary": "binary data"}


def read_facts(
    text: str,
    protocols: Mapping[str, Collection[str]],
    can_protocols: Collection[str],
    byte_orders: Sequence[str],
    addressing: Sequence[str],
) -> dict[str, Any]:
    """The fields of `Profile` in a YAML text. Raises `ProfileError` with the line, the mistake, and what to write instead.

    protocols: names that a port of UDP and of TCP may have; can_protocols: those that CAN identifiers may have. byte_orders: of
    CAN identifiers; addressing: of ISO-TP; the defaults come first.
    """
    top = _read_sections(_compose_yaml(text), "the profile", ("ports", "buses", "pdus", "can", "vehicle_id"))
    ports = _read_sections(top.get("ports"), "ports", ("udp", "tcp", "service_discovery"))
    buses = _read_sections(top.get("buses"), "buses", ("interfaces", "tecmp", "cmp", "acf"))
    can = _read_sections(top.get("can"), "can", ("identifiers", "protocols", "isotp"))
    return {
        "udp_ports": _read_port_protocols(ports.get("udp"), "ports.udp", protocols["udp"]),
        "tcp_ports": _read_port_protocols(ports.get("tcp"), "ports.tcp", protocols["tcp"]),
        "service_discovery": _read_boolean(ports.get("service_discovery"), "ports.service_discovery", default=True),
        "interface_buses": _read_interface_buses(buses.get("interfaces")),
        "tecmp_buses": _read_names_by_id(buses.get("tecmp"), "buses.tecmp"),
        "cmp_buses": _read_names_by_id(buses.get("cmp"), "buses.cmp"),
        "acf_buses": _read_names_by_id(buses.get("acf"), "buses.acf", 0x7FF),
        "pdu_names": _read_names_by_id(top.get("pdus"), "pdus"),
        "can_identifiers": _read_byte_order(can.get("identifiers"), "can.identifiers", byte_orders),
        "can_protocols": _read_can_protocols(can.get("protocols"), can_protocols),
        "isotp": list(_read_isotp_channels(can.get("isotp"), addressing)),
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
        key.value = _join_surrogates(key)
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
            raise ProfileError(f"{where} has no key {key.value!r}; {suggest_name(key.value, known)}", _line_number(key))
        sections[key.value] = value
    return sections


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
            f"{number} is too {'low' if number < 0 else 'high'} for {where}: 0 to {highest}",
            _line_number(node),
        )
    if number is None:
        raise ProfileError(
            f"{where} must be a number from 0 to {highest}, not {_describe_node(node)}", _line_number(node)
        )
    return number


def _read_text_scalar(node: yaml.Node, where: str) -> str:
    if _describe_node_type(node) != "str":
        hint = f"; write it in quotes: '{node.value}'" if isinstance(node, yaml.ScalarNode) and node.value else ""
        raise ProfileError(f"{where} must be a string, not {_describe_node(node)}{hint}", _line_number(node))
    if not node.value:
        raise ProfileError(f"{where} is empty; write a string or remove the line", _line_number(node))
    return _join_surrogates(node)


def _join_surrogates(node: yaml.Node) -> str:
    """The text of a scalar. JSON escapes a character above U+FFFF as a pair of surrogates, which YAML leaves apart."""
    try:
        return str(node.value).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise ProfileError(
            f"{node.value!a} has half a character; write the character itself", _line_number(node)
        ) from error


def _read_port_protocols(node: yaml.Node | None, where: str, protocols: Collection[str]) -> dict[int, str]:
    ports = {}
    for key, value in _iterate_mapping(node, where):
        port = _read_bounded_integer(key, f"a key of {where}", 65535)
        ports[port] = _read_protocol(value, f"{where}.{port}", protocols)
    return ports


def _read_protocol(node: yaml.Node, where: str, known: Collection[str]) -> str:
    protocol = _read_text_scalar(node, where)
    if protocol not in known:
        raise ProfileError(f"unknown protocol {protocol!r}; {suggest_name(protocol, known)}", _line_number(node))
    return protocol


def _read_can_protocols(node: yaml.Node | None, protocols: Collection[str]) -> list[dict[str, Any]]:
    """The fields of each `CanIdentifiers`."""
    where, found = "can.protocols", list[dict[str, Any]]()
    ranges: list[tuple[tuple[bool, int, int], yaml.ScalarNode]] = []  # (of 29 bits, first, last), key
    for key, value in _iterate_mapping(node, where):
        first, last = _read_identifiers(key, where)
        extended = last > _LAST_STANDARD
        if first > last or (extended != (first > _LAST_STANDARD) and key.value != "extended"):
            raise ProfileError(
                f"{key.value} in {where} is not a range of identifiers of 11 bits (up to 0x7FF) or of 29 bits (from 0x800);"
                " write for example 0x500-0x57F",
                _line_number(key),
            )
        protocol = _read_protocol(value, f"{where}.{key.value}", protocols)
        found.append({"first": first, "last": last, "extended": extended, "protocol": protocol})
        ranges.append(((extended, first, last), key))
    _require_nested(ranges, where)
    return found


def _require_nested(ranges: list[tuple[tuple[bool, int, int], yaml.ScalarNode]], where: str) -> None:
    """Raise `ProfileError` if two ranges of identifiers of the same length are equal, or overlap in part."""
    around: list[tuple[tuple[bool, int, int], yaml.ScalarNode]] = []  # each inside the one before it
    for one in sorted(ranges, key=lambda r: (r[0][0], r[0][1], -r[0][2], _line_number(r[1]))):
        (extended, first, last), key = one
        while around and (around[-1][0][0] != extended or around[-1][0][2] < first):
            around.pop()
        if around and (last > around[-1][0][2] or around[-1][0] == one[0]):
            before, after = sorted((around[-1][1], key), key=_line_number)
            raise ProfileError(
                f"{where} has identifiers of {after.value} twice (first in line {_line_number(before)}); two ranges may"
                " overlap only if one lies inside the other",
                _line_number(after),
            )
        around.append(one)


def _read_identifiers(key: yaml.ScalarNode, where: str) -> tuple[int, int]:
    """The first and the last CAN identifier that a key means."""
    if key.value in _ALL_IDENTIFIERS:
        return _ALL_IDENTIFIERS[key.value]
    bounds = []
    for text in key.value.split("-", 1) if _describe_node_type(key) == "str" else [key.value]:
        part = yaml.ScalarNode("tag:yaml.org,2002:int", text.strip(), key.start_mark, key.end_mark)
        if _parse_integer(part) is None:
            raise ProfileError(
                f"a key of {where} must be an identifier, a range such as 0x500-0x57F, `standard` or `extended`,"
                f" not {_describe_node(key)}",
                _line_number(key),
            )
        bounds.append(_read_bounded_integer(part, f"a key of {where}", _LAST_EXTENDED))
    return bounds[0], bounds[-1]


def _read_boolean(node: yaml.Node | None, where: str, *, default: bool) -> bool:
    if node is None or _describe_node_type(node) == "null":
        return default
    if _describe_node_type(node) != "bool":
        raise ProfileError(f"{where} must be true or false, not {_describe_node(node)}", _line_number(node))
    return bool(yaml.SafeLoader.bool_values[node.value.lower()])


def _read_interface_buses(node: yaml.Node | None) -> dict[str, str]:
    where = "buses.interfaces"
    return {key.value: _read_text_scalar(value, f"{where}.{key.value}") for key, value in _iterate_mapping(node, where)}


def _read_names_by_id(node: yaml.Node | None, where: str, highest: int = 0xFFFFFFFF) -> dict[int, str]:
    return {
        _read_bounded_integer(key, f"a key of {where}", highest): _read_text_scalar(value, f"{where}.{key.value}")
        for key, value in _iterate_mapping(node, where)
    }


def _read_byte_order(node: yaml.Node | None, where: str, known: Sequence[str]) -> str:
    if node is None or _describe_node_type(node) == "null":
        return known[0]
    text = _read_text_scalar(node, where)
    if text not in known:
        raise ProfileError(f"{where} is {text!r}; {suggest_name(text, known)}", _line_number(node))
    return text


def _read_isotp_channels(node: yaml.Node | None, known: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The fields of each `IsoTpChannel`. known: kinds of addressing, the default first."""
    where = "can.isotp"
    if node is None or _describe_node_type(node) == "null":
        return
    if not isinstance(node, yaml.SequenceNode):
        raise ProfileError(f"{where} must be a list, not {_describe_node(node)}", _line_number(node))
    for item in node.value:
        facts = _read_sections(item, f"an entry of {where}", ("request", "response", "addressing", "tester"))
        addressing = known[0]
        if "addressing" in facts:
            addressing = _read_text_scalar(facts["addressing"], f"{where}.addressing")
            if addressing not in known:
                raise ProfileError(
                    f"unknown addressing {addressing!r}; {suggest_name(addressing, known)}",
                    _line_number(facts["addressing"]),
                )
        needed, others = (
            ("tester", ("request", "response")) if addressing.endswith("_fixed") else ("request", ("tester",))
        )
        for key in others:
            if key in facts:
                raise ProfileError(f"{where}: {addressing} addressing has no {key}", _line_number(facts[key]))
        if needed not in facts:
            raise ProfileError(f"{where}: {addressing} addressing needs `{needed}`", _line_number(item))
        numbers: dict[str, int] = {
            key: _read_bounded_integer(facts[key], f"{where}.{key}", 255 if key == "tester" else _LAST_EXTENDED)
            for key in ("request", "response", "tester")
            if key in facts
        }
        yield {"addressing": addressing, **numbers}


def _compile_vehicle_pattern(node: yaml.Node | None) -> re.Pattern[str] | None:
    if node is None or _describe_node_type(node) == "null":
        return None
    text = _read_text_scalar(node, "vehicle_id")
    try:
        pattern = re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ProfileError(
            f"vehicle_id is not a regular expression: {why}; correct {text[:200]!r}", _line_number(node)
        ) from error
    if "vehicle_id" not in pattern.groupindex:
        raise ProfileError(
            "vehicle_id needs a group of that name; write for example '/(?P<vehicle_id>[^/]+)/[^/]+$'",
            _line_number(node),
        )
    return pattern
