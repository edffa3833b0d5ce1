"""Traffic from which a profile is proposed, and the proposal."""

from __future__ import annotations

import io
import threading

from pcaplake.parser import Profile
from pcaplake.worker.inspection.content import HashedFile
from pcaplake.worker.inspection.evidence import Evidence
from pcaplake.worker.inspection.inspection import inspect_capture
from pcaplake.worker.inspection.proposal import Proposal
from pcaplake.worker.sample import frames
from tests.parser.captures import T0, pcap_header, pcap_record

MESSAGE = frames.build_someip_message(0x1234, 0x8001, b"payload")


def can(*sent: tuple[int, bytes], gap_us: int = 1000) -> bytes:
    """A capture of CAN frames, of CAN FD if they have more than 8 bytes; identifiers above 0x7FF have 29 bits."""
    made = (frames.build_socketcan_frame(i, data, fd=len(data) > 8, extended=i > 0x7FF) for i, data in sent)
    return pcap_header(227) + b"".join(
        pcap_record(f, T0 + i * gap_us // 10**6, i * gap_us % 10**6) for i, f in enumerate(made)
    )


def diagnostics(request: int, response: int, count: int = 4) -> list[tuple[int, bytes]]:
    """Requests and responses, one of them in several frames and one that is negative."""
    sent: list[tuple[int, bytes]] = []
    for _ in range(count):
        sent += [(request, b"\x03\x22\xf1\x90" + bytes(4)), (response, b"\x10\x14\x62\xf1\x90ABC")]
        sent += [(request, b"\x30\0\0" + bytes(5)), (response, b"\x21DEFGHIJ"), (response, b"\x22KLMNOPQ")]
        sent += [(request, b"\x02\x10\x03" + bytes(5)), (response, b"\x03\x7f\x10\x22" + bytes(4))]
    return sent


def proposed(*captures: bytes) -> str:
    """The text of the profile."""
    proposal = Proposal()
    for data in captures:
        evidence = Evidence()
        file = HashedFile(io.BytesIO(data), threading.Event(), lambda count: None)
        proposal.add(evidence, inspect_capture(file, "memory:///x", Profile.default(), evidence=evidence))
    return proposal.render()


def propose(*captures: bytes) -> tuple[Profile, list[str]]:
    """The profile, and the lines of its text without their comments, guesses among them."""
    text = proposed(*captures)
    lines = (line.strip().removeprefix("# ").split("  # ")[0] for line in text.splitlines())
    return Profile.parse(text), [line.rstrip() for line in lines]
