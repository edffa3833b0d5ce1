"""Conversations in the transport protocol of SAE J1939-21, from a seeded `random.Random`: frames and the messages they make."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from random import Random

EXTENDED, EVERYONE = 1 << 31, 255
RTS, CTS, END_OF_MESSAGE_ACK, BAM, ABORT = 16, 17, 19, 32, 255
TP_CM, TP_DT = 0xEC, 0xEB
# the identifiers that the tests' profile gives to J1939: single frames, and those of transport protocol
WORDS = (0x80FEB201, 0x80DC0201, 0x8CF00400, 0x98FEF100, 0x80ECFF01, 0x80EBFF01, 0x80EC0201, 0x80EB0201, 0x9CEC0102)
Frame = tuple[int, bytes]  # identifier word, with bit 31 as in SocketCAN, and data


@dataclass(frozen=True, order=True)
class Message:
    source: int
    destination: int
    pgn: int
    body: bytes


def word(pdu_format: int, source: int, destination: int, priority: int = 7) -> int:
    return EXTENDED | priority << 26 | pdu_format << 16 | destination << 8 | source


def control(kind: int, source: int, destination: int, pgn: int, *values: int) -> Frame:
    """values: the four bytes between the control byte and the PGN."""
    return word(TP_CM, source, destination), bytes((kind, *values)) + pgn.to_bytes(3, "little")


def packet(message: Message, number: int) -> Frame:
    part = message.body[7 * number - 7 : 7 * number].ljust(7, b"\xff")
    return word(TP_DT, message.source, message.destination), bytes((number,)) + part


def to_all(message: Message) -> Iterator[Frame]:
    size, packets = len(message.body), -(-len(message.body) // 7)
    head = *struct.pack("<H", size), packets, 0xFF
    yield control(BAM, message.source, EVERYONE, message.pgn, *head)
    yield from (packet(message, n) for n in range(1, packets + 1))


def to_one(r: Random, message: Message, *, again: float = 0.2, aborted: bool = False) -> Generator[Frame, None, bool]:
    """The receiver asks for a few packets at a time, now and then for some of them again. Either end may abort.

    Returns whether all packets were sent.
    """
    size, packets = len(message.body), -(-len(message.body) // 7)
    head = *struct.pack("<H", size), packets
    here, there = (message.source, message.destination), (message.destination, message.source)
    yield control(RTS, *here, message.pgn, *head, 0xFF)
    first, most = 1, r.randrange(1, 8)
    while first <= packets:
        if aborted and r.random() < 0.3:
            break
        count = min(most, packets - first + 1)
        yield control(CTS, *there, message.pgn, count, first, 0xFF, 0xFF)
        yield from (packet(message, n) for n in range(first, first + count))
        if r.random() < again:  # one packet only, or all from there on
            lost = first + r.randrange(count)
            alone = r.random() < 0.5
            yield control(CTS, *there, message.pgn, 1 if alone else count, lost, 0xFF, 0xFF)
            yield from (packet(message, n) for n in range(lost, lost + 1 if alone else first + count))
        first += count
    if aborted:
        yield control(ABORT, *r.choice((here, there)), message.pgn, 3, 0xFF, 0xFF, 0xFF)
    else:
        yield control(END_OF_MESSAGE_ACK, *there, message.pgn, *head, 0xFF)
    return first > packets


def conversation(r: Random, ends: tuple[int, int], count: int, *, aborts: float = 0.0) -> Iterator[Frame | Message]:
    """Messages of one sender to one receiver, one after the other, each of them behind the frames that make it."""
    # an abort does not say whose message it ends, if two send the same group to each other at once
    groups = (65200, 0xDF00) if ends[0] < ends[1] else (0x1F801, 0)
    for _ in range(count):
        size = r.choice((9, r.randrange(9, 60), r.randrange(9, 1786)))
        message = Message(*ends, r.choice(groups), r.randbytes(size))
        if ends[1] == EVERYONE:
            yield from to_all(message)
        else:
            whole = yield from to_one(r, message, aborted=r.random() < aborts)
            if not whole:
                continue
        yield message


def interleaved(r: Random, count: int, *, aborts: float = 0.0) -> tuple[list[Frame], list[Message]]:
    """Conversations of several pairs at once, and the messages that they make."""
    pairs = (1, 2), (2, 1), (1, 3), (1, EVERYONE), (2, EVERYONE), (0x21, 0xF9)
    running = [conversation(r, ends, count, aborts=aborts) for ends in pairs]
    frames: list[Frame] = []
    messages: list[Message] = []
    while running:
        one = r.choice(running)
        for _ in range(r.choice((1, 1, 2, 5))):
            item = next(one, None)
            if item is None:
                running.remove(one)
                break
            if isinstance(item, Message):
                messages.append(item)
            else:
                frames.append(item)
    return frames, messages


def lossy(r: Random, frames: list[Frame]) -> list[Frame]:
    """What a poor tool records: frames are lost, come twice, and in another order; now and then one has other bytes."""
    made: list[Frame] = []
    for identifier, data in frames:
        chance = r.random()
        if chance > 0.03:
            made.append((identifier, data))
        if chance > 0.97:
            made.append((identifier, data))
        if 0.03 < chance < 0.04 and len(made) > 1:
            made[-2:] = made[:-3:-1]
        if 0.04 < chance < 0.06:
            made.append((r.choice(WORDS), r.randbytes(r.randrange(9))))
    return made
