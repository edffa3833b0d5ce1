"""What is learned from the messages of a capture while it is decoded.

A key that a message names counts from the next packet on, for the rest of the capture. So the rows depend neither on where
morsels end nor on what is read at the same time, and a capture is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .kernels import encoding
from .key_spaces import KeySpace
from .learned import Learned
from .program import Program

MOST_LEARNED = 1024  # keys of a capture
MOST_REMEMBERED = 1024  # messages
TOO_MANY_PORTS = "too_many_ports"
Key = tuple[KeySpace, int, int]  # what to learn: a value of a key space, and the number of the layer to which it leads


class LearnedKeys:
    """The keys that one capture has named so far.

    numbers     key space and value -> number of the packet that named it; it counts from the next one on
    overflowed  it named more than `MOST_LEARNED`, and no more are learned
    """

    def __init__(self, program: Program, lut: Any) -> None:
        self.numbers: dict[tuple[KeySpace, int], int] = {}
        self.overflowed = False
        self._program, self._lut = program, lut
        # source and bytes of messages that name no new key: most messages repeat an earlier one
        self._known: set[tuple[int, bytes]] = set()
        self._teachers = [i for i, source in enumerate(program.sources) if source.rows.learned is not None]

    def may_teach(self, counts: Any) -> bool:
        """Whether there are rows that may name keys. counts: as for `find_lesson`."""
        return any(counts[number] for number in self._teachers)

    def find_lesson(self, data: Any, tables: Any, sources: Any, counts: Any) -> tuple[int, list[Key]]:
        """The ordinal of the first packet that names keys which are not known yet, and these keys; -1 if there is none.

        data: uint8[n]; tables, sources, counts: as `walk.walk_records` wrote them.
        """
        first, keys = -1, list[Key]()
        for number in self._teachers:
            if self.overflowed or not counts[number]:
                continue
            lesson, named = self._find_lesson_of(number, data, tables, sources[number][:, : counts[number]])
            if named and (not keys or lesson <= first):
                first, keys = lesson, keys + named if lesson == first else named
        return first, list(dict.fromkeys(keys))

    def _find_lesson_of(self, number: int, data: Any, tables: Any, rows: Any) -> tuple[int, list[Key]]:
        """As `find_lesson`, for the rows of one source."""
        source = self._program.sources[number]
        learned, table = source.rows.learned, tables[source.table]
        assert learned is not None
        if source.rows.within is None:
            begins, ends = (table[place, rows[encoding.DEST]] for place in (encoding.BODY, encoding.BODY_END))
        else:
            begins, ends = rows[source.span[1]], rows[source.span[1] + 1]
        lesson, keys = -1, list[Key]()
        for row in np.flatnonzero(np.diff(begins, prepend=-1)).tolist():  # the first row of each message
            ordinal = int(table[encoding.ORDINAL, rows[encoding.DEST, row]])
            # rule: a key counts from the next packet on, and what that one names is found when it is decoded
            if keys and ordinal > lesson:
                break
            body = data[int(begins[row]) : int(ends[row])].tobytes()
            if (number, body) in self._known:
                continue
            named = [key for key in learned.read(body) if self._is_new(learned, *key)]
            if not named:
                self._remember((number, body))
            keys += [(*key, self._program.number[learned.leads[key[0]]]) for key in named]
            lesson = ordinal if keys else -1
        return lesson, keys

    def _remember(self, message: tuple[int, bytes]) -> None:
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        self._known.add(message)

    def _is_new(self, learned: Learned, space: KeySpace, value: int) -> bool:
        # rule: a low port keeps its meaning
        if value < learned.least:
            return False
        layer = int(self._program.lut[self._program.base[space] + value])
        # rule: a key that already leads to a layer is not learned
        return (space, value) not in self.numbers and (layer < 0 or self._program.layers[layer] in learned.over)

    def learn(self, keys: Sequence[Key], packet_no: int) -> None:
        """Make the keys that a packet names lead to their layers."""
        for space, value, layer in keys:
            if (space, value) in self.numbers:
                continue
            # rule: a capture names so many keys, and no more
            if len(self.numbers) >= MOST_LEARNED:
                self.overflowed = True
                return
            self.numbers[space, value] = packet_no
            self._lut[self._program.base[space] + value] = layer
