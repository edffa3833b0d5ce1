"""What holds for any bytes that are opened as a capture."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from pcaplake.parser import CaptureError
from pcaplake.parser.engine.message_objects import MOST_REPEATED
from tests.parser.compare import read

MOST = 1 << 26  # bytes that a small packed file may unpack to, at the most, in these tests


def obey(data: bytes, **options: Any) -> bool:
    """Read the bytes and assert the laws; False when they are no capture, and `CaptureError` says so."""
    refused: CaptureError | None = None
    try:
        rows, summary = read(data, **options)
    except CaptureError as error:
        refused = error
    if refused is not None:
        assert refused.reason in ("empty", "unknown_format", "truncated", "broken_compression")
        assert refused.detail
        return False
    packets = rows.get("packets", [])
    assert [row["packet_no"] for row in packets] == list(range(1, summary.packets + 1))
    assert sum(row["captured_len"] for row in packets) == summary.bytes
    if summary.compression is None:
        # a record that was cut has the beginning of the file that follows it, which is read, too
        assert summary.bytes <= len(data) * max(summary.sections, 1)
        assert sum(map(len, rows.values())) <= 2 * len(data) * max(summary.sections, 1)
        entries = rows.get("someip_sd_entries", [])
        repeated = sum(12 * len(row["endpoints"] or ()) + 2 * len(row["configuration"] or ()) for row in entries)
        assert repeated <= MOST_REPEATED * len(data)
    for table, found in rows.items():
        seen: dict[int, int] = defaultdict(int)
        last = 0
        for row in found:
            assert row["sub_no"] == seen[row["packet_no"]], f"{table}: sub_no is not dense"
            seen[row["packet_no"]] += 1
            assert row["packet_no"] >= last, f"{table}: not in the order of the capture"
            last = row["packet_no"]
            assert (row["ts"] is None) == (row["ts_ns"] is None)
            if table != "faults":
                assert row["ts_ns"] == packets[row["packet_no"] - 1]["ts_ns"]
        assert last <= summary.packets
    wrong = {fault["packet_no"] for fault in rows.get("faults", [])}
    for row in rows.get("can_frames", []):
        classic = not row["fd"] and not row["xl"]
        assert row["data_len"] <= 8 or not classic or row["packet_no"] in wrong, "longer than a classic frame"
    for row in rows.get("flexray_frames", []):
        of_frame = ("frame_id", "cycle", "payload_preamble", "null_frame", "sync", "startup")
        assert len({row[column] is None for column in of_frame}) == 1, "a symbol has nothing of a frame"
    for row in (*rows.get("uds_messages", []), *rows.get("gptp_messages", [])):
        request, latency = row["request_packet_no"], row["latency_us"]
        is_response = row["is_response"] if "is_response" in row else row["message_type"] in (3, 8, 9, 10)
        assert request is None or (is_response and 1 <= request <= row["packet_no"])
        assert latency is None or latency >= 0
        assert request is not None or latency is None
    for fault in rows.get("faults", []):
        assert fault["offset"] is None or 0 <= fault["offset"] <= (len(data) if summary.compression is None else MOST)
    truncated = [f for f in rows.get("faults", []) if f["layer"] == "capture" and f["reason"] == "truncated"]
    assert len(truncated) <= max(summary.sections, 1), "one for each file"
    return True
