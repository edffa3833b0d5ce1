"""What the report of a run says about SOME/IP messages and containers: how many are decoded, and which not or not completely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar

from pcaplake.common.plain_text import counted
from pcaplake.signals.containers import ContainerCounts
from pcaplake.signals.decoder import DecodedCounts
from pcaplake.signals.someip.decoder import PayloadCounts

_Key = TypeVar("_Key", tuple[int, int, int, int], tuple[str, int])
_PROBLEMS: Final = {
    "short": "with a payload that is shorter than described",
    "long": "with a payload that is longer than described",
    "damaged": "with lengths that contradict each other",
    "unknown_members": "with members that are not described",
    "wrong_checksums": "with a wrong checksum",
}


def report_counts(counts: DecodedCounts) -> dict[str, dict[str, Any]]:
    """The numbers as JSON has them, `someip` and `containers`; the most frequent unknown messages and PDUs first."""
    return {"someip": _report_payloads(counts.someip), "containers": _report_containers(counts.containers)}


def describe_counts(report: Mapping[str, Any]) -> Iterator[str]:
    """A line for each kind of problem in a report that has those numbers."""
    yield from _describe_payloads(report["someip"])
    yield from _describe_containers(report["containers"])


def _report_payloads(counts: PayloadCounts) -> dict[str, Any]:
    names = ("service_id", "method_id", "message_type", "interface_version")
    unknown = [dict(zip(names, key, strict=True)) | {"messages": number} for key, number in _most_first(counts.unknown)]
    by_message = {name: dict(getattr(counts, name)) for name in _PROBLEMS}
    return {"decoded": counts.decoded, "unknown": unknown, **by_message}


def _report_containers(counts: ContainerCounts) -> dict[str, Any]:
    unknown = [
        {"container": container, "header_id": header_id, "pdus": number}
        for (container, header_id), number in _most_first(counts.unknown)
    ]
    return {"cut_off": dict(counts.cut_off), "unknown": unknown}


def _most_first(counts: Counter[_Key]) -> list[tuple[_Key, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _describe_payloads(report: Mapping[str, Any]) -> Iterator[str]:
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


def _describe_containers(report: Mapping[str, Any]) -> Iterator[str]:
    if unknown := report["unknown"]:
        pdus, first = sum(one["pdus"] for one in unknown), unknown[0]
        ids = counted(len(unknown), "header id")
        yield (
            f"containers: {counted(pdus, 'PDU')} of {ids} that no database has, most of {first['header_id']:#x} in "
            f"{first['container']}"
        )
    if cut_off := report["cut_off"]:
        most = max(cut_off, key=lambda container: cut_off[container])
        yield f"containers: {counted(sum(cut_off.values()), 'PDU')} cut off at the end, most in {most}"
