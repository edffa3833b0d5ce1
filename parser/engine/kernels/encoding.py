"""The columns of the integer tables that the compiler writes and the kernels read.

A *term* is how an integer is read from a header: ((8 bytes at the start of a layer + offset) >> shift & mask) * mul + add.
The walk packs it into four integers (T_READ and on), a column keeps six (Q_OFFSET and on).
"""

from __future__ import annotations

import numpy as np

# -- a term of the walk; a constant has the factor 0 ------------------------------------------------------------------
T_READ, T_MASK, T_MUL, T_ADD = range(4)
TERM = 4
# T_READ: offset in bits 0-15, shift in 16-23, three flags, from bit 32 on the carrier layer whose field is read
R_BIG, R_CARRIER, R_HERE, R_SHIFT, R_PLACE = 1 << 24, 1 << 25, 1 << 26, 16, 32  # R_HERE: only if it begins here

# -- `program`: one row for each layer, what is read most often first ---------------------------------------------------
LEAST, FLAGS, SOURCE, N_KEYS, N_CHECKS, ALIGN, THEN, TAIL = range(8)  # LEAST: bytes of the declared header
HEAD, TOTAL, TRAILER = 8, 12, 16  # terms: bytes of the header, of the whole layer, behind the body
MAX_KEYS, MAX_CHECKS = 5, 5
# a term, then base and size of the key space's part of `lut`, or place in `sparse` and SPARSE; from KEY_IF on a term, and
# the least and greatest value of it for which the key counts
KEY, KEY_WIDTH, KEY_IF = 20, 12, 6
CHECK, CHECK_WIDTH = 80, 7  # a term, least and greatest good value, then a mode:
# for a bad value whether it is a fault, whether that ends the path, and whether it tells that the recorder lost packets (none of
# these: the next alternative may hold instead),
# from bit CHECK_SKIPS on for a good value how many of the next checks, its alternatives, are skipped
IS_FAULT, ENDS_PATH, TELLS_LOSS, CHECK_SKIPS = 1, 2, 4, 3
RECORD = 115  # six terms: high and low word of the time, interface, captured and original length, packets lost before
CLEARS, MAX_CLEARS = 139, 64  # indices into `where` that a chain sets to -1 before its next sibling; -1 ends the list
UNSIZED = 203  # the value of the total that stands for all that the carrier holds
N_USES = 204  # places that a row of the layer keeps
KEEPS = 205  # index into `where` that a chain sets back before its next sibling
OTHERWISE = 206  # the layer that reads the same bytes where a check does not hold, or -1
WIDTH = 207
# FLAGS: what a layer has beside its declared header
(
    F_HEAD,  # the header, the total, the trailer is a term and not a constant
    F_TOTAL,
    F_TRAILER,
    F_CHECKS,
    F_REPEATS,  # siblings follow; F_PADDED: zero bytes may follow them
    F_PADDED,
    F_THEN,  # another layer follows once
    F_PAUSES,  # the walk stops before such a record
    F_RECORD,  # a captured packet
    F_STACKS,  # may follow itself without a gap (VLAN tags)
    F_MEASURED,  # the bounds of its body are kept
    F_OPTIONS,  # pcapng options follow the packet's bytes
    F_UNTIMED,  # the record has no time
    F_TAIL,  # the trailer holds a header
    F_BIG,  # its fields are big-endian
    F_CLEARS,  # CLEARS is not empty, or KEEPS is another layer
    F_BARE,  # entered even where its carrier has no body
    F_NEW_PACKET,  # no header outside of it is seen inside
    F_BUS,  # but this one is: it names the bus of what it carries
) = (1 << i for i in range(19))
F_CHAIN = F_REPEATS | F_THEN
F_RARE = F_RECORD | F_STACKS | F_MEASURED | F_TAIL
SPAN_KEY = -1  # as the T_READ of a key: the length of the span
SPARSE = -1  # as the size of a key space: its claimed ranges are in `sparse`

# -- `where`: positions in the data, at place * layers + layer ----------------------------------------------------------
PLACES = 5  # latest start, first start in the packet, last of the first run of stacked headers, body, end of the body
ABSENT, HIDDEN = -1, -2  # no such layer; there is one, but outside of the packet inside the packet

# -- what `walk_records` returns ---------------------------------------------------------------------------------------------
DONE, MORE, FULL, PAUSED, BROKEN = range(5)

# -- `faults`: what is wrong with a span ------------------------------------------------------------------------------
FAULTS = ("", "short_header", "bad_length", "overrun", "bad_value", "too_deep", "bad_time", "bad_value", "dropped")
SHORT_HEADER, BAD_LENGTH, OVERRUN, BAD_VALUE, TOO_DEEP, BAD_TIME, UNEXPECTED, DROPPED = range(1, 9)
ENDS_NOTHING = (OVERRUN, BAD_TIME, UNEXPECTED, DROPPED)  # the layer is decoded all the same
PADDING = 9  # not a fault: zero bytes behind a padded chain
COMMENT = 10  # not a fault: the packet's options, from X_AT to X_NEED, have a comment
UNKNOWN_DROPS = 0xFFFF  # lost packets in an obsolete packet block
X_PACKET, X_LAYER, X_REASON, X_AT, X_NEED, X_HAVE = range(6)  # one row of `faults`
# X_PACKET: ordinal of the packet in the morsel; for a record that is not known to be one, -1 - the packets before it

# -- `state`: what lasts between calls of `walk_records` ---------------------------------------------------------------------
POSITION, N_PACKETS, N_FAULTS, N_ROWS, TRUSTED, INTERFACES, LATE_USED, LATE_CLEAN, LONGEST, MOST_ROWS = range(10)
STATE_FIELDS = 10
# TRUSTED: position of a block whose closing length need not match; INTERFACES: how many the section has
# LATE_USED: slots of a packet's row; LATE_CLEAN: rows of packets whose slots have been set to -1 before
# LONGEST: bytes of a packet, or of a message that was put together; MOST_ROWS: rows of all tables after which the walk stops

# -- `packets`, `tables`, `sources`: one column for each packet or row ------------------------------------------------
TIME, INTERFACE, CAPTURED, ORIGINAL, DIRECTION, DEEPEST, NAMED, LINK = range(8)
PACKET_FIELDS = 8
ORDINAL, SUB, BODY, BODY_END = range(4)
TABLE_FIELDS = 4
DEST, STARTS = 0, 1

# -- `terms` of messages in a stream: one row for each term of the header --------------------------------------------
H_OFFSET, H_SHIFT, H_MASK, H_MUL, H_ADD, H_BIG, H_LEAST, H_MOST, H_MORE = range(9)
HEADER_TERM_WIDTH = 9
# H_LEAST, H_MOST: bounds of a condition; H_MORE: the next row is another way to pass

# -- `clocks`: one row for each interface -----------------------------------------------------------------------------
C_MODE, C_FACTOR, C_OFFSET, C_FCS, C_SNAPLEN, C_NUMBER, C_NAMED, C_LINK, C_MOST = range(9)
CLOCK_WIDTH = 9  # C_MOST: the greatest count of ticks whose product with the factor fits into 63 bits
SECONDS_AND_PARTS, TICKS_TIMES, TICKS_OVER, TICKS_BINARY, NO_CLOCK = range(5)
NO_TIME = np.int64(-(2**63))
BILLION = 1_000_000_000
END_OF_TIME = 7_258_118_400  # 2200-01-01 in seconds: a later time means a broken clock

DEPTH = 32  # layers inside each other
# a sibling that waits: layer, start, limit, depth, starts to clear, start to set back, packets that it is inside of
STACK_WIDTH = 7
# `where` is so long, in layers: behind the places, the starts outside of each packet inside the packet
WHERE_WIDTH = PLACES + DEPTH + 1
# bytes of a packet: Wireshark's WTAP_MAX_PACKET_SIZE_STANDARD (wiretap/wtap.h), libpcap's MAXIMUM_SNAPLEN
LONGEST_PACKET = 262_144
SECTION_HEADER, SECTION_LEAST, BYTE_ORDER_MAGIC = 0x0A0D0D0A, 28, 0x1A2B3C4D  # draft-ietf-opsawg-pcapng, 4.1
PCAP_MAGICS = (0xA1B2C3D4, 0xA1B23C4D, 0xA1B2CD34)  # microseconds, nanoseconds, Kuznetzov's records
PCAP_MAJOR, DG_UX_MAJOR = 2, 543  # versions of the format: draft-ietf-opsawg-pcap; 543.0 of DG/UX (libpcap sf-pcap.c)
LONGEST_BLOCK = 2 * LONGEST_PACKET  # bytes of a pcapng block that is read: a packet, its header and options
# rows and faults that one record may give: each row has a header of its own of at least 4 bytes
RESERVE = LONGEST_PACKET // 4

# -- columns: one row per column that a source fills ----------------------------------------------------------------
K_PLACE, K_BYTES, K_VALID, K_CASE, K_CASES, K_COLUMN = range(6)  # K_VALID: where the validity bytes lie, -1 required
COLUMN_WIDTH = 6
# one row per case: a slot of the source's row (below 0: field -1-slot of the packet), a term, a table, a condition
# Q_TABLE: where its part of `lookup` begins; -1 none; -2 - i: the value is text of the i-th of TEXT_KINDS
Q_SLOT, Q_KIND, Q_OFFSET, Q_SHIFT, Q_MASK, Q_BIG, Q_MUL, Q_ADD, Q_TABLE, Q_TABLE_SIZE = range(10)
Q_IF_SLOT, Q_IF_OFFSET, Q_IF_SHIFT, Q_IF_MASK, Q_IF_BIG, Q_IF_MUL, Q_IF_ADD, Q_LEAST, Q_MOST = range(10, 19)
CASE_WIDTH = 19
BYTES_OF, LENGTH_OF, PACKET_OF, WIDE = range(4)  # Q_KIND; WIDE: 16 bytes, of which the term reads the first 8
NO_SLOT = -(2**31)
NULL = -(2**15)  # in a table of `via` or `names`
TEXT_KINDS = ("mac", "ipv4", "ipv6", "decimal", "interface", "tecmp", "cmp", "acf", "pdu", "characters")

# -- `shapes`: one row for each shape of the rows of a source -----------------------------------------------------------
# SHAPE_END: where its rows end in `order`; SHAPE_SOME, SHAPE_ALL: masks of the slots that some, and that all of its rows have
SHAPE_END, SHAPE_SOME, SHAPE_ALL = range(3)
SHAPE_WIDTH = 3
MOST_SHAPES = 64  # the last one is that of all further rows
SHAPE_SLOTS = 256  # of the hash table that finds a shape
MOST_SLOTS = 31  # places that a row of a source keeps; a mask has a bit for each
