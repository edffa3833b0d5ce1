"""Frames of literals alone, read by Zstandard itself: any bytes, any skew, sizes around blocks and streams."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from pcaplake.lake.parquet.kernels import huffman

BLOCK = huffman.BLOCK
SIZES = [0, 1, 2, 3, 255, 256, 257, 259, 1000, 5003, 65_536, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 200, 3 * BLOCK + 77]


def skewed(size: int, symbols: int, skew: int, first: int, seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    chances = rng.random(symbols) ** skew
    return (rng.choice(symbols, size, p=chances / chances.sum()) + first).astype(np.uint8).tobytes()


def check(data: bytes) -> bytes:
    packed = huffman.compress_zstd_frame(data)
    assert zstandard.ZstdDecompressor().decompress(packed) == data
    assert pa.Codec("zstd").decompress(packed, len(data), asbytes=True) == data
    assert len(packed) <= len(data) + 9 + 3 * (len(data) // BLOCK + 1)  # stored at worst
    assert huffman.estimate_compressed_size(data) <= len(data)
    return packed


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(
    size=st.one_of(st.sampled_from(SIZES), st.integers(0, 3000)),
    symbols=st.sampled_from([1, 2, 3, 5, 17, 100, 127, 128, 129, 130, 255, 256]),
    skew=st.integers(1, 60),
    first=st.integers(0, 255),
    seed=st.integers(0, 2**32),
)
def test_what_goes_in_comes_out(size: int, symbols: int, skew: int, first: int, seed: int) -> None:
    check(skewed(size, symbols, skew, first, seed))


@settings(deadline=None, max_examples=200)
@given(data=st.binary(max_size=2000))
def test_any_bytes(data: bytes) -> None:
    check(data * 3)


def test_frequencies_that_ask_for_longer_codes_than_there_are() -> None:
    """Fibonacci's numbers make the deepest tree: codes of 24 bits, cut to 11."""
    counts = [1, 1]
    while sum(counts) < 2 * BLOCK:
        counts.append(counts[-1] + counts[-2])
    body = np.repeat(np.arange(len(counts), dtype=np.uint8), counts)
    np.random.default_rng(1).shuffle(body)
    assert len(check(body.tobytes())) < body.size // 2


def test_blocks_of_noise_between_blocks_of_signals() -> None:
    """A block that would not shrink is stored; the next one uses the tree again, or brings it when none has."""
    noise = np.random.default_rng(1).integers(0, 256, BLOCK, np.uint8).tobytes()
    signal = skewed(BLOCK, 8, 4, 0, 2)
    for blocks in ([noise, signal, noise, signal], [signal, noise, signal], [noise, noise]):
        check(b"".join(blocks))


@pytest.mark.parametrize("symbols", [6, 128, 256])
def test_near_the_entropy(symbols: int) -> None:
    data = skewed(1 << 20, symbols, 6, 0, 3)
    share = np.bincount(np.frombuffer(data, np.uint8)) / len(data)
    share = share[share > 0]
    entropy = -(share * np.log2(share)).sum() / 8 * len(data)
    packed = len(check(data))
    assert entropy <= packed < entropy + (share.max() + 0.1) / 8 * len(data) + 300  # Gallager's bound
    assert packed == pytest.approx(huffman.estimate_compressed_size(data), rel=0.02)


@pytest.mark.parametrize("at", [0, 63, 64, 100, 255, 200_000, BLOCK - 1, 3 * BLOCK + 70, -1])
def test_a_byte_that_the_sample_may_have_missed(at: int) -> None:
    """The tree of large data comes from a quarter of it; a byte without a code asks for another one of all."""
    data = bytearray(skewed(3 * BLOCK + 77, 5, 2, 0, at & 0xFF))
    data[at] = 200
    assert len(check(bytes(data))) < len(data) // 2


def test_nothing_is_written_past_the_room() -> None:
    """The buffer of the kernel is as long as `frame_capacity` says, and guarded behind."""
    for seed, size in enumerate(SIZES):
        data = np.frombuffer(skewed(size, 256 if seed % 2 else 3, 1 + seed % 5, 0, seed), np.uint8)
        out = np.full(huffman.frame_capacity(size) + 64, 0xA5, np.uint8)
        pairs, room = np.empty(1 << 16, np.uint32), np.full(huffman.FRAME_ROOM, -1, np.int64)
        used = huffman.encode_zstd_frame(data, pairs, room, out[: huffman.frame_capacity(size)])
        assert used <= huffman.frame_capacity(size)
        assert (out[huffman.frame_capacity(size) :] == 0xA5).all()
