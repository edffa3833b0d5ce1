"""Builds frames byte by byte: Ethernet to SOME/IP-SD, CAN and TECMP, as a device on the network sends them.

It shares no declaration with `parser`, because a sample that is built from the decoder's own headers could not reveal a
wrong one. All integers are big-endian unless noted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

VLAN, SERVICE_VLAN = 0x8100, 0x88A8  # IEEE 802.1Q customer and service tags
ARP, IPV4, IPV6, MACSEC, GPTP, TECMP = 0x0806, 0x0800, 0x86DD, 0x88E5, 0x88F7, 0x99FE
TCP, UDP, IPV6_FRAGMENT = 6, 17, 44

REQUEST, REQUEST_NO_RETURN, NOTIFICATION, RESPONSE, ERROR, TP = 0x00, 0x01, 0x02, 0x80, 0x81, 0x20
FIND, OFFER, SUBSCRIBE, SUBSCRIBE_ACK = 0x00, 0x01, 0x06, 0x07
TECMP_CAN, TECMP_CAN_FD, TECMP_LIN = 2, 3, 4
LIN_NO_RESPONSE = 4  # data flag of a LIN entry


def build_ethernet_frame(
    dst: bytes, src: bytes, eth_type: int, payload: bytes, tags: Sequence[tuple[int, int]] = ()
) -> bytes:
    """IEEE 802.3 without FCS; `tags` are (TPID, TCI), outermost first."""
    stack = b"".join(struct.pack(">HH", tpid, tci) for tpid, tci in tags)
    return b"".join((dst, src, stack, struct.pack(">H", eth_type), payload))


def build_arp_request(sender_mac: bytes, sender: bytes, target: bytes) -> bytes:
    """RFC 826, padded to the 46 bytes that Ethernet requires."""
    return struct.pack(">HHBBH6s4s6s4s18x", 1, IPV4, 6, 4, 1, sender_mac, sender, bytes(6), target)


def build_macsec_data(sender_mac: bytes, packet_number: int, eth_type: int, data: bytes, icv: bytes) -> bytes:
    """IEEE 802.1AE: a tag with an SCI, at least 46 bytes of clear data, and the ICV of 16 bytes."""
    return struct.pack(">BBI6sHH", 0x20, 0, packet_number, sender_mac, 1, eth_type) + data + icv


def build_gptp_sync(sequence: int, clock: int) -> bytes:
    """IEEE 802.1AS two-step Sync: 34 bytes of header and 10 reserved."""
    flags, control, log_interval = 0x0208, 0, -3
    head = struct.pack(">BBHBBHqIQHHBb", 0x10, 0x02, 44, 0, 0, flags, 0, 0, clock, 1, sequence, control, log_interval)
    return head + bytes(10)


def build_gptp_follow_up(sequence: int, clock: int, time_ns: int) -> bytes:
    """IEEE 802.1AS Follow_Up with its information TLV (31 bytes without type and length: 28)."""
    head = struct.pack(">BBHBBHqIQHHBb", 0x18, 0x02, 76, 0, 0, 0x0008, 0, 0, clock, 1, sequence, 2, -3)
    origin = struct.pack(">HII", time_ns // 10**9 >> 32, time_ns // 10**9 & 0xFFFFFFFF, time_ns % 10**9)
    return head + origin + struct.pack(">HH3s3siH12xi", 3, 28, b"\x00\x80\xc2", b"\x00\x00\x01", 0, 0, 0)


def internet_checksum(data: bytes) -> int:
    """The Internet checksum (RFC 1071) over a whole number of 16-bit words; an odd byte is padded with zero."""
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF


def build_ipv4_packet(
    src: bytes,
    dst: bytes,
    protocol: int,
    payload: bytes,
    *,
    identification: int = 0,
    fragment: int = 0x4000,
    dscp: int = 0,
) -> bytes:
    """RFC 791 without options; `fragment`: flags and offset as in the header (0x4000: don't fragment)."""
    layout, length = ">BBHHHBBH4s4s", 20 + len(payload)
    head = struct.pack(layout, 0x45, dscp << 2, length, identification, fragment, 64, protocol, 0, src, dst)
    return b"".join((head[:10], internet_checksum(head).to_bytes(2, "big"), head[12:], payload))


def build_ipv4_fragments(
    src: bytes, dst: bytes, protocol: int, payload: bytes, identification: int, size: int
) -> list[bytes]:
    """The payload in IPv4 fragments of `size` bytes (a multiple of 8)."""
    return [
        build_ipv4_packet(src, dst, protocol, payload[at : at + size], identification=identification,
             fragment=(0x2000 if at + size < len(payload) else 0) | at // 8)
        for at in range(0, len(payload), size)
    ]  # fmt: skip


def build_ipv6_packet(src: bytes, dst: bytes, next_header: int, payload: bytes, dscp: int = 0) -> bytes:
    """RFC 8200, the fixed header."""
    return struct.pack(">IHBB16s16s", 6 << 28 | dscp << 22, len(payload), next_header, 64, src, dst) + payload


def build_ipv6_fragments(
    src: bytes, dst: bytes, protocol: int, payload: bytes, identification: int, size: int
) -> list[bytes]:
    """The payload in IPv6 packets with a Fragment header (RFC 8200 section 4.5) each."""
    fragments = []
    for at in range(0, len(payload), size):
        header = struct.pack(">BBHI", protocol, 0, at | (at + size < len(payload)), identification)
        fragments.append(build_ipv6_packet(src, dst, IPV6_FRAGMENT, header + payload[at : at + size]))
    return fragments


def build_udp_datagram(src_port: int, dst_port: int, payload: bytes) -> bytes:
    """RFC 768; no checksum, which IPv4 allows."""
    return struct.pack(">HHHH", src_port, dst_port, 8 + len(payload), 0) + payload


def build_udp_ipv6_packet(src: bytes, dst: bytes, src_port: int, dst_port: int, payload: bytes) -> bytes:
    """RFC 768 with the checksum that IPv6 demands (RFC 8200 section 8.1)."""
    head = struct.pack(">HHH", src_port, dst_port, 8 + len(payload))
    value = (
        internet_checksum(src + dst + struct.pack(">II", 8 + len(payload), UDP) + head + b"\0\0" + payload) or 0xFFFF
    )
    return head + value.to_bytes(2, "big") + payload


def build_tcp_packet(
    src: bytes, dst: bytes, ports: tuple[int, int], seq: int, ack: int, flags: int, payload: bytes = b""
) -> bytes:
    """RFC 9293 over IPv4, without options."""
    head = struct.pack(">HHIIBBHHH", *ports, seq & 0xFFFFFFFF, ack & 0xFFFFFFFF, 0x50, flags, 8192, 0, 0)
    value = internet_checksum(src + dst + struct.pack(">HH", TCP, len(head) + len(payload)) + head + payload)
    return b"".join((head[:16], value.to_bytes(2, "big"), head[18:], payload))


def build_someip_message(
    service: int, method: int, payload: bytes, *, client: int = 0, session: int = 0,
    message_type: int = NOTIFICATION, return_code: int = 0, length: int | None = None,
) -> bytes:  # fmt: skip
    """AUTOSAR PRS_SOMEIPProtocol section 4.1.2; `length` replaces the true length."""
    counted = 8 + len(payload) if length is None else length
    head = (service, method, counted, client, session, 1, 1, message_type, return_code)
    return struct.pack(">HHIHHBBBB", *head) + payload


def build_someip_tp_segments(service: int, method: int, payload: bytes, session: int, size: int) -> list[bytes]:
    """A notification in SOME/IP-TP segments of `size` payload bytes (a multiple of 16); PRS_SOMEIPProtocol 4.2.1.4."""
    return [
        build_someip_message(service, method, struct.pack(">I", at | (at + size < len(payload))) + payload[at : at + size],
               session=session, message_type=NOTIFICATION | TP)
        for at in range(0, len(payload), size)
    ]  # fmt: skip


def build_sd_message(
    entries: Iterable[bytes], options: Iterable[bytes] = (), *, session: int = 1, flags: int = 0xC0
) -> bytes:
    """AUTOSAR PRS_SOMEIPServiceDiscovery section 5.1.2, in its SOME/IP message."""
    entries_array, options_array = b"".join(entries), b"".join(options)
    body = struct.pack(">B3xI", flags, len(entries_array)) + entries_array + struct.pack(">I", len(options_array))
    return build_someip_message(0xFFFF, 0x8100, body + options_array, session=session)


def build_sd_service_entry(kind: int, service: int, instance: int, *, ttl: int, options: tuple[int, int, int, int] = (0, 0, 0, 0),
               major: int = 1, minor: int = 0) -> bytes:  # fmt: skip
    """A service entry; `options` are first index, second index, first count, second count. Minor 0xFFFFFFFF means any."""
    first, second, count1, count2 = options
    versions = struct.pack(">II", major << 24 | ttl, minor)
    return struct.pack(">BBBBHH", kind, first, second, count1 << 4 | count2, service, instance) + versions


def build_sd_eventgroup_entry(kind: int, service: int, instance: int, eventgroup: int, *, ttl: int, counter: int = 0,
                  options: tuple[int, int, int, int] = (0, 0, 0, 0)) -> bytes:  # fmt: skip
    """An eventgroup entry."""
    first, second, count1, count2 = options
    rest = struct.pack(">IBBH", 1 << 24 | ttl, 0, counter, eventgroup)
    return struct.pack(">BBBBHH", kind, first, second, count1 << 4 | count2, service, instance) + rest


def build_sd_endpoint_option(address: bytes, port: int, transport: int = UDP, *, multicast: bool = False) -> bytes:
    """An IPv4 (4 bytes) or IPv6 (16 bytes) endpoint option, or the multicast one of the same family."""
    kind = (0x04 if len(address) == 4 else 0x06) | (0x10 if multicast else 0)
    return struct.pack(">HBB", len(address) + 5, kind, 0) + address + struct.pack(">BBH", 0, transport, port)


def build_sd_configuration_option(items: Mapping[str, str]) -> bytes:
    """A configuration option: length-prefixed `key=value` strings, ended by a zero length."""
    texts = [f"{key}={value}".encode() for key, value in items.items()]
    body = b"".join(bytes([len(text)]) + text for text in texts) + b"\0"
    return struct.pack(">HBB", 1 + len(body), 0x01, 0) + body


def build_socketcan_frame(
    can_id: int, data: bytes, *, fd: bool = False, brs: bool = False, extended: bool = False
) -> bytes:
    """LINKTYPE_CAN_SOCKETCAN, libpcap pcap/can_socketcan.h: id word, length, FD flags, two reserved bytes, data."""
    flags = (0x04 | brs) if fd else 0
    return struct.pack(">IBBH", can_id | extended << 31, len(data), flags, 0) + data


def build_socketcan_remote_frame(can_id: int, length: int) -> bytes:
    """A remote frame: bit 30 set, the length of the data that it requests; Linux records the unused 8 bytes with it."""
    return struct.pack(">IB11x", 1 << 30 | can_id, length)


def build_socketcan_error_frame(error_class: int, data: bytes) -> bytes:
    """A SocketCAN error frame (linux/can/error.h): bit 29 set, the class in the low bits, 8 bytes of detail."""
    return struct.pack(">IBBH8s", 1 << 29 | error_class, 8, 0, 0, data)


def build_tecmp_message(device: int, counter: int, data_type: int, entries: Iterable[bytes]) -> bytes:
    """A TECMP version 3 log message (type 3), start and end of segment set; Wireshark packet-tecmp.c, libtecmp."""
    return struct.pack(">HHBBHHH", device, counter & 0xFFFF, 3, 3, data_type, 0, 3) + b"".join(entries)


def build_tecmp_entry(interface: int, time_ns: int, data: bytes, flags: int = 1) -> bytes:
    """One entry: interface id, time (bit 63 not set: in sync), length, flags.

    Flags of CAN: 1 ACK, 2 RTR or ESI, 4 extended; of LIN: 1 collision, 2 parity, 4 no response.
    """
    return struct.pack(">IQHH", interface, time_ns, len(data), flags) + data


def build_tecmp_can_data(can_id: int, data: bytes, *, extended: bool = False) -> bytes:
    """The data of a CAN or CAN FD entry; the CRC is left out."""
    return struct.pack(">IB", can_id | extended << 31, len(data)) + data


def build_tecmp_lin_data(lin_id: int, data: bytes) -> bytes:
    """The data of a LIN entry: protected id, length, data and (if there is data) the enhanced checksum."""
    pid = lin_protected_id(lin_id)
    return bytes((pid, len(data))) + data + (lin_enhanced_checksum(pid, data) if data else b"")


def lin_protected_id(lin_id: int) -> int:
    """ISO 17987-3: the six bits of the id and two of parity."""
    bit = [lin_id >> n & 1 for n in range(6)]
    p0 = bit[0] ^ bit[1] ^ bit[2] ^ bit[4]
    p1 = 1 ^ bit[1] ^ bit[3] ^ bit[4] ^ bit[5]
    return lin_id | p0 << 6 | p1 << 7


def lin_enhanced_checksum(pid: int, data: bytes) -> bytes:
    """ISO 17987-3 enhanced checksum: inverted sum with carry over the protected id and the data."""
    total = pid + sum(data)
    while total > 0xFF:
        total = (total & 0xFF) + (total >> 8)
    return bytes([total ^ 0xFF])
