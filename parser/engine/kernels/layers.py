"""What the walk does with one layer. `specialize.py` makes a copy of each function for each frequent layer of a program.

The arrays are those of `kernel_arguments`, flat.
"""

from __future__ import annotations

from . import helper
from .encoding import *
from .header_values import find_sparse_key, read_term_value
from .raw_memory import get, put


@helper
def enter_layer(data, where, lut, sparse, layers, layer, at, limit, level):
    """Enter a layer at data[at:limit]: the only place where a bound is checked.

    Returns what is wrong (0: nothing; PADDING: an entry of a padded chain has no body, and the walk looks at its bytes), what
    else is noted and ends nothing (IS_FAULT, TELLS_LOSS), bytes that the layer needs, bytes of its trailer, the bounds of its
    body, and the layer that its keys lead to, or -1. If nothing is wrong, or it is an overrun or PADDING, data[at:at + least]
    is there and data[body:body_end] lies inside data[at:limit].
    """
    layer_row = layer * WIDTH
    fault, need, flags = 0, get(layers, layer_row + LEAST), get(layers, layer_row + FLAGS)
    body, body_end, trailer, soft = at, at, 0, 0
    # rule: all bytes of the declared header are there
    if limit - at < need:
        fault = SHORT_HEADER
    # rule: layers nest no deeper than the limit
    elif level > DEPTH:
        fault = TOO_DEEP
    else:
        skipped = 0
        for n in range(get(layers, layer_row + N_CHECKS)):
            # rule: checks are made in order
            check = layer_row + CHECK + n * CHECK_WIDTH
            mode = get(layers, check + TERM + 2)
            if skipped > 0:
                skipped -= 1
            else:
                value = read_term_value(data, where, at, layers, check)
                # rule: a check declares the least and the greatest good value
                if value < get(layers, check + TERM) or value > get(layers, check + TERM + 1):
                    # rule: a check ends the path, an expectation does not
                    if mode & ENDS_PATH:
                        fault = BAD_VALUE
                    # rule: a bad value is not a fault while an alternative may hold
                    elif mode & IS_FAULT:
                        soft = soft | IS_FAULT
                    elif mode & TELLS_LOSS:
                        soft = soft | TELLS_LOSS
                else:
                    # rule: the first alternative that holds skips the others
                    skipped = mode >> CHECK_SKIPS
        head, need, trailer = (
            get(layers, layer_row + HEAD + T_ADD),
            get(layers, layer_row + TOTAL + T_ADD),
            get(layers, layer_row + TRAILER + T_ADD),
        )
        if flags & (F_HEAD | F_TOTAL | F_TRAILER):
            if flags & F_HEAD:
                head = read_term_value(data, where, at, layers, layer_row + HEAD)
            if flags & F_TOTAL:
                need = read_term_value(data, where, at, layers, layer_row + TOTAL)
            if flags & F_TRAILER:
                trailer = read_term_value(data, where, at, layers, layer_row + TRAILER)
        # rule: a layer without a length of its own has all that its carrier holds
        if need <= head + trailer and need == get(layers, layer_row + UNSIZED):
            need = limit - at
        # rule: padding of which there is more than bytes ends nothing
        if flags & F_TRAILER and head <= need < head + trailer:
            soft, trailer = soft | IS_FAULT, need - head
        if fault == 0:
            if (
                # rule: a layer holds its header and its trailer
                need < head + trailer
                # rule: a computed header holds the declared one
                or (flags & F_HEAD and head < get(layers, layer_row + LEAST))
            ):
                fault = BAD_LENGTH
            # rule: a layer that claims more than its span is an overrun
            elif need > limit - at:
                fault = OVERRUN
                # rule: the body of an overrun is clipped to the span
                body, body_end = min(at + head, limit), min(at + need - trailer, limit)
            else:
                body = at + head
                # rule: the trailer is not part of the body
                body_end = at + need - trailer
            # rule: an entry without a body may be the end of a padded chain
            if flags & F_PADDED and need == head and fault == 0:
                fault = PADDING
    # a key names the child, and the body is its span
    child = -1
    if fault == 0 or fault in (OVERRUN, PADDING):
        for n in range(get(layers, layer_row + N_KEYS)):
            place = layer_row + KEY + n * KEY_WIDTH
            least, most = get(layers, place + KEY_IF + TERM), get(layers, place + KEY_IF + TERM + 1)
            if (
                # rule: the first key that leads to a layer counts
                child < 0
                # rule: a key counts only where its condition holds
                and least <= read_term_value(data, where, at, layers, place + KEY_IF) <= most
            ):
                if get(layers, place) == SPAN_KEY:
                    # rule: a key may be the length of the span
                    key = limit - at
                # rule: a field of another layer is a key only if that layer begins at the same byte
                elif get(layers, place) & R_HERE and get(where, get(layers, place) >> R_PLACE) != at:
                    key = -1
                else:
                    key = read_term_value(data, where, at, layers, place)
                if get(layers, place + TERM + 1) == SPARSE:
                    child = find_sparse_key(sparse, get(layers, place + TERM), key)
                # rule: a key lies within its key space
                elif 0 <= key < get(layers, place + TERM + 1):
                    child = get(lut, get(layers, place + TERM) + key)
    return fault, soft, need, trailer, body, body_end, child


@helper
def read_record(data, where, layers, layer, at):
    """High and low word of the time, interface, captured and original length of the packet whose record is at `at`, and the
    number of packets that were lost before it.
    """
    record = layer * WIDTH + RECORD
    return (
        read_term_value(data, where, at, layers, record),
        read_term_value(data, where, at, layers, record + TERM),
        read_term_value(data, where, at, layers, record + 2 * TERM),
        read_term_value(data, where, at, layers, record + 3 * TERM),
        read_term_value(data, where, at, layers, record + 4 * TERM),
        read_term_value(data, where, at, layers, record + 5 * TERM),
    )


@helper
def keep_starts(sources, source_at, room, where, record, layers, uses, slots, layer):
    """Write the starts of the layers that a row of this layer reads to sources[source_at], sources[source_at + room], ..."""
    source = get(layers, layer * WIDTH + SOURCE)
    for n in range(get(layers, layer * WIDTH + N_USES)):
        start = get(where, get(uses, source * slots + n))
        # rule: a layer that starts in an earlier record is absent
        put(sources, source_at + n * room, start if start >= record else min(start, ABSENT))


@helper
def enter_packet(where, layers, n_layers, inside):
    """A packet inside the packet begins: keep the starts of the layers outside, and hide them."""
    kept = (PLACES + inside) * n_layers
    for i in range(n_layers):
        put(where, kept + i, get(where, i))
        # rule: a packet inside the packet has none of the layers before it, but the bus that it came from
        if not get(layers, i * WIDTH + FLAGS) & F_BUS:
            put(where, i, HIDDEN)
        put(where, 3 * n_layers + i, HIDDEN)


@helper
def leave_packet(where, n_layers, inside):
    """A packet inside the packet is over: the layers outside have the starts that they had."""
    for i in range(n_layers):
        # rule: what follows a packet inside the packet has the layers before it
        put(where, i, get(where, (PLACES + inside) * n_layers + i))
