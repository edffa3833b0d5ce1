"""Signals compiled to numpy: decodes one signal of all frames at once, without a Python loop over frames.

A signal of up to 64 bits is one unaligned 8-byte load from every payload, a shift and a mask, plus a ninth byte where the
signal begins in the middle of a byte.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .model import Scale, Signal

Bytes: TypeAlias = NDArray[np.uint8]
Ints: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]

_EXACT = 1 << 53  # integers up to here are exact in float64
_WHOLE = 9  # bytes that a signal of up to 64 bits may be read from


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedSignal:
    """One signal in the frames that hold it.

    `rows`: int64, indices of these frames in the input, ascending; None: all frames. The other arrays have the same length:
    `raw`: int64, the bits of the signal (signed ones sign-extended; u64 with the same bits; floats as their IEEE bits);
    None for a signal of more than 64 bits.
    `value`: float64, NaN where `known` is False (None: known everywhere).
    `valid`: bool, within minimum and maximum, not the raw value that means invalid, and a number.
    `labels`: int32, index into `names`, -1 where the value has no label; None: no value has one.
    `units`: int32, index into the scales of the signal; None: the unit of the first.
    """

    signal: Signal
    rows: Ints | None
    value: Floats
    raw: Ints | None = None
    known: Bools | None = None
    valid: Bools | None = None
    labels: NDArray[np.int32] | None = None
    names: tuple[str, ...] = ()
    units: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.value)


class CompiledSignal:
    """A compiled signal: the position of its bits, and the meaning of its numbers."""

    def __init__(self, signal: Signal) -> None:
        self.signal = signal
        self.needs_bytes = signal.needs_bytes
        self.width = signal.first_bit // 8 + _WHOLE if signal.length <= 64 else signal.needs_bytes + _WHOLE
        self._first, self._bit = divmod(signal.first_bit, 8)
        self._mask = np.uint64((1 << min(signal.length, 64)) - 1)
        self._bounds = [_raw_value_bounds(signal, scale) for scale in signal.scales]
        self._one_scale = len(signal.scales) == 1 and signal.scales[0].low is None and signal.scales[0].high is None
        self._may_be_infinite = signal.may_be_infinite
        labels = dict(signal.choices)
        self._names = tuple(labels.values())
        self._keys = np.array(list(labels), np.int64) if all(-(1 << 63) <= key < 1 << 63 for key in labels) else None
        if self._keys is None:  # an unsigned signal of 64 bits
            self._keys = np.array([key % (1 << 64) for key in labels], np.uint64).view(np.int64)
            order = np.argsort(self._keys)
            self._keys, self._names = self._keys[order], tuple(self._names[at] for at in order)
        dense = len(labels) > 0 and self._keys[0] >= 0 and self._keys[-1] < 1 << 12
        self._table: NDArray[np.int32] | None = None
        if dense:  # most value tables have small numbers: a lookup is faster than a search
            self._table = np.full(int(self._keys[-1]) + 2, -1, np.int32)
            self._table[self._keys] = np.arange(len(self._keys), dtype=np.int32)

    # -- bits -----------------------------------------------------------------------------------------------------
    def extract_raw_bits(self, payload: Bytes, rows: Ints | None) -> Words:
        """Raw values as 64 bits, sign-extended; of the frames `rows`, or of all frames (None)."""
        signal = self.signal
        words = _gather_numbers(payload, self._first, ">u8" if signal.big_endian else "<u8", rows).astype(np.uint64)
        beyond = self._bit + signal.length - 64
        if beyond > 0:
            last = _gather_numbers(payload, self._first + 8, "u1", rows).astype(np.uint64)
            if signal.big_endian:
                words <<= np.uint64(beyond)
                words |= last >> np.uint64(8 - beyond)
            else:
                words >>= np.uint64(self._bit)
                words |= last << np.uint64(64 - self._bit)
        elif signal.big_endian:
            words >>= np.uint64(-beyond)
        elif self._bit:
            words >>= np.uint64(self._bit)
        return self.mask_and_extend(words)

    def mask_and_extend(self, words: Words) -> Words:
        """The lowest `length` bits of words, sign-extended if the signal is signed. Changes the array."""
        signal = self.signal
        if signal.length < 64:
            words &= self._mask
            if signal.signed and signal.coding == "integer":
                top = np.uint64(1 << (signal.length - 1))
                words ^= top
                words -= top  # wraps around, which extends the sign
        return words

    # -- numbers --------------------------------------------------------------------------------------------------
    def decode_rows(self, payload: Bytes, rows: Ints | None) -> DecodedSignal:
        if self.signal.length > 64:
            with np.errstate(over="ignore", invalid="ignore"):
                number = self._decode_wide_number(payload, rows)
                value, known, units = self._scale_numbers(number)
                valid = self._check_value_bounds(number, value)
            return DecodedSignal(signal=self.signal, rows=rows, value=value, known=known, valid=valid, units=units)
        return self.decode_words(self.extract_raw_bits(payload, rows), rows)

    def decode_words(self, words: Words, rows: Ints | None) -> DecodedSignal:
        """Raw values as 64 bits, sign-extended, of the frames `rows` -> their values."""
        with np.errstate(over="ignore", invalid="ignore"):  # floats and factors may have any value
            return self._decode_by_coding(words, rows)

    def _decode_by_coding(self, words: Words, rows: Ints | None) -> DecodedSignal:
        signal = self.signal
        decoded = partial(DecodedSignal, signal=signal, rows=rows)
        raw = words.view(np.int64)
        if signal.coding == "ascii":
            return self._decode_ascii_text(words, rows)
        if signal.coding == "bcd":
            value, decimal = self._decode_bcd_digits(words)
            return decoded(raw=raw, value=value, known=decimal, valid=decimal)
        if signal.coding == "float":
            number = _reinterpret_floats(words, signal.length)
            value, known, units = self._scale_numbers(number)
            valid: Bools | None = self._check_value_bounds(number, value)
            labels: NDArray[np.int32] | None = None
            if self._names:
                finite: Bools = np.isfinite(number)
                labels = self._look_up_labels(np.where(finite, number, -1).astype(np.int64))
                labels[~finite] = -1
            return decoded(
                raw=raw, value=value, known=known, valid=valid, labels=labels, names=self._names, units=units
            )
        known = units = None
        if self._one_scale:
            value = self._apply_scale(words, signal.scales[0])
            valid = self._check_raw_bounds(words, *self._bounds[0])
        else:
            value, known, units, valid = self._apply_piecewise_scales(words)
        if (other := self._is_not_invalid(words)) is not None:
            valid = other if valid is None else valid & other
        if self._may_be_infinite:
            finite = np.isfinite(value)
            valid = finite if valid is None else valid & finite
        labels = self._look_up_labels(raw) if self._names else None
        return decoded(raw=raw, value=value, known=known, valid=valid, labels=labels, names=self._names, units=units)

    def _apply_scale(self, words: Words, scale: Scale) -> Floats:
        signal = self.signal
        integers: Words | Ints = words.view(np.int64) if signal.signed or signal.length < 64 else words
        if float(scale.factor).is_integer() and float(scale.offset).is_integer():
            factor, offset = int(scale.factor), int(scale.offset)
            low, high = signal.raw_value_range
            ends = [low * factor + offset, high * factor + offset]
            largest = max(*map(abs, ends), abs(high * factor), abs(low * factor))
            if largest > _EXACT and (factor, offset) != (1, 0):  # float arithmetic would round twice
                if largest < 1 << 63:
                    return (integers * np.int64(factor) + np.int64(offset)).astype(np.float64)
                if largest < 1 << sys.float_info.max_exp - 1:
                    return np.array([float(raw * factor + offset) for raw in integers.tolist()], np.float64)
        return _apply_linear_scale(integers.astype(np.float64), scale)

    def _apply_piecewise_scales(self, words: Words) -> tuple[Floats, Bools, NDArray[np.int32], Bools]:
        value = np.full(len(words), np.nan)
        valid = np.zeros(len(words), np.bool_)
        known, units = self._choose_scales(self._integers(words))
        for place, scale in enumerate(self.signal.scales):
            chosen = known & (units == place)
            value[chosen] = self._apply_scale(words[chosen], scale)
            within = self._check_raw_bounds(words[chosen], *self._bounds[place])
            valid[chosen] = True if within is None else within
        return value, known, units, valid

    def _scale_numbers(self, numbers: Floats) -> tuple[Floats, Bools | None, NDArray[np.int32] | None]:
        """Values of floats and wide integers, where they are known, and the scale of each."""
        if self._one_scale:
            return _apply_linear_scale(numbers, self.signal.scales[0]), None, None
        value = np.full(len(numbers), np.nan)
        known, units = self._choose_scales(numbers)
        for place, scale in enumerate(self.signal.scales):
            chosen = known & (units == place)
            value[chosen] = _apply_linear_scale(numbers[chosen], scale)
        return value, known, units

    def _choose_scales(self, numbers: Words | Ints | Floats) -> tuple[Bools, NDArray[np.int32]]:
        """Whether a scale contains each raw value, and the first one that does."""
        known = np.zeros(len(numbers), np.bool_)
        units = np.zeros(len(numbers), np.int32)
        for place, scale in enumerate(self.signal.scales):
            applies = ~known
            if scale.low is not None:
                applies &= numbers >= scale.low
            if scale.high is not None:
                applies &= numbers <= scale.high
            units[applies] = place
            known |= applies
        return known, units

    def _integers(self, words: Words) -> Words | Ints:
        """Raw values as numbers: unsigned ones of 64 bits as they are."""
        return words if self.signal.length == 64 and not self.signal.signed else words.view(np.int64)

    def _look_up_labels(self, raw: Ints) -> NDArray[np.int32]:
        if self._table is not None:
            last = len(self._table) - 1  # an entry without a label, for values outside the table
            return self._table[np.where((raw >= 0) & (raw < last), raw, last)]
        assert self._keys is not None
        places = np.searchsorted(self._keys, raw)
        places[places == len(self._keys)] = 0
        return np.where(self._keys[places] == raw, places, -1).astype(np.int32)

    def _check_raw_bounds(self, words: Words, first: int, last: int) -> Bools | None:
        """Whether raw values are from `first` to `last`; None: all possible values are."""
        numbers = self._integers(words)
        valid: Bools | None = None
        low, high = self.signal.raw_value_range
        if first > low:
            valid = numbers >= numbers.dtype.type(first) if first <= high else np.zeros(len(words), np.bool_)
        if last < high:
            under = numbers <= numbers.dtype.type(last) if last >= low else np.zeros(len(words), np.bool_)
            valid = under if valid is None else valid & under
        return valid

    def _is_not_invalid(self, words: Words) -> Bools | None:
        """Whether raw values are not the one that means invalid; None: no possible value is."""
        invalid = self.signal.invalid
        low, high = self.signal.raw_value_range
        if invalid is None or not low <= invalid <= high or not float(invalid).is_integer():
            return None
        numbers = self._integers(words)
        other: Bools = numbers != numbers.dtype.type(int(invalid))
        return other

    def _check_value_bounds(self, raw: Floats, value: Floats) -> Bools:
        valid: Bools = np.isfinite(value)
        signal = self.signal
        if signal.minimum is not None:
            valid &= value >= signal.minimum
        if signal.maximum is not None:
            valid &= value <= signal.maximum
        if signal.invalid is not None:
            valid &= raw != signal.invalid
        return valid

    # -- rare codings ---------------------------------------------------------------------------------------------
    def _decode_wide_number(self, payload: Bytes, rows: Ints | None) -> Floats:
        """The raw value of a signal of more than 64 bits, from 64-bit pieces; exact to a unit in the last place."""
        signal = self.signal
        pieces: list[tuple[Words, int]] = []
        done = 0
        while done < signal.length:  # the least significant first
            size = min(64, signal.length - done)
            first = signal.first_bit + (signal.length - done - size if signal.big_endian else done)
            start = 8 * (first // 8) + 7 - first % 8 if signal.big_endian else first
            piece = Signal(name="", start=start, length=size, big_endian=signal.big_endian)
            pieces.append((CompiledSignal(piece).extract_raw_bits(payload, rows), size))
            done += size
        top, size = pieces[-1]
        negative = (top >> np.uint64(size - 1) & np.uint64(1) == 1) if signal.signed else np.zeros(len(top), np.bool_)
        value = np.zeros(len(top))
        for words, size in reversed(pieces):
            # -1 - x has the inverted bits of x: the sum of a negative piece and others would lose their lowest bits
            words[negative] ^= np.uint64((1 << size) - 1)
            value = value * 2.0**size + words.astype(np.float64)
        value[negative] = -1 - value[negative]
        return value

    def _decode_bcd_digits(self, words: Words) -> tuple[Floats, Bools]:
        """BCD: one decimal digit in each byte, the most significant first; unknown where a byte is above 9."""
        value = np.zeros(len(words))
        known = np.ones(len(words), np.bool_)
        for place in range(self.signal.length // 8):
            digit = (words >> np.uint64(8 * place)) & np.uint64(255)
            known &= digit <= 9
            value = value * 10 + digit
        value[~known] = np.nan
        return value, known

    def _decode_ascii_text(self, words: Words, rows: Ints | None) -> DecodedSignal:
        """Characters: the text is the label, and there is no number."""
        texts, labels = np.unique(words, return_inverse=True)
        names = tuple(
            int(word).to_bytes(8, "little")[: self.signal.length // 8].rstrip(b"\0").decode("ascii", "backslashreplace")
            for word in texts
        )
        nothing = np.zeros(len(words), np.bool_)
        return DecodedSignal(
            signal=self.signal,
            rows=rows,
            raw=words.view(np.int64),
            value=np.full(len(words), np.nan),
            known=nothing,
            labels=labels.astype(np.int32),
            names=names,
        )


def _gather_numbers(payload: Bytes, first: int, kind: str, rows: Ints | None) -> NDArray[np.generic]:
    """Numbers of one kind at the same offset of every row; no copy if `rows` is None."""
    frames, width = payload.shape
    column: NDArray[np.generic] = np.ndarray((frames,), kind, payload, first, (width,))
    return column if rows is None else column[rows]


def _reinterpret_floats(words: Words, length: int) -> Floats:
    if length == 64:
        return words.view(np.float64)
    if length == 32:
        return words.astype(np.uint32).view(np.float32).astype(np.float64)
    return words.astype(np.uint16).view(np.float16).astype(np.float64)


def _apply_linear_scale(raw: Floats, scale: Scale) -> Floats:
    """raw * factor + offset with two roundings, as other tools compute it."""
    if scale.factor == 1 and scale.offset == 0:
        return raw
    value = raw * scale.factor
    value += scale.offset
    return value


def _raw_value_bounds(signal: Signal, scale: Scale) -> tuple[int, int]:
    """minimum and maximum as raw values: 12.7 with a factor of 0.1 is raw 127, although 127 * 0.1 differs in floats."""
    low, high = signal.raw_value_range
    if signal.coding != "integer" or scale.factor == 0 or (signal.minimum is None and signal.maximum is None):
        return low, high
    ends = [
        None if bound is None or not math.isfinite(bound) else (bound - scale.offset) / scale.factor
        for bound in (signal.minimum, signal.maximum)
    ]
    if scale.factor < 0:
        ends.reverse()
    first = low if ends[0] is None else _round_bound(ends[0] - _rounding_slack(ends[0]), math.ceil, low, high)
    last = high if ends[1] is None else _round_bound(ends[1] + _rounding_slack(ends[1]), math.floor, low, high)
    return max(low, first), min(high, last)


def _round_bound(end: float, rounding: Callable[[float], int], low: int, high: int) -> int:
    """A bound as an integer; one beyond float64 lies outside of `low` to `high`."""
    if math.isinf(end):
        return high + 1 if end > 0 else low - 1
    return rounding(end)


def _rounding_slack(raw: float) -> float:
    return min(max(abs(raw) * 1e-12, 1e-6), 0.4) if abs(raw) < _EXACT else 0.0
