"""SLAC beside tshark, and a whole charging session: from SLAC over SDP to V2GTP on the port that the station announces."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from pcaplake.parser import Profile
from pcaplake.parser.capture.programs import compiled_program
from pcaplake.parser.protocols.homeplug import NAMES
from tests.parser import charging_frames as made
from tests.parser.captures import pcap
from tests.parser.compare import difference, read
from tests.parser.reference import Reference

MMHDR, GP = "homeplug_av.mmhdr.", "homeplug_av.gp.cm_"
# column -> the fields of tshark that have it, one for each message
FIELDS = {
    "version": [MMHDR + "mmver"],
    "mme_type": [MMHDR + "mmtype"],
    "application_type": [f"{GP}{name}.apptype" for name in ("slac_parm", "atten_char", "mnbc_sound", "slac_match")],
    "security_type": [f"{GP}{name}.sectype" for name in ("slac_parm", "atten_char", "mnbc_sound", "slac_match")],
    "run_id": [f"{GP}{n}.runid" for n in ("slac_parm", "start_atten_char", "atten_char", "mnbc_sound", "slac_match")],
    "sounds": [
        *(f"{GP}{name}.sounds_count" for name in ("start_atten_char", "atten_char")),
        *(GP + "slac_parm.sound_count", GP + "mnbc_sound.countdown"),
    ],
    "timeout_ms": [GP + "slac_parm.time_out", GP + "start_atten_char.time_out", GP + "validate.timer"],
    "response_type": [GP + "slac_parm.resptype", GP + "start_atten_char.resptype"],
    "sound_target_mac": [GP + "slac_parm.sound_target"],
    "forwarding_mac": [GP + "slac_parm.forwarding_sta", GP + "start_atten_char.sound_forwarding_sta"],
    "pev_mac": [GP + "atten_char.source_mac", GP + "slac_match.pev_mac", GP + "atten_profile_ind.pev_mac"],
    "evse_mac": [GP + "slac_match.evse_mac"],
    "pev_id": [GP + "atten_char.source_id", GP + "mnbc_sound.sender_id", GP + "slac_match.pev_id"],
    "evse_id": [GP + "atten_char.resp_id", GP + "slac_match.evse_id"],
    "network_id": [GP + "slac_match.nid", "homeplug_av.nw_info.nid"],
    "groups": [GP + "atten_char.groups_count", GP + "atten_profile_ind.groups_count"],
    "signal_type": [GP + "validate.signaltype"],
    "toggles": [GP + "validate.togglenum"],
    "result": [GP + "atten_char.result", GP + "validate.result", "homeplug_av.cm_set_key_cnf.result"],
}
KEYS = {0x606E: "atten_char.aag", 0x6086: "atten_profile_ind.aag", 0x607D: "slac_match.nmk"}
SESSION = Profile.default()


def seen_by_tshark(path: Path) -> list[dict[str, str]]:
    """By packet: the first field of each column, as tshark shows it, and the payload."""
    names = [field for fields in FIELDS.values() for field in fields] + [GP + name for name in KEYS.values()]
    wanted = [word for name in names for word in ("-e", name)]
    done = subprocess.run(
        ["tshark", "-n", "-r", str(path), "-T", "fields", *wanted], check=True, capture_output=True, text=True
    )
    packets = [dict(zip(names, line.split("\t"), strict=True)) for line in done.stdout.splitlines()]
    return [
        {column: next((packet[field] for field in fields if packet[field]), "") for column, fields in FIELDS.items()}
        | {"payload": next((packet[GP + name] for name in KEYS.values() if packet[GP + name]), "")}
        for packet in packets
    ]


def as_tshark_shows(column: str, row: dict[str, Any]) -> Any:
    value = row[column]
    if isinstance(value, bytes):
        return value.hex()
    if column == "timeout_ms" and value is not None:
        return value // 100 - (row["mme_type"] == 0x6078)  # it shows the number in the field
    return value


@pytest.mark.slow
def test_slac_as_tshark_reads_it(tmp_path: Path) -> None:
    r, path = Random(3), tmp_path / "slac.pcap"
    frames = [bytes(range(12)) + b"\x88\xe1" + made.mme(r, kind) for kind in made.MESSAGES for _ in range(5)]
    path.write_bytes(pcap(frames))
    rows, summary = read(path.read_bytes())
    assert not summary.faults
    theirs = seen_by_tshark(path)
    assert len(theirs) == len(rows["homeplug_messages"]) == len(frames)
    told = set()
    for row, packet in zip(rows["homeplug_messages"], theirs, strict=True):
        for column, shown in packet.items():
            if column == "payload" and row["mme_type"] not in KEYS:
                continue
            ours = as_tshark_shows(column, row)
            if isinstance(ours, int):
                assert shown, (column, row)
                assert ours == int(shown, 0), (column, row)
            elif shown:
                theirs_ = bytes(map(int, shown.split(","))).hex() if column == "payload" and "," in shown else shown
                assert str(ours).replace(":", "") == theirs_.replace(":", ""), (column, row)
            else:
                assert ours is None, (column, row)
            told |= {column} if shown else set()
    assert told == {*FIELDS, "payload"}


@pytest.mark.slow
def test_names_of_messages_are_those_of_tshark() -> None:
    listed = subprocess.run(["tshark", "-G", "values"], check=True, capture_output=True, text=True).stdout
    lines = [line.split("\t") for line in listed.splitlines() if line.startswith("V\thomeplug_av.mmhdr.mmtype\t")]
    theirs = {int(number, 0): name.split(" (")[0] for _, _, number, name in lines if name.startswith("CM_")}
    spelled = {0x6016: "CM_SC_CHAN_EST.IND", **{0x6060 + n: None for n in range(4)}}  # which it writes otherwise
    assert len(theirs) > 60
    assert {n: name for n, name in theirs.items() if n not in spelled} == {
        n: NAMES[n] for n in theirs if n not in spelled
    }


def ipv6(protocol: int, body: bytes) -> bytes:
    header = struct.pack(">IHBB", 6 << 28, len(body), protocol, 64)
    return bytes(12) + b"\x86\xdd" + header + bytes(15) + b"\1" + bytes(15) + b"\2" + body


def v2gtp(kind: int, payload: bytes) -> bytes:
    return struct.pack(">HHI", 0x01FE, kind, len(payload)) + payload


def segment(ends: tuple[int, int], sequence: int, payload: bytes, flags: int = 0x18) -> bytes:
    return ipv6(6, struct.pack(">HHIIBBHHH", *ends, sequence, 1, 0x50, flags, 8192, 0, 0) + payload)


@pytest.mark.parametrize("port", [30000, 61851])
def test_a_charging_session(port: int) -> None:
    r = Random(1)
    slac = [bytes(12) + b"\x88\xe1" + made.mme(r, kind) for kind in (0x6064, 0x6065, 0x607C, 0x607D)]
    request, response = v2gtp(0x9000, b"\x10\0"), v2gtp(0x9001, bytes(16) + struct.pack(">HBB", port, 0x10, 0))
    sdp = [
        ipv6(17, struct.pack(">HHHH", *ends, 8 + len(data), 0) + data)
        for ends, data in (((50001, 15118), request), ((15118, 50001), response))
    ]
    car, station = (50002, port), (port, 50002)
    long = v2gtp(0x8002, r.randbytes(900))  # certificates: in two segments
    talk = [
        segment(car, 99, b"", flags=2),
        segment(station, 499, b"", flags=0x12),
        segment(car, 100, v2gtp(0x8001, b"\x80\0")),
        segment(station, 500, long[:700]),
        segment(station, 1200, long[700:]),
        segment(station, 1200, long[700:]),  # again
    ]
    data = pcap([*slac, *sdp, *talk])
    rows, summary = read(data, profile=SESSION)
    assert difference(Reference(SESSION).read(data).rows, rows) is None
    assert [row["message"] for row in rows["homeplug_messages"]] == [
        *("CM_SLAC_PARM.REQ", "CM_SLAC_PARM.CNF", "CM_SLAC_MATCH.REQ", "CM_SLAC_MATCH.CNF")
    ]
    assert [(row["packet_no"], row["payload_type"], row["length"], row["tls"]) for row in rows["v2g_messages"]] == [
        *((5, 0x9000, 2, False), (6, 0x9001, 20, False), (9, 0x8001, 2, None), (11, 0x8002, 900, None))
    ]
    assert rows["v2g_messages"][-1]["payload"] == long[8:]
    assert not summary.faults


@pytest.mark.parametrize("seed", range(6))
def test_the_engine_equals_the_reference(seed: int) -> None:
    r = Random(seed)
    frames = [r.randbytes(12) + b"\x88\xe1" + made.homeplug(r) for _ in range(120)]
    frames += [
        ipv6(17, struct.pack(">HHHH", 15118, 9, 8 + len(body), 0) + body) for body in (made.v2gtp(r) for _ in range(40))
    ]
    data = pcap([frame.ljust(60, b"\0") if r.random() < 0.2 else frame for frame in frames])
    rows, _ = read(data)
    assert (unlike := difference(Reference(SESSION).read(data).rows, rows)) is None, unlike
    assert {row["message"] for row in rows["homeplug_messages"]} >= {"CM_SLAC_PARM.REQ", "CM_SLAC_MATCH.CNF"}


def test_messages_share_the_table_of_their_names() -> None:
    """It has 24,712 entries, and 15 kinds of rows use it: each capture of another profile would fill them all."""
    assert compiled_program(SESSION, ["homeplug_messages"]).lookup.size < 2 * max(NAMES)
