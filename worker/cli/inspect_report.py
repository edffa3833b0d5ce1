"""How `pcaplake inspect` shows a capture as text: a block that fits into 80 columns. Only the capture's URI may be longer."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pcaplake.common.plain_text import counted, visible
from pcaplake.worker import console as screen

WIDTH, LABEL = 80, 13
MOST_INTERFACES, MOST_REASONS, MOST_MESSAGES = 20, 12, 40  # lines of a table; --json has all
_DIGITS = {"can": 3, "lin": 2, "pdu": 8}  # of an id in hexadecimal
_UNITS = ((10**9, "s"), (10**6, "ms"), (10**3, "us"))  # ns
_NAME, _ENCAPSULATION, _REASON, _MESSAGE = 15, 12, 54, 22  # characters of a cell


@dataclass(slots=True, kw_only=True)
class Totals:
    """Counts of a run so far."""

    found: int = 0
    described: int = 0
    ignored: int = 0
    not_captures: int = 0
    not_read: int = 0
    packets: int = 0
    bytes: int = 0
    undecoded: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def count_ignored(self, uri: str) -> None:
        self.ignored += 1

    def add(self, found: Mapping[str, Any]) -> None:
        """Add the description of a capture."""
        self.described += 1
        self.packets += found["packets"]
        self.bytes += found["bytes"]
        self.undecoded += found["undecoded"]["bytes"]
        self.faults.update(found["faults"])

    @property
    def are_worth_showing(self) -> bool:
        """Whether there was more or less than one capture."""
        return self.found != 1 or self.ignored > 0


def describe_totals(totals: Totals) -> str:
    others = [
        f"{count:,} {what}"
        for count, what in (
            (totals.not_captures, "not a capture"),
            (totals.not_read, "not read"),
            (totals.ignored, "ignored"),
        )
        if count
    ]
    lines = [
        ", ".join([counted(totals.described, "capture"), *others])
        + f"; {counted(totals.packets, 'packet')}, {counted(totals.bytes, 'byte')}, {totals.undecoded:,} of them undecoded"
    ]
    if totals.faults:
        lines.append("faults: " + ", ".join(f"{kind} {count:,}" for kind, count in sorted(totals.faults.items())))
    return "\n".join(line for text in lines for line in textwrap.wrap(text, WIDTH))


def display_name(uri: str) -> str:
    """The path of a local file, or the URI."""
    return "standard input" if uri == "-" else uri.removeprefix("file://")


def describe_capture(found: Mapping[str, Any]) -> None:
    """Print the block of one capture."""
    screen.line(display_name(found["uri"]))
    for label, text in _facts(found):
        lines = textwrap.wrap(visible(text), WIDTH - LABEL - 2) or [""]
        for number, line in enumerate(lines):
            screen.line(f"  {'' if number else label:<{LABEL}}{line}")
    interfaces = sorted(found["interfaces"], key=lambda one: -one["packets"])
    shown = sorted(interfaces[:MOST_INTERFACES], key=found["interfaces"].index)
    _table(
        "interfaces",
        ["name", "link type", "packets", "bytes", "seconds", "packets/s", "rate"],
        [_interface_row(one) for one in shown],
        _more(len(interfaces) - MOST_INTERFACES, "interface", "with fewer packets"),
    )
    protocols = [(name, counts["packets"], counts["bytes"]) for name, counts in found["protocols"].items()]
    _table("innermost protocols", ["protocol", "packets", "bytes"], protocols)
    _table("rows", ["table", "rows"], [item for item in found["rows"].items() if item[1]])
    _table("faults", ["kind", "times"], list(found["faults"].items()))
    undecoded = found["undecoded"]
    reasons = [
        (_shorten(reason, _REASON), counts["packets"], counts["bytes"])
        for reason, counts in undecoded["reasons"].items()
    ]
    _table(
        f"undecoded: {undecoded['bytes']:,} bytes",
        ["reason", "packets", "bytes"],
        reasons[:MOST_REASONS],
        _more(len(reasons) - MOST_REASONS, "reason", "with fewer bytes"),
    )
    _describe_ports(found["someip_ports"])
    _describe_identifiers(found["can_identifiers"])
    _describe_can_protocols(found["can_protocols"])
    _describe_v2g_ports(found["v2gtp_ports"])
    if found["signal_databases"] is not None:
        _describe_messages(found["signal_databases"])
    screen.line("")


def _facts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    packed = f", {found['compression']}" if found["compression"] else ""
    cut = ", truncated" if found["truncated"] else ""
    sections = f"; {found['sections']:,} sections" if found["sections"] > 1 else ""
    yield "format", f"{found['format']}{packed}{cut}{sections}; {found['size']:,} bytes"
    for label, key in (("application", "application"), ("system", "os"), ("hardware", "hardware")):
        if texts := list(dict.fromkeys(header[key] for header in found["section_headers"] if header[key])):
            yield label, "; ".join(texts)
    for header in found["section_headers"]:
        for comment in header["comments"]:
            yield "comment", comment
    names = zip(found["encapsulations"], found["link_type_names"], strict=True)
    yield "link types", ", ".join(f"{one} ({name})" for one, name in names) or "none"
    for one in found["interfaces"][:MOST_INTERFACES]:
        said = [text for text in (one["description"], one["hardware"], one["os"]) if text]
        if said or len(visible(one["name"] or "")) > _NAME:
            yield "interface", ": ".join(filter(None, [one["name"] or f"#{one['id']}", "; ".join(said)]))
    yield "packets", f"{counted(found['packets'], 'packet')}, {counted(found['bytes'], 'byte')}" + _sizes(found)
    if found["first_ts"] is not None:
        yield "time", f"{found['first_ts']} to {found['last_ts']} ({found['seconds']:,.3f} s)"
        yield "time order", _describe_order(found["time_order"])
    if found["packets_per_second"] is not None:
        yield "average", f"{found['packets_per_second']:,.1f} packets/s, {_bits(found['bits_per_second'])}"
    yield "BLAKE3", found["hashes"]["blake3"] + (" (the eTag)" if found["hashes"]["blake3"] == found["etag"] else "")
    yield "SHA-256", found["hashes"]["sha256"]
    if found["capture_id"] is not None:
        if found["hashes"]["blake3"] != found["etag"]:
            yield "eTag", found["etag"]
        yield "capture_id", f"{found['capture_id']} (from the URI and the eTag)"


def _sizes(found: Mapping[str, Any]) -> str:
    if not found["packets"]:
        return ""
    average = f"; {found['original_bytes'] / found['packets']:,.1f} bytes on average"
    if not found["cut_packets"]:
        return average
    return f"{average}; {found['cut_packets']:,} cut off, {found['original_bytes']:,} bytes on the wire"


def _describe_order(order: Mapping[str, Any]) -> str:
    if order["in_order"]:
        return "yes, no packet is earlier than the packet before"
    step = order["largest_step_back_ns"]
    size, unit = next(((size, unit) for size, unit in _UNITS if step >= size), (1, "ns"))
    return f"no, {order['earlier_packets']:,} earlier than the packet before, by up to {step / size:,.0f} {unit}"


def _interface_row(one: Mapping[str, Any]) -> tuple[object, ...]:
    rate, bits = one["packets_per_second"], one["bits_per_second"]
    return (
        _shorten(one["name"] or f"#{one['id']}", _NAME),
        _shorten(one["encapsulation"], _ENCAPSULATION),
        one["packets"],
        _bytes(one["bytes"]),
        "-" if one["seconds"] is None else f"{one['seconds']:,.1f}",
        "-" if rate is None else f"{rate:,.{int(rate < 100)}f}",
        "-" if bits is None else _bits(bits),
    )


def _describe_ports(ports: Mapping[str, Any]) -> None:
    rows = [(str(one["port"]), one["datagrams"], f"{one['share']:.1%}") for one in ports["ports"]]
    _table("UDP ports that look like SOME/IP, but have no protocol", ["port", "datagrams", "fit"], rows)
    _propose(ports["profile"])


def _describe_identifiers(identifiers: Mapping[str, Any]) -> None:
    if identifiers["profile"]:
        screen.line("")
        count = identifiers["impossible"]["big-endian"]
        frames = counted(identifiers["frames"], "frame")
        screen.line(f"CAN identifiers that are little-endian: {count:,} of {frames} cannot be big-endian")
        _propose(identifiers["profile"])


def _describe_can_protocols(protocols: Mapping[str, Any]) -> None:
    names = {"j1939": "J1939", "canopen": "CANopen"}
    rows = [(names[one], count) for one, count in protocols["frames"].items() if count]
    _table("CAN identifiers that look like a protocol, but have none", ["protocol", "frames"], rows)
    _propose(protocols["profile"])


def _describe_v2g_ports(ports: Mapping[str, Any]) -> None:
    if ports["profile"]:
        screen.line("")
        screen.line(f"{counted(len(ports['ports']), 'TCP port')} of V2GTP that charging stations announce")
        _propose(ports["profile"])


def _describe_messages(known: Mapping[str, Any]) -> None:
    screen.line("")
    frames = known["known_frames"] + known["unknown_frames"]
    screen.line(
        f"signal databases: they know {known['known_frames']:,} of {counted(frames, 'frame')}, "
        f"{counted(len(known['messages']), 'message')}"
    )
    messages = [
        (
            _shorten(one["message"] + (f" in {one['container']}" if one["container"] else ""), _MESSAGE),
            _bus(one),
            _id(one),
            one["frames"],
            *(_milliseconds(one[name]) for name in ("cycle_ms", "longest_gap_ms", "database_cycle_ms")),
        )
        for one in known["messages"]
    ]
    _table(
        "messages: cycle and longest gap in ms",
        ["message", "bus", "id", "frames", "cycle", "gap", "database"],
        messages[:MOST_MESSAGES],
        _more(len(messages) - MOST_MESSAGES, "message", "in the order of buses and ids"),
    )
    unknown = [(_bus(one), _id(one), one["frames"]) for one in known["unknown_ids"]]
    _table(
        f"ids that no database of their bus names: {counted(known['unknown_frames'], 'frame')}",
        ["bus", "id", "frames"],
        unknown[:MOST_REASONS],
        _more(len(unknown) - MOST_REASONS, "id", "with fewer frames"),
    )
    if known["not_sent"]:
        names = ", ".join(known["not_sent"][:MOST_REASONS])
        more = f", and {len(known['not_sent']) - MOST_REASONS:,} more" if len(known["not_sent"]) > MOST_REASONS else ""
        screen.line("")
        for line in textwrap.wrap(visible(f"messages of the databases without a frame: {names}{more}"), WIDTH):
            screen.line(line)
    unreadable = list(known["unreadable"].items())
    if unreadable:
        screen.line("")
    for name, reason in unreadable[:MOST_REASONS]:
        for line in textwrap.wrap(visible(f"unreadable: {name}: {reason}"), WIDTH):
            screen.line(line)
    if len(unreadable) > MOST_REASONS:
        screen.line(_more(len(unreadable) - MOST_REASONS, "declaration", "of the databases"))


def _bus(one: Mapping[str, Any]) -> str:
    return _shorten(one["bus"] or "-", _ENCAPSULATION)


def _id(one: Mapping[str, Any]) -> str:
    """As tools of each bus write it: of SOME/IP the service id and the method id."""
    kind, number = one["kind"], one["id"]
    if kind == "flexray":
        return f"slot {number}"
    if kind == "someip":
        return f"0x{number >> 16:04x}.0x{number & 0xFFFF:04x}"
    return f"0x{number:0{8 if one['extended'] else _DIGITS[kind]}x}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def _propose(profile: str | None) -> None:
    if profile:
        screen.line("  add to the profile (--profile):")
        for line in profile.splitlines():
            screen.line(f"    {line}")


def _table(title: str, columns: list[str], rows: list[Any], more: str = "") -> None:
    if rows:
        screen.line("")
        screen.table(title, columns, rows)
        if more:
            screen.line(more)


def _more(count: int, one: str, which: str) -> str:
    return f"... and {counted(count, f'more {one}')} {which}; --json shows all" if count > 0 else ""


def _shorten(text: str, most: int) -> str:
    text = visible(text)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _bits(rate: float) -> str:
    return f"{_scaled(rate)}bit/s"


def _bytes(size: float) -> str:
    return f"{_scaled(size)}B"


def _scaled(value: float) -> str:
    for prefix in ("", "k", "M", "G"):
        if value < 999.95:
            return f"{value:.0f} " if not prefix else f"{value:.1f} {prefix}"
        value /= 1000
    return f"{value:,.1f} T"
