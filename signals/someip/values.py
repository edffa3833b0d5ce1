"""Numbers and texts at known positions of the payloads -> values, without a Python loop over messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pcaplake.signals.compiled_signal import Bytes, CompiledSignal, DecodedSignal, Ints, Words
from pcaplake.signals.model import Scale, Signal
from pcaplake.signals.rows import Lists

from .description import BaseType, Bitfield, Bits, String, Union
from .program import Leaf, join_path


@dataclass(frozen=True, slots=True)
class LeafValues:
    """Values of one path: with `{}` for each index. `lists`: of a list, whose `decoded` has no values."""

    path: str
    decoded: DecodedSignal
    lists: Lists | None = None


class LeafReader:
    """Reads one leaf, wherever it is."""

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        type_ = leaf.type
        self._size = type_.least_bytes if not isinstance(type_, Union) else type_.selector_bits // 8
        self._big_endian = True
        self._signals: list[tuple[str, int, CompiledSignal]] = []  # path, lowest bit, meaning
        if isinstance(type_, BaseType):
            self._big_endian = type_.big_endian
            self._signals = [(leaf.path, 0, CompiledSignal(_signal_of_number(type_)))]
        elif isinstance(type_, Bitfield):
            self._big_endian = type_.base.big_endian
            self._signals = [
                (join_path(leaf.path, bits.name), bits.bit, CompiledSignal(_signal_of_bits(bits)))
                for bits in type_.members
            ]
        elif isinstance(type_, Union):
            self._big_endian = type_.selector_big_endian
            self._signals = [(leaf.path, 0, CompiledSignal(_signal_of_selector(type_)))]

    @property
    def paths(self) -> list[str]:
        """The paths of its values, with `{}` for each index."""
        return [path for path, _, _ in self._signals] or [self.leaf.path]

    def read_values(self, data: Bytes, positions: Ints, lengths: Ints) -> Iterator[LeafValues]:
        """Its values at each of `positions`. `lengths`: bytes of each text or list."""
        type_ = self.leaf.type
        if isinstance(type_, String):
            yield LeafValues(self.leaf.path, decode_texts(type_, data, positions, lengths))
        elif self.leaf.is_list:
            yield self._read_lists(data, positions, lengths)
        else:
            words = gather_words(data, positions, self._size, self._big_endian)
            last = len(self._signals) - 1
            for place, (path, bit, signal) in enumerate(self._signals):
                own = words if place == last else words.copy()
                if bit:
                    own >>= np.uint64(bit)
                yield LeafValues(path, signal.decode_words(signal.mask_and_extend(own), None))

    def _read_lists(self, data: Bytes, positions: Ints, lengths: Ints) -> LeafValues:
        counts = lengths // self._size
        offsets = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], counts)
        words = gather_words(data, np.repeat(positions, counts) + within * self._size, self._size, self._big_endian)
        path, _, signal = self._signals[0]
        decoded = signal.decode_words(signal.mask_and_extend(words), None)
        valid = np.ones(len(positions), np.bool_)
        if decoded.valid is not None:
            valid[np.repeat(np.arange(len(counts)), counts)[~decoded.valid]] = False
        nothing = np.zeros(len(positions), np.bool_)
        whole = DecodedSignal(
            signal=signal.signal, rows=None, value=np.full(len(positions), np.nan), known=nothing, valid=valid
        )
        return LeafValues(path, whole, (offsets.astype(np.int32), decoded.value))


def gather_words(data: Bytes, positions: Ints, size: int, big_endian: bool) -> Words:
    """Unsigned numbers of `size` bytes (1 to 8) at any positions, as 64 bits."""
    if not len(positions):
        return np.zeros(0, np.uint64)
    if size in (1, 2, 4, 8):
        kind = f"{'>' if big_endian else '<'}u{size}"
        numbers: NDArray[np.generic] = np.ndarray((len(data) - size + 1,), kind, data, 0, (1,))
        return numbers[positions].astype(np.uint64)
    words = np.zeros(len(positions), np.uint64)
    for place in range(size):
        words <<= np.uint64(8)
        words |= data[positions + (place if big_endian else size - 1 - place)].astype(np.uint64)
    return words


def decode_texts(string: String, data: Bytes, positions: Ints, lengths: Ints) -> DecodedSignal:
    """Texts are labels without a number. A text with bytes that its encoding does not have is not valid."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    content = data[np.repeat(positions, lengths) + within]
    cells = pa.Array.from_buffers(
        pa.large_binary(), len(positions), [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(content)]
    ).dictionary_encode()
    decoded = [decode_text(string, cell) for cell in cells.dictionary.to_pylist()]
    labels = np.asarray(cells.indices.to_numpy(zero_copy_only=False)).astype(np.int32)
    nothing = np.zeros(len(positions), np.bool_)
    return DecodedSignal(
        signal=Signal(name=string.name, start=0, length=8, coding="ascii"),
        rows=None,
        value=np.full(len(positions), np.nan),
        known=nothing,
        valid=np.array([valid for _, valid in decoded], np.bool_)[labels],
        labels=labels,
        names=tuple(text for text, _ in decoded),
    )


def decode_text(string: String, content: bytes) -> tuple[str, bool]:
    """The characters up to the terminator, without a byte order mark; and whether all bytes are characters."""
    encoding: str = string.encoding
    if encoding == "utf-16":
        # rule: a byte order mark tells the byte order
        mark = {b"\xfe\xff": "utf-16-be", b"\xff\xfe": "utf-16-le"}.get(content[:2])
        encoding = mark or ("utf-16-be" if string.big_endian else "utf-16-le")
        content = content[2:] if mark else content
        end = content.find(b"\0\0")
        while end % 2 == 1 and end >= 0:  # the low byte of one character, and the high byte of the next
            end = content.find(b"\0\0", end + 1)
    else:
        # rule: a byte order mark is no character
        content = content.removeprefix(b"\xef\xbb\xbf") if encoding == "utf-8" else content
        end = content.find(b"\0")
    # rule: a text ends at its terminator
    content = content if end < 0 else content[:end]
    try:
        return content.decode(encoding), True
    except UnicodeDecodeError:
        return content.decode(encoding, "replace"), False


# -- the meaning of numbers, as `compiled` knows it ---------------------------------------------------------------------
def _signal_of_number(base: BaseType) -> Signal:
    return Signal(
        name=base.name,
        start=0,
        length=base.bits,
        signed=base.coding == "sint",
        coding="float" if base.coding == "float" else "integer",
        scales=(base.scale,),
        minimum=base.minimum,
        maximum=base.maximum,
        choices=tuple(sorted(base.labels)),
    )


def _signal_of_bits(bits: Bits) -> Signal:
    return Signal(
        name=bits.name,
        start=0,
        length=bits.bits,
        signed=bits.signed,
        scales=(bits.scale,),
        choices=tuple(sorted(bits.labels)),
    )


def _signal_of_selector(union: Union) -> Signal:
    names = sorted((variant.selector, variant.name) for variant in union.variants)
    return Signal(name=union.name, start=0, length=union.selector_bits, scales=(Scale(),), choices=tuple(names))
