"""Record batches with the full schemas and the statistics of the sample mixes a, b and c, made by numpy.

a: CAN, 20 % FD, four interfaces. b: SOME/IP over UDP, 2.7 messages a datagram, 75 % with a VLAN tag.
c: 45 % TECMP with CAN, CAN FD or LIN, 30 % like b, then UDP, TCP, gPTP and ARP. Each packet also gives a `packets` row.
Columns have the form in which the decoder hands them over: strings as dictionaries, constants as dictionaries of one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from parser.tables import TABLES

NOISE = np.array([0, 0, 0, 1, 64, 255], np.uint8)
EPOCH_NS = 1_790_000_000 * 10**9


def signals(rng: np.random.Generator, size: int) -> np.ndarray:
    """Bytes that look like signals: zeros, slow counters, little noise."""
    kind = rng.integers(0, 7, size)
    return np.where(kind < 6, NOISE[np.minimum(kind, 5)], rng.integers(0, 256, size)).astype(np.uint8)


def payloads(rng: np.random.Generator, lengths: np.ndarray) -> pa.Array:
    offsets = np.zeros(lengths.size + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    body = signals(rng, int(offsets[-1]))
    return pa.Array.from_buffers(pa.binary(), lengths.size, [None, pa.py_buffer(offsets), pa.py_buffer(body)])


def words(codes: np.ndarray, values: list[str], mask: np.ndarray | None = None) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32), mask=mask), pa.array(values))


def batch(table: str, rows: int, columns: dict[str, object]) -> pa.RecordBatch:
    """A batch of the table; a scalar is a constant, a column not named is null."""
    schema = TABLES[table].schema
    arrays = []
    for field in schema:
        value = columns.get(field.name)
        if value is None:
            arrays.append(pa.nulls(rows, field.type))
        elif isinstance(value, str):
            arrays.append(words(np.zeros(rows), [value]))
        elif isinstance(value, (bool, int)):
            arrays.append(pa.array(np.full(rows, value), field.type))
        elif isinstance(value, np.ndarray):
            arrays.append(pa.array(value).cast(field.type))
        else:
            arrays.append(value if pa.types.is_dictionary(value.type) else value.cast(field.type))
    return pa.RecordBatch.from_arrays(arrays, names=schema.names)


KEYS = {"capture_id": "9f86d081884c7d659a2feaa0c55ad015", "vehicle_id": "vehicle-7"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Packets:
    """The clock of a run of packets, and which packet each message came from."""

    ts_ns: np.ndarray
    first: int

    def keys(self, of: np.ndarray, sub_no: np.ndarray | int = 0) -> dict[str, object]:
        ts_ns = self.ts_ns[of]
        return KEYS | {"ts_ns": ts_ns, "ts": ts_ns // 1000, "packet_no": of + self.first, "sub_no": sub_no}


def sub_numbers(counts: np.ndarray) -> np.ndarray:
    starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) - np.repeat(starts, counts)


def can_columns(rng: np.random.Generator, rows: int, fd: np.ndarray) -> dict[str, object]:
    short = rng.choice([8, 8, 8, 8, 8, 6, 4, 2], rows)
    length = np.where(fd, rng.choice([12, 16, 24, 32, 64], rows), short)
    dlc = np.where(length <= 8, length, np.searchsorted([12, 16, 20, 24, 32, 48, 64], length) + 9)
    return {
        "can_id": rng.integers(1, 120, rows) * 13 & 0x7FF,
        "extended": False,
        "rtr": pa.array(np.zeros(rows, bool), mask=fd),
        "error": False,
        "fd": fd,
        "brs": pa.array(np.zeros(rows, bool), mask=~fd),
        "esi": pa.array(np.zeros(rows, bool), mask=~fd),
        "xl": False,
        "dlc": dlc,
        "data_len": length,
        "payload": payloads(rng, length),
    }


def mix_a(rng: np.random.Generator, first: int, n: int) -> dict[str, pa.RecordBatch]:
    packets = Packets(ts_ns=EPOCH_NS + first * 100_000 + np.cumsum(rng.integers(1000, 200_000, n)), first=first)
    every = np.arange(n)
    interface = words(rng.integers(0, 4, n), ["can0", "can1", "can2", "can3"])
    can = can_columns(rng, n, rng.random(n) < 0.2)
    length = np.asarray(can["data_len"]) + 8
    keys = packets.keys(every) | {"interface": interface}
    return {
        "can_frames": batch("can_frames", n, keys | can | {"source": "socketcan"}),
        "packets": batch(
            "packets",
            n,
            keys | {"link_type": 227, "captured_len": length, "original_len": length, "protocol": "can"},
        ),
    }


def addresses(rng: np.random.Generator, rows: int, prefix: str, count: int, mask: np.ndarray | None = None) -> pa.Array:
    return words(rng.integers(0, count, rows), [f"{prefix}{i}" for i in range(count)], mask)


def someip_columns(rng: np.random.Generator, rows: int) -> dict[str, object]:
    length = rng.choice([8, 8, 16, 24, 48], rows)
    return {
        "service_id": 0x1000 + rng.integers(0, 60, rows),
        "method_id": 0x8000 + rng.integers(0, 30, rows),
        "client_id": 0,
        "session_id": rng.integers(0, 65536, rows),
        "protocol_version": 1,
        "interface_version": 1,
        "message_type": 2,
        "return_code": 0,
        "is_event": True,
        "length": length + 8,
        "payload": payloads(rng, length),
    }


def ethernet(rng: np.random.Generator, n: int) -> dict[str, object]:
    return {
        "link_type": 1,
        "eth_src": addresses(rng, n, "02:00:00:00:01:", 24),
        "eth_dst": addresses(rng, n, "02:00:00:00:00:", 24),
    }


def vlans(tagged: np.ndarray, rng: np.random.Generator) -> dict[str, object]:
    """vlan_ids: a list of one for a tagged packet, else null."""
    offsets = np.zeros(tagged.size + 1, np.int32)
    np.cumsum(tagged, out=offsets[1:])
    ids = pa.array(rng.choice([5, 10, 10], int(tagged.sum())).astype(np.int32))
    bits = pa.py_buffer(np.packbits(tagged, bitorder="little"))
    lists = pa.Array.from_buffers(
        pa.list_(pa.int32()), tagged.size, [bits, pa.py_buffer(offsets)], int((~tagged).sum()), 0, [ids]
    )
    return {"vlan_ids": lists, "vlan_pcp": pa.array(np.zeros(tagged.size, np.int16), mask=~tagged)}


def mix_b(rng: np.random.Generator, first: int, n: int) -> dict[str, pa.RecordBatch]:
    packets = Packets(ts_ns=EPOCH_NS + 1000 * (first * 100 + np.cumsum(rng.integers(1, 200, n))), first=first)
    counts = rng.choice([1, 1, 2, 2, 3, 4, 6], n)
    of, m = np.repeat(np.arange(n), counts), int(counts.sum())
    some = someip_columns(rng, m)
    length = np.bincount(of, np.asarray(some["length"]) + 8, n).astype(np.int64)
    ip = {
        "ip_src": addresses(rng, n, "10.0.0.", 40),
        "ip_dst": addresses(rng, n, "10.0.1.", 40),
        "src_port": 30000 + rng.integers(0, 64, n),
        "dst_port": 30501,
    }
    carried = {name: v.take(pa.array(of)) if isinstance(v, pa.Array) else v for name, v in ip.items()}
    carried["src_port"] = np.asarray(ip["src_port"])[of]
    tagged = rng.random(n) < 0.75
    captured = length + 42 + 4 * tagged
    return {
        "someip_messages": batch(
            "someip_messages", m, packets.keys(of, sub_numbers(counts)) | carried | some | {"transport": "udp"}
        ),
        "packets": batch(
            "packets",
            n,
            packets.keys(np.arange(n))
            | ethernet(rng, n)
            | ip
            | vlans(tagged, rng)
            | {"captured_len": captured, "original_len": captured, "eth_type": 0x800, "ip_version": 4}
            | {"ip_proto": 17, "ip_ttl": 64, "ip_dscp": 0, "ip_fragment": False, "l4_payload_len": length}
            | {"protocol": "someip"},
        ),
    }


def mix_c(rng: np.random.Generator, first: int, n: int) -> dict[str, pa.RecordBatch]:
    packets = Packets(ts_ns=EPOCH_NS + 1000 * (first * 100 + np.cumsum(rng.integers(1, 200, n))), first=first)
    kind = np.searchsorted(
        [0.225, 0.3375, 0.45, 0.75, 0.80, 0.92, 0.97], rng.random(n)
    )  # can fd lin someip udp tcp gptp arp
    counts = np.where(
        kind < 3, rng.choice([1, 4, 8, 12, 16], n), np.where(kind == 3, rng.choice([1, 1, 2, 2, 3, 4, 6], n), 0)
    )
    out = {}
    total = np.full(n, 46)
    for table, chosen in (("can_frames", kind < 2), ("lin_frames", kind == 2), ("someip_messages", kind == 3)):
        here = np.where(chosen, counts, 0)
        of, m = np.repeat(np.arange(n), here), int(here.sum())
        keys = packets.keys(of, sub_numbers(here))
        bus = {
            "bus": words(rng.integers(0, 4, m), ["16", "17", "18", "19"]),
            "bus_time_ns": rng.integers(0, 1 << 40, m),
            "source": "tecmp",
        }
        if table == "can_frames":
            columns = can_columns(rng, m, kind[of] == 1) | bus
            lengths = np.asarray(columns["data_len"]) + 21
        elif table == "lin_frames":
            lengths = np.full(m, 27)
            columns = bus | {"lin_id": rng.integers(0, 64, m), "parity": 0, "checksum": 0x55}
            columns["payload"] = payloads(rng, np.full(m, 8))
        else:
            columns = someip_columns(rng, m) | {"transport": "udp", "dst_port": 30501}
            columns |= {"ip_src": addresses(rng, m, "10.0.0.", 40), "ip_dst": addresses(rng, m, "10.0.1.", 40)}
            columns["src_port"] = 30000 + rng.integers(0, 64, m)
            lengths = np.asarray(columns["length"]) + 8
        total += np.bincount(of, lengths, n).astype(np.int64)
        out[table] = batch(table, m, keys | columns)
    ip, tcp = (kind >= 3) & (kind <= 5), kind == 5
    absent = ~ip
    eth_type = np.array([0x99FE, 0x99FE, 0x99FE, 0x800, 0x800, 0x800, 0x88F7, 0x806])[kind]
    tagged = ((kind == 3) & (rng.random(n) < 0.75)) | tcp
    protocols = ["tecmp_can", "tecmp_lin", "someip", "udp", "tcp", "ethernet"]
    out["packets"] = batch(
        "packets",
        n,
        packets.keys(np.arange(n))
        | ethernet(rng, n)
        | vlans(tagged, rng)
        | {
            "captured_len": total,
            "original_len": total,
            "eth_type": eth_type,
            "ip_version": pa.array(np.full(n, 4), mask=absent),
            "ip_src": addresses(rng, n, "10.0.0.", 40, absent),
            "ip_dst": addresses(rng, n, "10.0.1.", 40, absent),
            "ip_proto": pa.array(np.where(tcp, 6, 17), mask=absent),
            "ip_ttl": pa.array(np.full(n, 64), mask=absent),
            "ip_dscp": pa.array(np.zeros(n), mask=absent),
            "ip_fragment": pa.array(np.zeros(n, bool), mask=absent),
            "src_port": pa.array(np.where(tcp, 13400, 30000 + rng.integers(0, 64, n)), mask=absent),
            "dst_port": pa.array(np.array([0, 0, 0, 30501, 5353, 50000, 0, 0])[kind], mask=absent),
            "tcp_flags": pa.array(np.full(n, 24), mask=~tcp),
            "tcp_seq": pa.array(np.cumsum(tcp) * 300, mask=~tcp),
            "tcp_ack": pa.array(np.ones(n), mask=~tcp),
            "l4_payload_len": pa.array(total - 8, mask=absent),
            "protocol": words(np.array([0, 0, 1, 2, 3, 4, 5, 5])[kind], protocols),
        },
    )
    return out


MIXES = {"a": mix_a, "b": mix_b, "c": mix_c}


def table_batches(mix: str, packets: int, rows: int = 262_144) -> dict[str, list[pa.RecordBatch]]:
    """Batches of `rows` rows for every table of the mix, from `packets` packets; the last is shorter."""
    rng = np.random.default_rng(1)
    out = {}
    for table, whole in MIXES[mix](rng, 1, packets).items():
        out[table] = [whole.slice(at, rows) for at in range(0, whole.num_rows, rows)]
    return out
