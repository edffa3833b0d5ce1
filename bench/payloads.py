"""Values of SOME/IP payloads per second and core: the compiled decoder and a plain one, in one run, on the same payloads.

`python -m bench.payloads` prints the section. Two events, 65,536 messages of each, random numbers:

    fixed     four structs of six numbers of 8 to 64 bits: every member at a constant offset
    dynamic   a list of 0 to 7 such structs with a 32-bit length field, a text of 0 to 12 characters and a union of two types

Ways: *decode* gives raw, value, valid and label by member, *rows* an Arrow batch of `signals` with keys and texts, *wide* that of
a wide table; *plain* is the decoder of the tests, one recursive Python function per type, which gives the same values; *tshark*
prints them as PDML, with Wireshark's tables of the same messages (CPU seconds of its process, with its start).
"""

from __future__ import annotations

import random
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from pcaplake.parser.schemas import TABLES
from pcaplake.signals.someip.decoder import SomeipDecoder
from pcaplake.signals.someip.description import (
    Array,
    BaseType,
    Dimension,
    Member,
    PayloadMessage,
    Services,
    String,
    Struct,
    Union,
    Variant,
)
from pcaplake.signals.someip.payloads import PayloadDecoder
from pcaplake.signals.someip.wide import WidePayloads
from tests.oracles.tshark_someip import run_tshark, write_capture
from tests.signals.someip.reference import decode
from tests.signals.someip.wireshark_tables import TableWriter

from .rates import ROUNDS, measure_rates

MESSAGES = 65_536
PEER_MESSAGES = 512
TSHARK_MESSAGES = 8_192
NUMBERS = (("uint", 16), ("sint", 32), ("float", 32), ("uint", 8), ("float", 64), ("uint", 32))


def payloads_section() -> str:
    """The section in Markdown."""
    figures = measure_payload_rates()
    lines = [
        f"{MESSAGES:,} messages, CPU seconds of one thread; median (least to most) of n = {ROUNDS}",
        "",
        "| | values/s per core | times the rate of the plain decoder |",
        "|---|---|---|",
    ]
    for name, rates in figures.items():
        base = statistics.median(figures[f"{name.split(',')[0]}, plain"])
        middle, spread = statistics.median(rates), f"{min(rates) / 1e6:.2f}-{max(rates) / 1e6:.2f}"
        lines.append(f"| {name} | {middle / 1e6:.2f} M ({spread}) | {middle / base:.1f} |")
    return "\n".join(lines)


def measure_payload_rates() -> dict[str, list[float]]:
    """way -> values per CPU second, by round. Every round has all ways, so that disturbances affect all of them."""
    rng = random.Random(1)
    ways: dict[str, Callable[[], int]] = {}
    with tempfile.TemporaryDirectory(prefix="pcaplake-bench-") as folder:
        for name, message, payloads in (("fixed", *_draw_fixed(rng)), ("dynamic", *_draw_dynamic(rng))):
            ways |= _ways(name, message, payloads, Path(folder, name))
        return measure_rates(ways)


def _ways(name: str, message: PayloadMessage, payloads: list[bytes], folder: Path) -> dict[str, Callable[[], int]]:
    data = np.frombuffer(b"".join(payloads), np.uint8)
    ends = np.cumsum([len(payload) for payload in payloads], dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    headers = np.zeros((len(payloads), 8), np.uint8)
    compiled, decoder = PayloadDecoder(message), SomeipDecoder(Services.from_messages([message]))
    frames, table = _rows(message, payloads), WidePayloads([message])
    values = decoder.decode_signals(frames).num_rows
    TableWriter().write(folder, [message])
    head = message.service_id, message.method_id, message.message_type, 1
    write_capture(folder / "some.pcap", [(*head, payload) for payload in payloads[:TSHARK_MESSAGES]])
    printed = decoder.decode_signals(frames.slice(0, TSHARK_MESSAGES)).num_rows
    return {
        f"{name}, decode": lambda: sum(
            len(part.rows) for part in compiled.decode_payloads(data, starts, ends, headers)[0]
        ),
        f"{name}, rows": lambda: int(decoder.decode_signals(frames).num_rows),
        f"{name}, wide": lambda: values * bool(decoder.decode_wide_rows(table, frames).num_rows),
        f"{name}, plain": lambda: sum(len(decode(message, payload).values) for payload in payloads[:PEER_MESSAGES]),
        f"{name}, tshark": lambda: printed * bool(run_tshark(folder / "some.pcap", folder)),
    }


def _six_numbers() -> Struct:
    members = tuple(
        Member(name=f"{coding}{bits}", type=BaseType(name=f"{coding}{bits}", coding=coding, bits=bits))  # type: ignore[arg-type]
        for coding, bits in NUMBERS
    )
    return Struct(name="six", members=members)


def _message(method: int, *members: Member) -> PayloadMessage:
    return PayloadMessage(
        service_id=0x1234,
        method_id=method,
        message_type=2,
        interface_version=1,
        service="Vehicle",
        method=f"event{method}",
        parameters=Struct(name="parameters", members=members),
    )


def _draw_fixed(rng: random.Random) -> tuple[PayloadMessage, list[bytes]]:
    message = _message(0x8001, *(Member(name=f"part{number}", type=_six_numbers()) for number in range(4)))
    return message, [rng.randbytes(message.parameters.least_bytes) for _ in range(MESSAGES)]


def _draw_dynamic(rng: random.Random) -> tuple[PayloadMessage, list[bytes]]:
    six = _six_numbers()
    objects = Array(name="objects", element=six, dimensions=(Dimension(length_bits=32),))
    choice = Union(
        name="choice",
        variants=(
            Variant(selector=1, name="speed", type=BaseType(name="uint16", coding="uint", bits=16)),
            Variant(selector=2, name="place", type=six),
        ),
    )
    text = String(name="text", encoding="utf-8", length_bits=32)
    message = _message(
        0x8002, Member(name="objects", type=objects), Member(name="text", type=text), Member(name="choice", type=choice)
    )
    size = six.least_bytes
    payloads = []
    for _ in range(MESSAGES):
        count, letters, selector = rng.randrange(8), rng.randrange(13), rng.randint(1, 2)
        variant = rng.randbytes(2 if selector == 1 else size)
        parts = (count * size, rng.randbytes(count * size)), (letters, b"street name "[:letters])
        content = b"".join(length.to_bytes(4, "big") + part for length, part in parts)
        payloads.append(content + len(variant).to_bytes(4, "big") + selector.to_bytes(4, "big") + variant)
    return message, payloads


def _rows(message: PayloadMessage, payloads: list[bytes]) -> pa.RecordBatch:
    rows = [
        {
            "capture_id": "0123456789abcdef0123456789abcdef",
            "vehicle_id": "WVWZZZ1JZXW000001",
            "ts_ns": number,
            "packet_no": number + 1,
            "sub_no": 0,
            "service_id": message.service_id,
            "method_id": message.method_id,
            "interface_version": 1,
            "message_type": message.message_type,
            "payload": payload,
        }
        for number, payload in enumerate(payloads)
    ]
    return pa.RecordBatch.from_pylist(rows, TABLES["someip_messages"].schema)


if __name__ == "__main__":
    print(payloads_section())
