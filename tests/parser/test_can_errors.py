"""CAN error frames: what linux/can/error.h says of their bytes, and what Wireshark says."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from random import Random

import pytest

from pcaplake.parser import CanError, decode_can_error
from pcaplake.parser.can_errors import CLASSES, CONTROLLER, PROTOCOL
from tests.parser.captures import pcap

FIELDS = {
    **dict(
        zip(
            ("tx_timeout", "lostarb", "ctrl", "prot", "trx", "ack", "busoff", "buserror", "restarted"),
            CLASSES,
            strict=False,
        )
    ),
    **dict(
        zip(
            [
                f"ctrl.{name}"
                for name in (
                    "rx_overflow",
                    "tx_overflow",
                    "rx_warning",
                    "tx_warning",
                    "rx_passive",
                    "tx_passive",
                    "active",
                )
            ],
            CONTROLLER,
            strict=True,
        )
    ),
    **dict(
        zip(
            [f"prot.type.{name}" for name in ("bit", "form", "stuff", "bit0", "bit1", "overload", "active", "tx")],
            PROTOCOL,
            strict=True,
        )
    ),
}
DETAILS = ("lostarb.bitnum", "prot.location", "trx.canh", "trx.canl")


@pytest.mark.parametrize(
    ("error_class", "payload", "error"),
    [
        (0, "", CanError(classes=())),
        (0x1, "ff ff ff ff ff ff ff ff", CanError(classes=("transmit_timeout",))),
        (0x2, "0b", CanError(classes=("lost_arbitration",), lost_arbitration_bit=11)),
        (0x4, "00 30", CanError(classes=("controller",), controller=("receive_passive", "transmit_passive"))),
        (
            0x88,
            "00 00 84 19 00",
            CanError(classes=("protocol", "bus_error"), protocol=("stuff", "transmission"), location="acknowledgment_slot"),
        ),
        (0x10, "00 00 00 00 74", CanError(classes=("transceiver",), can_high="no_wire", can_low="short_to_ground")),
        (0x10, "00 00 00 00 80", CanError(classes=("transceiver",), can_low="short_to_can_high")),
        (0x260, "00 00 00 00 00 00 80 60",
         CanError(classes=("no_acknowledgment", "bus_off", "counters"), transmit_errors=128, receive_errors=96)),
        (0x100, "", CanError(classes=("restarted",))),
    ],
)  # fmt: skip
def test_an_error_frame(error_class: int, payload: str, error: CanError) -> None:
    assert decode_can_error(error_class, bytes.fromhex(payload)) == error


@pytest.mark.slow
def test_as_tshark_reads_it(tmp_path: Path) -> None:
    r = Random(1)
    made = [(1 << n, bytes([value] * 8)) for n in range(9) for value in (0, 1, 2, 4, 8, 16, 32, 64, 128, 255)]
    made += [(r.getrandbits(9), r.randbytes(8)) for _ in range(100)]
    path = tmp_path / "errors.pcap"
    path.write_bytes(pcap([struct.pack(">IB3x", 1 << 29 | bits, 8) + data for bits, data in made], 227))
    names = [f"can.err.{name}" for name in (*FIELDS, *DETAILS)]
    command = ["tshark", "-n", "-r", str(path), "-T", "fields", *(word for name in names for word in ("-e", name))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for (bits, data), line in zip(made, lines, strict=True):
        error, values = decode_can_error(bits, data), dict(zip(names, line.split("\t"), strict=True))
        said = [FIELDS[name] for name in FIELDS if values[f"can.err.{name}"] in ("1", "True")]
        assert said == [*error.classes, *error.controller, *error.protocol]
        bit = values["can.err.lostarb.bitnum"]
        assert (int(bit) if bit else None) == error.lost_arbitration_bit
