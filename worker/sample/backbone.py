"""The Ethernet traffic of a drive: SOME/IP with service discovery, a capture module, TCP, gPTP, ARP, MACsec.

Each function is one source of traffic and yields packets in time order, without end.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from ipaddress import ip_address

from . import frames
from .files import INBOUND, OUTBOUND, Packet
from .payloads import payload_source
from .sources import (
    BACKBONE,
    EVENT_PORT,
    LOGGER,
    SD_PORT,
    SOMEIP_PORT,
    STREAM_PORT,
    Source,
    cyclic_timestamps,
)

_ECUS = {name: bytes((2, 0, 0, 0, 1, n)) for n, name in enumerate(("gateway", "camera", "cluster", "logger"), 1)}
IPV4 = {name: bytes((10, 0, 7, mac[5])) for name, mac in _ECUS.items()}
_IPV6 = {name: ip_address(f"fd53:7cb8:383:7::{mac[5]:x}").packed for name, mac in _ECUS.items()}
_SD_IPV4, _SD_IPV6 = ip_address("224.224.224.245").packed, ip_address("ff14::4:0").packed
_SD_MAC4, _SD_MAC6 = bytes.fromhex("01005e60e0f5"), bytes.fromhex("333300040000")
_EVENT_GROUP = {4: ip_address("239.192.255.251").packed, 6: ip_address("ff14::4:fb").packed}
_ANY = 0xFFFFFFFF


def ethernet_frame(sender: str, receiver: str | bytes, eth_type: int, payload: bytes, vlan: int | None = 10) -> bytes:
    dst = receiver if isinstance(receiver, bytes) else _ECUS[receiver]
    return frames.build_ethernet_frame(
        dst, _ECUS[sender], eth_type, payload, [] if vlan is None else [(frames.VLAN, 3 << 13 | vlan)]
    )


def udp_ipv4_frame(sender: str, receiver: str, ports: tuple[int, int], payload: bytes, vlan: int | None = 10) -> bytes:
    packet = frames.build_ipv4_packet(
        IPV4[sender], IPV4[receiver], frames.UDP, frames.build_udp_datagram(*ports, payload), dscp=34
    )
    return ethernet_frame(sender, receiver, frames.IPV4, packet, vlan)


def _udp_ipv6_frame(sender: str, receiver: str, ports: tuple[int, int], payload: bytes) -> bytes:
    src, dst = _IPV6[sender], _IPV6[receiver]
    packet = frames.build_ipv6_packet(
        src, dst, frames.UDP, frames.build_udp_ipv6_packet(src, dst, *ports, payload), dscp=34
    )
    return ethernet_frame(sender, receiver, frames.IPV6, packet)


class TcpConnection:
    """A TCP connection between two control units, with running sequence numbers."""

    def __init__(self, rng: random.Random, client: str, server: str, ports: tuple[int, int]) -> None:
        self._names, self._ports = (client, server), ports
        self._sequence = {name: rng.randrange(1 << 32) for name in self._names}

    def open(self, time_ns: int) -> Source:
        """The three segments of the handshake."""
        for n, (by_client, flags) in enumerate(((True, 0x02), (False, 0x12), (True, 0x10))):
            yield self.send(time_ns + n * 200_000, by_client, b"", flags)

    def send(self, time_ns: int, by_client: bool, data: bytes, flags: int = 0x18) -> Packet:
        src, dst = self._names if by_client else self._names[::-1]
        ports = self._ports if by_client else self._ports[::-1]
        numbers = self._sequence[src], self._sequence[dst]
        segment = frames.build_tcp_packet(IPV4[src], IPV4[dst], ports, *numbers, flags, data)
        self._sequence[src] = (numbers[0] + len(data) + (flags >> 1 & 1)) & 0xFFFFFFFF
        packet = frames.build_ipv4_packet(IPV4[src], IPV4[dst], frames.TCP, segment)
        return Packet(time_ns, BACKBONE, ethernet_frame(src, dst, frames.IPV4, packet), INBOUND)


def someip_events(rng: random.Random, start_ns: int, part: int) -> Source:
    """Notifications of a service, one to four in a datagram; services differ in VLAN tags, every third uses IPv6."""
    services = [
        (0x1000 + part, 0x8001 + n, payload_source(rng, rng.choice((8, 16, 24, 48)))) for n in range(1 + part % 4)
    ]
    for session, time_ns in enumerate(cyclic_timestamps(rng, start_ns, (20, 50, 100)[part % 3])):
        messages = (
            frames.build_someip_message(s, m, payload(), session=session % 0xFFFF + 1) for s, m, payload in services
        )
        body, ports = b"".join(messages), (SOMEIP_PORT, 40000 + part)
        if part % 3 == 2:
            yield Packet(time_ns, BACKBONE, _udp_ipv6_frame("camera", "cluster", ports, body), INBOUND)
        elif part % 4 == 0:
            packet = frames.build_ipv4_packet(
                IPV4["camera"], IPV4["cluster"], frames.UDP, frames.build_udp_datagram(*ports, body)
            )
            tags = [(frames.SERVICE_VLAN, 5 << 13 | 200), (frames.VLAN, 5 << 13 | 20)]
            frame = frames.build_ethernet_frame(_ECUS["cluster"], _ECUS["camera"], frames.IPV4, packet, tags)
            yield Packet(time_ns, BACKBONE, frame, INBOUND)
        else:
            yield Packet(
                time_ns, BACKBONE, udp_ipv4_frame("camera", "cluster", ports, body, 10 if part % 2 else None), INBOUND
            )


def someip_calls(rng: random.Random, start_ns: int, part: int) -> Source:
    """Requests with their responses or errors, and requests without a response."""
    ask, reply = payload_source(rng, 8), payload_source(rng, 20)
    ports = (40100 + part, SOMEIP_PORT)
    for session, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 40), 1):
        header = {"client": 0x0100 + part, "session": session % 0xFFFF + 1}
        kind = frames.REQUEST_NO_RETURN if session % 7 == 0 else frames.REQUEST
        request = frames.build_someip_message(0x2000 + part, 0x0001, ask(), message_type=kind, **header)
        yield Packet(time_ns, BACKBONE, udp_ipv4_frame("cluster", "gateway", ports, request), OUTBOUND)
        if kind == frames.REQUEST:
            failed = session % 11 == 0
            answer = frames.build_someip_message(
                0x2000 + part, 0x0001, b"" if failed else reply(), **header,
                message_type=frames.ERROR if failed else frames.RESPONSE, return_code=4 if failed else 0,
            )  # fmt: skip
            frame = udp_ipv4_frame("gateway", "cluster", (ports[1], ports[0]), answer)
            yield Packet(time_ns + 300_000 + int(rng.random() * 90_000), BACKBONE, frame, INBOUND)


def someip_large(rng: random.Random, start_ns: int, kind: str) -> Source:
    """Messages longer than a packet: SOME/IP-TP segments, and datagrams in IPv4 and IPv6 fragments."""
    payload = payload_source(rng, 5000 if kind == "tp" else 3000)
    for session, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 400), 1):
        data, ports = payload(), (SOMEIP_PORT, 40200)
        datagram = frames.build_someip_message(0x3000, 0x8009, data, session=session & 0xFFFF)
        src, dst = ("camera", "cluster")
        if kind == "tp":
            parts = [
                udp_ipv4_frame(src, dst, ports, p)
                for p in frames.build_someip_tp_segments(0x3001, 0x8009, data, session & 0xFFFF, 1392)
            ]
        elif kind == "ipv4":
            whole = frames.build_udp_datagram(*ports, datagram)
            cut = frames.build_ipv4_fragments(IPV4[src], IPV4[dst], frames.UDP, whole, session & 0xFFFF, 1480)
            parts = [ethernet_frame(src, dst, frames.IPV4, p) for p in cut]
        else:
            whole = frames.build_udp_ipv6_packet(_IPV6[src], _IPV6[dst], *ports, datagram)
            cut = frames.build_ipv6_fragments(_IPV6[src], _IPV6[dst], frames.UDP, whole, session, 1448)
            parts = [ethernet_frame(src, dst, frames.IPV6, p) for p in cut]
        for n, part in enumerate(parts):
            yield Packet(time_ns + n * 20_000, BACKBONE, part, INBOUND)


def discovery(rng: random.Random, start_ns: int, version: int) -> Source:
    """SOME/IP-SD over IPv4 or IPv6: find, offer, subscribe, acknowledge, refuse and stop, repeatedly."""
    addresses, group, group_mac = (IPV4, _SD_IPV4, _SD_MAC4) if version == 4 else (_IPV6, _SD_IPV6, _SD_MAC6)
    server, client = addresses["camera"], addresses["cluster"]
    offered = [
        frames.build_sd_endpoint_option(server, SOMEIP_PORT),
        frames.build_sd_endpoint_option(server, 30503, frames.TCP),
    ]
    config = frames.build_sd_configuration_option({"hostname": "camera", "protocol": "1.1"})
    client_endpoint = [frames.build_sd_endpoint_option(client, 40000)]
    events = [frames.build_sd_endpoint_option(_EVENT_GROUP[version], EVENT_PORT, multicast=True)]
    service, event = frames.build_sd_service_entry, frames.build_sd_eventgroup_entry
    rounds: list[tuple[str, list[bytes], list[bytes]]] = [
        ("cluster", [service(frames.FIND, 0x1000, 0xFFFF, ttl=3, major=0xFF, minor=_ANY)], []),
        ("camera", [service(frames.OFFER, 0x1000 + n, 1, ttl=3, minor=n, options=(0, 2, 2, n % 2)) for n in range(3)],
         [*offered, config]),
        ("cluster", [event(frames.SUBSCRIBE, 0x1000, 1, 0x10, ttl=3, counter=2, options=(0, 0, 1, 0)),
                     event(frames.SUBSCRIBE, 0x1001, 1, 0x11, ttl=3, options=(0, 0, 1, 0))], client_endpoint),
        ("camera", [event(frames.SUBSCRIBE_ACK, 0x1000, 1, 0x10, ttl=3, counter=2, options=(0, 0, 1, 0)),
                    event(frames.SUBSCRIBE_ACK, 0x1001, 1, 0x11, ttl=0)], events),
        ("cluster", [event(frames.SUBSCRIBE, 0x1000, 1, 0x10, ttl=0, counter=2, options=(0, 0, 1, 0))], client_endpoint),
        ("camera", [service(frames.OFFER, 0x1002, 1, ttl=0, minor=2, options=(0, 0, 1, 0))], offered[:1]),
    ]  # fmt: skip
    for n, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 100)):
        sender, entries, options = rounds[n % len(rounds)]
        session = n // len(rounds) % 0xFFFF + 1
        body = frames.build_sd_message(entries, options, session=session, flags=0xC0 if n < 50 * len(rounds) else 0x40)
        if version == 4:
            ip = frames.build_ipv4_packet(
                addresses[sender], group, frames.UDP, frames.build_udp_datagram(SD_PORT, SD_PORT, body)
            )
        else:
            datagram = frames.build_udp_ipv6_packet(addresses[sender], group, SD_PORT, SD_PORT, body)
            ip = frames.build_ipv6_packet(addresses[sender], group, frames.UDP, datagram)
        eth_type = frames.IPV4 if version == 4 else frames.IPV6
        yield Packet(time_ns, BACKBONE, ethernet_frame(sender, group_mac, eth_type, ip), OUTBOUND)


def capture_module(rng: random.Random, start_ns: int, kind: int) -> Source:
    """A TECMP capture module: CAN, CAN FD or LIN frames of the last milliseconds in one Ethernet frame."""
    lengths = {frames.TECMP_CAN: (8, 8, 6), frames.TECMP_CAN_FD: (12, 16, 32, 64), frames.TECMP_LIN: (8, 4, 2)}[kind]
    senders = [(0x100 + 0x25 * n, payload_source(rng, rng.choice(lengths))) for n in range(12)]
    interface = {frames.TECMP_CAN: 16, frames.TECMP_CAN_FD: 17, frames.TECMP_LIN: 18}[kind]
    flags = 0x11 if kind == frames.TECMP_CAN_FD else 1
    for counter, time_ns in enumerate(cyclic_timestamps(rng, start_ns, 10 if kind != frames.TECMP_LIN else 50)):
        entries, size = [], rng.choice((1, 3, 6, 10))
        for n in range(size):
            can_id, payload = senders[(counter + n) % len(senders)]
            bus_time = time_ns - (size - n) * 150_000
            if kind == frames.TECMP_LIN:
                silent = (counter + n) % 50 == 49
                flags = frames.LIN_NO_RESPONSE if silent else 0
                data = frames.build_tecmp_lin_data(0x10 + can_id % 0x20, b"" if silent else payload())
            else:
                data = frames.build_tecmp_can_data(can_id + 0x18DA0000 * (n % 5 == 4), payload(), extended=n % 5 == 4)
            entries.append(frames.build_tecmp_entry(interface, bus_time, data, flags))
        frame = frames.build_tecmp_message(0x0040, counter, kind, entries)
        yield Packet(time_ns, LOGGER, ethernet_frame("logger", b"\x01\0\x5e\0\0\0", frames.TECMP, frame, None), INBOUND)


def unknown_stream(rng: random.Random, start_ns: int, _part: int) -> Source:
    """A TCP connection of unknown content, both ways."""
    connection = TcpConnection(rng, "cluster", "gateway", (49200, 50000))
    times, payload = cyclic_timestamps(rng, start_ns, 60), payload_source(rng, 200)
    yield from connection.open(next(times))
    for n, time_ns in enumerate(times):
        yield connection.send(time_ns, n % 2 == 0, payload())


def someip_stream(rng: random.Random, start_ns: int, _part: int) -> Source:
    """Requests and responses of SOME/IP in a TCP connection; a response of 2,400 bytes needs two segments."""
    connection = TcpConnection(rng, "cluster", "camera", (49400, STREAM_PORT))
    times, asked, told = cyclic_timestamps(rng, start_ns, 70), payload_source(rng, 24), payload_source(rng, 2400)
    yield from connection.open(next(times))
    for session, time_ns in enumerate(times, 1):
        request = frames.build_someip_message(
            0x3010, 0x0005, asked(), session=session & 0xFFFF, message_type=frames.REQUEST
        )
        response = frames.build_someip_message(
            0x3010, 0x0005, told(), session=session & 0xFFFF, message_type=frames.RESPONSE
        )
        yield connection.send(time_ns, True, request)
        for n, at in enumerate(range(0, len(response), 1400)):
            yield connection.send(time_ns + 2_000_000 + n * 150_000, False, response[at : at + 1400])


def housekeeping(rng: random.Random, start_ns: int, kind: str) -> Source:
    """gPTP, ARP, also in MACsec, and UDP of unknown content."""
    noise = payload_source(rng, 90)
    cycle_ms = {"gptp": 125, "arp": 900, "macsec": 800, "udp": 30}[kind]
    for n, time_ns in enumerate(cyclic_timestamps(rng, start_ns, cycle_ms)):
        if kind == "gptp":
            clock = 0x0200_00FF_FE00_0101
            pair = (frames.build_gptp_sync(n & 0xFFFF, clock), frames.build_gptp_follow_up(n & 0xFFFF, clock, time_ns))
            for late, message in enumerate(pair):
                frame = ethernet_frame("gateway", bytes.fromhex("0180c200000e"), frames.GPTP, message, None)
                yield Packet(time_ns + late * 90_000, BACKBONE, frame, OUTBOUND)
        elif kind == "arp":
            request = frames.build_arp_request(_ECUS["cluster"], IPV4["cluster"], IPV4["gateway"])
            yield Packet(time_ns, BACKBONE, ethernet_frame("cluster", b"\xff" * 6, frames.ARP, request, None), INBOUND)
        elif kind == "macsec":
            request = frames.build_arp_request(_ECUS["camera"], IPV4["camera"], IPV4["gateway"])
            data = frames.build_macsec_data(_ECUS["camera"], n + 1, frames.ARP, request, rng.randbytes(16))
            yield Packet(time_ns, BACKBONE, ethernet_frame("camera", "gateway", frames.MACSEC, data, None), INBOUND)
        else:
            yield Packet(
                time_ns, BACKBONE, udp_ipv4_frame("gateway", "logger", (42511, 42512), noise(), None), OUTBOUND
            )


def backbone_sources() -> Iterator[tuple[Callable[..., Source], object]]:
    """Every source with its argument `part`."""
    yield from ((someip_events, n) for n in range(12))
    yield from ((someip_calls, n) for n in range(2))
    yield from ((someip_large, kind) for kind in ("tp", "ipv4", "ipv6"))
    yield from ((discovery, version) for version in (4, 6))
    yield from ((capture_module, kind) for kind in (frames.TECMP_CAN, frames.TECMP_CAN_FD, frames.TECMP_LIN))
    yield from ((housekeeping, kind) for kind in ("gptp", "arp", "macsec", "udp"))
    yield unknown_stream, 0
    yield someip_stream, 0
