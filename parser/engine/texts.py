"""Numbers as text: MAC and IP addresses, decimals, and four characters. Called once for each distinct value of a batch."""

from __future__ import annotations

import socket
from collections.abc import Callable

Formatter = Callable[[int, int], str]  # from the upper and the lower 8 bytes of a value, as signed integers


def _format_mac(high: int, low: int) -> str:
    return (low & (1 << 48) - 1).to_bytes(6, "big").hex(":")


def _format_ipv4(high: int, low: int) -> str:
    return socket.inet_ntop(socket.AF_INET, (low & 0xFFFFFFFF).to_bytes(4, "big"))


def _format_ipv6(high: int, low: int) -> str:
    """RFC 5952 text."""
    return socket.inet_ntop(socket.AF_INET6, high.to_bytes(8, "big", signed=True) + low.to_bytes(8, "big", signed=True))


def _format_characters(high: int, low: int) -> str:
    """UTF-8 up to the first zero byte; other bytes become U+FFFD."""
    return (low & 0xFFFFFFFF).to_bytes(4, "big").partition(b"\0")[0].decode("utf-8", "replace")


FORMATTERS: dict[str, Formatter] = {
    "mac": _format_mac,
    "ipv4": _format_ipv4,
    "ipv6": _format_ipv6,
    "decimal": lambda high, low: str(low),
    "characters": _format_characters,
}
