"""A vehicle's messages, their frames, and checks of the decoder that several test modules make."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pcaplake.parser.schemas import TABLES
from pcaplake.signals.model import Scale
from pcaplake.signals.someip.decoder import SomeipDecoder
from pcaplake.signals.someip.description import (
    Array,
    BaseType,
    Dimension,
    EndToEnd,
    Member,
    PayloadMessage,
    Services,
    Struct,
)

U8 = BaseType(name="uint8", coding="uint", bits=8)
SPEED = BaseType(name="speed", coding="uint", bits=16, scale=Scale(factor=0.01, unit="km/h"), maximum=300)
GEAR = BaseType(name="gear", coding="uint", bits=8, labels=((0, "P"), (1, "R"), (2, "D")))
WHEEL = Struct(name="Wheel", members=(Member(name="speed", type=SPEED), Member(name="slip", type=U8)))


def describe(*members: Member, tagged: bool = False, **others: Any) -> PayloadMessage:
    fields = dict(
        service_id=0x1234, method_id=0x8001, message_type=2, interface_version=1, service="Vehicle", method="state"
    )
    return PayloadMessage(parameters=Struct(name="p", members=members, tagged=tagged), **{**fields, **others})


def frames(payloads: list[bytes | None], **others: Any) -> pa.RecordBatch:
    rows = [
        {
            "capture_id": "0123456789abcdef0123456789abcdef",
            "ts_ns": 1_764_000_000_000_000_000 + number,
            "packet_no": number + 1,
            "sub_no": 0,
            "interface": "eth0",
            "service_id": 0x1234,
            "method_id": 0x8001,
            "client_id": 0,
            "session_id": number,
            "protocol_version": 1,
            "interface_version": 1,
            "message_type": 2,
            "return_code": 0,
            "payload": payload,
            **others,
        }
        for number, payload in enumerate(payloads)
    ]
    return pa.RecordBatch.from_pylist(rows, TABLES["someip_messages"].schema)


def rows_of(batch: pa.RecordBatch, *columns: str) -> list[tuple[Any, ...]]:
    batch.validate(full=True)
    assert [field.name for field in batch.schema if not field.nullable and batch.column(field.name).null_count] == []
    return [tuple(row[name] for name in columns) for row in batch.to_pylist()]


EXAMPLES = [
    (1, (0x123,), "cc 00 00 00 00 00 00 00", {"crc": 0xCC, "counter": 0}),
    (2, tuple(range(1, 17)), "1b 01 00 00 00 00 00 00", {"crc": 0x1B, "counter": 1}),
    (4, (0x0A0B0C0D,), "0010 0000 0a0b0c0d 862b0556 00000000", {"length": 16, "counter": 0, "data_id": 0x0A0B0C0D}),
    (5, (0x1234,), "1cca 00 00 00 00 00 00", {"crc": 0xCA1C, "counter": 0}),
    (6, (0x1234,), "b155 0008 00 00 00 00", {"crc": 0xB155, "length": 8, "counter": 0}),
    (7, (0x0A0B0C0D,), "1fb2e737fcedbcd9 00000018 00000000 0a0b0c0d 00000000", {"length": 24, "counter": 0}),
]


def check_segments_are_skipped() -> None:
    decoder = SomeipDecoder(Services.from_messages([describe(Member(name="a", type=U8))]))
    segment = frames([b"\1"], message_type=0x22, tp_complete=False)
    assert decoder.decode_signals(segment).num_rows == 0
    whole = frames([b"\1"], message_type=0x22, tp_complete=True)
    assert rows_of(decoder.decode_signals(whole), "signal", "value") == [("a", 1.0)]


def check_end_to_end_protection(profile: Any, ids: tuple[int, ...], content: str, fields: dict[str, int]) -> None:
    payload = bytes.fromhex(content)
    rest = Array(name="rest", element=U8, dimensions=(Dimension(length_bits=0, maximum=100),))
    for data_ids, damaged, covers, right in (
        (ids, False, False, True),
        (ids, True, False, False),
        (ids, False, True, False),
        (tuple(one ^ 1 for one in ids), False, False, False),
        ((), True, False, profile not in (4, 7)),
    ):
        e2e = EndToEnd(profile=profile, data_ids=data_ids, covers_header=covers)
        decoder = SomeipDecoder(Services.from_messages([describe(Member(name="rest", type=rest), e2e=e2e)]))
        changed = payload[:-1] + bytes([payload[-1] ^ damaged])
        batch = decoder.decode_signals(frames([changed, b""]))
        found = {row["signal"]: row for row in batch.to_pylist()}
        assert found["E2E.crc"]["valid"] is right
        assert {name: found[f"E2E.{name}"]["raw_value"] for name in fields} == fields
        assert len(found["rest"]["values"]) == len(payload) - e2e.header_bytes
        assert decoder.counts.wrong_checksums == ({} if right else {"Vehicle.state": 1})
