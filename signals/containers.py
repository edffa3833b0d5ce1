"""The PDUs in AUTOSAR containers with headers, of all frames with a container at once.

All frames go on by one contained PDU in each step, so the steps are as many as the fullest container has PDUs. A length is
never trusted: a PDU that would go beyond its container is cut off, counted, and the last one. An id that the database does
not have is skipped and counted. Source: AUTOSAR SWS I-PDU Multiplexer: a header with the id 0 ends the container
(SWS_IpduM_00210), unknown ids are skipped (SWS_IpduM_00207), and nothing is read after a PDU that is too long
(SWS_IpduM_00213). Layout of headers: TPS_SystemTemplate, ContainerIPduHeaderTypeEnum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from .compiled_signal import Bytes, Ints
from .model import Container

_FAR: Final = 1 << 40  # a place that is in no frame, whatever a database says


@dataclass(kw_only=True)
class ContainerCounts:
    """Numbers of contained PDUs. `unknown`: by container and header id; `cut_off`: by container, those that go beyond its end."""

    unknown: Counter[tuple[str, int]] = field(default_factory=Counter)
    cut_off: Counter[str] = field(default_factory=Counter)

    def add(self, other: ContainerCounts) -> None:
        """Add the numbers of another decoder."""
        self.unknown += other.unknown
        self.cut_off += other.cut_off


@dataclass(frozen=True, slots=True)
class ContainedPdus:
    """PDUs with one header id, int64 each: their frames, ascending; first byte in the data, length in bytes; place in the
    container, from 0."""

    rows: Ints
    offsets: Ints
    lengths: Ints
    places: Ints


def find_contained(
    container: Container, data: Bytes, offsets: Ints, lengths: Ints, counts: ContainerCounts
) -> Iterator[tuple[int, ContainedPdus]]:
    """The PDUs of a container, by header id. `data`: the bytes of all frames, with the offset and the length of each."""
    start, last = min(container.start, _FAR), min(container.start + container.length, _FAR)
    ends = offsets + (np.minimum(lengths, last) if container.length else lengths)
    rows = np.arange(len(offsets))
    if container.update_bit is not None:
        at, bit = divmod(min(container.update_bit, _FAR), 8)
        rows = rows[lengths > at]
        rows = rows[data[offsets[rows] + at] >> bit & 1 == 1]
    starts = offsets[rows] + start
    id_bytes, size = (4, 8) if container.long_header else (3, 4)
    found: list[Ints] = []  # of each step: id, row, start, length, place
    while len(rows := rows[fits := starts + size <= ends[rows]]):
        starts = starts[fits]
        ids = _read_numbers(data, starts, id_bytes, container.big_endian)
        sizes = _read_numbers(data, starts + id_bytes, size - id_bytes, container.big_endian)
        # rule: the id 0 ends a container
        used = ids != 0
        rows, ids, sizes, starts = rows[used], ids[used], sizes[used], starts[used] + size
        # rule: a length ends with its container
        lengths_left = np.minimum(sizes, ends[rows] - starts)
        counts.cut_off[container.name] += int((lengths_left < sizes).sum())
        found.append(np.stack([ids, rows, starts, lengths_left, np.full(len(rows), len(found))]))
        starts = starts + sizes
    counts.cut_off += Counter()  # without zeros
    yield from _group_by_id(container, found, counts)


def _group_by_id(
    container: Container, found: list[Ints], counts: ContainerCounts
) -> Iterator[tuple[int, ContainedPdus]]:
    if not found:
        return
    whole = np.concatenate(found, axis=1)
    whole = whole[:, np.lexsort((whole[4], whole[1], whole[0]))]
    ids, firsts, numbers = np.unique(whole[0], return_index=True, return_counts=True)
    known = {header_id for header_id, _ in container.contained}
    for header_id, first, number in zip(ids.tolist(), firsts, numbers.tolist(), strict=True):
        if header_id in known:
            yield header_id, ContainedPdus(*whole[1:, first : first + number])
        else:
            counts.unknown[container.name, header_id] += number


def _read_numbers(data: Bytes, starts: Ints, size: int, big_endian: bool) -> Ints:
    """Unsigned numbers of `size` bytes, from each of these bytes on."""
    numbers = np.zeros(len(starts), np.int64)
    for place in range(size):
        shift = 8 * (size - 1 - place if big_endian else place)
        numbers |= data[starts + place].astype(np.int64) << shift
    return numbers
