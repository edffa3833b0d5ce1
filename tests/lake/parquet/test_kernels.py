"""Kernels of the encodings: what they write is what Encodings.md says, and never a byte outside of their buffers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcaplake.lake.parquet.kernels import byte_arrays as b
from pcaplake.lake.parquet.kernels import encodings as e

Array = np.ndarray[Any, Any]
CANARY = 0xA5
LENGTHS = st.sampled_from([1, 2, 7, 8, 9, 31, 32, 33, 127, 128, 129, 130, 257, 1000])


class Fenced:
    """A buffer with canaries before and behind it."""

    def __init__(self, count: int, dtype: Any = np.uint8) -> None:
        self.size = count * np.dtype(dtype).itemsize
        self.whole = np.full(self.size + 128, CANARY, np.uint8)
        self.inner: Array = self.whole[64 : 64 + self.size].view(dtype)

    def unharmed(self) -> bool:
        return bool((self.whole[:64] == CANARY).all() and (self.whole[64 + self.size :] == CANARY).all())


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def zigzag(data: bytes, at: int) -> tuple[int, int]:
    value, at = varint(data, at)
    return value >> 1 ^ -(value & 1), at


def bits_of(data: bytes, width: int, count: int) -> list[int]:
    whole = int.from_bytes(data, "little")
    return [whole >> (i * width) & ((1 << width) - 1) for i in range(count)]


def undelta(data: bytes, bits: int) -> list[int]:
    """DELTA_BINARY_PACKED as Encodings.md has it; all bytes must be used."""
    block, at = varint(data, 0)
    minis, at = varint(data, at)
    count, at = varint(data, at)
    first, at = zigzag(data, at)
    values, each = [first], block // minis
    while len(values) < count:
        least, at = zigzag(data, at)
        widths = data[at : at + minis]
        at += minis
        for width in widths:
            if len(values) >= count:
                assert width == 0  # readers do not look for bytes here
                continue
            for delta in bits_of(data[at : at + each * width // 8], width, each)[: count - len(values)]:
                values.append(values[-1] + least + delta)
            at += each * width // 8
    assert at == len(data)
    half = 1 << (bits - 1)
    return [(value + half) % (2 * half) - half for value in values[:count]]


@st.composite
def integers(draw: st.DrawFn, bits: int) -> Array:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    n = draw(LENGTHS)
    some = draw(st.lists(st.integers(low, high) | st.sampled_from([low, high, 0, -1]), min_size=1, max_size=40))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    return rng.choice(np.array(some, f"i{bits // 8}"), n)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(values=integers(64) | integers(32), unit=st.sampled_from([1, 8]))
def test_delta_comes_back_and_stays_inside(values: Array, unit: int) -> None:
    """Also where differences wrap, and in the last block that is not full."""
    out = Fenced(e.delta_capacity(values.size, values.itemsize))
    size = e.encode_delta_binary_packed(values, values.itemsize == 8, unit, np.empty(e.BLOCK, np.int64), out.inner)
    assert out.unharmed()
    assert size <= out.size - e.SPARE
    assert undelta(out.inner[:size].tobytes(), 8 * values.itemsize) == values.tolist()


def test_the_room_of_delta_is_enough_for_the_worst_values() -> None:
    for n in (1, 128, 129, 70_000):
        values = np.where(np.arange(n) % 2, 2**63 - 1, -(2**63)).astype(np.int64) - np.arange(n)
        out = Fenced(e.delta_capacity(n, 8))
        size = e.encode_delta_binary_packed(values, True, 8, np.empty(e.BLOCK, np.int64), out.inner)
        assert out.unharmed()
        assert size <= out.size - e.SPARE


def test_no_values_are_a_header() -> None:
    out = Fenced(e.delta_capacity(0, 4))
    size = e.encode_delta_binary_packed(np.zeros(0, np.int32), False, 1, np.empty(e.BLOCK, np.int64), out.inner)
    assert out.inner[:size].tobytes() == bytes([0x80, 1, 4, 0, 0])


@settings(deadline=None, max_examples=100)
@given(n=LENGTHS, width=st.integers(1, 20), seed=st.integers(0, 99), small=st.booleans())
def test_packed_codes_come_back_and_stay_inside(n: int, width: int, seed: int, small: bool) -> None:
    width = min(width, 8) if small else width
    codes = np.random.default_rng(seed).integers(0, 1 << width, n).astype(np.uint8 if small else np.int32)
    out = Fenced((n + 7) // 8 * width + e.SPARE)
    size = e.bit_pack_codes(codes, width, np.zeros(8, np.int64), out.inner)
    assert out.unharmed()
    assert size == (n + 7) // 8 * width
    assert bits_of(out.inner[:size].tobytes(), width, n) == codes.tolist()
    assert not any(bits_of(out.inner[:size].tobytes(), width, (n + 7) // 8 * 8)[n:])


@settings(deadline=None, max_examples=100)
@given(
    cells=st.lists(st.none() | st.binary(max_size=40), min_size=1, max_size=60),
    before=st.integers(0, 9),
    start=st.integers(0, 20),
)
def test_plain_payloads_stay_inside(cells: list[bytes | None], before: int, start: int) -> None:
    start = min(start, len(cells) - 1)
    offsets, data, bitmap = payload_buffers(cells, before)
    out = Fenced(int(offsets[-1] - offsets[start]) + 4 * (len(cells) - start) + e.SPARE)
    size = b.encode_plain_byte_arrays(offsets, data.inner, bitmap, start, len(cells), out.inner)
    assert out.unharmed()
    assert out.inner[:size].tobytes() == plain([cell for cell in cells[start:] if cell is not None])


def payload_buffers(cells: list[bytes | None], before: int) -> tuple[Array, Fenced, Array]:
    """Offsets, bytes and validity bits. The bytes end with those of the last cell; null slots hold bytes too."""
    parts = [b"null" if cell is None else cell for cell in cells]
    offsets = (before + np.concatenate([[0], np.cumsum([len(part) for part in parts])])).astype(np.int32)
    data = Fenced(int(offsets[-1]))
    data.inner[before:] = np.frombuffer(b"".join(parts), np.uint8)
    there = np.array([cell is not None for cell in cells])
    return offsets, data, np.zeros(0, np.uint8) if there.all() else np.packbits(there, bitorder="little")


def plain(cells: list[bytes]) -> bytes:
    return b"".join(len(cell).to_bytes(4, "little") + cell for cell in cells)


few_cells = st.lists(st.binary(max_size=20), min_size=1, max_size=12).flatmap(
    lambda some: st.lists(st.none() | st.sampled_from([*some, *(cell[:-1] for cell in some)]), min_size=1, max_size=200)
)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(cells=few_cells, before=st.integers(0, 9), room=st.integers(1, 30))
def test_codes_of_payloads_or_a_dictionary_that_is_too_small(cells: list[bytes | None], before: int, room: int) -> None:
    """Payloads that differ only in their length, or in the last bytes before the end of the buffer, have codes of their own."""
    offsets, data, bitmap = payload_buffers(cells, before)
    values = [cell for cell in cells if cell is not None]
    distinct = list(dict.fromkeys(values))
    slots, hashes = Fenced(1 << (2 * room).bit_length(), np.int32), Fenced(room, np.int64)
    sizes, codes, firsts = Fenced(room, np.int32), Fenced(len(values), np.int32), Fenced(room, np.int32)
    slots.inner[:] = -1
    buffers = (slots.inner, hashes.inner, sizes.inner, codes.inner, firsts.inner)
    count, there = b.encode_byte_array_codes(offsets, data.inner, bitmap, *buffers)
    assert all(buffer.unharmed() for buffer in (slots, hashes, sizes, codes, firsts))
    if len(distinct) > room:
        assert (count, there) == (-1, 0)
        return
    assert (count, there) == (len(distinct), len(values))
    assert [distinct[code] for code in codes.inner] == values
    out = Fenced(len(plain(distinct)) + e.SPARE)
    size = b.encode_chosen_byte_arrays(offsets, data.inner, firsts.inner[:count], count, out.inner)
    assert out.unharmed()
    assert out.inner[:size].tobytes() == plain(distinct)


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("length", [8, 64])
def test_payloads_that_differ_in_one_place_spread_over_the_slots(place: int, length: int) -> None:
    """Otherwise each lookup would walk past many others: checksums and counters stand in any byte, often in the last."""
    values = [bytes(place) + bytes([i]) + bytes(length - place - 1) for i in range(256)]
    cells: list[bytes | None] = [cell for cell in values for _ in range(3)]
    offsets, data, bitmap = payload_buffers(cells, 0)
    slots, room = np.full(1024, -1, np.int32), 256
    buffers = (
        np.empty(room, np.int64),
        np.empty(room, np.int32),
        np.empty(len(cells), np.int32),
        np.empty(room, np.int32),
    )
    assert b.encode_byte_array_codes(offsets, data.inner, bitmap, slots, *buffers) == (256, len(cells))
    runs = "".join("x" if code >= 0 else " " for code in slots.tolist()).split()
    assert max(map(len, runs)) < 32, runs


def test_payloads_of_which_most_are_distinct_get_no_dictionary() -> None:
    cells: list[bytes | None] = [b"same"] * 10 + [b"%d" % i for i in range(3000)] + [b"same"] * 5000
    offsets, data, bitmap = payload_buffers(cells, 0)
    n = len(cells)
    slots, room = np.full(1 << 15, -1, np.int32), n // 2
    buffers = (np.empty(room, np.int64), np.empty(room, np.int32), np.empty(n, np.int32), np.empty(room, np.int32))
    assert b.encode_byte_array_codes(offsets, data.inner, bitmap, slots, *buffers) == (-1, 0)
    cells = cells[::-1]  # the others come first now
    offsets, data, bitmap = payload_buffers(cells, 0)
    slots[:] = -1
    assert b.encode_byte_array_codes(offsets, data.inner, bitmap, slots, *buffers) == (3001, n)


@settings(deadline=None, max_examples=100)
@given(values=integers(64) | integers(32), seed=st.integers(0, 99))
def test_values_that_are_there(values: Array, seed: int) -> None:
    there = np.random.default_rng(seed).random(values.size) < 0.6
    bitmap = np.packbits(there, bitorder="little")
    out = Fenced(values.size + 1, values.dtype)
    assert e.compact_valid_values(values, bitmap, out.inner) == there.sum()
    assert out.unharmed()
    assert out.inner[: there.sum()].tolist() == values[there].tolist()
    bits = values % 2 == 0
    packed = Fenced(bitmap.size + 1)
    packed.inner[:] = 0
    assert e.compact_valid_bits(np.packbits(bits, bitorder="little"), bitmap, values.size, packed.inner) == there.sum()
    assert packed.unharmed()
    unpacked = np.unpackbits(packed.inner, count=int(there.sum()), bitorder="little")
    assert unpacked.astype(bool).tolist() == bits[there].tolist()


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(values=integers(64) | integers(32), room=st.integers(1, 64))
def test_codes_or_a_dictionary_that_is_too_small(values: Array, room: int) -> None:
    distinct = list(dict.fromkeys(values.tolist()))
    codes, dictionary = Fenced(values.size, np.int32), Fenced(room, values.dtype)
    slots = Fenced(1 << (2 * room).bit_length(), np.int32)
    slots.inner[:] = -1
    count = e.encode_codes_by_hash(values, slots.inner, codes.inner, dictionary.inner)
    assert codes.unharmed()
    assert dictionary.unharmed()
    assert slots.unharmed()
    if len(distinct) > room:
        assert count == -1
    else:
        assert dictionary.inner[:count].tolist() == distinct
        assert dictionary.inner[codes.inner].tolist() == values.tolist()


@settings(deadline=None, max_examples=100)
@given(start=st.integers(-(2**63), 2**63 - 2**16), n=LENGTHS, reach=st.integers(1, 2**16 - 1), seed=st.integers(0, 99))
def test_codes_by_range(start: int, n: int, reach: int, seed: int) -> None:
    values = start + np.random.default_rng(seed).integers(0, reach, n, endpoint=True)
    low, high = int(values.min()), int(values.max())
    table, codes, dictionary = Fenced(high - low + 1, np.int32), Fenced(n, np.int32), Fenced(n, np.int64)
    table.inner[:] = -1
    count = e.encode_codes_by_range(values, low, table.inner, codes.inner, dictionary.inner)
    assert table.unharmed()
    assert codes.unharmed()
    assert dictionary.unharmed()
    assert dictionary.inner[:count].tolist() == list(dict.fromkeys(values.tolist()))
    assert dictionary.inner[codes.inner].tolist() == values.tolist()


@settings(deadline=None, max_examples=100)
@given(lists=st.lists(st.none() | st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=40))
def test_levels_of_lists(lists: list[list[int] | None]) -> None:
    offsets = np.cumsum([0, *[len(items or ()) for items in lists]]).astype(np.int32)
    there = np.array([items is not None for items in lists])
    room = len(lists) + int(offsets[-1])
    repetition, definition = Fenced(room), Fenced(room)
    bitmap = np.packbits(there, bitorder="little")
    count, items = e.encode_list_levels(offsets, bitmap, not there.all(), repetition.inner, definition.inner)
    assert items == offsets[-1]
    want = []
    for each in lists:
        want += [(int(i > 0), 3) for i in range(len(each))] if each else [(0, 0 if each is None else 1)]
    assert list(zip(repetition.inner[:count].tolist(), definition.inner[:count].tolist(), strict=True)) == want
    assert repetition.unharmed()
    assert definition.unharmed()


@settings(deadline=None, max_examples=100)
@given(sizes=st.lists(st.integers(1, 300), min_size=2, max_size=40), width=st.integers(6, 20))
def test_runs_of_rising_values(sizes: list[int], width: int) -> None:
    values = np.repeat(np.arange(len(sizes)) * 7 - 100, sizes)
    out, dictionary = Fenced(8 * len(sizes)), Fenced(len(sizes), np.int64)
    size = e.encode_rle_runs(values, width, out.inner, dictionary.inner)
    assert out.unharmed()
    assert dictionary.unharmed()
    data, at, got = out.inner[:size].tobytes(), 0, []
    while at < size:
        head, at = varint(data, at)
        assert head % 2 == 0
        code = int.from_bytes(data[at : at + (width + 7) // 8], "little")
        at += (width + 7) // 8
        got += [int(dictionary.inner[code])] * (head >> 1)
    assert got == values.tolist()
