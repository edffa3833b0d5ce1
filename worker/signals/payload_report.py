"""What the report of a run says about SOME/IP messages: how many are decoded, and which ones not or not completely."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pcaplake.signals.someip.decoder import PayloadCounts
from pcaplake.worker.plain_text import counted

_PROBLEMS: Final = {
    "short": "with a payload that is shorter than described",
    "long": "with a payload that is longer than described",
    "damaged": "with lengths that contradict each other",
    "unknown_members": "with members that are not described",
    "wrong_checksums": "with a wrong checksum",
}


def report_payloads(counts: PayloadCounts) -> dict[str, Any]:
    """The numbers as JSON has them; the most frequent unknown messages first."""
    names = ("service_id", "method_id", "message_type", "interface_version")
    most_first = sorted(counts.unknown.items(), key=lambda item: (-item[1], item[0]))
    unknown = [dict(zip(names, key, strict=True)) | {"messages": number} for key, number in most_first]
    by_message = {name: dict(getattr(counts, name)) for name in _PROBLEMS}
    return {"decoded": counts.decoded, "unknown": unknown, **by_message}


def describe_payloads(report: Mapping[str, Any]) -> Iterator[str]:
    """A line for each kind of problem in that report."""
    if report["unknown"]:
        messages = sum(one["messages"] for one in report["unknown"])
        first = report["unknown"][0]
        yield (
            f"SOME/IP: {counted(messages, 'message')} of {counted(len(report['unknown']), 'kind')} that no description has, "
            f"most of service 0x{first['service_id']:04x}, method 0x{first['method_id']:04x}, "
            f"type 0x{first['message_type']:02x}, interface version {first['interface_version']}"
        )
    for name, text in _PROBLEMS.items():
        if by_message := report[name]:
            most = max(by_message, key=lambda message: by_message[message])
            yield f"SOME/IP: {counted(sum(by_message.values()), 'message')} {text}, most of {most}"
