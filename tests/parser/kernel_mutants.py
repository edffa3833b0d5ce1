"""Mutants of the kernels: each rule that they mark is changed at least once (tests/mutants.py)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from operator import and_, ge, gt, itemgetter, le, lt, or_
from typing import Any

import numpy as np

from pcaplake.parser.engine.kernels import (
    block_search,
    carried,
    cases,
    clock,
    columns,
    fields,
    header_values,
    key_columns,
    layers,
    payloads,
    shapes,
    text_codes,
    walk,
)
from tests.mutants import ALWAYS, DROP, NEVER, Argument, Becomes, Mutant, Operation, Through

HUGE = 2**62
HIDDEN = "a packet inside the packet has none of the layers before it, but the bus that it came from"


def _false(left: Any, right: Any) -> bool:
    return False


def _true(left: Any, right: Any) -> bool:
    return True


def _right(left: Any, right: Any) -> Any:
    return right


def _left(left: Any, right: Any) -> Any:
    return left


MUTANTS: Mapping[str, Mutant] = {
    # bounds
    "a header may lack its last byte": Mutant(
        layers.enter_layer, "all bytes of the declared header are there", Operation(lambda a, b: a < b - 1, ast.Lt)
    ),
    "the greatest depth is too deep": Mutant(
        layers.enter_layer, "layers nest no deeper than the limit", Operation(ge, ast.Gt)
    ),
    "an overrun of one byte is not noticed": Mutant(
        layers.enter_layer,
        "a layer that claims more than its span is an overrun",
        Operation(lambda a, b: a > b + 1, ast.Gt),
    ),
    "a layer that fills its span is an overrun": Mutant(
        layers.enter_layer, "a layer that claims more than its span is an overrun", Operation(ge, ast.Gt)
    ),
    "the body of an overrun is not clipped": Mutant(
        layers.enter_layer,
        "the body of an overrun is clipped to the span",
        Through(lambda body: (body[0], body[1] + 8)),
    ),
    "the header of an overrun is not clipped": Mutant(
        layers.enter_layer, "the body of an overrun is clipped to the span", Argument(lambda limit: HUGE, 1)
    ),
    "the trailer is part of the body": Mutant(
        layers.enter_layer, "the trailer is not part of the body", Operation(_left, ast.Sub)
    ),
    "a layer may be shorter than its header and trailer": Mutant(
        layers.enter_layer, "a layer holds its header and its trailer", Operation(_left, ast.Add)
    ),
    "more padding than bytes ends the path": Mutant(
        layers.enter_layer, "padding of which there is more than bytes ends nothing", NEVER
    ),
    "a computed header may be shorter than the declared one": Mutant(
        layers.enter_layer, "a computed header holds the declared one", DROP
    ),
    "no length stands for all that the carrier holds": Mutant(
        layers.enter_layer,
        "a layer without a length of its own has all that its carrier holds",
        Operation(lambda need, unsized: need == -1, ast.Eq),
    ),
    "every short length stands for all that the carrier holds": Mutant(
        layers.enter_layer,
        "a layer without a length of its own has all that its carrier holds",
        Operation(_true, ast.Eq),
    ),
    # checks
    "the least good value is bad": Mutant(
        layers.enter_layer, "a check declares the least and the greatest good value", Operation(le, ast.Lt)
    ),
    "the greatest good value is bad": Mutant(
        layers.enter_layer, "a check declares the least and the greatest good value", Operation(ge, ast.Gt)
    ),
    "the least good value is not checked": Mutant(
        layers.enter_layer, "a check declares the least and the greatest good value", Operation(_false, ast.Lt)
    ),
    "an expectation ends the path": Mutant(
        layers.enter_layer, "a check ends the path, an expectation does not", ALWAYS
    ),
    "a check does not end the path": Mutant(
        layers.enter_layer, "a check ends the path, an expectation does not", NEVER
    ),
    "each alternative must hold": Mutant(
        layers.enter_layer, "a bad value is not a fault while an alternative may hold", ALWAYS
    ),
    "the last alternative must hold": Mutant(
        layers.enter_layer, "the first alternative that holds skips the others", Becomes(0)
    ),
    "one of several checks is enough": Mutant(
        layers.enter_layer, "the first alternative that holds skips the others", Through(lambda skipped: 1)
    ),
    "the first check is made again and again": Mutant(
        layers.enter_layer, "checks are made in order", Operation(lambda n, width: 0, ast.Mult)
    ),
    # terms of the walk
    "a term begins at one of the lower 32 bits": Mutant(
        header_values.read_term_value,
        "a term may begin at any of its 64 bits",
        Operation(lambda a, b: a & 31, ast.BitAnd),
    ),
    "every term is big-endian": Mutant(
        header_values.read_term_value, "a term says whether its bytes are big-endian", ALWAYS
    ),
    "a term of a carrier's field reads the layer": Mutant(
        header_values.read_term_value, "a term may read a field of a carrier", NEVER
    ),
    # chains
    "a chain ends 8 bytes before its span": Mutant(
        walk.walk_records, "a chain goes on to the end of its span", Operation(lambda a, b: a < b - 8, ast.Lt)
    ),
    "a chain goes on behind its span": Mutant(
        walk.walk_records, "a chain goes on to the end of its span", Operation(le, ast.Lt)
    ),
    "siblings are not aligned": Mutant(walk.walk_records, "siblings are aligned", NEVER),
    "padding behind a chain is a fault": Mutant(walk.walk_records, "padding behind a chain is not a fault", NEVER),
    "zero bytes do not end a padded chain": Mutant(
        layers.enter_layer, "an entry without a body may be the end of a padded chain", NEVER
    ),
    "a frame check sequence behind zero bytes is a length": Mutant(
        walk.walk_records, "a frame check sequence behind zero bytes is no length", Becomes(False)
    ),
    "whatever is shorter than a header is padding": Mutant(
        walk.walk_records,
        "what is shorter than a header is padding if it is zero up to a frame check sequence",
        Argument(lambda size: 0, 2),
    ),
    "a frame check sequence behind padding is a header": Mutant(
        walk.walk_records,
        "what is shorter than a header is padding if it is zero up to a frame check sequence",
        Argument(lambda size: size + 4, 2),
    ),
    "an entry without a body ends a padded chain": Mutant(
        walk.walk_records, "others may follow an entry without a body, which does not begin with zero bytes", NEVER
    ),
    "a packet inside the packet has layers of the one before it": Mutant(layers.enter_packet, HIDDEN, NEVER),
    "a packet inside the packet does not know its bus": Mutant(layers.enter_packet, HIDDEN, ALWAYS),
    "what follows a packet inside the packet has its layers": Mutant(
        layers.leave_packet, "what follows a packet inside the packet has the layers before it", DROP
    ),
    "the packet has the tags of a packet inside it": Mutant(
        walk.walk_records, "stacked headers of a packet inside the packet are not those of the packet", Becomes(0)
    ),
    "a sibling has the carrier inside the one before it": Mutant(
        walk.walk_records, "a sibling has the carrier of its chain, not the one inside the sibling before it", DROP
    ),
    "a sibling has layers of the one before it": Mutant(
        walk.walk_records, "a sibling has none of the layers below the one before it", NEVER
    ),
    "a layer that another one follows repeats": Mutant(
        walk.walk_records, "a layer repeats, or another one follows it once", ALWAYS
    ),
    "a sibling is as deep as the last layer before it": Mutant(walk.walk_records, "siblings have the same depth", DROP),
    "a check that does not hold is a fault, though another layer reads the bytes": Mutant(
        walk.walk_records, "another layer may read the bytes where a check does not hold", NEVER
    ),
    "a short header is a fault, though another layer needs fewer bytes": Mutant(
        walk.walk_records, "another layer may read what is too short, if it has its bytes", DROP
    ),
    "another layer tells that a header is short": Mutant(
        walk.walk_records,
        "another layer may read what is too short, if it has its bytes",
        Operation(_true, ast.GtE),
    ),
    # keys
    "the last key counts": Mutant(layers.enter_layer, "the first key that leads to a layer counts", DROP),
    "a key counts whatever its condition": Mutant(
        layers.enter_layer, "a key counts only where its condition holds", DROP
    ),
    "a negative key is looked up": Mutant(
        layers.enter_layer, "a key lies within its key space", Operation(_true, ast.LtE)
    ),
    "the first value of a range of a sparse key space is not in it": Mutant(
        header_values.find_sparse_key,
        "the ranges of a sparse key space are sorted, and each begins with its first value",
        Operation(lt, ast.LtE),
    ),
    "the search of a sparse key space goes the other way": Mutant(
        header_values.find_sparse_key,
        "the ranges of a sparse key space are sorted, and each begins with its first value",
        Operation(gt, ast.LtE),
    ),
    "a value below all ranges of a sparse key space is looked up": Mutant(
        header_values.find_sparse_key,
        "a value belongs to the last range that begins before it",
        Operation(_true, ast.Gt),
    ),
    "a layer that began elsewhere gives a key": Mutant(
        layers.enter_layer,
        "a field of another layer is a key only if that layer begins at the same byte",
        Operation(lambda start, at: start < 0, ast.NotEq),
    ),
    "the length of a span is one too small": Mutant(
        layers.enter_layer, "a key may be the length of the span", Through(lambda length: length - 1)
    ),
    "empty bodies are entered": Mutant(
        walk.walk_records, "only a body that has bytes is entered, unless the child needs none", Operation(le, ast.Lt)
    ),
    # starts
    "the packet's row has the last occurrence of a layer": Mutant(
        walk.walk_records, "the packet's row has the first occurrence of a layer", ALWAYS
    ),
    "a row has layers of the packet before": Mutant(
        layers.keep_starts, "a layer that starts in an earlier record is absent", ALWAYS
    ),
    "layers that a packet lacks start at 0 in its row": Mutant(
        walk.walk_records, "layers that a packet lacks are absent in its row", Argument(lambda absent: 0, 2)
    ),
    "a run of headers ends after the first": Mutant(
        walk.walk_records, "headers without a gap are one run", Operation(_false, ast.Eq)
    ),
    "the trailer of an overrun holds a header": Mutant(
        walk.walk_records, "a header in the trailer counts only if the trailer is whole", Operation(_true, ast.Eq)
    ),
    "a measured body is one byte too long": Mutant(
        walk.walk_records, "a measured body ends before its trailer", Argument(lambda end: end + 1, 2)
    ),
    # keys of rows
    "sub_no goes on with the next packet": Mutant(
        walk.walk_records,
        "sub_no counts the rows of one packet in a table",
        Operation(lambda last, ordinal: last >= 0, ast.Eq),
    ),
    "sub_no is always 0": Mutant(walk.walk_records, "sub_no counts the rows of one packet in a table", NEVER),
    "a row belongs to the first packet": Mutant(
        walk.walk_records, "a row has the ordinal of its packet", Argument(lambda ordinal: 0, 2)
    ),
    "a row has the number of the packet before": Mutant(
        key_columns.fill_key_columns,
        "a row has the number of its packet",
        Operation(lambda first, ordinal: first + max(ordinal - 1, 0), ast.Add),
    ),
    "a row has the time of the packet before": Mutant(
        key_columns.fill_key_columns,
        "a row has the time of its packet",
        Argument(lambda ordinal: max(ordinal - 1, 0), 1),
    ),
    "a row has the first interface": Mutant(
        key_columns.fill_key_columns, "a row has the interface of its packet", Becomes(0)
    ),
    "a row has the date of the next day": Mutant(
        key_columns.fill_key_columns, "a row has the date of its packet", Argument(lambda day: day + 1, 2)
    ),
    "a fault outside packets belongs to the first": Mutant(
        walk.walk_records,
        "a fault has the ordinal of its packet, or a negative number",
        Through(lambda ordinal: max(ordinal, 0)),
    ),
    "the last time is the least": Mutant(
        key_columns.read_packet_times,
        "packets may be out of order in time",
        Argument(lambda low: HUGE),
    ),
    # the record
    "a section has one interface too many": Mutant(
        walk.walk_records, "a packet names an interface of its section", Operation(le, ast.Lt)
    ),
    "a simple packet is not cut at the snaplen": Mutant(walk.walk_records, "a simple packet ends at the snaplen", DROP),
    "a packet has more bytes than its record": Mutant(
        walk.walk_records, "a packet has no more bytes than its record", Argument(lambda room: HUGE, 1)
    ),
    "an FCS that was not captured is cut off": Mutant(
        walk.walk_records, "the snaplen may have cut the frame check sequence off", Becomes(0)
    ),
    "the packet's own FCS length is not read": Mutant(
        walk.walk_records, "the packet's own FCS length overrides that of its interface", NEVER
    ),
    "the FCS is payload": Mutant(walk.walk_records, "the frame check sequence is not payload", NEVER),
    "the direction has one bit": Mutant(
        walk.walk_records, "the direction has two bits", Operation(lambda a, b: a & 1, ast.BitAnd)
    ),
    "options have no padding": Mutant(
        header_values.read_packet_options,
        "options are padded to a multiple of 4 bytes",
        Operation(lambda a, b: a - 3, ast.BitAnd),
    ),
    "ticks that are too short are a time": Mutant(
        clock.timestamp_nanoseconds,
        "ticks that are too short for 64 bits of them to be a second are no time",
        Becomes(np.int64(0)),
    ),
    "an option that does not fit is not told": Mutant(
        header_values.read_packet_options, "an option that does not fit into its block is told", NEVER
    ),
    "the last option of a kind counts": Mutant(
        header_values.read_packet_options, "the first option of a kind counts", Operation(_true, ast.Lt)
    ),
    "an unknown number of lost packets is a number": Mutant(
        walk.walk_records, "an obsolete packet block may not know how many packets were lost", NEVER
    ),
    "what the recorder lost is not told": Mutant(walk.walk_records, "what the recorder lost is told", NEVER),
    "the flag of a capture module that lost packets is not read": Mutant(
        walk.walk_records, "a flag of a capture module tells that it lost packets, not how many", NEVER
    ),
    "zeros are packets": Mutant(
        walk.walk_records, "a record whose header is zero is no packet", Through(lambda are_zero: False)
    ),
    "a pcap file ends its capture": Mutant(
        walk.walk_records, "another pcap file may follow", Through(lambda begins: False)
    ),
    "a file that follows has the same byte order": Mutant(
        header_values.begins_pcap, "a file that follows another one may have the other byte order", NEVER
    ),
    "a time in the year 2055 is a file header": Mutant(
        walk.walk_records, "another pcap file may follow", Argument(lambda word: word & 0xFFFFFFFF | 0x0004_0002 << 32)
    ),
    "no version tells a file header": Mutant(
        header_values.begins_pcap, "a version tells a file header from a time in the year 2055", Becomes(False)
    ),
    "a packet has no padding": Mutant(
        walk.walk_records, "a packet is padded to a multiple of 4 bytes", Operation(lambda a, b: a - 3, ast.BitAnd)
    ),
    "the closing length is not compared": Mutant(
        walk.walk_records,
        "the length of a block is a multiple of 4, and is repeated at its end",
        Operation(_false, ast.NotEq),
    ),
    "the length of a block need not be a multiple of 4": Mutant(
        walk.walk_records,
        "the length of a block is a multiple of 4, and is repeated at its end",
        Operation(_false, ast.BitAnd),
    ),
    "a packet is named after its record": Mutant(
        walk.walk_records, "a packet is named after its innermost layer", DROP
    ),
    # clocks
    "the end of time is a time": Mutant(
        clock.timestamp_nanoseconds, "a time lies between 1970 and the end of time", Operation(gt, ast.GtE)
    ),
    "the beginning of time is no time": Mutant(
        clock.timestamp_nanoseconds, "a time lies between 1970 and the end of time", Operation(le, ast.Lt)
    ),
    "the offset of a clock is not added": Mutant(
        clock.timestamp_nanoseconds, "the offset of a clock is added to its time", Operation(_left, ast.Add)
    ),
    "the upper half of the ticks is shifted by 31 bits": Mutant(
        clock.timestamp_nanoseconds,
        "the first word has the upper 32 bits of the ticks",
        Operation(lambda high, bits: high << np.uint64(31), ast.LShift),
    ),
    "a part of a second counts in seconds": Mutant(
        clock.timestamp_nanoseconds, "a part of a second counts in nanoseconds", Operation(_left, ast.Mult)
    ),
    "a fine part of a second is shifted one bit too far": Mutant(
        clock.timestamp_nanoseconds,
        "the upper half has been shifted by 32 bits already",
        Operation(lambda bits, half: bits - np.uint64(31), ast.Sub),
    ),
    # columns
    "8 bytes of a column are stored as 4": Mutant(
        fields,
        "a value is stored in as many bytes as its column has",
        Through(lambda fillers: itemgetter(0, 1, 2, 2)(tuple(fillers))),
    ),
    "2 bytes of a column are stored as 1": Mutant(
        fields,
        "a value is stored in as many bytes as its column has",
        Through(lambda fillers: itemgetter(0, 0, 2, 3)(tuple(fillers))),
    ),
    "a row without the layer is not null": Mutant(
        fields._make_column_filler, "a row without the layer is null", Argument(lambda present: 1, 2)
    ),
    "a case applies to rows without its layer": Mutant(
        cases.store_case_values, "a case applies only to rows that have its layer", Becomes(True)
    ),
    "a condition's least value does not hold": Mutant(
        cases.store_case_values,
        "a condition names the least and the greatest value that it holds for",
        Operation(gt, ast.GtE),
    ),
    "a condition's greatest value does not hold": Mutant(
        cases.store_case_values,
        "a condition names the least and the greatest value that it holds for",
        Operation(lt, ast.LtE),
    ),
    "a condition holds for rows without its layer": Mutant(
        cases.store_case_values, "a condition holds only for rows that have its layer", Becomes(True)
    ),
    "of two cases, a condition has no least value": Mutant(
        fields.fill_either_case, "the first case counts only where its condition holds", Operation(_false, ast.Lt)
    ),
    "of two cases, a condition has no greatest value": Mutant(
        fields.fill_either_case, "the first case counts only where its condition holds", Operation(_false, ast.Gt)
    ),
    "of two values of a field, a condition has no least value": Mutant(
        fields._make_either_filler,
        "the first of two values of a field counts only where its condition holds",
        Operation(_false, ast.Lt),
    ),
    "of two values of a field, a condition has no greatest value": Mutant(
        fields._make_either_filler,
        "the first of two values of a field counts only where its condition holds",
        Operation(_false, ast.Gt),
    ),
    "cases of two fields are read as one": Mutant(
        columns._is_either_field,
        "two cases are read together only if they read the word of the condition",
        Becomes(True),
    ),
    "only the first block of rows is filled": Mutant(
        columns.fill_number_columns, "every block of rows is filled", Argument(lambda m: min(m, 1), 1)
    ),
    "a field beyond its table is looked up": Mutant(
        fields.fill_named_column, "a field is looked up only within its table", Operation(_true, ast.Lt)
    ),
    "a field that its table does not name is not null": Mutant(
        fields.fill_named_column, "a field that its table does not name is null", Operation(_true, ast.NotEq)
    ),
    "an either-or has a case of the next column": Mutant(
        columns._is_either_case, "an either-or needs another case of the same layer", Operation(_true, ast.Lt)
    ),
    "a row takes the last case that applies": Mutant(
        cases.store_case_values, "a row takes the first case that applies", Becomes(1)
    ),
    "a value beyond its table is looked up": Mutant(
        cases.store_case_values, "a value is looked up only within its table", Operation(_true, ast.Lt)
    ),
    "a value that its table does not name is not null": Mutant(
        cases.store_case_values, "a value that its table does not name is null", Operation(_true, ast.NotEq)
    ),
    "a negative field of the packet is not null": Mutant(
        fields.fill_packet_field, "a negative field of the packet is null", Becomes(True)
    ),
    "a field of the packet that its table does not name is not null": Mutant(
        fields.fill_packet_field, "a value that its table does not name is null", Becomes(True)
    ),
    "a negative field of the packet counts in a case": Mutant(
        cases.store_case_values, "a negative field of the packet is not known", Becomes(True)
    ),
    # shapes of rows
    "rows of two shapes are one": Mutant(
        shapes.group_rows_by_shape, "rows have the same shape if they have the same layers", Operation(_true, ast.Eq)
    ),
    "shapes have no bound": Mutant(
        shapes.group_rows_by_shape, "shapes are bounded", Argument(lambda bound: bound + 1, 1)
    ),
    "the last shape has what its last row has": Mutant(
        shapes.group_rows_by_shape, "rows of the last shape have what some of them have", Operation(_right, ast.BitOr)
    ),
    "all rows of the last shape have what the last one has": Mutant(
        shapes.group_rows_by_shape, "rows of the last shape have nothing that all of them have", ALWAYS
    ),
    "a case whose layer only one shape has is left out": Mutant(
        shapes.merge_shapes, "a case is left out only if no row has its layer", Operation(and_, ast.BitOr)
    ),
    "all rows have what some have": Mutant(
        shapes.merge_shapes, "all rows have what those of each shape have", Operation(or_, ast.BitAnd)
    ),
    "rows are taken together that have another case": Mutant(
        shapes.take_together, "rows are taken together only if there is no other case", Operation(_true, ast.Eq)
    ),
    "rows before the morsel are not null": Mutant(
        cases.mark_valid_rows, "rows before the morsel that nothing has filled are null", Argument(lambda null: 1, 2)
    ),
    "rows of other sources are not null": Mutant(
        cases.mark_valid_rows, "rows of other sources are null", Argument(lambda null: 1, 2)
    ),
    "the upper half of an address is 0": Mutant(
        text_codes.fill_text_codes, "the term reads the first 8 of 16 bytes", Argument(lambda high: 0, 2)
    ),
    "the lower half of an address is the upper": Mutant(
        text_codes.fill_text_codes, "the other 8 bytes follow them", Through(lambda at: at - 8)
    ),
    "a row has the text of the first": Mutant(
        text_codes.fill_text_codes, "a row has the code of its own value", Argument(lambda code: 0, 2)
    ),
    # messages
    "a message has no headers above it": Mutant(
        carried.adopt_rows, "a header that the message lacks is the one above its last piece", DROP
    ),
    "a packet inside a message has the headers outside of it": Mutant(
        carried.adopt_rows,
        "a packet inside the message has no header that is outside of it",
        Operation(lambda start, absent: start < 0, ast.Eq),
    ),
    # payloads and lists
    "the last byte of a payload is not copied": Mutant(
        payloads.gather_payloads, "a payload is copied to its last byte", Operation(lambda k, n: k < n - 1, ast.Lt)
    ),
    "a payload begins one byte too late": Mutant(
        payloads.gather_payloads,
        "a payload begins where the one before it ends",
        Argument(lambda filled: filled + 1, 2),
    ),
    "payloads need no room": Mutant(payloads.sum_payload_lengths, "every payload needs room", Becomes(0)),
    "a list lacks its last header": Mutant(
        payloads.count_stacked_headers, "the first and the last header both count", Operation(_left, ast.Add)
    ),
    "a list repeats its first header": Mutant(
        payloads.read_stacked_values,
        "stacked headers lie behind each other",
        Operation(lambda j, step: 0, ast.Mult),
    ),
    # blocks after garbage
    "a block that ends with the file is not whole": Mutant(
        block_search.find_pcapng_block, "a block lies whole before the end", Operation(lambda a, b: a + b + 1, ast.Add)
    ),
    "the lengths of a block may differ": Mutant(
        block_search.find_pcapng_block, "both lengths of the block are equal", ALWAYS
    ),
    "a block may have any type": Mutant(
        block_search.find_pcapng_block, "the block has one of the types", Becomes(True)
    ),
}
