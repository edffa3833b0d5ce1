"""The three mixes of the benchmarks: cyclic traffic without end, of one family of protocols each.

    a   pcapng, 4 CAN interfaces (link type 227), 20 % CAN FD                                          51 B/packet
    b   pcap, Ethernet: 75 % VLAN, IPv4, UDP, 2.7 SOME/IP messages in a datagram                       160 B/packet
    c   pcap, Ethernet: 45 % TECMP (1-16 CAN, CAN FD or LIN entries), 30 % as b, TCP, UDP, gPTP, ARP   238 B/packet

All send about 10 000 packets a second. N seconds of a mix are always the beginning of 2 N seconds. `noise.py` draws packets
of the same shapes in random order and with random payloads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from pcaplake.worker.sample import files, frames
from pcaplake.worker.sample.payloads import PayloadGenerator
from pcaplake.worker.sample.sources import SOMEIP_PORT

from .pcap_files import build_pcap_header, build_pcap_record
from .senders import MILLISECOND, Bytes, Checksum, Clock, Number, Sender, Window, schedule

PACKETS_A_SECOND = 10_000
PERIODS_MS = (*[10] * 7, *[20] * 5, *[50] * 3, *[100] * 3, 500, 1000)  # of twenty senders
ETHERNET_NS = 80  # that a byte takes at 100 Mbit/s
TECMP_ENTRY_NS = 5_000  # between the entries of a TECMP frame
RECORD_HEADER, TIME_AT = {"pcap": 16, "pcapng": 28}, {"pcap": 0, "pcapng": 12}


T = TypeVar("T")


class Dealer:
    """Deals properties to senders like cards, so that each property has its share among the senders of each period."""

    def __init__(self, rng: random.Random) -> None:
        self.random = rng
        self._decks: dict[tuple[str, int], list[object]] = {}
        self.period = 0
        self.index = -1

    def begin_sender(self) -> None:
        """Choose the period of the next sender, in milliseconds."""
        self.period = 0
        self.period = self.deal("period", PERIODS_MS)
        self.index += 1

    def deal(self, subject: str, values: Sequence[T]) -> T:
        deck: list[T] = self._decks.setdefault((subject, self.period), [])  # type: ignore[assignment]
        if not deck:
            deck.extend(values)
            self.random.shuffle(deck)
        return deck.pop()

    def payload(self, length: int) -> PayloadGenerator:
        return PayloadGenerator(self.random, length)

    def stations(self) -> tuple[bytes, bytes, bytes, bytes]:
        """Two of 24 stations: their MAC addresses, and their IPv4 addresses."""
        one, two = self.random.sample(range(24), 2)
        mac, address = (
            (b"\x02\0\0\0\0" + bytes((n,)) for n in (one, two)),
            (bytes((10, 0, n % 2, n)) for n in (one, two)),
        )
        return *mac, *address  # type: ignore[return-value]


def build_can_sender(dealer: Dealer) -> Sender:
    """A CAN message of one of four buses: 500 kbit/s, and 2 Mbit/s for the data of CAN FD."""
    fd = dealer.deal("fd", (True, False, False, False, False))
    interface = dealer.deal("interface", (0, 1, 2, 3))
    length = dealer.deal(f"length {fd}", (12, 16, 24, 32, 64) if fd else (8, 8, 8, 8, 8, 6, 4, 2))
    return Sender(
        frame=frames.build_socketcan_frame(0x40 + dealer.index * 7 & 0x7FF, bytes(length), fd=fd),
        unit=dealer.index // 24 * 4 + interface,
        interface=interface,
        period_ns=dealer.period * MILLISECOND,
        wire_ns=80_000 + length * 5_000 if fd else 110_000 + length * 17_000,
        payloads=[(8, dealer.payload(length))],
    )


def build_ethernet_sender(dealer: Dealer, frame: bytes) -> Sender:
    return Sender(
        frame=frame,
        unit=dealer.index // 4,
        period_ns=dealer.period * MILLISECOND,
        wire_ns=len(frame) * ETHERNET_NS,
    )


def build_ipv4_sender(
    dealer: Dealer, protocol: int, ends: tuple[bytes, bytes, bytes, bytes], packet: bytes, vlan: int
) -> Sender:
    """A sender of an IPv4 packet. Its identification counts."""
    tags, whole = [(frames.VLAN, vlan)] if vlan else [], frames.build_ipv4_packet(ends[2], ends[3], protocol, packet)
    sender = build_ethernet_sender(dealer, frames.build_ethernet_frame(ends[0], ends[1], frames.IPV4, whole, tags))
    at = len(sender.frame) - len(whole)
    sender.numbers.append(Number(at=at + 4, width=2, value=dealer.random.randrange(65536)))
    sender.checksums.append(Checksum(at=at + 10, start=at, stop=at + 20))
    return sender


def build_someip_sender(dealer: Dealer) -> Sender:
    """A datagram of one to six SOME/IP notifications, three in four datagrams behind a VLAN tag."""
    count = dealer.deal("messages", (1, 1, 2, 2, 3, 4, 6))
    lengths = [dealer.deal("payload", (8, 8, 16, 24, 48)) for _ in range(count)]
    events = dealer.random.sample(range(30), count)
    messages = [
        frames.build_someip_message(0x1000 + dealer.index % 60, 0x8000 + event, bytes(length))
        for event, length in zip(events, lengths, strict=True)
    ]
    datagram = frames.build_udp_datagram(30000 + dealer.index % 64, SOMEIP_PORT, b"".join(messages))
    vlan = dealer.deal("vlan", (0, 5, 10, 10))
    sender = build_ipv4_sender(dealer, frames.UDP, dealer.stations(), datagram, vlan)
    at = len(sender.frame) - len(datagram) + 8
    for length in lengths:
        sender.numbers.append(Number(at=at + 10, width=2, value=1, lowest=1))  # the session
        sender.payloads.append((at + 16, dealer.payload(length)))
        at += 16 + length
    return sender


def build_udp_sender(dealer: Dealer) -> Sender:
    """A datagram of a protocol that no profile names."""
    datagram = frames.build_udp_datagram(30000 + dealer.index % 64, 42512, bytes(120))
    sender = build_ipv4_sender(dealer, frames.UDP, dealer.stations(), datagram, 0)
    sender.payloads.append((len(sender.frame) - 120, dealer.payload(120)))
    return sender


def build_tcp_sender(dealer: Dealer) -> Sender:
    """One direction of a TCP connection: segments of 300 bytes."""
    ends, port = dealer.stations(), 49152 + dealer.index
    segment = frames.build_tcp_packet(ends[2], ends[3], (port, 50000), 0, 1, 0x18, bytes(300))
    sender = build_ipv4_sender(dealer, frames.TCP, ends, segment, 10)
    at = len(sender.frame) - len(segment)
    sender.numbers.append(Number(at=at + 4, width=4, value=dealer.random.randrange(1 << 31), step=300))
    sender.payloads.append((at + 20, dealer.payload(300)))
    words = np.frombuffer(ends[2] + ends[3], ">u2")
    other = int(words.sum(dtype=np.int64)) + frames.TCP + len(segment)
    sender.checksums.append(Checksum(at=at + 16, start=at, stop=len(sender.frame), other=other))
    return sender


def build_tecmp_sender(dealer: Dealer) -> Sender:
    """A frame of a capture module: entries of one kind, each with the time at which it was on its bus."""
    kind = dealer.deal("kind", (frames.TECMP_CAN, frames.TECMP_CAN, frames.TECMP_CAN_FD, frames.TECMP_LIN))
    count, lin = dealer.deal("entries", (1, 4, 8, 12, 16)), kind == frames.TECMP_LIN
    # a LIN bus of its own, or one of four CAN buses
    interface = 0x20 + dealer.index if lin else 0x10 + dealer.index % 4
    first_id = 1 if lin else 0x40 + dealer.index // 4 * 16
    entries, lengths = list[bytes](), list[int]()
    for message_id in range(first_id, first_id + count):
        length = dealer.random.choice((8, 8, 8, 16, 32)) if kind == frames.TECMP_CAN_FD else 8
        data = (frames.build_tecmp_lin_data if lin else frames.build_tecmp_can_data)(message_id, bytes(length))
        entries.append(frames.build_tecmp_entry(interface, 0, data, 0 if lin else 1))
        lengths.append(length)
    message = frames.build_tecmp_message(0x40 + dealer.index, 0, kind, entries)
    ends = dealer.stations()
    sender = build_ethernet_sender(dealer, frames.build_ethernet_frame(ends[0], ends[1], frames.TECMP, message))
    sender.numbers.append(Number(at=14 + 2, width=2, value=dealer.random.randrange(65536)))
    at = len(sender.frame) - sum(map(len, entries))
    for left, entry, length in zip(range(count, 0, -1), entries, lengths, strict=True):
        sender.clocks.append(Clock(at=at + 4, before_ns=left * TECMP_ENTRY_NS, jitter_ns=TECMP_ENTRY_NS))
        at += len(entry)
        payload_at = at - lin - length
        sender.payloads.append((payload_at, dealer.payload(length)))
        if lin:
            protected_id = sender.frame[payload_at - 2]
            sender.checksums.append(Checksum(at=at - 1, start=payload_at, stop=at - 1, width=1, other=protected_id))
    return sender


def build_gptp_sender(dealer: Dealer) -> Sender:
    clock = 0x0200_00FF_FE00_0000 + dealer.index
    ends = dealer.stations()
    frame = frames.build_ethernet_frame(ends[0], ends[1], frames.GPTP, frames.build_gptp_sync(0, clock))
    sender = build_ethernet_sender(dealer, frame)
    sender.numbers.append(Number(at=14 + 30, width=2, value=0))
    return sender


def build_arp_sender(dealer: Dealer) -> Sender:
    ends = dealer.stations()
    request = frames.build_arp_request(ends[0], ends[2], ends[3])
    return build_ethernet_sender(dealer, frames.build_ethernet_frame(b"\xff" * 6, ends[0], frames.ARP, request))


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How a mix is made and written: the kinds of its senders, and their shares of the packets."""

    suffix: str
    header: bytes
    shares: dict[Callable[[Dealer], Sender], float]

    def build_record(self, sender: Sender) -> bytes:
        packet = files.Packet(0, sender.interface, sender.frame)
        return files.build_enhanced_packet(packet) if self.suffix == "pcapng" else build_pcap_record(packet)

    def build_senders(self, rng: random.Random) -> list[Sender]:
        senders: list[Sender] = []
        for build, share in self.shares.items():
            dealer, rate = Dealer(rng), 0.0
            while rate < share * PACKETS_A_SECOND:
                dealer.begin_sender()
                senders.append(build(dealer))
                rate += 1000 / dealer.period
        return senders


CAN_INTERFACES = [files.Interface(name=f"can{n}", link_type=files.CAN_SOCKETCAN) for n in range(4)]
CAN_HEADER = files.build_section_header("pcaplake sample") + b"".join(
    map(files.build_interface_description, CAN_INTERFACES)
)
MIXES = {
    "a": Mix(suffix="pcapng", header=CAN_HEADER, shares={build_can_sender: 1.0}),
    "b": Mix(suffix="pcap", header=build_pcap_header(1), shares={build_someip_sender: 1.0}),
    "c": Mix(
        suffix="pcap",
        header=build_pcap_header(1),
        shares={
            build_tecmp_sender: 0.45,
            build_someip_sender: 0.30,
            build_tcp_sender: 0.12,
            build_udp_sender: 0.05,
            build_gptp_sender: 0.05,
            build_arp_sender: 0.03,
        },
    ),
}


def generate_mix_blocks(name: str, *, seconds: float, seed: str, start_ns: int) -> Iterator[bytes]:
    """A capture file of a mix in pieces of at most ten seconds."""
    mix, end_ns, rng = MIXES[name], start_ns + round(seconds * 1e9), random.Random(seed)
    yield mix.header
    senders = mix.build_senders(rng)
    for window in schedule(senders, rng, start_ns):
        yield _build_records(mix, senders, rng, window, end_ns)
        if window.end_ns >= end_ns:
            break


def _build_records(mix: Mix, senders: Sequence[Sender], rng: random.Random, window: Window, end_ns: int) -> bytes:
    """The records of a window, in the order of time; those from `end_ns` on are left out."""
    templates = [mix.build_record(sender) for sender in senders]
    sizes = np.array([len(record) for record in templates], np.int64)[window.senders]
    starts = np.empty(len(sizes), np.int64)
    starts[window.order] = np.cumsum(sizes[window.order]) - sizes[window.order]
    out = np.empty(int(sizes.sum()), np.uint8)
    bounds = np.searchsorted(window.senders, np.arange(len(senders) + 1))
    for sender, template, first, stop in zip(senders, templates, bounds, bounds[1:], strict=False):
        times = window.times[first:stop]
        records = np.tile(np.frombuffer(template, np.uint8), (len(times), 1))
        at, head = TIME_AT[mix.suffix], RECORD_HEADER[mix.suffix]
        records[:, at : at + 8] = _record_clocks(mix.suffix, times)
        records[:, head : head + len(sender.frame)] = sender.draw_frames(rng, times)
        out[starts[first:stop, None] + np.arange(len(template))] = records
    return out[: int(sizes[window.times < end_ns].sum())].tobytes()


def _record_clocks(suffix: str, times: NDArray[np.int64]) -> Bytes:
    """The clock of each record: uint8, eight columns."""
    parts = (times >> 32, times & 0xFFFFFFFF) if suffix == "pcapng" else (times // 10**9, times % 10**9 // 1000)
    return np.stack(parts, axis=1).astype("<u4").view(np.uint8)
