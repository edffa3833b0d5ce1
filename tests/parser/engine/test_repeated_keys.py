"""Messages whose keys repeat, and pieces that are lost: what is put together is what was sent."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import pytest

from pcaplake.parser.protocols.ethernet import transport_checksum
from tests.parser import captures, conversations
from tests.parser.compare import read
from tests.parser.conversations import ipv4, ipv6, someip, summed, udp
from tests.seeds import some_seeds

Parts = list[bytes]  # the frames of one message
ROUTER_ALERT = bytes((148, 4, 0, 0))
MOST_LOST = 1  # pieces of a message without a checksum; if more are lost, nobody can tell


def cuts(r: Random, size: int, multiple: int) -> list[tuple[int, int]]:
    """Of any sizes, or as real senders have them: all but the last are equal."""
    if r.random() < 0.5:
        return [(at, min(at + 64, size)) for at in range(0, size, 64)]
    return conversations.cuts(r, size, size // (3 * multiple) * multiple, multiple)


def datagram(
    r: Random,
    payload: bytes,
    *,
    checksum: str,
    ident: int,
    host: int = 1,
    options: bytes = b"",
    extensions: Sequence[int] = (),
) -> Parts:
    """A message of SOME/IP in IP fragments, in IPv6 for the third host."""
    body = summed(udp(someip(payload)), 17, host, checksum)
    spans = cuts(r, len(body), 8)
    if host % 3 == 0:
        parts = [struct.pack(">BBHI", 17, 0, a | (b < len(body)), ident) + body[a:b] for a, b in spans]
        return [ipv6(part, 44, host=host, extensions=extensions) for part in parts]
    return [ipv4(body[a:b], ident=ident, fragment=a // 8 | (b < len(body)) << 13, options=options) for a, b in spans]


def transported(r: Random, payload: bytes, session: int) -> Parts:
    spans = cuts(r, len(payload), 16)
    parts = [struct.pack(">I", a | (b < len(payload))) + payload[a:b] for a, b in spans]
    return [ipv4(udp(someip(part, session=session, kind=0x22))) for part in parts]


SENDERS: dict[str, Callable[[Random, bytes], Parts]] = {
    "IPv4 with checksum": lambda r, payload: datagram(r, payload, checksum="right", ident=7),
    "IPv6 with checksum": lambda r, payload: datagram(r, payload, checksum="right", ident=7, host=3),
    "IPv4 with checksum and an option": lambda r, payload: datagram(
        r, payload, checksum="right", ident=7, options=ROUTER_ALERT
    ),
    "IPv6 with checksum and hop-by-hop options": lambda r, payload: datagram(
        r, payload, checksum="right", ident=7, host=3, extensions=(0,)
    ),
    "IPv6 with checksum and destination options": lambda r, payload: datagram(
        r, payload, checksum="right", ident=7, host=3, extensions=(60,)
    ),
    "IPv4": lambda r, payload: datagram(r, payload, checksum="none", ident=7),
    "IPv4 of a sending host": lambda r, payload: datagram(r, payload, checksum="offloaded", ident=7),
    "IPv4 without identification": lambda r, payload: datagram(r, payload, checksum="none", ident=0),
    "IPv6": lambda r, payload: datagram(r, payload, checksum="none", ident=7, host=3),
    "SOME/IP-TP": lambda r, payload: transported(r, payload, 1),
    "SOME/IP-TP without session": lambda r, payload: transported(r, payload, 0),
}


def arrived(r: Random, parts: Parts, most: int) -> Parts:
    """What is left of them, in order, some twice."""
    lost = r.sample(range(len(parts)), min(r.choice((0, 0, 1, most)), most))
    return [part for i, part in enumerate(parts) if i not in lost for _ in range(r.choice((1, 1, 1, 2)))]


@pytest.mark.parametrize("name", SENDERS)
@pytest.mark.parametrize("seed", some_seeds(6))
def test_no_two_messages_are_joined(seed: int, name: str) -> None:
    """Each message of which all pieces arrive is there, and no bytes that were not sent as one message."""
    r, send = Random(seed), SENDERS[name]
    frames: Parts = []
    sent, whole = Counter[bytes](), Counter[bytes]()
    for number in range(60):
        # equal beginnings and ends, as of images, beside bytes that no other message has
        payload = bytes(r.choice((0, 64))) + r.randbytes(160 + r.choice((0, 8))) + bytes(r.choice((0, 64)))
        parts = send(r, payload)
        most = len(parts) if "with checksum" in name else MOST_LOST
        came = arrived(r, parts, most) if number else parts
        frames += came
        sent[payload] += 1
        whole[payload] += set(parts) <= set(came)
    rows, summary = read(captures.pcap(frames))
    complete = True if "TP" in name else None
    found = Counter(row["payload"] for row in rows["someip_messages"] if row["tp_complete"] is complete)
    assert found <= sent
    assert found >= whole
    assert set(summary.faults) <= {"gap", "bad_checksum", "short_header"}
    assert found != sent
    assert summary.faults["gap"]


def test_a_datagram_whose_checksum_is_wrong_is_not_decoded() -> None:
    r = Random(1)
    rows, _ = read(captures.pcap(datagram(r, bytes(200), checksum="wrong", ident=7)))
    (fault,) = rows["faults"]
    assert (fault["layer"], fault["reason"], fault["packet_no"]) == (
        "ip_datagram",
        "bad_checksum",
        len(rows["packets"]),
    )
    assert "someip_messages" not in rows


# routing headers and source routes: a wrong checksum proves nothing
@pytest.mark.parametrize(
    ("options", "extensions", "known"),
    [
        (b"", (), True),
        (ROUTER_ALERT, (0,), True),
        (ROUTER_ALERT, (60,), True),
        (bytes((131, 7, 4, 10, 0, 0, 9, 0)), (43,), False),
        (bytes((1, 137, 7, 4, 10, 0, 0, 9)), (0, 43), False),
    ],
)
@pytest.mark.parametrize("host", [1, 3])
def test_whose_checksum_is_known(host: int, options: bytes, extensions: Sequence[int], known: bool) -> None:
    for checksum, faults in (("right", {}), ("wrong", {"bad_checksum": 1} if known else {})):
        parts = datagram(
            Random(1), bytes(200), checksum=checksum, ident=7, host=host, options=options, extensions=extensions
        )
        rows, summary = read(captures.pcap(parts))
        assert summary.faults == faults
        assert [row["payload"] for row in rows.get("someip_messages", [])] == [bytes(200)] * (not faults)


@pytest.mark.parametrize(("host", "extensions"), [(1, ()), (3, ()), (3, (0,)), (3, (60, 43))])
def test_a_datagram_that_was_cut_is_not_checked(host: int, extensions: Sequence[int]) -> None:
    *first, last = datagram(Random(3), bytes(200), checksum="right", ident=7, host=host, extensions=extensions)
    data = captures.pcap_header() + b"".join(map(captures.pcap_record, first))
    rows, summary = read(data + captures.pcap_record(last[:-1], original=len(last)))
    assert [row["payload"] for row in rows["someip_messages"]] == [bytes(199)]
    assert set(summary.faults) == {"overrun"}


@pytest.mark.parametrize("cut", [0, 1, 7])
def test_a_segment_that_was_cut_ends_no_message(cut: int) -> None:
    """Nothing in a message of SOME/IP-TP says how long it is, so what was put together would look whole."""
    *first, last = transported(Random(3), bytes(200), 5)
    data = captures.pcap_header() + b"".join(map(captures.pcap_record, first))
    rows, summary = read(data + captures.pcap_record(last[: len(last) - cut], original=len(last)))
    whole = [row["payload"] for row in rows["someip_messages"] if row["tp_complete"]]
    assert whole == ([] if cut else [bytes(200)])
    assert summary.faults == ({"overrun": 3, "gap": 1} if cut else {})


@pytest.mark.parametrize(("seconds", "gaps"), [(0, 0), (4, 0), (6, 1)])
def test_what_repeats_a_whole_message_much_later_is_another_one(seconds: int, gaps: int) -> None:
    """Equal to the one before, and without its beginning."""
    parts = transported(Random(3), bytes(200), 5)
    data = captures.pcap_header() + b"".join(map(captures.pcap_record, parts))
    data += b"".join(captures.pcap_record(part, captures.T0 + seconds) for part in parts[1:])
    rows, summary = read(data)
    assert sum(row["tp_complete"] for row in rows["someip_messages"]) == 1
    assert summary.faults == ({"gap": gaps} if gaps else {})


@pytest.mark.parametrize("host", [1, 3])
def test_fragments_in_reverse_are_one_gap(host: int) -> None:
    parts = datagram(Random(3), bytes(200), checksum="none", ident=7, host=host)
    rows, summary = read(captures.pcap([*reversed(parts)]))
    assert "someip_messages" not in rows
    assert summary.faults == {"gap": 1}
    rows, summary = read(captures.pcap([*reversed(parts), *parts[1:]]))  # the beginning is that of another one
    assert len(rows["someip_messages"]) == 1
    assert summary.faults == {"gap": 1}


@pytest.mark.parametrize("protocol", [6, 17])
@pytest.mark.parametrize("host", [1, 3])
@pytest.mark.parametrize("size", [0, 1, 63])
def test_the_checksum_of_a_datagram(protocol: int, host: int, size: int) -> None:
    """As a word after the other (RFC 1071)."""
    r = Random(size)
    body = conversations.tcp(9, r.randbytes(size)) if protocol == 6 else udp(r.randbytes(size))
    for kind, right in (("right", True), ("none", None), ("offloaded", None), ("wrong", False)):
        datagram = summed(body, protocol, host, kind)
        assert transport_checksum(datagram, protocol, [*words(host), 0]) is right
        assert transport_checksum(datagram, 1, [*words(host), 0]) is None
        # a right checksum proves the addresses, a wrong one nothing if another destination may count
        assert transport_checksum(datagram, protocol, [*words(host), 1]) is (right or None)
    if protocol == 17 and size:  # what follows it does not count; it may not be longer than what is there
        whole = summed(body, 17, host)
        assert transport_checksum(whole + b"more", 17, [*words(host), 0]) is True
        assert transport_checksum(whole[:-1], 17, [*words(host), 0]) is False


def words(host: int) -> list[int]:
    """The addresses that `summed` puts into a checksum, as columns have them."""
    if host % 3:
        return [0x0A000000 + host, 0x0A0000FE]
    return [0, host, 0, 0xFE]
