"""Columns that plain Python makes from the whole message of a row (the options of SOME/IP-SD).

Each row may repeat its whole message, so a small capture could take much memory and time. The rows of a message may
therefore repeat at most a multiple of its length, and they are returned in parts of at most `PART_BYTES` repeated bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .layer import Rows
from .sources import RowSource

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]
PART_BYTES = 4 << 20  # bytes of messages that the rows of one batch repeat
# How often the rows of a message may repeat its bytes. An entry of service discovery (16 bytes) can refer to 30 options;
# as IPv4 endpoints these have 22 times its bytes.
MOST_REPEATED = 32
FEW_ROWS = MOST_REPEATED // 2  # rows of one message that cannot repeat too much: each repeats it at most twice
TOO_MUCH_REPEATED = "too_much_repeated"


@dataclass(frozen=True, slots=True)
class ExcessiveMessage:
    """A message whose rows repeat too many of its bytes."""

    row: int  # number in the source of the first row that gets no objects
    need: int  # bytes that all rows of the message would repeat
    have: int  # bytes that they may repeat


@dataclass(frozen=True, slots=True)
class Spans:
    """Where n rows and their messages lie in `data`, and what each row repeats; all int64[n].

    starts: of the rows' layer; begins, ends: of the body of `Rows.within`; repeats: bytes, -1 for a row without objects.
    """

    starts: Any
    begins: Any
    ends: Any
    repeats: Any


def measure_object_spans(data: Bytes, source: RowSource, rows: Any, count: int) -> tuple[Spans, list[ExcessiveMessage]]:
    """The spans of the first `count` rows of a source int32[STARTS + slots, room], and the messages whose rows repeat too many
    of their bytes."""
    assert source.rows.repeats is not None
    start, span = source.span
    starts, begins, ends = (rows[i, :count].astype(np.int64) for i in (start, span, span + 1))
    repeats, excess = ends - begins, []
    firsts = np.flatnonzero(np.diff(begins, prepend=-1))
    counts = np.diff(firsts, append=count)
    for i in np.flatnonzero(counts > FEW_ROWS).tolist():
        first, size = int(firsts[i]), int(counts[i])
        begin, end = int(begins[first]), int(ends[first])
        part = repeats[first : first + size]
        part[:] = source.rows.repeats(data, starts[first : first + size], begin, end)
        total, most = np.cumsum(part), MOST_REPEATED * (end - begin)
        if total[-1] > most:
            lost = int(np.searchsorted(total, most, side="right"))
            part[lost:] = -1
            excess.append(ExcessiveMessage(first + lost, int(total[-1]), most))
    return Spans(starts, begins, ends, repeats), excess


class MessageObjects:
    """The messages of a batch's rows, kept until the batch is finished."""

    def __init__(self) -> None:
        self._rows: Rows | None = None
        self._spans: list[tuple[Any, Any, Any, Any]] = []  # starts, begins, ends in `_messages`; repeats
        self._messages: list[Bytes] = []
        self.bytes = 0  # of the messages

    def keep_messages(self, data: Bytes, rows: Rows, spans: Spans) -> None:
        """Keep the spans of a morsel's rows, and a copy of their messages."""
        self._rows = rows
        starts, begins, ends = spans.starts, spans.begins, spans.ends
        firsts = np.flatnonzero(np.diff(begins, prepend=-1))
        sizes = (ends - begins)[firsts]
        places = self.bytes + np.cumsum(sizes) - sizes
        moved = np.repeat(places - begins[firsts], np.diff(firsts, append=len(starts)))
        nothing = spans.repeats < 0  # their message is empty: it begins and ends at the row
        begins, ends = (np.where(nothing, starts, place) + moved for place in (begins, ends))
        self._spans.append((starts + moved, begins, ends, np.maximum(spans.repeats, 0)))
        self._messages += [data[spans.begins[i] : spans.ends[i]].copy() for i in firsts.tolist()]
        self.bytes += int(sizes.sum())

    def object_columns(self) -> tuple[str, ...]:
        """The columns that `Rows.finish` makes; none if no row was kept."""
        return self._rows.made if self._rows is not None else ()

    def resolve_objects(self) -> Iterator[tuple[int, int, Mapping[str, list[Any]]]]:
        """(first row, row behind the last, columns) of each part, in order."""
        if self._rows is None:
            return
        assert self._rows.finish is not None
        data = np.concatenate(self._messages)
        starts, begins, ends, repeats = (np.concatenate(parts) for parts in zip(*self._spans, strict=True))
        read = np.cumsum(repeats)
        first, n = 0, len(starts)
        while first < n:
            before = int(read[first - 1]) if first else 0
            last = min(max(first + 1, int(np.searchsorted(read, before + PART_BYTES))), n)
            part = slice(first, last)
            yield first, last, self._rows.finish(data, starts[part], begins[part], ends[part])
            first = last
