"""`walk_records` walks the records of a capture and all layers inside them, and notes where rows and faults are.

The helpers of all kernels see each array as one flat array of int64 or int32. A source is one layer that gives rows to one table.
`where` holds the starts of layers: see `encoding.PLACES`.
"""

from __future__ import annotations

import numpy as np

from pcaplake.parser.engine.kernel_arguments import WalkMemory, WalkProgram, WalkResult
from pcaplake.parser.engine.kernel_types import Bytes, Int64Matrix, Int64s

from . import kernel
from .clock import timestamp_nanoseconds
from .encoding import *
from .header_values import begins_pcap, read_packet_options, read_term_value
from .layers import enter_layer, enter_packet, keep_starts, leave_packet, read_record
from .raw_memory import are_zero, get, load, put, swap
from .rows import write_fault_row


@kernel
def walk_records(
    data: Bytes,
    end: int,
    root: int,
    late: int,
    program: WalkProgram,
    clocks: Int64Matrix,
    state: Int64s,
    result: WalkResult,
    memory: WalkMemory,
) -> int:
    """Walk the records of data[state[POSITION]:end] and every layer inside them; return why it stopped.

    data      uint8[>= end + SLACK]
    root      number of the layer of a record
    late      the source of the one row per packet, or -1
    clocks    int64[interfaces, CLOCK_WIDTH], one row for each capture interface (`encoding.C_MODE` and on)
    state     int64[STATE_FIELDS] `encoding.POSITION` and on, read at the start and written at the end

    Returns DONE; MORE: the last record is not whole; FULL: the caller must empty the tables; PAUSED: what is at POSITION
    is not a packet, the capture reader reads it; BROKEN: the length at POSITION cannot be true.
    """
    layers, lut, sparse, uses = program.layers, program.lut, program.sparse, program.uses
    late_slots, owner, first_slots = program.late_slots, program.owner, program.first_slots
    tables, sources, packets, faults = result.tables, result.sources, result.packets, result.faults
    table_rows, source_rows = result.table_rows, result.source_rows
    where, stack, last, subs, touched = memory.where, memory.stack, memory.last, memory.subs, memory.touched
    n_layers = layers.shape[0]
    table_room, source_room, packet_room, fault_room = (
        tables.shape[2],
        sources.shape[1],
        packets.shape[1],
        faults.shape[1],
    )
    slots = uses.shape[1]
    # `where` outlives a record: a start below `record` is one of an earlier record and counts as absent
    for i in range(PLACES * n_layers):
        put(where, i, ABSENT)
    # last, subs: the packet of a table's last row, and its number in that packet
    for i in range(last.size):
        put(last, i, -1)
    late_width, late_used, late_clean = late_slots.shape[1], state[LATE_USED], state[LATE_CLEAN]
    pos, n_packets, n_faults, rows = state[POSITION], state[N_PACKETS], state[N_FAULTS], state[N_ROWS]
    most_rows = min(table_room - RESERVE, state[MOST_ROWS])
    status = DONE
    root_row = root * WIDTH
    least, pausing = get(layers, root_row + LEAST), get(layers, root_row + FLAGS) & F_PAUSES
    most = LONGEST_BLOCK if pausing else least + state[LONGEST]
    # -- one record at a time; it is walked only if all of it is there and its rows and faults have room
    while pos < end:
        if end - pos < least:
            status = MORE
            break
        if not pausing:
            word = load(data, pos)
            if (
                # rule: a record whose header is zero is no packet
                (word == 0 and load(data, pos + 8) == 0 and load(data, pos + least - 8) == 0)
                # rule: another pcap file may follow
                or begins_pcap(word)
            ):
                status = PAUSED
                break
        total = read_term_value(data, where, pos, layers, root_row + TOTAL)
        if total < least + get(layers, root_row + TRAILER + T_ADD) or total > most:
            status = BROKEN  # the chain is lost: nothing after here can be trusted without looking
            break
        if pos + total > end:
            status = MORE
            break
        if pausing and pos != state[TRUSTED]:
            echo = load(data, pos + total - 4)
            echo = (swap(echo) >> 32 if get(layers, root_row + FLAGS) & F_BIG else echo) & 0xFFFFFFFF
            # rule: the length of a block is a multiple of 4, and is repeated at its end
            if echo != total or total & 3:
                status = BROKEN
                break
        if rows > most_rows or n_faults + RESERVE > fault_room or n_packets >= packet_room:
            status = FULL
            break
        record, ordinal, depth, level, captured_row = pos, -1 - n_packets, 0, 0, -1
        late_body, late_end, n_touched = pos, pos, 0  # touched: the layers of the packet, each once
        inside = 0  # of how many packets inside the packet
        layer, at, limit, deepest = root, pos, pos + total, root
        while True:
            # -- 1. enter `layer` at data[at:limit]
            layer_row = layer * WIDTH
            flags = get(layers, layer_row + FLAGS)
            fault, soft, need, trailer, body, body_end, child = enter_layer(
                data, where, lut, sparse, layers, layer, at, limit, level
            )
            # -- 2. note what is wrong; a soft fault is noted and ends nothing
            if fault or soft:
                other = get(layers, layer_row + OTHERWISE)
                # rule: another layer may read the bytes where a check does not hold
                if other >= 0 and (
                    fault == BAD_VALUE
                    # rule: another layer may read what is too short, if it has its bytes
                    or (limit - at >= get(layers, other * WIDTH + LEAST) and fault == SHORT_HEADER)
                ):
                    layer = other
                    continue
                if flags & F_PADDED:
                    # rule: others may follow an entry without a body, which does not begin with zero bytes
                    if fault == PADDING and load(data, at) != 0:
                        fault = 0
                    # rule: padding behind a chain is not a fault
                    elif (
                        # rule: a frame check sequence behind zero bytes is no length
                        (fault == OVERRUN and are_zero(data, at, 8))
                        or (
                            fault == SHORT_HEADER
                            # rule: what is shorter than a header is padding if it is zero up to a frame check sequence
                            and are_zero(data, at, limit - at - 4)
                        )
                    ):
                        fault = PADDING
                if fault != PADDING and (fault or soft):
                    # rule: a fault has the ordinal of its packet, or a negative number
                    here = n_packets if flags & F_RECORD and (fault == 0 or fault == OVERRUN) else ordinal
                    if fault or soft & IS_FAULT:
                        reason = fault if fault else UNEXPECTED
                        n_faults = write_fault_row(
                            faults, fault_room, n_faults, here, layer, reason, at, need, limit - at
                        )
                    # rule: a flag of a capture module tells that it lost packets, not how many
                    if soft & TELLS_LOSS and (fault == 0 or fault == OVERRUN):
                        n_faults = write_fault_row(faults, fault_room, n_faults, here, layer, DROPPED, at, 0, 0)
            if fault == 0 or fault == OVERRUN:
                # -- 3. remember where the layer starts, for columns of the layers below it and of the packet
                if flags & F_NEW_PACKET:
                    enter_packet(where, layers, n_layers, inside)
                    inside += 1
                put(where, layer, at)
                # rule: stacked headers of a packet inside the packet are not those of the packet
                stacked = inside and flags & F_STACKS
                # rule: the packet's row has the first occurrence of a layer
                if get(where, n_layers + layer) < record and not stacked:
                    put(where, n_layers + layer, at)
                    put(touched, n_touched, layer)
                    n_touched += 1
                # rule: a packet is named after its innermost layer
                deepest = layer
                if flags & F_RARE:
                    if flags & F_STACKS and not stacked:  # the last header of the first run
                        run = 2 * n_layers + layer
                        # rule: headers without a gap are one run
                        if get(where, run) < record or get(where, run) + get(layers, layer_row + LEAST) == at:
                            put(where, run, at)
                    if flags & F_TAIL:
                        # rule: a header in the trailer counts only if the trailer is whole
                        there = fault == 0 and trailer >= get(layers, get(layers, layer_row + TAIL) * WIDTH)
                        put(where, get(layers, layer_row + TAIL), body_end if there else -1)
                    if flags & F_RECORD:  # -- 4. a captured packet: its time, lengths and interface
                        ordinal = n_packets
                        high, low, interface, captured, original, dropped = read_record(data, where, layers, layer, at)
                        # rule: an obsolete packet block may not know how many packets were lost
                        if dropped == UNKNOWN_DROPS:
                            dropped = np.int64(0)
                        # rule: a packet has no more bytes than its record
                        captured = min(captured, body_end - body)
                        # rule: a packet names an interface of its section
                        known = 0 <= interface < state[INTERFACES]
                        clock_row = (interface if known else 0) * CLOCK_WIDTH
                        if flags & F_UNTIMED and known and get(clocks, clock_row + C_SNAPLEN) > 0:
                            # rule: a simple packet ends at the snaplen
                            captured = min(captured, get(clocks, clock_row + C_SNAPLEN))
                        time, direction, fcs = NO_TIME, np.int64(0), np.int64(0)
                        wrong = 0
                        if known:
                            fcs = get(clocks, clock_row + C_FCS)
                            if not flags & F_UNTIMED:
                                mode, factor, offset = (
                                    get(clocks, clock_row + C_MODE),
                                    get(clocks, clock_row + C_FACTOR),
                                    get(clocks, clock_row + C_OFFSET),
                                )
                                time = timestamp_nanoseconds(
                                    high, low, mode, factor, offset, get(clocks, clock_row + C_MOST)
                                )
                                if time == NO_TIME:
                                    wrong, need = BAD_TIME, low
                        else:
                            wrong, need = UNEXPECTED, interface
                        if wrong:
                            n_faults = write_fault_row(faults, fault_room, n_faults, ordinal, layer, wrong, at, 0, need)
                        if flags & F_OPTIONS:
                            # rule: a packet is padded to a multiple of 4 bytes
                            after = body + ((captured + 3) & -4)
                            if limit - after >= 4 and fault == 0:
                                bits, lost, commented, cut, size = read_packet_options(
                                    data, after, limit, flags & F_BIG
                                )
                                dropped = lost if lost > 0 else dropped
                                if cut >= 0:
                                    n_faults = write_fault_row(
                                        faults,
                                        fault_room,
                                        n_faults,
                                        ordinal,
                                        layer,
                                        OVERRUN,
                                        cut,
                                        size,
                                        limit - cut,
                                    )
                                if commented:
                                    n_faults = write_fault_row(
                                        faults, fault_room, n_faults, ordinal, layer, COMMENT, after, limit, 0
                                    )
                                # rule: the direction has two bits
                                direction = bits & 3
                                # rule: the packet's own FCS length overrides that of its interface
                                if (bits >> 5) & 15:
                                    fcs = (bits >> 5) & 15
                        # rule: what the recorder lost is told
                        if dropped > 0:
                            n_faults = write_fault_row(
                                faults, fault_room, n_faults, ordinal, layer, DROPPED, at, 0, dropped
                            )
                        if captured > state[LONGEST]:  # a block has room for more
                            n_faults = write_fault_row(
                                faults, fault_room, n_faults, ordinal, layer, OVERRUN, at, captured, state[LONGEST]
                            )
                            captured = state[LONGEST]
                        body_end = body + captured
                        late_body, late_end = body, body_end
                        # rule: the frame check sequence is not payload
                        if fcs > 0:
                            # rule: the snaplen may have cut the frame check sequence off
                            missing = max(original - captured, 0)
                            body_end -= min(max(fcs - missing, 0), captured)
                        put(packets, n_packets, time)
                        put(
                            packets,
                            n_packets + INTERFACE * packet_room,
                            get(clocks, clock_row + C_NUMBER) if known else -1,
                        )
                        put(packets, n_packets + CAPTURED * packet_room, captured)
                        put(packets, n_packets + ORIGINAL * packet_room, original)
                        put(packets, n_packets + DIRECTION * packet_room, direction)
                        put(packets, n_packets + NAMED * packet_room, get(clocks, clock_row + C_NAMED) if known else -1)
                        put(packets, n_packets + LINK * packet_room, get(clocks, clock_row + C_LINK) if known else -1)
                        n_packets += 1
                        captured_row = ordinal
                    if flags & F_MEASURED:
                        put(where, 3 * n_layers + layer, body)
                        # rule: a measured body ends before its trailer
                        put(where, 4 * n_layers + layer, body_end)
                # -- 5. a row, if the layer gives one
                source = get(layers, layer_row + SOURCE)
                if source >= 0:
                    table = get(owner, source)
                    row, found_row = get(table_rows, table), get(source_rows, source)
                    if row < table_room - 1:  # unreachable beyond: RESERVE; one row is kept for the packet's own
                        # rule: sub_no counts the rows of one packet in a table
                        sub = get(subs, table) + 1 if get(last, table) == ordinal else 0
                        put(last, table, ordinal)
                        put(subs, table, sub)
                        table_at = table * TABLE_FIELDS * table_room + row
                        # rule: a row has the ordinal of its packet
                        put(tables, table_at, ordinal)
                        put(tables, table_at + table_room, sub)
                        put(tables, table_at + 2 * table_room, body)
                        put(tables, table_at + 3 * table_room, body_end)
                        source_at = get(first_slots, source) * source_room + found_row
                        put(sources, source_at, row)
                        keep_starts(
                            sources,
                            source_at + STARTS * source_room,
                            source_room,
                            where,
                            record,
                            layers,
                            uses,
                            slots,
                            layer,
                        )
                        put(table_rows, table, row + 1)
                        put(source_rows, source, found_row + 1)
                        rows += 1
                # -- 6. a chain: put its next sibling on the stack, to be entered when all below this layer has been walked
                if flags & F_CHAIN and fault == 0 and layer != root and depth < DEPTH:
                    align = get(layers, layer_row + ALIGN)
                    after = at + need
                    # rule: siblings are aligned
                    if align > 1:
                        after = at + (need + align - 1) // align * align
                    # rule: a chain goes on to the end of its span
                    if after < limit:
                        top = STACK_WIDTH * depth
                        # rule: a layer repeats, or another one follows it once
                        put(stack, top, layer if flags & F_REPEATS else get(layers, layer_row + THEN))
                        put(stack, top + 1, after)
                        put(stack, top + 2, limit)
                        put(stack, top + 3, level)
                        put(stack, top + 4, layer_row if flags & F_CLEARS else -1)
                        if flags & F_CLEARS:
                            put(stack, top + 5, get(where, get(layers, layer_row + KEEPS)))
                        put(stack, top + 6, inside)
                        depth += 1
                # -- 7. descend: the body is the span of the child
                # rule: only a body that has bytes is entered, unless the child needs none
                if child >= 0 and (body < body_end or get(layers, child * WIDTH + FLAGS) & F_BARE):
                    if pausing and get(layers, child * WIDTH + FLAGS) & F_PAUSES:
                        status = PAUSED  # the capture reader takes this record as a whole; it has given nothing yet
                        break
                    layer, at, limit = child, body, body_end
                    level += 1
                    continue
            # -- 8. nothing below: go on with the sibling on top of the stack, or the packet is done
            if depth == 0:
                break
            depth -= 1
            top = STACK_WIDTH * depth
            layer, at, limit, clears = get(stack, top), get(stack, top + 1), get(stack, top + 2), get(stack, top + 4)
            # rule: siblings have the same depth
            level = get(stack, top + 3)
            if get(stack, top + 6) < inside:
                inside = get(stack, top + 6)
                leave_packet(where, n_layers, inside)
            # rule: a sibling has none of the layers below the one before it
            if clears >= 0:
                # rule: a sibling has the carrier of its chain, not the one inside the sibling before it
                put(where, get(layers, clears + KEEPS), get(stack, top + 5))
                hidden = clears + CLEARS
                while get(layers, hidden) >= 0:
                    put(where, get(layers, hidden), -1)
                    hidden += 1
        if status == PAUSED:
            break
        # -- 9. the row of the whole packet, from the first occurrence of each layer in it
        pos += total
        if captured_row >= 0:
            put(packets, captured_row + DEEPEST * packet_room, deepest)
            if late >= 0:
                late_table = get(owner, late)
                row, found_row = get(table_rows, late_table), get(source_rows, late)
                table_at = late_table * TABLE_FIELDS * table_room + row
                put(tables, table_at, captured_row)
                put(tables, table_at + table_room, 0)
                put(tables, table_at + 2 * table_room, late_body)
                put(tables, table_at + 3 * table_room, late_end)
                source_at = get(first_slots, late) * source_room + found_row
                put(sources, source_at, row)
                # `columns.clear_row_slots` makes the rows of a morsel absent again, so each is cleared once
                if found_row >= late_clean:
                    for slot in range(STARTS, late_used):
                        # rule: layers that a packet lacks are absent in its row
                        put(sources, source_at + slot * source_room, -1)
                    late_clean = found_row + 1
                for i in range(n_touched):
                    pair = get(touched, i) * late_width
                    while get(late_slots, pair) > 0:
                        start = get(where, get(late_slots, pair + 1))
                        put(sources, source_at + get(late_slots, pair) * source_room, start if start >= record else -1)
                        pair += 2
                put(table_rows, late_table, row + 1)
                put(source_rows, late, found_row + 1)
                rows += 1
        if inside:
            leave_packet(where, n_layers, 0)
    state[POSITION], state[N_PACKETS], state[N_FAULTS], state[N_ROWS] = pos, n_packets, n_faults, rows
    state[LATE_CLEAN] = late_clean
    return status
