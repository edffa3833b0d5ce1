"""What Wireshark's dissectors see in a capture, through `tshark -T pdml`, named as the columns of our tables.

Reassembly is switched off (a packet speaks for itself), and so is every protocol we do not read: most are recognised by
guesses about the payload.
Times are Wireshark's: integers of ns. Where it has no value, ours is None.
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PREFERENCES = (
    "ip.defragment:TRUE",
    "ipv6.defragment:TRUE",
    "ipv6.tso_support:TRUE",
    "tcp.desegment_tcp_streams:TRUE",
    "tcp.relative_sequence_numbers:FALSE",
    "someip.reassemble_tp:FALSE",
)
PROTOCOLS = (
    r"frame|pkt_comment|eth|ethertype|vlan|ieee8021ad|arp|ptp|sll|null|raw|ip|ipv6(\..*)?|ah|udp|tcp|someip|someipsd"
    r"|icmp|icmpv6|igmp|dhcp|dhcpv6|lldp|eapol|mrp-mvrp|mrp-msrp|homeplug-av|ieee8021cb|rtps|mqtt|ppi(\..*)?|pcap_pktdata"
    r"|macsec|caneth|can|canfd|lin|flexray|tecmp(\..*)?|ieee1722|ntscf|tscf|acf(-.*)?|pdu_transport|data|data-text-lines|_ws\..*"
)
SOMEIP = tuple(f"udp.port=={port},someip" for port in (30490, 30501, 30502))
_DIRECTIONS = {1: "in", 2: "out"}
_BROKEN = {"_ws.malformed", "_ws.short"}
_ENTRY_TYPES = {
    0x00: ("FindService", "FindService"),
    0x01: ("OfferService", "StopOfferService"),
    0x06: ("SubscribeEventgroup", "StopSubscribeEventgroup"),
    0x07: ("SubscribeEventgroupAck", "SubscribeEventgroupNack"),
}
_OPTION_KINDS = {
    0x04: "endpoint",
    0x06: "endpoint",
    0x14: "multicast",
    0x16: "multicast",
    0x24: "sd_endpoint",
    0x26: "sd_endpoint",
}  # fmt: skip
_CONFIG_ITEM = "someipsd.option.config_string_element"
_TRANSPORTS = {6: "tcp", 17: "udp"}

Packet = dict[str, Any]


def packets(path: Path, decode_as: Sequence[str] = SOMEIP, limit: int | None = None) -> Iterator[Packet]:
    """One dictionary per frame: columns of `packets`, `malformed`, and lists `someip`, `sd`, `can`, `lin`, `flexray`."""
    arguments = ["tshark", "-n", "-r", str(path), "-T", "pdml"]
    for flag, values in (("-o", PREFERENCES), ("-d", decode_as)):
        arguments += [word for value in values for word in (flag, value)]
    if limit is not None:
        arguments += ["-c", str(limit)]
    with (
        tempfile.TemporaryDirectory() as settings,
        subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_environment(settings)
        ) as process,
    ):
        assert process.stdout is not None
        for _, element in ET.iterparse(process.stdout):
            if element.tag == "packet":
                yield _packet(element)
                element.clear()


def _environment(settings: str) -> dict[str, str]:
    """An environment in which tshark finds only our settings: the protocols that are switched off."""
    (Path(settings) / "disabled_protos").write_text("\n".join(_others()) + "\n", encoding="utf-8")
    return {**os.environ, "WIRESHARK_CONFIG_DIR": settings}


@functools.cache
def _others() -> tuple[str, ...]:
    """The filter names of all protocols but PROTOCOLS."""
    listed = subprocess.run(["tshark", "-G", "protocols"], capture_output=True, text=True, check=True).stdout
    names = [line.split("\t")[2] for line in listed.splitlines() if line.count("\t") >= 2]
    return tuple(name for name in names if not re.fullmatch(PROTOCOLS, name))


def _show(fields: dict[str, ET.Element], name: str) -> str | None:
    return fields[name].attrib["show"] if name in fields else None


def _number(fields: dict[str, ET.Element], name: str) -> int | None:
    """The field's value: `value` is hex, of bit fields already shifted."""
    return int(fields[name].attrib["value"], 16) if name in fields and fields[name].attrib.get("value") else None


def _decimal(fields: dict[str, ET.Element], name: str) -> int | None:
    return int(fields[name].attrib["show"], 0) if name in fields else None


def _fields(element: ET.Element) -> dict[str, ET.Element]:
    """The first field of each name, at any depth."""
    found: dict[str, ET.Element] = {}
    for field in element.iter("field"):
        found.setdefault(field.attrib.get("name", ""), field)
    return found


def _packet(element: ET.Element) -> Packet:
    protos = _without_quoted([(proto.attrib["name"], proto) for proto in element.iter("proto")])
    frame = _fields(_first(protos, "frame"))
    epoch = _show(frame, "frame.time_epoch")
    packet: Packet = {
        "frame_number": _decimal(frame, "frame.number"),
        "ts_ns": None if epoch is None else _nanoseconds(epoch),
        "captured_len": _decimal(frame, "frame.cap_len"),
        "original_len": _decimal(frame, "frame.len"),
        "interface": _interface(frame),
        "encapsulation": _decimal(frame, "frame.encap_type"),
        "direction": _direction(frame, protos),
        "protocols": [name for name, _ in protos if name not in ("geninfo", "frame", "fake-field-wrapper")],
        "malformed": any(name in _BROKEN for name, _ in protos),
        **_addresses(protos),
    }
    packet["someip"], packet["sd"] = _someip(protos)
    packet |= _bus_frames(protos)
    return packet


def _without_quoted(protos: list[tuple[str, ET.Element]]) -> list[tuple[str, ET.Element]]:
    """Up to ICMP, which quotes the packet that it is about."""
    quoting = next((i for i, (name, _) in enumerate(protos) if name in ("icmp", "icmpv6")), len(protos))
    return [*protos[: quoting + 1], *(proto for proto in protos[quoting + 1 :] if proto[0] in _BROKEN)]


def _interface(frame: dict[str, ET.Element]) -> str | None:
    """The name; the number where Wireshark says that the name is unknown."""
    name = _show(frame, "frame.interface_name")
    return _show(frame, "frame.interface_id") if name in (None, "unknown") else name


def _direction(frame: dict[str, ET.Element], protos: list[tuple[str, ET.Element]]) -> str | None:
    """Of the capture file, or of the packet type of LINUX_SLL (4: sent by this host)."""
    sent = _number(_fields(_first(protos, "sll")), "sll.pkttype")
    if sent is not None:
        return "out" if sent == 4 else "in"
    return _DIRECTIONS.get(_decimal(frame, "frame.packet_flags_direction") or 0)


def _nanoseconds(epoch: str) -> int:
    seconds, _, fraction = epoch.partition(".")
    magnitude = abs(int(seconds)) * 10**9 + int(fraction.ljust(9, "0"))
    return -magnitude if epoch.startswith("-") else magnitude


def _addresses(protos: list[tuple[str, ET.Element]]) -> Packet:
    """Ethernet to TCP and UDP, of the outermost of each."""
    first: dict[str, dict[str, ET.Element]] = {}
    for name, proto in protos:
        first.setdefault(name, _fields(proto))
    eth, ip4, ip6 = first.get("eth", {}), first.get("ip", {}), first.get("ipv6", {})
    udp, tcp = first.get("udp", {}), first.get("tcp", {})
    tags = [_fields(proto) for name, proto in protos if name in ("vlan", "ieee8021ad")]
    kinds = ["vlan" if "vlan.id" in tag else "ieee8021ad" for tag in tags]
    version = _decimal(ip4, "ip.version") or _decimal(ip6, "ipv6.version")
    flags = [_decimal(ip4, f"ip.{name}") for name in ("flags.mf", "frag_offset")]
    flags += [_decimal(ip6, f"ipv6.fraghdr.{name}") for name in ("more", "offset")]
    nexts = [
        int(field.attrib["value"], 16)
        for field in _first(protos, "ipv6").iter("field")  # the extension headers stand inside
        if field.attrib["name"].endswith((".nxt", "ah.next_header"))
    ]
    ports = [_number(udp, f"udp.{side}port") if udp else _number(tcp, f"tcp.{side}port") for side in ("src", "dst")]
    return {
        "eth_src": _show(eth, "eth.src"),
        "eth_dst": _show(eth, "eth.dst"),
        "eth_type": _eth_type(eth, list(zip(tags, kinds, strict=True))),
        "vlan_ids": [_number(tag, f"{kind}.id") for tag, kind in zip(tags, kinds, strict=True)] or None,
        "vlan_pcp": _number(tags[0], f"{kinds[0]}.priority") if tags else None,
        "ip_version": version,
        "ip_src": _show(ip4, "ip.src") if ip4 else _show(ip6, "ipv6.src"),
        "ip_dst": _show(ip4, "ip.dst") if ip4 else _show(ip6, "ipv6.dst"),
        "ip_proto": _number(ip4, "ip.proto") if ip4 else nexts[-1] if nexts else None,
        "ip_ttl": _number(ip4, "ip.ttl") if ip4 else _number(ip6, "ipv6.hlim"),
        "ip_dscp": _decimal(ip4, "ip.dsfield.dscp") if ip4 else _decimal(ip6, "ipv6.tclass.dscp"),
        "ip_fragment": None if version is None else any(flags),
        "src_port": ports[0],
        "dst_port": ports[1],
        "tcp_flags": _number(tcp, "tcp.flags"),
        "tcp_seq": _number(tcp, "tcp.seq"),
        "tcp_ack": _number(tcp, "tcp.ack"),
    }


def _eth_type(eth: dict[str, ET.Element], tags: list[tuple[dict[str, ET.Element], str]]) -> int | None:
    """The type after the last tag; None where a length stands in its place."""
    fields, name = (tags[-1][0], f"{tags[-1][1]}.etype") if tags else (eth, "eth.type")
    return _number(fields, name)


def _first(protos: list[tuple[str, ET.Element]], name: str) -> ET.Element:
    return next((proto for found, proto in protos if found == name), ET.Element("proto"))


def _someip(protos: list[tuple[str, ET.Element]]) -> tuple[list[Packet], list[Packet]]:
    """The messages, and the entries of all service discovery among them."""
    messages: list[Packet] = []
    entries: list[Packet] = []
    carried = _carried(protos)
    in_segments = any(f.attrib.get("name") == "tcp.segments" for _, proto in protos for f in proto.iter("field"))
    for name, proto in protos:
        fields = _fields(proto)
        if name == "someip" and "someip.returncode" in fields:
            message = {
                column: _number(fields, f"someip.{field}")
                for column, field in (
                    ("service_id", "serviceid"), ("method_id", "methodid"), ("length", "length"),
                    ("client_id", "clientid"), ("session_id", "sessionid"), ("protocol_version", "protoversion"),
                    ("interface_version", "interfaceversion"), ("message_type", "messagetype"),
                    ("return_code", "returncode"),
                )
            }  # fmt: skip
            if carried is not None:
                begin, data = carried
                at = int(proto.attrib["pos"]) - begin
                header = 20 if (message["message_type"] or 0) & 0x20 else 16
                message["payload"] = data[at + header : at + 8 + (message["length"] or 0)]
                if in_segments:
                    message["payload"] = bytes.fromhex(fields["someip.payload"].attrib["value"])
            messages.append(message)
        elif name == "someipsd":
            entries += _sd_entries(proto, messages[-1]["session_id"])
    return messages, entries


def _carried(protos: list[tuple[str, ET.Element]]) -> tuple[int, bytes] | None:
    """Where the payload of UDP or TCP begins in the frame, and its bytes."""
    for name in ("udp", "tcp"):
        for field in _first(protos, name).iter("field"):
            if field.attrib.get("name") == f"{name}.payload":
                return int(field.attrib["pos"]), bytes.fromhex(field.attrib["value"])
    return None


def _sd_entries(proto: ET.Element, session: int | None) -> list[Packet]:
    head = _fields(proto)
    groups = [f for f in proto.iter("field") if f.attrib.get("name") == "someipsd.options"]
    options = [_option(option) for group in groups for option in group]
    found = []
    for element in proto.iter("field"):
        if element.attrib.get("name") != "someipsd.entry":
            continue
        f = _fields(element)
        number = functools.partial(_number, f)
        kind, ttl = number("someipsd.entry.type"), number("someipsd.entry.ttl")
        assert kind is not None
        runs = [(number(f"someipsd.entry.index{n}") or 0, number(f"someipsd.entry.numopt{n}") or 0) for n in (1, 2)]
        referred = [option for at, count in runs for option in options[at : at + count]]
        found.append(
            {
                "session_id": session,
                "reboot": bool(_number(head, "someipsd.flags.reboot")),
                "unicast": bool(_number(head, "someipsd.flags.unicast")),
                "entry_type": _ENTRY_TYPES[kind][ttl == 0] if kind in _ENTRY_TYPES else None,
                "service_id": number("someipsd.entry.serviceid"),
                "instance_id": number("someipsd.entry.instanceid"),
                "major_version": number("someipsd.entry.majorver"),
                "minor_version": number("someipsd.entry.minorver"),
                "ttl": ttl,
                "eventgroup_id": number("someipsd.entry.eventgroupid"),
                "counter": number("someipsd.entry.counter"),
                "endpoints": [o for o in referred if "kind" in o] or None,
                "configuration": [pair for o in referred for pair in o.get("configuration", ())] or None,
            }
        )
    return found


def _option(element: ET.Element) -> Packet:
    """An endpoint, or {"configuration": [(key, value), ...]}, or nothing we keep."""
    fields = _fields(element)
    kind = _number(fields, "someipsd.option.type")
    if kind == 1:
        texts = [f.attrib["show"] for f in element.iter("field") if f.attrib.get("name") == _CONFIG_ITEM]
        return {"configuration": [tuple(text.split("=", 1)) for text in texts]}
    if kind not in _OPTION_KINDS:
        return {}
    protocol = _number(fields, "someipsd.option.proto") or 0
    return {
        "kind": _OPTION_KINDS[kind],
        "address": _show(fields, "someipsd.option.ipv4address") or _show(fields, "someipsd.option.ipv6address"),
        "port": _number(fields, "someipsd.option.port"),
        "transport": _TRANSPORTS.get(protocol, str(protocol)),
    }


def _bus_frames(protos: list[tuple[str, ET.Element]]) -> dict[str, list[Packet]]:
    """CAN, LIN and FlexRay frames, in TECMP too; what follows a frame as plain data is its payload."""
    found: dict[str, list[Packet]] = {"can": [], "lin": [], "flexray": []}
    last: Packet | None = None
    for name, proto in protos:
        fields = _fields(proto)
        if name in ("can", "canfd"):
            kind, last = "can", _can(fields, fd=name == "canfd")
        elif name == "lin":
            kind, last = "lin", _lin(fields, answered=int(proto.attrib["size"]) > 8)
        elif name == "flexray":
            kind, last = "flexray", _flexray(fields)
        elif name == "tecmp.payload":
            kind, last = _tecmp(fields)
        else:
            if last is not None and "data.data" in fields:
                last["payload"] = bytes.fromhex(fields["data.data"].attrib["value"])
                last = None
            continue
        if last is not None:
            found[kind].append(last)
            if last.get("rtr"):
                last = None  # tshark takes what follows for its data: a CRC, or unused bytes of the record
    return found


def _lin(f: dict[str, ET.Element], *, answered: bool) -> Packet:
    """A frame or an event of link type 212."""
    kinds = {} if "lin.event_id" in f else {1: "classic", 2: "enhanced"}
    return {
        "bus_time_ns": None,
        "lin_id": _number(f, "lin.frame_id"),
        "parity": _number(f, "lin.frame_parity"),
        "checksum": _number(f, "lin.checksum") if answered and _number(f, "lin.length") else None,
        "checksum_type": kinds.get(_number(f, "lin.checksum_type") or 0),
        "errors": _number(f, "lin.errors"),
        "event": _number(f, "lin.event_id"),
        "payload": b"",
    }


def _flexray(f: dict[str, ET.Element]) -> Packet:
    """A frame or a symbol of link type 210."""
    common = {"bus_time_ns": None, "channel": "AB"[_number(f, "flexray.ch") or 0], "payload": b""}
    numbers = ("frame_id", "fid"), ("cycle", "cc"), ("header_crc", "hcrc"), ("errors", "eff"), ("symbol_length", "sl")
    bits = ("payload_preamble", "ppi"), ("null_frame", "nfi"), ("sync", "sfi"), ("startup", "stfi")
    symbol = "flexray.sl" in f
    common |= {column: _number(f, f"flexray.{name}") for column, name in numbers}
    common |= {column: None if symbol else bool(_number(f, f"flexray.{name}")) for column, name in bits}
    common["errors"] = None if symbol else (common["errors"] or 0) & 0x1F
    return common | {"null_frame": None if symbol else not common["null_frame"]}


def _can(f: dict[str, ET.Element], *, fd: bool) -> Packet:
    error = bool(_number(f, "can.flags.err"))
    word = f["can.flags.err" if error else "can.id"].attrib["unmaskedvalue"]
    return {
        "bus_time_ns": None,
        "error": error,
        "can_id": None if error else _number(f, "can.id"),
        "error_class": int(word, 16) & 0x1FFFFFFF if error else None,
        "extended": None if error else bool(_number(f, "can.flags.xtd")),
        "rtr": None if error or fd else bool(_number(f, "can.flags.rtr")),
        "fd": fd,
        "brs": bool(_number(f, "canfd.flags.brs")) if fd else None,
        "esi": bool(_number(f, "canfd.flags.esi")) if fd else None,
        "data_len": _number(f, "can.len"),
        "payload": None if error else b"",
    }


TECMP_CAN_ERRORS = (
    "error_frame",
    "bit_stuff_error",
    "crc_error",
    "crc_del_error",
    "ack_del_error",
    "eof_error",
)


def _tecmp(f: dict[str, ET.Element]) -> tuple[str, Packet | None]:
    """A CAN, CAN FD, LIN or FlexRay entry of a capture module, and its kind; None for other data."""
    common = {
        "bus": str(_number(f, "tecmp.payload.interface_id")),
        "bus_time_ns": _decimal(f, "tecmp.payload.timestamp_ns"),
        "payload": b"",
    }
    flag = "tecmp.payload.data_flags."
    if "tecmp.payload.data.lin_id" in f:
        flags = ("no_resp", 1), ("parity_error", 4), ("checksum_error", 8), ("collision", 64)
        return "lin", common | {
            "errors": sum(bit for name, bit in flags if _number(f, flag + name)),
            "lin_id": _number(f, "tecmp.payload.data.lin_id"),
            "parity": _number(f, "tecmp.payload.data.lin_parity_bits"),
            "checksum": _number(f, "tecmp.payload.data.checksum"),
        }
    if "tecmp.payload.data.cycle" in f:
        flags = ("header_crc_error", 8), ("frame_crc_error", 16)
        symbol = _number(f, flag + "wakeup_symbol") or _number(f, flag + "collision_avoidance_symbol")
        return "flexray", common | {
            "channel": None,
            "frame_id": None if symbol else _number(f, "tecmp.payload.data.frame_id"),
            "cycle": None if symbol else _number(f, "tecmp.payload.data.cycle"),
            "payload_preamble": None if symbol else bool(_number(f, flag + "payload_preamble_indicator")),
            "null_frame": None if symbol else bool(_number(f, flag + "null_frame")),
            "sync": None if symbol else bool(_number(f, flag + "sync_frame")),
            "startup": None if symbol else bool(_number(f, flag + "startup_frame")),
            "errors": sum(bit for name, bit in flags if _number(f, flag + name)),
        }
    if "tecmp.payload.data.can_id_field" not in f:
        return "", None
    fd, extended = flag + "bit_rate_switch" in f, bool(_number(f, "tecmp.payload.data.can_id_type"))
    return "can", common | {
        "error": any(_number(f, flag + name) for name in TECMP_CAN_ERRORS),
        "can_id": _number(f, "tecmp.payload.data.can_id_29" if extended else "tecmp.payload.data.can_id_11"),
        "error_class": None,
        "extended": extended,
        "rtr": None if fd else bool(_number(f, flag + "rtr")),
        "fd": fd,
        "brs": bool(_number(f, flag + "bit_rate_switch")) if fd else None,
        "esi": bool(_number(f, flag + "esi")) if fd else None,
        "data_len": _number(f, "tecmp.payload.data.payload_length"),
        "direction": "out" if _number(f, flag + "tx") else "in",
    }
