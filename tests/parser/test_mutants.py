"""Every rule of the kernels and every claim of the declarations is broken on purpose, and a small corpus must tell.

Mutants of the kernels (kernel_mutants.py) run interpreted and checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import combinations
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pcaplake.parser import Profile
from pcaplake.parser.capture import reader as capture
from pcaplake.parser.engine.key_spaces import KeySpace
from pcaplake.parser.engine.program import Program
from tests.parser import captures, frames, nested
from tests.parser.can_carriers import (
    MAC,
    REMOTE,
    cmp,
    cmp_can,
    cmp_ethernet,
    cmp_message,
    cmp_packet,
    fragments,
    macsec,
    segmented,
    someip,
    tagged,
    tecmp_ethernet,
    udp,
)
from tests.parser.can_carriers import tecmp as tecmp_can
from tests.parser.captures import T0, Section
from tests.parser.checked import checked_kernels, in_place
from tests.parser.compare import read
from tests.parser.declaration_mutants import CLAIMS
from tests.parser.j1939_frames import ABORT, END_OF_MESSAGE_ACK, Message, control, to_one
from tests.parser.kernel_mutants import MUTANTS
from tests.parser.nested import USER0, box, entry, frame, inner, leaf
from tests.parser.protocols.golden import GOLDEN

pytestmark = pytest.mark.slow

END_OF_TIME = 7_258_118_400
Made = list[tuple[dict[str, Any], Any]]


# -- the corpus -------------------------------------------------------------------------------------------------------
def golden() -> Iterator[bytes]:
    by_link_type: dict[tuple[int, str], list[bytes]] = {}
    for case in (*GOLDEN["good"], *GOLDEN["faulty"]):
        by_link_type.setdefault((case["link_type"], case.get("order", "<")), []).append(bytes.fromhex(case["frame"]))
    for (link_type, order), found in by_link_type.items():
        yield captures.pcap(found, link_type, order=order)


def generated() -> Iterator[bytes]:
    r = Random(4)
    for link_type in (1, 227, 212, 210, 113, 229):
        made = (frames.MAKERS[link_type](r) for _ in range(12))
        yield captures.pcap(
            [frames.spoil(r, f) if r.random() < 0.6 else f for f in made], link_type, order=">", magic="ns"
        )


def tecmp(*entries: bytes) -> bytes:
    return bytes(12) + b"\x99\xfe" + struct.pack(">HHBBHHH", 1, 1, 3, 3, 4, 0, 0) + b"".join(entries)


def lin(ident: int, data: bytes, length: int | None = None) -> bytes:
    size = len(data) + 3 if length is None else length
    return struct.pack(">IQHHBB", 7, 1, size, 0, ident, len(data)) + data + b"\x55"


def cornered() -> bytes:
    """Ethernet: what random frames seldom hit. FCS bits in the link type; of two frames they were not captured."""
    segment = struct.pack(">IIHHBBBB", 1, 100, 0, 0, 1, 1, 0x20, 0)  # a TP segment of which the TP header is missing
    six = [struct.pack(">IHBB", 6 << 28, 0, 59, 64) + bytes([high] * 8 + [9] * 8) + bytes(16) for high in (1, 2, 3)]
    udp = [
        struct.pack(">HHHH", 1, 30501, 8 + len(body), 0) + body
        for body in (segment + b"\0", segment, someip_of(9), someip_of(1))
    ]
    made = [bytes(12) + b"\x08\x00" + ip_of(datagram) for datagram in udp] + [
        bytes(12) + b"\x86\xdd" + ip for ip in six
    ]
    made.append(tecmp(lin(1, b"ab"), lin(2, b"", 0)[:16], lin(3, b"c")))  # an entry of no length ends the chain
    made.append(tecmp(lin(1, b"ab"), lin(2, b"cd")[:-1]))
    made.append(tecmp(lin(1, b"ab")) + bytes(15))
    made.append(tecmp(struct.pack(">IQHHB", 7, 1, 1, 0, 1)))  # of a LIN frame, the identifier only
    made.append(tecmp(struct.pack(">IQHHBB", 7, 1, 5, 0x8000, 1, 2) + b"ab\x55"))  # the module lost what was before it
    made.append(b"\1\2")  # shorter than its FCS
    records = [captures.pcap_record(f + b"\xfc\xfc\xfc\xfc", T0 + i) for i, f in enumerate(made)]
    records += [
        captures.pcap_record(made[2], T0, original=len(made[2]) + 4),
        captures.pcap_record(made[2] + b"\xfc", original=len(made[2]) + 4),
    ]
    records += [captures.pcap_record(made[2][:n] + b"\xfc") for n in (0, 2)]
    return captures.pcap_header(1 | 1 << 26 | 4 << 28) + b"".join(records)


def someip_of(size: int) -> bytes:
    return struct.pack(">IIHHBBBB", 1, size + 8, 0, 0, 1, 1, 0, 0) + bytes(range(1, size + 1))


def sections() -> bytes:
    s, b = Section("<"), Section(">")
    can0 = struct.pack(">I4B", 5, 8, 0, 0, 0) + b"12345678"
    seconds = s.interface(227, resolution=0, name="s")
    return b"".join(
        (
            s.header(),
            s.interface(227, name="can0"),
            s.enhanced(can0, flags=2, more=s.option(1, b"hello")),
            s.enhanced(can0, flags=1),
            s.enhanced(can0, captured=20),
            s.enhanced(can0, flags=4 << 5),
            s.enhanced(struct.pack(">I4B", 5, 7, 0, 0, 0) + b"1234567", flags=1),
            s.enhanced(can0, interface=1),
            s.interface(1, resolution=9, fcs=4, snaplen=10),
            s.enhanced(bytes(14) + b"\1\2\3\4\5\6", T0 * 10**9 + 1, interface=1),
            s.enhanced(bytes(14) + b"\1\2\3\4\5\6", T0 * 10**9 + 1, interface=1, flags=2 << 5),
            s.block(6, b"\0" * 8),
            seconds,
            *(s.enhanced(can0, t, interface=2) for t in (0, END_OF_TIME - 1, END_OF_TIME)),
            s.interface(227, resolution=0, offset=-5),
            *(s.enhanced(can0, t, interface=3) for t in (4, 5, 6)),
            s.interface(227, resolution=12),
            s.enhanced(can0, T0 * 10**12 + 999, interface=4),
            s.interface(227, resolution=0x80 | 20),
            s.enhanced(can0, (T0 << 20) + 7, interface=5),
            s.interface(227, resolution=0x80 | 40),
            s.enhanced(can0, (1 << 60) + (1 << 39), interface=6),
            s.interface(227, resolution=0xFF),
            s.enhanced(can0, interface=7),
            s.enhanced(can0, more=s.option(1, bytes(40))[:8]),
            s.block(10, b"1234", echo=20),
            s.enhanced(can0),
            struct.pack("<II2sI", 4, 14, b"ab", 14),  # no multiple of four
            s.enhanced(can0),
            b"garbage!" * 3 + struct.pack("<II24sI", 6, 36, bytes(24), 32) + struct.pack("<III", 0x77, 12, 12),
            s.enhanced(can0),
            b.header(),
            b.interface(227, snaplen=12),
            b.simple(can0),
            b.enhanced(can0, flags=1, more=b.option(4, bytes(8))),
            b.obsolete(can0, flags=2, drops=0xFFFF),
            b.obsolete(can0, drops=3),
            b.enhanced(can0, flags=1, more=b.option(2, bytes(4)) + b.option(4, bytes(7) + b"\5")),
            b"garbage!" * 2,
            b.enhanced(can0),
        )
    )


def joined() -> bytes:
    """Files one after the other, in both byte orders; zeros; a packet of the year 2055."""
    frame = struct.pack(">I4B", 5, 1, 0, 0, 0) + b"a"
    whole = captures.pcap([frame], 227) + bytes(48) + captures.pcap([frame], 227, order=">", magic="ns")
    return whole + captures.pcap_header(227) + captures.pcap_record(frame, 0xA1B2C3D4, 262_145)


def diagnostics() -> bytes:
    """CAN frames of the identifiers of the tests' profile: single, escaped and segmented messages, of can-isotp."""
    normal = ["101462f190575657", "300000", "215a5a5a314a5a58", "2257303030303031"]
    made = [socketcan(0x7E0, "0322f190cc"), *(socketcan(0x7E8, data) for data in normal)]
    made.append(socketcan(0x7E8, "0028" + "62f190" + "57" * 37 + "cc" * 6, fd=True))
    # a response in time, pending; two of a group; one of nobody
    made += [
        socketcan(0x7E0, "021003"),
        socketcan(0x7E8, "037f1078"),
        socketcan(0x7E8, "025003"),
        socketcan(0x7E8, "025003"),
    ]
    made += [socketcan(0x7DF, "023e00"), socketcan(0x7E8, "027e00"), socketcan(0x7E8, "027e00")]
    return captures.pcap(made, 227)


def socketcan(can_id: int, data: str, *, fd: bool = False) -> bytes:
    return struct.pack(">I4B", can_id, len(data) // 2, 4 if fd else 0, 0, 0) + bytes.fromhex(data)


def transported() -> bytes:
    """Messages of J1939 that an end ends before they are whole."""
    message = Message(1, 2, 65200, bytes(30))
    begun = list(to_one(Random(1), message, again=0))[:3]
    ends = [control(END_OF_MESSAGE_ACK, 2, 1, message.pgn, 30, 0, 5, 0xFF)]
    ends += [control(ABORT, *way, message.pgn, 3, 0xFF, 0xFF, 0xFF) for way in ((1, 2), (2, 1))]
    frames_ = [frame for end in ends for frame in (*begun, end)]
    return captures.pcap([struct.pack(">I4B", word, len(data), 0, 0, 0) + data for word, data in frames_], 227)


def nests() -> bytes:
    def deep(layers: int) -> bytes:
        body = leaf(1)
        for i in range(layers):
            body = inner(i, 1 if i else 2, body)
        return entry(1, body)

    made = [
        entry(1, inner(7, 2, leaf(5))) + entry(2, leaf(6) + b"x") + entry(1, inner(8, 2, leaf(7))),
        entry(2, leaf(9)),
    ]
    made += [entry(2, leaf(1)) + b"abcd", entry(3, box(6, 2, leaf(3) + b"zz")), entry(3, box(3, 2, leaf(3) + b"zz"))]
    identified = [
        entry(8, frame(n, leaf(n & 0xFF))) for n in (0, 4, 5, 6, 7, 8, 15, 16, 31, 32, 0x9FFFFFFF, 0xFFFFFFFF)
    ]
    # a twin gives its identifier to the frame at its place only
    twins = [entry(9, frame(n, leaf(n), "<")) for n in (0, 3, 5, 7)] + [entry(8, frame(3, leaf(3)))]
    made += [*identified, *twins, twins[1] + entry(8, frame(3, leaf(4)))]
    return captures.pcap([*made, deep(30) + entry(2, leaf(2)), deep(31), deep(32)], USER0)


def groups() -> bytes:
    def group(ident: int, *members: tuple[int, bytes]) -> bytes:
        return struct.pack(">I", ident) + b"".join(struct.pack(">II", kind, len(m)) + m for kind, m in members)

    return captures.pcap([group(7, (2, leaf(1)), (1, group(8, (2, leaf(2)))), (2, leaf(3)))], nested.USER1)


def look_at(data: bytes, *declared: Any) -> Any:
    """What is in a capture by the declarations of `nested.py`."""
    with pytest.MonkeyPatch.context() as patch:
        nested.use(patch, *declared)
        return read(data)


def modules() -> bytes:
    """Frames of capture modules: remote ones, of two buses, in pieces, with tags and packets inside."""
    a, b = fragments(someip(b"a" * 20)), fragments(someip(b"b" * 20))
    made = [tecmp_can(0x7E0, b"\2\x10\3", 7, REMOTE), cmp(0x7E0, b"\2\x10\3", 7)]
    made += [tecmp_ethernet(a[0], 1), tecmp_ethernet(b[0], 2), tecmp_ethernet(a[1], 1), tecmp_ethernet(b[1], 2)]
    response = cmp_message(1, cmp_can(0x7E8, b"\2\x50\3"), 7)
    made.append(MAC + b"\x99\xfe" + cmp_packet(cmp_message(8, cmp_ethernet(udp(b"x", 9)), 1), response))
    return captures.pcap([*made, tecmp_ethernet(tagged(""), 7), *segmented(cmp_ethernet(macsec()), 30)])


def offered() -> bytes:
    """A port that service discovery offers, and one of RTPS, that have messages and something else."""
    options = struct.pack(">HBB4sBBH", 9, 4, 0, bytes(4), 0, 17, 30600)
    entry_ = struct.pack(">B3BHHII", 1, 0, 0, 16, 1, 1, 1 << 24 | 3, 0)
    body = bytes(4) + struct.pack(">I", 16) + entry_ + struct.pack(">I", 12) + options
    discovery = struct.pack(">IIHHBBBB", 0xFFFF8100, len(body) + 8, 0, 1, 1, 1, 2, 0) + body
    good = someip_of(4)
    sent = [(discovery, 30490), *((part, 30600) for part in (good, good[:15], good[:12] + b"\0" + good[13:]))]
    sent += [(part, 7400) for part in (b"RTPS" + bytes(16), b"RTP", b"none")]
    datagrams = [struct.pack(">HHHH", 1, port, 8 + len(part), 0) + part for part, port in sent]
    return captures.pcap([bytes(12) + b"\x08\x00" + ip_of(datagram) for datagram in datagrams])


def ip_of(datagram: bytes) -> bytes:
    return struct.pack(">BBHHHBBH8s", 0x45, 0, 20 + len(datagram), 0, 0, 1, 17, 0, bytes(8)) + datagram


def shapes() -> bytes:
    """More shapes of packets than the kernels tell apart: in links of two types, with VLAN tags, fragmented, with IPv6
    extensions."""

    def upper(protocol: int) -> bytes:
        return {
            17: struct.pack(">HHHH", 7, 8, 9, 0) + b"u",
            6: struct.pack(">HHIIHHHH", 7, 8, 1, 2, 5 << 12, 1, 0, 0),
        }.get(protocol, b"")

    def six(extensions: Sequence[int], protocol: int) -> bytes:
        """extensions: 44 fragment, 51 authentication, 60 options."""
        chain = [*extensions, protocol]
        headers = {44: b"%c\0\0\1" + bytes(4), 51: b"%c\1" + bytes(10), 60: b"%c\0\1\4" + bytes(4)}
        body = b"".join(headers[kind] % after for kind, after in zip(extensions, chain[1:], strict=True)) + upper(
            protocol
        )
        return b"\x86\xdd" + struct.pack(">IHBB", 6 << 28, len(body), chain[0], 64) + bytes(32) + body

    def four(fragment: int, authenticated: bool, protocol: int) -> bytes:
        body = (bytes([protocol, 1]) + bytes(10) if authenticated else b"") + upper(protocol)
        kind = 51 if authenticated else protocol
        return (
            b"\x08\x00" + struct.pack(">BBHHHBBH8s", 0x45, 0, 20 + len(body), 1, fragment, 9, kind, 0, bytes(8)) + body
        )

    subsets = [subset for n in range(4) for subset in combinations((60, 44, 51), n)]
    packets = [six(subset, protocol) for subset in subsets for protocol in (17, 6, 59)]
    packets += [four(f, a, p) for f in (0, 0x2000) for a in (False, True) for p in (17, 6, 59)]
    heads = bytes(12), bytes(12) + b"\x81\0\0\7", bytes(14)  # Ethernet, with a VLAN tag; Linux cooked capture
    section = Section("<")
    made = [section.enhanced(head + packet, interface=len(head) == 14) for packet in packets for head in heads]
    Random(2).shuffle(made)
    return section.header() + section.interface(1) + section.interface(113) + b"".join(made)


def mostly() -> bytes:
    """Packets of which nearly all have what one of them has not."""
    udp = struct.pack(">BBHHHBBH8s", 0x45, 0, 28, 0, 0, 9, 17, 0, bytes(8)) + struct.pack(">HHHH", 1, 2, 8, 0)
    six = struct.pack(">IHBB", 6 << 28, 0, 59, 64) + bytes(32)
    return captures.pcap([bytes(12) + b"\x08\0" + udp] * 20 + [bytes(12) + b"\x86\xdd" + six, bytes(14)], 1)


SMALL = [cornered(), *generated()]  # read in batches as small as they can be
# the shortest first: most mutants are told apart by one of them
CORPUS = sorted(
    [*golden(), sections(), joined(), diagnostics(), transported(), modules(), offered(), shapes(), mostly(), *SMALL],
    key=len,
)

DECLARED = [(nests(),), (groups(), nested.GROUPS, (*nested.GROUP_ROWS, nested.PACKETS))]


def look(data: bytes) -> tuple[dict[str, Any], Any]:
    return read(data, batch_rows=1 if data in SMALL else 1000)


def told_apart(expected: Made) -> Iterator[bool]:
    """Whether each capture of the corpus gives what it should."""
    for data, want in zip(CORPUS, expected[:-2], strict=True):
        yield look(data) != want
    yield [look_at(*declared) for declared in DECLARED] != expected[-2:]


@pytest.fixture(scope="module")
def expected() -> Made:
    return [*map(look, CORPUS), *(look_at(*declared) for declared in DECLARED)]


# -- mutants of the kernels -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_told_apart(name: str, expected: Made) -> None:
    with in_place(checked_kernels(MUTANTS[name], steps=3_000_000)):
        try:
            killed = any(told_apart(expected))
        except (AttributeError, NameError, SyntaxError, TypeError):
            raise  # the mutant does not run
        except Exception:  # noqa: BLE001 - whatever it does wrong, it is seen
            killed = True
    assert killed, f"nothing in the corpus tells the mutant from the original: {MUTANTS[name]}"


def test_the_original_is_not_told_apart(expected: Made) -> None:
    """The interpreted and checked kernels give what the compiled ones give: what kills a mutant is the mutation."""
    original: ModuleType = checked_kernels(steps=3_000_000)
    with in_place(original):
        assert not any(told_apart(expected))


# -- mutants of the declarations --------------------------------------------------------------------------------------
def _place(program: Program, keys: KeySpace, value: int) -> int:
    """Where the table of sparse key spaces says to which layer a range leads that begins with this value."""
    base = program.base[keys]
    first, behind = (2 * int(pair) for pair in program.sparse[base : base + 2])
    (found,) = np.flatnonzero(program.sparse[first:behind:2] == value)
    return first + 2 * int(found) + 1


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_matters(name: str, expected: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, value, layer = CLAIMS[name]
    original = capture.compiled_program

    def changed(profile: Profile, tables: Any, **options: Any) -> Any:
        program = original(profile, tables, **options)
        name, place = ("sparse", _place(program, keys, value)) if keys.sparse else ("lut", program.base[keys] + value)
        table = getattr(program, name).copy()
        table[place] = -1 if layer is None else program.number[layer]
        assert not np.array_equal(table, getattr(program, name))
        mutant = type(program).__new__(type(program))
        mutant.__dict__.update(program.__dict__, **{name: table})
        return mutant

    monkeypatch.setattr(capture, "compiled_program", changed)
    assert any(look(data) != want for data, want in zip(CORPUS, expected[:-2], strict=True))
