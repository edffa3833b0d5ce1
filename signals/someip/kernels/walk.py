"""One walk over all messages of one kind: finds where every value is, by the table of a `WalkProgram`.

Every bound is checked against the span of the innermost container, and a span is never larger than the one around it. If
something does not fit, the rest of the container is unknown: the walk continues after the container if a length field says
where that is, otherwise the container around it ends, too. So no value is read from a place that a broken length would shift.
"""

from __future__ import annotations

import numpy as np

from pcaplake.parser.engine.kernel_types import Bytes, Int32s, Int64Matrix, Int64s
from pcaplake.parser.engine.kernels import helper, kernel

from .encoding import *


@helper
def read_number(data, at, size, little):
    """A number of `size` bytes."""
    value = np.int64(0)
    for k in range(size):
        value = (value << 8) | np.int64(data[at + (size - 1 - k if little else k)])
    return value


@helper
def find_child(nodes, node, key):
    """The child with this key; -1: none. Children are in the order of their keys."""
    low = nodes[node, FIRST]
    high = end = low + nodes[node, COUNT]
    while low < high:
        middle = (low + high) >> 1
        if nodes[middle, KEY] < key:
            low = middle + 1
        else:
            high = middle
    return low if low < end and nodes[low, KEY] == key else np.int64(-1)


@helper
def place_of_instance(slots, parents, indices, parent, index):
    """The slot of an instance, or the free slot where it belongs."""
    mask = slots.size - 1
    at = ((parent * np.int64(0x9E3779B1)) ^ (index * np.int64(0x85EBCA6B)) ^ (parent >> 7)) & mask
    while slots[at] >= 0 and (parents[slots[at]] != parent or indices[slots[at]] != index):
        at = (at + 1) & mask
    return at


@kernel
def walk_messages(
    data: Bytes,
    starts: Int64s,
    ends: Int64s,
    skip: int,
    nodes: Int64Matrix,
    messages: Int32s,
    leaves: Int32s,
    instances: Int32s,
    positions: Int64s,
    lengths: Int64s,
    parents: Int64s,
    indices: Int64s,
    slots: Int32s,
    flags: Int32s,
    stack: Int64Matrix,
    state: Int64s,
) -> None:
    """Find the values of the messages from state[MESSAGE] on; stop before a message for which there is no room.

    data: uint8, all payloads; starts, ends: int64, the payload of each message in it; skip: bytes before the parameters;
    nodes: of a `WalkProgram`.
    Filled for each value: messages, leaves, instances: int32; positions: int64, in `data`; lengths: int64, the bytes of a text
    or list. An instance is a chain of array indices: `indices` of the last one and `parents`, the instance of the others;
    instance 0 has none. slots: int32, a power of two, more than twice as many as instances: their hash table, -1 where
    empty. flags: int32, what is wrong with each message. stack: int64[deepest, FRAME]. state: int64[4], see `encoding`.
    """
    filled, known = state[VALUES], state[INSTANCES]
    state[FULL] = NOT_FULL
    for m in range(state[MESSAGE], starts.size):
        filled_before = filled
        wrong = np.int64(0)
        message_end = ends[m]
        origin = starts[m] - HEADER
        pos = starts[m] + skip
        if pos > message_end:
            pos = message_end
            wrong |= SHORT
        depth = -1
        # what is entered next: a node, its instance, its length bytes (-1: as declared), the end of what contains it
        node, instance, override, end = np.int64(0), np.int64(0), np.int64(-1), message_end
        entering = True
        failed = False
        while True:
            if entering:
                entering = False
                kind = nodes[node, KIND]
                length_bytes = nodes[node, LENGTH_BYTES] if override < 0 else override
                if kind == NUMBER:
                    size = nodes[node, SIZE]
                    # rule: a number that does not fit is not read
                    if pos + size > end:
                        wrong |= SHORT if pos + size > message_end else DAMAGED
                        failed = True
                    else:
                        if filled == messages.size:
                            state[FULL] = VALUES_FULL
                            break
                        messages[filled], leaves[filled], instances[filled] = m, nodes[node, LEAF], instance
                        positions[filled], lengths[filled] = pos, size
                        filled += 1
                        pos += size
                elif kind == NOTHING:
                    pass
                else:
                    # -- the span: a length field, or the sizes of the declaration
                    fixed = length_bytes == 0
                    head = length_bytes
                    if kind == UNION:
                        head += nodes[node, SELECTOR_BYTES]
                    inner = pos + head
                    inner_end = end
                    clipped = False
                    # rule: a length field that does not fit is not read
                    if inner > end:
                        wrong |= SHORT if inner > message_end else DAMAGED
                        failed = True
                    else:
                        if not fixed:
                            inner_end = inner + read_number(data, pos, length_bytes, nodes[node, LENGTH_LITTLE])
                        elif kind in (UNION, TEXT):
                            inner_end = inner + nodes[node, SIZE]
                        # rule: a length field is not trusted beyond what contains it
                        if inner_end > end:
                            wrong |= SHORT if inner_end > message_end else DAMAGED
                            inner_end, clipped = end, True
                    if failed:
                        pass
                    elif kind == TEXT:
                        # rule: a text that is cut off is not read
                        if clipped:
                            failed = True
                        else:
                            if filled == messages.size:
                                state[FULL] = VALUES_FULL
                                break
                            messages[filled], leaves[filled], instances[filled] = m, nodes[node, LEAF], instance
                            positions[filled], lengths[filled] = inner, inner_end - inner
                            filled += 1
                            pos = inner_end
                            align = nodes[node, ALIGN]
                            if align > 1 and nodes[node, LENGTH_BYTES] > 0:
                                # rule: padding follows a text of variable size
                                pos = min(end, origin + (pos - origin + align - 1) // align * align)
                    elif kind == NUMBERS:
                        size, most = nodes[node, SIZE], nodes[node, MAXIMUM]
                        fits = (inner_end - inner) // size
                        count = fits if most < 0 else min(fits, most)
                        rest = inner + (count + 1) * size
                        if fixed:
                            # rule: an array without a length field has all its elements
                            if count < most:
                                wrong |= SHORT if rest > message_end else DAMAGED
                                failed = True
                        else:
                            if inner + count * size < inner_end:
                                # rule: elements beyond the maximum are skipped
                                if count == most:
                                    wrong |= LONG
                                else:
                                    wrong |= SHORT if rest > message_end else DAMAGED
                            if count < nodes[node, MINIMUM]:
                                wrong |= SHORT
                        full = NOT_FULL
                        if failed and count == 0:
                            pass
                        elif nodes[node, WHOLE]:
                            if filled == messages.size:
                                full = VALUES_FULL
                            else:
                                messages[filled], leaves[filled], instances[filled] = m, nodes[node, LEAF], instance
                                positions[filled], lengths[filled] = inner, count * size
                                filled += 1
                        else:
                            for i in range(count):
                                at = place_of_instance(slots, parents, indices, instance, i)
                                if slots[at] < 0:
                                    if known == parents.size:
                                        full = INSTANCES_FULL
                                        break
                                    parents[known], indices[known] = instance, i
                                    slots[at] = known
                                    known += 1
                                if filled == messages.size:
                                    full = VALUES_FULL
                                    break
                                messages[filled], leaves[filled], instances[filled] = m, nodes[node, LEAF], slots[at]
                                positions[filled], lengths[filled] = inner + i * size, size
                                filled += 1
                        if full != NOT_FULL:
                            state[FULL] = full
                            break
                        pos = inner + count * size
                        if not fixed:
                            # rule: what follows an array begins where its length field says
                            pos = inner_end
                            align = nodes[node, ALIGN]
                            if align > 1 and nodes[node, LENGTH_BYTES] > 0:
                                # rule: padding follows an array of variable size
                                pos = min(end, origin + (pos - origin + align - 1) // align * align)
                    else:
                        depth += 1
                        stack[depth, F_NODE] = node
                        stack[depth, F_INSTANCE] = instance
                        stack[depth, F_DONE] = 0
                        stack[depth, F_END] = inner_end
                        stack[depth, F_OUTER] = end
                        stack[depth, F_SIZED] = not fixed or kind in (UNION, TAGGED)
                        stack[depth, F_NEXT] = -1
                        stack[depth, F_VARIANT] = -1
                        if kind == UNION:
                            if filled == messages.size:
                                state[FULL] = VALUES_FULL
                                break
                            at = pos + length_bytes
                            messages[filled], leaves[filled], instances[filled] = m, nodes[node, LEAF], instance
                            positions[filled], lengths[filled] = at, nodes[node, SELECTOR_BYTES]
                            filled += 1
                            selector = read_number(data, at, nodes[node, SELECTOR_BYTES], nodes[node, SELECTOR_LITTLE])
                            stack[depth, F_VARIANT] = find_child(nodes, node, selector)
                            # rule: a selector that is not described is counted
                            if stack[depth, F_VARIANT] < 0:
                                wrong |= UNKNOWN
                        pos = inner
            if depth < 0:
                break
            # -- the innermost container: its next child, or its end
            node = stack[depth, F_NODE]
            kind = nodes[node, KIND]
            end = stack[depth, F_END]
            done = stack[depth, F_DONE]
            instance = stack[depth, F_INSTANCE]
            override = np.int64(-1)
            closing = False
            if failed:
                closing = True
                if kind == TAGGED and stack[depth, F_NEXT] >= 0:  # the end of a tagged member is known
                    closing = False
                    failed = False
                elif stack[depth, F_SIZED]:
                    # rule: after a container with a length field the walk continues
                    failed = False
            if closing:
                pass
            elif kind == STRUCT:
                if done == nodes[node, COUNT]:
                    closing = True
                else:
                    node = nodes[node, FIRST] + done
                    entering = True
            elif kind == ARRAY:
                most, sized = nodes[node, MAXIMUM], stack[depth, F_SIZED]
                if done == most or (sized and pos >= end):
                    closing = True
                    if sized and pos < end:
                        wrong |= LONG
                    if sized and done < nodes[node, MINIMUM]:
                        # rule: fewer elements than the minimum are counted
                        wrong |= SHORT
                else:
                    at = place_of_instance(slots, parents, indices, instance, done)
                    if slots[at] < 0:
                        if known == parents.size:
                            state[FULL] = INSTANCES_FULL
                            break
                        parents[known], indices[known] = instance, done
                        slots[at] = known
                        known += 1
                    instance = np.int64(slots[at])
                    node = nodes[node, FIRST]
                    entering = True
            elif kind == UNION:
                if done == 1 or stack[depth, F_VARIANT] < 0:
                    closing = True
                else:
                    node = stack[depth, F_VARIANT]
                    entering = True
            else:
                # rule: a tagged member ends where its wire type or length field says
                if stack[depth, F_NEXT] >= 0:
                    pos = stack[depth, F_NEXT]
                    stack[depth, F_NEXT] = -1
                if end - pos < 2:
                    closing = True
                    if pos < end:
                        wrong |= SHORT if pos + 2 > message_end else DAMAGED
                else:
                    tag = read_number(data, pos, 2, 0)
                    pos += 2
                    wire = (tag >> 12) & 7
                    child = find_child(nodes, node, tag & 0xFFF)
                    # rule: a member that is not described is counted
                    if child < 0:
                        wrong |= UNKNOWN
                    scalar = child >= 0 and nodes[child, KIND] == NUMBER
                    head = np.int64(0)
                    if wire < 4:
                        size = np.int64(1) << wire
                        suits = scalar and nodes[child, SIZE] == size
                    else:
                        suits = child >= 0 and not scalar
                        if wire > 4:
                            head = np.int64(1) << (wire - 5)
                            override = head
                        elif suits:
                            head = nodes[child, LENGTH_BYTES]
                        if head == 0:  # nothing says where the member ends
                            wrong |= DAMAGED
                            closing = True
                        elif pos + head > end:
                            wrong |= SHORT if pos + head > message_end else DAMAGED
                            closing = True
                        else:
                            little = np.int64(0)
                            if suits:
                                little = nodes[child, LENGTH_LITTLE]
                            size = head + read_number(data, pos, head, little)
                            if suits and nodes[child, KIND] == UNION:
                                size += nodes[child, SELECTOR_BYTES]
                    if not closing:
                        if pos + size > end:
                            if not suits or wire < 4:  # otherwise the member itself finds out
                                wrong |= SHORT if pos + size > message_end else DAMAGED
                            size = end - pos
                            if wire < 4:
                                closing = True
                        if not closing:
                            stack[depth, F_NEXT] = pos + size
                            # rule: a member of another size than its type is not read
                            if suits:
                                node = child
                                entering = True
                            elif child >= 0:
                                wrong |= DAMAGED
            if closing:
                node = stack[depth, F_NODE]
                if stack[depth, F_SIZED]:
                    # rule: what follows a container begins where its length field says
                    pos = end
                end = stack[depth, F_OUTER]
                align = nodes[node, ALIGN]
                if align > 1 and nodes[node, LENGTH_BYTES] > 0:
                    # rule: padding follows a container of variable size
                    pos = min(end, origin + (pos - origin + align - 1) // align * align)
                depth -= 1
                if depth < 0:
                    break
            else:
                stack[depth, F_DONE] = done + 1
        if state[FULL] != NOT_FULL:
            # rule: a message for which there is no room is found again as a whole
            filled = filled_before
            state[MESSAGE] = m
            state[VALUES], state[INSTANCES] = filled, known
            return
        # rule: bytes after the parameters are counted
        if pos < message_end and not failed:
            wrong |= LONG
        flags[m] |= wrong
    state[MESSAGE] = starts.size
    state[VALUES], state[INSTANCES] = filled, known


@kernel
def fill_slots(slots: Int32s, parents: Int64s, indices: Int64s, known: int) -> None:
    """Put instances 1 to `known` into an empty hash table."""
    for instance in range(1, known):
        slots[place_of_instance(slots, parents, indices, parents[instance], indices[instance])] = instance
