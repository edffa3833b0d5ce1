"""Running the engine on bytes, and saying where two sets of rows differ."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from pcaplake.parser import Profile, ReadOptions, Summary, open_capture
from pcaplake.parser.capture import file_headers
from pcaplake.parser.capture.reader import DEFAULT_OPTIONS

Rows = Mapping[str, list[dict[str, Any]]]
PROFILE = Profile.parse(
    "ports: {udp: {30501: someip, 13401: doip, 7650: rtps, 60000: pdu, 60001: pdu_short,"
    " 30510: nm, 30511: nm_node_first, 30512: nm_no_node, 30513: nm_no_control, 5555: xcp},"
    " tcp: {30501: someip, 6801: hsfz, 60000: pdu, 60001: pdu_short, 55555: v2gtp, 1884: mqtt, 5555: xcp}}\n"
    "can: {isotp: [{request: 0x7E0, response: 0x7E8}, {request: 0x7DF}, {addressing: normal_fixed, tester: 0xF1},"
    " {request: 0x6F1, response: 0x612, addressing: extended}, {request: 0x18CE10F1, addressing: mixed}],\n"
    "  protocols: {0x510-0x51F: nm, 0x511: nm_node_first, 0x512: nm_no_node, 0x513: nm_no_control,\n"
    "    0x18FFAA00-0x18FFAAFF: nm, 0x7F4: xcp_master, 0x7F5: xcp_slave,\n"
    "    0xDC0000-0xFEFFFF: j1939, 0x9F80000-0xDFFFFFF: j1939, 0x18E80000-0x18FFFFFF: j1939,\n"
    "    0x1A012200-0x1A0122FF: j1939, 0x1CEB0000-0x1CECFFFF: j1939,\n"
    "    0x0: canopen, 0x80-0x81: canopen, 0xFF-0x100: canopen, 0x181: canopen, 0x1A1: canopen, 0x27F: canopen,\n"
    "    0x281: canopen, 0x37F: canopen, 0x381: canopen, 0x47F: canopen, 0x481: canopen, 0x57F: canopen,\n"
    "    0x582: canopen, 0x602: canopen, 0x702: canopen, 0x77F: canopen, 0x7E4-0x7E5: canopen}}\n"
    "buses:\n"
    "  interfaces: {can0: powertrain, '2': body}\n"
    "  tecmp: {7: seven, 0xFFFFFFFF: last}\n"
    "  cmp: {7: seventh, 8: eighth}\n"
    "  acf: {7: seventh bus}\n"
    "pdus: {7: Speed, 0xFFFFFFFF: Last}\n"
)


def read(
    data: bytes,
    *,
    chunk: int | None = None,
    tight: bool = False,
    chunk_bytes: int = DEFAULT_OPTIONS.chunk_bytes,
    batch_rows: int = DEFAULT_OPTIONS.batch_rows,
    reassembly_bytes: int = DEFAULT_OPTIONS.reassembly_bytes,
    **choice: Any,
) -> tuple[dict[str, list[dict[str, Any]]], Summary]:
    """All rows of a capture by table, and its summary.

    `chunk`: bytes of the reading buffer, even below the least; `tight`: just enough of them, for a capture that is not
    packed, so that what reads behind the capture reads behind the buffer.
    """
    if tight and data[:4] == file_headers.SECTION_MAGIC:
        chunk = len(data) + 1
    elif tight and data[:4] in file_headers.MAGICS:
        chunk = max(len(data) - 24, 0) + 1
    options = ReadOptions(chunk_bytes=chunk_bytes, batch_rows=batch_rows, reassembly_bytes=reassembly_bytes)
    with open_capture(io.BytesIO(data), **{"profile": PROFILE, "raw": True, **choice}, options=options) as capture:
        if chunk is not None:
            capture._chunk_bytes = chunk
        rows = decoded(capture.batches())
    assert capture.summary is not None
    assert {table: len(found) for table, found in rows.items()} == {t: n for t, n in capture.summary.rows.items() if n}
    return rows, capture.summary


def decoded(batches: Iterable[tuple[str, pa.RecordBatch]]) -> dict[str, list[dict[str, Any]]]:
    """Plain values in the reference's shape: `ts` in us, `date` in days. Every batch is checked by Arrow."""
    found: dict[str, list[dict[str, Any]]] = {}
    for table, batch in batches:
        batch.validate(full=True)
        arrays = {}
        for name in batch.schema.names:
            array = batch.column(name)
            if name in ("capture_id", "vehicle_id"):
                continue
            if name in ("ts", "date"):
                array = array.cast(pa.int64() if name == "ts" else pa.int32())
            arrays[name] = array.to_pylist()
        rows = zip(*arrays.values(), strict=True)
        found.setdefault(table, []).extend(dict(zip(arrays, row, strict=True)) for row in rows)
    return found


def difference(want: Rows, got: Rows) -> str | None:
    """The first row that differs and how, or None."""
    for table in {**want, **got}:
        wanted, found = want.get(table, []), got.get(table, [])
        for i, (a, b) in enumerate(zip(wanted, found, strict=False)):
            if a != b:
                unlike = {name: (a.get(name), b.get(name)) for name in {**a, **b} if a.get(name) != b.get(name)}
                return f"{table} row {i} (packet {a['packet_no']}): wanted, found {unlike}"
        if len(wanted) != len(found):
            return f"{table}: {len(wanted)} rows wanted, {len(found)} found"
    return None
