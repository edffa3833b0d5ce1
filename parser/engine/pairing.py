"""What a protocol declares so that a response finds its request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PREFIX = "pairing."  # of the names of internal columns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairing:
    """How rows of responses find the rows of their requests: values of a row as columns of numbers, 0 where they are null.

    sender, receiver   of a message; those of a response are those of its request, the other way round
    channel            a response and its request have the same, after `Program.partners` has replaced those it knows: words of
                       CAN identifiers, so all other channels are at least 1 << 32
    subject            what the message is about; a response and its request have the same
    response           not 0: the row is a response
    group              not 0: a request to several receivers. It stays open, for responses that no other request explains
    pending            not 0: a response that another one follows, so the request stays open
    timeout_ns         a request is closed if it has had no response for so long
    packet_no, latency_us   columns for the packet of the request, and for the time since then
    """

    sender: tuple[Any, ...]
    receiver: tuple[Any, ...]
    channel: Any
    subject: Any
    response: Any
    group: Any
    pending: Any
    timeout_ns: int
    packet_no: str
    latency_us: str

    def columns(self) -> dict[str, Any]:
        """Internal columns of the table, int64, by which its rows find each other."""
        ends = {f"{end}{i}": column for end in ("sender", "receiver") for i, column in enumerate(getattr(self, end))}
        others = {name: getattr(self, name) for name in ("channel", "subject", "response", "group", "pending")}
        return {PREFIX + name: column for name, column in (ends | others).items()}
