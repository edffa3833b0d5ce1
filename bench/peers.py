"""Peers on the same captures: a loop over dpkt with `write_deltalake`, and tshark's text fields."""

from __future__ import annotations

import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import dpkt
import pyarrow as pa
from deltalake import write_deltalake

SOMEIP, TECMP, ENTRY = struct.Struct(">HHIHHBBBB"), struct.Struct(">HHBBHHH"), struct.Struct(">IQHH")
COLUMNS = {
    "can_frames": ("ts", "can_id", "flags", "payload"),
    "lin_frames": ("ts", "lin_id", "payload"),
    "someip_messages": ("ts", "src", "dst", "sport", "dport", "service", "method", "session", "type", "payload"),
    "packets": ("ts", "eth_src", "eth_dst", "eth_type", "ip_src", "ip_dst", "proto", "sport", "dport", "length"),
}


def measure_dpkt_loop(path: Path, packets: int, lake: Path) -> tuple[int, float]:
    """Write the first packets of a capture to Delta tables with a third of our columns, and return rows and CPU
    seconds.
    """
    start = time.process_time()
    rows: dict[str, list[tuple[Any, ...]]] = {name: [] for name in COLUMNS}
    with path.open("rb") as file:
        for number, (ts, data) in enumerate(_open_dpkt_reader(file)):
            if number == packets:
                break
            _decode_with_dpkt(float(ts), data, rows)
    for name, table_rows in rows.items():
        if table_rows:
            table = pa.table(dict(zip(COLUMNS[name], map(list, zip(*table_rows, strict=True)), strict=True)))
            write_deltalake(str(lake / name), table)
    return sum(map(len, rows.values())), time.process_time() - start


def _open_dpkt_reader(file: BinaryIO) -> Iterator[tuple[float, bytes]]:
    magic = file.read(4)
    file.seek(0)
    yield from dpkt.pcapng.Reader(file) if magic == b"\n\r\r\n" else dpkt.pcap.Reader(file)


def _decode_with_dpkt(ts: float, data: bytes, rows: dict[str, list[tuple[Any, ...]]]) -> None:
    if len(data) <= 72 and data[6:8] == b"\0\0":  # SocketCAN, as mix a has it
        word, size, flags = struct.unpack_from(">IBB", data)
        rows["can_frames"].append((ts, word & 0x1FFFFFFF, flags, data[8 : 8 + size]))
        rows["packets"].append((ts, None, None, None, None, None, None, None, None, len(data)))
        return
    frame = dpkt.ethernet.Ethernet(data)
    ip = frame.data if isinstance(frame.data, dpkt.ip.IP) else None
    udp = ip.data if ip is not None and isinstance(ip.data, (dpkt.udp.UDP, dpkt.tcp.TCP)) else None
    rows["packets"].append(
        (
            ts,
            frame.src.hex(":"),
            frame.dst.hex(":"),
            frame.type,
            None if ip is None else dpkt.utils.inet_to_str(ip.src),
            None if ip is None else dpkt.utils.inet_to_str(ip.dst),
            None if ip is None else ip.p,
            None if udp is None else udp.sport,
            None if udp is None else udp.dport,
            len(data),
        )
    )
    if isinstance(udp, dpkt.udp.UDP) and udp.dport == 30501 and ip is not None:
        src, dst = dpkt.utils.inet_to_str(ip.src), dpkt.utils.inet_to_str(ip.dst)
        payload, at = bytes(udp.data), 0
        while at + 16 <= len(payload):
            service, method, length, _, session, _, _, kind, _ = SOMEIP.unpack_from(payload, at)
            body = payload[at + 16 : at + 8 + length]
            rows["someip_messages"].append((ts, src, dst, udp.sport, udp.dport, service, method, session, kind, body))
            at += 8 + length
    elif frame.type == 0x99FE:
        body = bytes(frame.data)
        kind, at = TECMP.unpack_from(body)[4], TECMP.size
        while at + ENTRY.size <= len(body):
            _, _, length, _ = ENTRY.unpack_from(body, at)
            entry = body[at + 16 : at + 16 + length]
            if kind == 4:
                rows["lin_frames"].append((ts, entry[0] & 63, entry[2 : 2 + entry[1]]))
            else:
                rows["can_frames"].append((ts, int.from_bytes(entry[:4], "big"), kind, entry[5 : 5 + entry[4]]))
            at += 16 + length


def measure_tshark_fields(path: Path, packets: int) -> tuple[int, float]:
    """Print nine fields of the first packets of a capture, and return packets, and CPU seconds minus those for one
    packet.
    """

    def measure_packet_count(count: int) -> float:
        names = "frame.number frame.time_epoch eth.src ip.src udp.dstport"
        names += " someip.serviceid someip.methodid can.id tecmp.message_type"
        fields = [option for name in names.split() for option in ("-e", name)]
        command = ["tshark", "-r", str(path), "-c", str(count), "-d", "udp.port==30501,someip", "-T", "fields", *fields]
        with tempfile.TemporaryFile() as out:
            import resource

            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, stdout=out, stderr=subprocess.DEVNULL, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    start = measure_packet_count(1)
    return packets, measure_packet_count(packets) - start
