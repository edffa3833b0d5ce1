"""The working memory of the kernels, and the call of the walk, which uses most of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .kernel_arguments import TextMemory, WalkMemory, WalkProgram, WalkResult
from .kernels import encoding
from .program import Program
from .small_pages import allocate_small_pages

Walk = Callable[..., int]  # with the arguments of `walk.walk_records`
MOST_KEPT = 16 << 20  # bytes of messages; longer ones are rare


class ScratchBuffers:
    """The working memory of one decoder, kept for the next capture, because fresh pages cost time."""

    def __init__(self, program: Program, morsel_rows: int) -> None:
        room = morsel_rows + encoding.RESERVE + 2
        self.morsel_rows, self.clean = morsel_rows, 0
        self.table_rows = np.zeros(len(program.tables), np.int64)
        self.source_rows = np.zeros(len(program.sources), np.int64)
        self.tables = allocate_small_pages((len(program.tables), encoding.TABLE_FIELDS, room), np.int32)
        self.all_slots = allocate_small_pages((int(program.slots_of.sum()), room), np.int32)
        self.sources = np.split(self.all_slots, program.first_slots[1:])
        self.packets = np.empty((encoding.PACKET_FIELDS, morsel_rows), np.int64)
        self.faults = np.empty((6, room), np.int64)
        self.result = WalkResult(
            self.tables, self.all_slots, self.table_rows, self.source_rows, self.packets, self.faults
        )
        self.memory = WalkMemory(
            where=np.empty(encoding.WHERE_WIDTH * len(program.layers), np.int64),
            stack=np.empty(encoding.STACK_WIDTH * (encoding.DEPTH + 1), np.int64),
            last=np.empty(len(program.tables), np.int64),
            subs=np.empty(len(program.tables), np.int64),
            touched=np.empty(len(program.layers), np.int64),
        )
        self.messages = np.empty(0, np.uint8)
        self.columns_of_all = np.empty(2 * max(len(spec.schema) for spec in program.specs.values()), np.int32)
        self._allocate_for_columns(room)

    def _allocate_for_columns(self, room: int) -> None:
        self.todo, words = np.empty(room, np.int32), np.empty(9 * room, np.uint8)
        self.text_memory = TextMemory(self.todo, words, *(np.empty(room, np.int64) for _ in range(3)))
        self.order, self.masks = (np.empty(room, np.int32) for _ in range(2))
        self.shapes = np.empty((encoding.MOST_SHAPES, encoding.SHAPE_WIDTH), np.int64)
        self.shape_slots = np.empty(encoding.SHAPE_SLOTS, np.int32)

    def room_for_messages(self, size: int) -> Any:
        """Memory for at least `size` bytes of a morsel and its messages, uint8. It may be that of the morsel before."""
        if size > self.messages.size:
            self.messages = np.empty(size + size // 2, np.uint8)  # several kinds append to it
        return self.messages

    def with_room(self, rows: int) -> ScratchBuffers:
        """Working memory to fill columns of that many rows of a table: these buffers, or a copy with larger ones."""
        if rows <= self.todo.size:
            return self
        wider = copy.copy(self)
        wider._allocate_for_columns(rows)
        return wider

    def with_packets(self, count: int) -> ScratchBuffers:
        """The same working memory with room for `count` packets, so that the walk stops behind them."""
        fewer = copy.copy(self)
        fewer.packets = np.empty((encoding.PACKET_FIELDS, count), np.int64)
        fewer.result = self.result._replace(packets=fewer.packets)
        return fewer

    @classmethod
    def take_or_allocate(cls, program: Program, morsel_rows: int) -> ScratchBuffers:
        try:
            buffers: ScratchBuffers = program.keep(("scratch", morsel_rows), list).pop()
        except IndexError:
            buffers = cls(program, morsel_rows)
        return buffers

    def release_buffers(self, program: Program, clean: int) -> None:
        """Keep the buffers for the next decoder. clean: rows of packets whose slots are all -1."""
        self.clean = clean
        if self.messages.size > MOST_KEPT:
            self.messages = np.empty(0, np.uint8)
        spare = program.keep(("scratch", self.morsel_rows), list)
        spare.append(self)
        del spare[:-4]


@dataclass(frozen=True, slots=True)
class Walker:
    """A kernel that walks records for a program. arguments: the program's, with the `lut` of one decoder."""

    kernel: Walk
    program: Program
    arguments: WalkProgram

    def __call__(self, data: Any, end: int, root: int, late: int, clocks: Any, state: Any, room: ScratchBuffers) -> int:
        """Walk the records of data[state[POSITION]:end], with the arguments and the result of `walk.walk_records`."""
        room.table_rows[:] = 0
        room.source_rows[:] = 0
        state[encoding.N_PACKETS] = state[encoding.N_FAULTS] = state[encoding.N_ROWS] = 0
        return self.go_on(data, end, root, late, clocks, state, room)

    def go_on(self, data: Any, end: int, root: int, late: int, clocks: Any, state: Any, room: ScratchBuffers) -> int:
        """As `__call__`, but the rows that were found before stay."""
        return self.kernel(data, end, root, late, self.arguments, clocks, state, room.result, room.memory)
