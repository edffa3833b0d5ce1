"""What messages in pieces cost to decode: fragmented datagrams, SOME/IP-TP, DoIP over TCP, ISO-TP.

    python -m bench.pieces [--megabytes 40] [--runs 5] [--mixes lidar,camera,doip,isotp] [--write FOLDER]

All columns of all tables, CPU time of one thread, in turn, the least of n runs. No piece is lost. Each mix has several senders
whose pieces alternate, as in a capture of a switch:

    lidar    six sensors; datagrams of 8,200 bytes with a checksum in IPv4 fragments of 1,480
    camera   four sensors; SOME/IP-TP messages of 60,000 bytes in segments of 1,392
    doip     eight testers; requests of 3 to 20 bytes and responses of up to 4,000, in TCP segments of up to 1,400
    isotp    sixteen control units; messages of 8 to 400 bytes in CAN frames
"""

from __future__ import annotations

import argparse
import gc
import io
import itertools
import platform
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from pcaplake.parser import Profile, open_capture
from pcaplake.parser.profile import IsoTpChannel
from pcaplake.worker.sample import frames
from tests.parser import captures

LIDAR, CAMERA, DOIP = 2368, 30501, 13400
UNITS = range(1, 17)
PROFILE = Profile(udp_ports={CAMERA: "someip"}, isotp=tuple(IsoTpChannel(response=0x700 + unit) for unit in UNITS))


def on_ethernet(packet: bytes) -> bytes:
    return frames.build_ethernet_frame(bytes(6), bytes(6), frames.IPV4, packet)


def addresses(host: int) -> tuple[bytes, bytes]:
    return bytes((10, 0, 0, host)), bytes((10, 0, 0, 254))


def lidar(r: Random, host: int) -> Iterator[bytes]:
    ends, size = addresses(host), 8200
    head = struct.pack(">HHH", 40_000, LIDAR, size)
    for number in itertools.count(1):
        body = r.randbytes(size - 8)
        checked = b"".join((*ends, struct.pack(">HH", frames.UDP, size), head, b"\0\0", body))
        datagram = head + struct.pack(">H", frames.internet_checksum(checked) or 0xFFFF) + body
        yield from map(on_ethernet, frames.build_ipv4_fragments(*ends, frames.UDP, datagram, number & 0xFFFF, 1480))


def camera(r: Random, host: int) -> Iterator[bytes]:
    payload = r.randbytes(60_000)
    for number in itertools.count():
        for segment in frames.build_someip_tp_segments(0x1234, 0x8001, payload, number % 0xFFFF + 1, 1392):
            datagram = frames.build_udp_datagram(40_000, CAMERA, segment)
            yield on_ethernet(frames.build_ipv4_packet(*addresses(host), frames.UDP, datagram))


def doip(r: Random, host: int) -> Iterator[bytes]:
    sent = {False: 1, True: 1}

    def segment(response: bool, sequence: int, flags: int, part: bytes) -> bytes:
        (tester, unit), ports = addresses(host), (40_000, DOIP)
        ends = (unit, tester, ports[::-1]) if response else (tester, unit, ports)
        return on_ethernet(
            frames.build_ipv4_packet(*ends[:2], frames.TCP, frames.build_tcp_packet(*ends, sequence, 0, flags, part))
        )

    for response in sent:
        yield segment(response, 0, 2, b"")
    while True:
        service = r.choice((0x22, 0x2E, 0x19))
        for response, size in ((False, r.randrange(3, 20)), (True, r.choice((3, 20, 400, 4000)))):
            message = struct.pack(">HHB", 0x0E80, 0x1001, service | (0x40 if response else 0)) + r.randbytes(size)
            data = struct.pack(">BBHI", 2, 0xFD, 0x8001, len(message)) + message
            for at in range(0, len(data), 1400):
                part = data[at : at + 1400]
                yield segment(response, sent[response], 0x18, part)
                sent[response] += len(part)


def isotp(r: Random, host: int) -> Iterator[bytes]:
    head = struct.pack(">IB3x", 0x700 + host, 8)
    while True:
        message = bytes((r.choice((0x62, 0x59)),)) + r.randbytes(r.choice((7, 20, 60, 400)))
        yield head + struct.pack(">H", 0x1000 | len(message)) + message[:6]
        for number, at in enumerate(range(6, len(message), 7), 1):
            yield head + (bytes((0x20 | number & 15,)) + message[at : at + 7]).ljust(8, b"\xcc")


MIXES: Mapping[str, tuple[Callable[[Random, int], Iterator[bytes]], int, int]] = {
    "lidar": (lidar, 6, 1),
    "camera": (camera, 4, 1),
    "doip": (doip, 8, 1),
    "isotp": (isotp, len(UNITS), 227),
}  # senders; link type


def make_capture(mix: str, size: int) -> bytes:
    make, count, link_type = MIXES[mix]
    r, senders, packets, used = Random(1), [], list[bytes](), 0
    senders = [make(Random(host), host) for host in range(1, count + 1)]
    while used < size:
        for sender in r.sample(senders, count):
            burst = list(itertools.islice(sender, r.randrange(1, 8)))
            packets += burst
            used += sum(map(len, burst)) + 16 * len(burst)
    return captures.pcap(packets, link_type)


def measure(data: bytes) -> tuple[int, Mapping[str, int], float]:
    """Packets, rows of each table, and seconds of CPU."""
    start, rows = time.thread_time(), dict[str, int]()
    for table, batch in open_capture(io.BytesIO(data), profile=PROFILE).batches():
        rows[table] = rows.get(table, 0) + batch.num_rows
    return rows["packets"], rows, time.thread_time() - start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=40, help="of each capture")
    parser.add_argument("--runs", type=int, default=5, help="n")
    parser.add_argument("--mixes", default=",".join(MIXES), help="comma-separated (%(default)s)")
    parser.add_argument("--write", type=Path, help="write the captures to this folder, and measure nothing")
    chosen = parser.parse_args(arguments)
    made = {mix: make_capture(mix, chosen.megabytes * 1_000_000) for mix in chosen.mixes.split(",")}
    if chosen.write:
        for mix, data in made.items():
            (chosen.write / f"{mix}.pcap").write_bytes(data)
        return
    gc.freeze()  # as every command does
    runs = {mix: [measure(data)] for mix, data in made.items()}
    for _ in range(chosen.runs):
        for mix, data in made.items():
            runs[mix].append(measure(data))
    print(f"{platform.machine()}, Python {platform.python_version()}, n = {chosen.runs}, {chosen.megabytes} MB each")
    for mix, (_, *measured) in runs.items():
        packets, rows, _ = measured[0]
        costs = [seconds / packets * 1e6 for _, _, seconds in measured]
        print(f"{mix:8} us per packet, least (median): {min(costs):.2f} ({statistics.median(costs):.2f})  {rows}")


if __name__ == "__main__":
    main()
