"""Decodes all payloads of one message at once: fixed layouts by one gather per member, the others by one walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pcaplake.signals.compiled_signal import Bytes, Ints

from .description import DEEPEST, PayloadMessage
from .end_to_end import check_checksums, find_header_members
from .kernels import encoding as E
from .kernels.walk import fill_slots, walk_messages
from .program import FixedMember, WalkProgram, find_fixed_members
from .values import LeafReader, LeafValues

_FIRST_VALUES, _FIRST_INSTANCES = 1 << 10, 1 << 10  # for which a walk has room at first
Chooses = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedPayloads:
    """The values of one leaf. `rows`: the payload of each value, ascending for each path, as an index of the input.

    `indices`: the distinct indices in its path; `path_of`: place in them for each value; None: all have the first.
    """

    rows: Ints
    values: LeafValues
    indices: tuple[tuple[int, ...], ...]
    path_of: Ints | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """The paths with those indices."""
        return tuple(self.values.path.format(*indices) for indices in self.indices)


class PayloadDecoder:
    """`chooses`: whether a path, with `{}` for each index, is wanted."""

    def __init__(self, message: PayloadMessage, chooses: Chooses = lambda path: True) -> None:
        self.message = message
        e2e = message.e2e
        self._header = [] if e2e is None else _only_chosen(find_header_members(e2e), chooses)
        self._start = 0 if e2e is None else e2e.offset + e2e.header_bytes
        members = find_fixed_members(message, self._start)
        self._fixed = None if members is None else _only_chosen(members, chooses)
        self._end = self._start + (message.parameters.fixed_bytes or 0)
        self._program = None
        self._readers: list[LeafReader | None] = []
        if members is None:
            self._program = WalkProgram(message)
            readers = map(LeafReader, self._program.leaves)
            self._readers = [reader if any(map(chooses, reader.paths)) else None for reader in readers]

    def decode_payloads(
        self, data: Bytes, starts: Ints, ends: Ints, headers: Bytes
    ) -> tuple[list[DecodedPayloads], NDArray[np.int32]]:
        """The values in the payloads data[starts:ends], and the flags of each payload (`kernels.encoding`).

        `headers`: uint8 of shape (payloads, 8), the SOME/IP header from the client id on, for checksums.
        """
        flags = np.zeros(len(starts), np.int32)
        decoded = list(self._read_header(data, starts, ends, headers))
        if self._fixed is not None:
            flags[ends - starts < self._end] |= E.SHORT
            flags[ends - starts > self._end] |= E.LONG
            decoded += _read_fixed(self._fixed, data, starts, ends)
        else:
            decoded += self._read_walked(data, starts, ends, flags)
        return decoded, flags

    def _read_header(self, data: Bytes, starts: Ints, ends: Ints, headers: Bytes) -> Iterator[DecodedPayloads]:
        e2e = self.message.e2e
        for place, part in enumerate(_read_fixed(self._header, data, starts, ends)):
            if place == 0 and e2e is not None and part.paths[0] == "E2E.crc":
                rows = part.rows
                right = check_checksums(e2e, data, starts[rows], ends[rows], headers[rows])
                part = replace(part, values=replace(part.values, decoded=replace(part.values.decoded, valid=right)))
            yield part

    def _read_walked(
        self, data: Bytes, starts: Ints, ends: Ints, flags: NDArray[np.int32]
    ) -> Iterator[DecodedPayloads]:
        assert self._program is not None
        found = _walk(self._program, data, starts, ends, self._start, flags)
        order = np.argsort(found.leaves.astype(np.uint16), kind="stable")  # numpy sorts these by radix
        bounds = np.concatenate([[0], np.cumsum(np.bincount(found.leaves, minlength=len(self._readers)))])
        tagged = bool((self._program.nodes[:, E.KIND] == E.TAGGED).any())
        for leaf, reader in enumerate(self._readers):
            chosen = order[bounds[leaf] : bounds[leaf + 1]]
            if reader is None or not len(chosen):
                continue
            rows, instances = found.messages[chosen].astype(np.int64), found.instances[chosen]
            if tagged:
                _, first = np.unique(np.stack([instances.astype(np.int64), rows]), axis=1, return_index=True)
                # rule: of a member that a message has twice, the first counts
                if len(first) < len(chosen):
                    first.sort()
                    chosen, rows, instances = chosen[first], rows[first], instances[first]
            names: list[tuple[int, ...]] = [()]
            path_of: Ints | None = None
            if "{}" in reader.leaf.path:
                distinct, path_of = _number_distinct(instances, len(found.parents))
                names = found.index_chains(distinct)
            for values in reader.read_values(data, found.positions[chosen], found.lengths[chosen]):
                yield DecodedPayloads(rows=rows, values=values, indices=tuple(names), path_of=path_of)


def _only_chosen(members: list[FixedMember], chooses: Chooses) -> list[tuple[FixedMember, LeafReader]]:
    readers: dict[int, LeafReader] = {}
    kept = []
    for member in members:
        reader = readers.setdefault(id(member.leaf), LeafReader(member.leaf))
        if any(map(chooses, reader.paths)):
            kept.append((member, reader))
    return kept


def _read_fixed(
    members: list[tuple[FixedMember, LeafReader]], data: Bytes, starts: Ints, ends: Ints
) -> Iterator[DecodedPayloads]:
    sizes = ends - starts
    shortest = int(sizes.min()) if len(sizes) else 0
    everything = np.arange(len(starts))
    for member, reader in members:
        size = member.leaf.type.least_bytes
        rows, lengths = everything, np.zeros(0, np.int64)
        # rule: a payload that is too short gives the values that fit
        if member.offset + size * member.count > shortest:
            rows = np.flatnonzero(sizes >= member.offset + size)
        if not len(rows):
            continue
        if reader.leaf.is_list:
            lengths = np.minimum(member.count, (sizes[rows] - member.offset) // size) * size
        elif reader.leaf.type.least_bytes:
            lengths = np.full(len(rows), size)
        for values in reader.read_values(data, starts[rows] + member.offset, lengths):
            yield DecodedPayloads(rows=rows, values=values, indices=(member.indices,))


# -- the walk ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What a walk found: see `walk_messages`."""

    messages: NDArray[np.int32]
    leaves: NDArray[np.int32]
    instances: NDArray[np.int32]
    positions: Ints
    lengths: Ints
    parents: Ints
    indices: Ints

    def index_chains(self, instances: NDArray[np.int64]) -> list[tuple[int, ...]]:
        """The indices of each instance, the outermost first."""
        known: dict[int, tuple[int, ...]] = {0: ()}

        def chain(instance: int) -> tuple[int, ...]:
            if instance not in known:
                known[instance] = (*chain(int(self.parents[instance])), int(self.indices[instance]))
            return known[instance]

        return [chain(instance) for instance in instances.tolist()]


def _number_distinct(instances: NDArray[np.int32], most: int) -> tuple[Ints, Ints]:
    """The distinct instances, and the place of each value among them."""
    if most > 4 * len(instances):
        distinct, places = np.unique(instances, return_inverse=True)
        return distinct.astype(np.int64), places
    present = np.zeros(most, np.bool_)
    present[instances] = True
    return np.flatnonzero(present), (np.cumsum(present) - 1)[instances]


def _walk(program: WalkProgram, data: Bytes, starts: Ints, ends: Ints, skip: int, flags: NDArray[np.int32]) -> _Found:
    values = max(_FIRST_VALUES, len(starts))
    most = int((ends - starts).sum())  # values: each has a byte of its own, in a payload or its length field
    found: list[NDArray[Any]] = [np.empty(values, kind) for kind in (np.int32, np.int32, np.int32, np.int64, np.int64)]
    instances = [np.zeros(_FIRST_INSTANCES, np.int64) for _ in range(2)]
    slots = np.full(4 * _FIRST_INSTANCES, -1, np.int32)
    stack = np.zeros((2 * DEEPEST + 2, E.FRAME), np.int64)
    state = np.array([0, 0, 1, 0], np.int64)
    while True:
        walk: Any = walk_messages  # mypy does not follow groups of arguments
        walk(data, starts, ends, skip, program.nodes, *found, *instances, slots, flags, stack, state)
        if state[E.FULL] == E.NOT_FULL:
            break
        if state[E.FULL] == E.VALUES_FULL:
            if len(found[0]) > most:
                raise RuntimeError(f"a walk found more values than the payloads have bytes: {program.leaves[0].path}")
            found = [np.concatenate([array, np.empty_like(array)]) for array in found]
        else:
            instances = [np.concatenate([array, np.zeros_like(array)]) for array in instances]
            slots = np.full(2 * len(slots), -1, np.int32)
            parents, indices = instances
            fill_slots(slots, parents, indices, int(state[E.INSTANCES]))
    count, known = int(state[E.VALUES]), int(state[E.INSTANCES])
    messages, leaves, its_instances, positions, lengths = (array[:count] for array in found)
    parents, indices = (array[:known] for array in instances)
    return _Found(
        messages=messages,
        leaves=leaves,
        instances=its_instances,
        positions=positions,
        lengths=lengths,
        parents=parents,
        indices=indices,
    )
