"""Messages compiled to numpy: finds the frames that hold each signal, and decodes the signal in all of them at once.

A payload that is shorter than declared gives the signals that fit.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from .compiled_signal import Bools, Bytes, CompiledSignal, DecodedSignal, Ints
from .model import Message, Parent


class CompiledMessage:
    """A compiled message.

    `chosen`: indices of the signals to decode; None: all. Raises `ValueError` for a signal with a
    `Signal.undecodable_reason`: it belongs in the message's `unreadable`.
    """

    def __init__(self, message: Message, chosen: Collection[int] | None = None) -> None:
        for signal in message.signals:
            if reason := signal.undecodable_reason(message.carriers[-1]):
                raise ValueError(f"{message.name}.{signal.name} cannot be decoded: {reason}")
        self.message = message
        self._signals = [CompiledSignal(signal) for signal in message.signals]
        self._decoded = [one for place, one in enumerate(self._signals) if chosen is None or place in chosen]

    def width(self, longest: int) -> int:
        """The least number of bytes that `decode_frames` needs in each row of its matrix, of payloads up to a length."""
        return max((signal.width for signal in self._signals if signal.needs_bytes <= longest), default=1)

    def decode_frames(self, payload: Bytes, lengths: NDArray[np.int32] | NDArray[np.int64]) -> list[DecodedSignal]:
        """Decode `payload`, uint8 of shape (frames, bytes). `lengths`: bytes of each payload; bytes after them are ignored."""
        longest = int(lengths.max(initial=0))
        width = self.width(longest)
        if payload.shape[1] < width or not payload.flags.c_contiguous:
            wide = np.zeros((len(payload), max(width, payload.shape[1])), np.uint8)
            wide[:, : payload.shape[1]] = payload
            payload = wide
        shortest = int(lengths.min()) if len(lengths) else 0
        chosen: dict[tuple[Parent, ...], Bools] = {}
        decoded = []
        for compiled in self._decoded:
            if self._needs_bytes(compiled) > longest:
                continue
            rows = self._rows_with_signal(compiled, payload, lengths, shortest, chosen)
            if rows is None or len(rows):
                decoded.append(compiled.decode_rows(payload, rows))
        return decoded

    def _needs_bytes(self, compiled: CompiledSignal) -> int:
        """The length of the shortest payload that holds a signal and its multiplexers."""
        parents = (self._signals[each.signal] for each in compiled.signal.parents)
        return max([compiled.needs_bytes, *(parent.needs_bytes for parent in parents)])

    def _rows_with_signal(
        self,
        compiled: CompiledSignal,
        payload: Bytes,
        lengths: NDArray[np.int32] | NDArray[np.int64],
        shortest: int,
        chosen: dict[tuple[Parent, ...], Bools],
    ) -> Ints | None:
        """Row numbers of the frames that hold a signal; None: all frames."""
        parents = compiled.signal.parents
        needed = self._needs_bytes(compiled)
        if not parents and needed <= shortest:
            return None
        if parents and parents not in chosen:
            mask: Bools = np.ones(len(payload), np.bool_)
            for each in parents:
                mask &= _is_any_of(self._signals[each.signal].extract_raw_bits(payload, None).view(np.int64), each.ids)
            chosen[parents] = mask
        if needed <= shortest:
            return np.flatnonzero(chosen[parents])
        fits = lengths >= needed
        return np.flatnonzero(chosen[parents] & fits if parents else fits)


def _is_any_of(raw: Ints, ids: frozenset[int]) -> Bools:
    """Whether each raw value is in `ids`. `raw` holds 64 bits as int64; ids of unsigned signals may exceed int64."""
    same_bits = [
        raw_id - (1 << 64) if raw_id >= 1 << 63 else raw_id for raw_id in ids if -(1 << 63) <= raw_id < 1 << 64
    ]
    if len(same_bits) == 1:
        only: Bools = raw == same_bits[0]
        return only
    return np.isin(raw, np.array(sorted(same_bits), np.int64))
