"""tcpdump's own reading of its SOME/IP test captures: the lines of an `.out` file."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

_LINE = re.compile(
    r"^ *(?P<packet_no>\d+)  (?P<time>\S+ \S+)\.(?P<micros>\d{6}) IP (?P<src>[\d.]+)\.(?P<src_port>\d+) > "
    r"(?P<dst>[\d.]+)\.(?P<dst_port>\d+): SOMEIP, service (?P<service>\d+), (?P<kind>event|method) (?P<method>\d+), "
    r"len (?P<length>\d+), client (?P<client>\d+), session (?P<session>\d+), pver (?P<protocol_version>\d+), "
    r"iver (?P<interface_version>\d+), msgtype (?P<message_type>\w+), retcode (?P<return_code>\w+)$"
)
MESSAGE_TYPES = {"REQUEST": 0, "REQUEST_NO_RETURN": 1, "NOTIFICATION": 2, "RESPONSE": 0x80, "ERROR": 0x81}
RETURN_CODES = {"E_OK": 0, "E_NOT_OK": 1}
_NUMBERS = (
    "packet_no",
    "src_port",
    "dst_port",
    "service",
    "length",
    "client",
    "session",
    "protocol_version",
    "interface_version",
)


def someip_messages(text: str) -> list[dict[str, Any]]:
    """One dictionary for each message, named as the columns of `someip_messages`; `ValueError` for an unknown line."""
    return [_message(line) for line in text.splitlines() if line.strip()]


def _message(line: str) -> dict[str, Any]:
    match = _LINE.match(line)
    if match is None:
        raise ValueError(f"not a line about SOME/IP: {line!r}")
    number = {name: int(match[name]) for name in _NUMBERS}
    is_event = match["kind"] == "event"
    seconds = datetime.strptime(match["time"], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    return {
        "packet_no": number["packet_no"],
        "ts_ns": int(seconds) * 10**9 + int(match["micros"]) * 1000,
        "ip_src": match["src"],
        "ip_dst": match["dst"],
        "src_port": number["src_port"],
        "dst_port": number["dst_port"],
        "service_id": number["service"],
        "method_id": int(match["method"]) | is_event << 15,
        "is_event": is_event,
        "length": number["length"],
        "client_id": number["client"],
        "session_id": number["session"],
        "protocol_version": number["protocol_version"],
        "interface_version": number["interface_version"],
        "message_type": MESSAGE_TYPES[match["message_type"]],
        "return_code": RETURN_CODES[match["return_code"]],
    }
