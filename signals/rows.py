"""Decoded signals as rows of `signals`. Rows of one signal are adjacent, which keeps the files small."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .arrow_columns import SignalColumns, TextDictionary
from .compiled_signal import DecodedSignal, Ints
from .tables import SIGNALS_SCHEMA

Piece: TypeAlias = NDArray[Any] | int | bool
"""A column of the rows that are added at once: a value for each row, or one for all."""
Lists: TypeAlias = tuple[NDArray[np.int32], NDArray[np.float64]]
"""Offsets and numbers of lists."""
_TEXTS: Final = ("message", "signal", "unit")
_TYPES: Final = {"value": np.float64, "raw_value": np.int64, "label": np.int32, "unit": np.int32, "signal": np.int32}


class _Labels(TextDictionary):
    """Keeps the empty text, which a message can contain."""

    def encode_text(self, text: str) -> int:
        return self._known.setdefault(text, len(self._known))


class SignalRowsBuilder:
    """Collects columns as numpy arrays, and converts them to Arrow in the end. `frames`: the rows that were decoded.

    `copied`: their columns that each of their values has, too.
    """

    def __init__(self, frames: pa.RecordBatch, copied: Iterable[str], *, empty_labels: bool = False) -> None:
        self._frames, self._copied = frames, [name for name in copied if name in frames.schema.names]
        self._texts = {name: TextDictionary() for name in _TEXTS}
        self._texts["label"] = _Labels() if empty_labels else TextDictionary()
        self._counts: list[int] = []
        self._rows: list[Ints] = []
        self._pieces: defaultdict[str, list[Piece]] = defaultdict(list)
        self._absent: defaultdict[str, list[Piece]] = defaultdict(list)
        self._lists: dict[int, Lists] = {}  # by piece

    def encode_signals(self, names: Iterable[str]) -> NDArray[np.int32]:
        """The codes of names, for `add`."""
        return self._texts["signal"].encode_texts(names)

    def add(
        self,
        rows: Ints,
        decoded: DecodedSignal,
        *,
        message: str,
        signal: Piece,
        valid: NDArray[np.bool_] | None,
        lists: Lists | None = None,
        places: Ints | None = None,
        ids: Mapping[str, int],
    ) -> None:
        """Add values; `rows`: the frame of each. `signal`: codes of names; `places`: in containers; `ids`: by column."""
        count = len(decoded)
        codes = self._texts["unit"].encode_texts([scale.unit or "" for scale in decoded.signal.scales])
        labels: Piece = -1
        if decoded.labels is not None:
            labels = np.append(self._texts["label"].encode_texts(decoded.names), np.int32(-1))[decoded.labels]
        unknown = decoded.known is not None and not decoded.known.all()
        if lists is not None:
            self._lists[len(self._counts)] = lists
        self._counts.append(count)
        self._rows.append(rows)
        pieces: dict[str, Piece] = {
            "message": self._texts["message"].encode_text(message),
            "signal": signal,
            "value": decoded.value,
            "label": labels,
            "raw_value": 0 if decoded.raw is None else decoded.raw,
            "unit": int(codes[0]) if decoded.units is None else codes[decoded.units],
            "valid": True if valid is None else valid,
            "contained_no": -1 if places is None else places,
            **ids,
        }
        for name, piece in pieces.items():
            self._pieces[name].append(piece)
        self._absent["value"].append(~decoded.known if unknown and decoded.known is not None else False)
        self._absent["raw_value"].append(decoded.raw is None)
        self._absent["contained_no"].append(places is None)

    def build_table(self) -> pa.Table:
        if not self._counts:
            return SIGNALS_SCHEMA.empty_table()
        columns = SignalColumns(SIGNALS_SCHEMA, sum(self._counts))
        rows = np.concatenate(self._rows)
        for name in self._copied:
            columns.add_copies(name, self._frames.column(name), rows)
        for name, pieces in self._pieces.items():
            column = self._join(pieces, _TYPES.get(name))
            if name in self._texts:
                columns.add_texts(name, self._texts[name], column)
            else:
                columns.add_numbers(name, column, self._join(self._absent.get(name, [False]), np.bool_))
        if self._lists:
            columns.add_array("values", self._build_lists())
        return columns.build_table()

    def _join(self, pieces: list[Piece], kind: Any) -> Any:
        """The whole column; a number if all rows have the same."""
        if any(isinstance(piece, np.ndarray) for piece in pieces):
            return np.concatenate(
                [
                    piece if isinstance(piece, np.ndarray) else np.full(count, piece, kind)
                    for piece, count in zip(pieces, self._counts, strict=True)
                ]
            )
        if len(set(pieces)) == 1:
            return pieces[0]
        return np.repeat(np.array(pieces, kind), self._counts)

    def _build_lists(self) -> pa.Array:
        sizes = [
            np.diff(self._lists[number][0]) if number in self._lists else np.zeros(count, np.int32)
            for number, count in enumerate(self._counts)
        ]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate(sizes), dtype=np.int64)]).astype(np.int32)
        absent = self._join([number not in self._lists for number in range(len(self._counts))], np.bool_)
        return pa.ListArray.from_arrays(
            pa.array(offsets),
            pa.array(np.concatenate([numbers for _, numbers in self._lists.values()])),
            type=SIGNALS_SCHEMA.field("values").type,
            mask=pa.array(absent) if isinstance(absent, np.ndarray) else None,
        )
