"""Mutants of what puts messages together: each rule that it marks is changed at least once (tests/mutants.py)."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from operator import ge
from typing import Any

import numpy as np

from pcaplake.parser.engine import found_rows, messages
from pcaplake.parser.engine.kernels import pieces
from pcaplake.parser.engine.reassembly import assembler, fragments, framing, segments, streams
from tests.mutants import ALWAYS, DROP, NEVER, Argument, Becomes, Mutant, Operation, Through

FRAGMENT = fragments.Fragmented
_IN_ORDER = "without a checksum, fragments come in order if another message may have the key"
FRAGMENTS, SEGMENTS, STREAMS = fragments.FragmentAssembler, segments.SegmentAssembler, streams.StreamAssembler


def _left(left: Any, right: Any) -> Any:
    return left


MUTANTS: Mapping[str, Mutant] = {
    # rows
    "rows of messages come last": Mutant(
        found_rows.FoundRows.merge_table,
        "rows are in the order of their packets",
        Through(lambda order: np.arange(order.size)),
    ),
    "rows of messages are numbered from 0": Mutant(
        found_rows.FoundRows.merge_table, "plain rows and rows of messages are numbered together", DROP
    ),
    "a packet keeps the name of its piece": Mutant(
        messages.MessageDecoder._decode, "a packet is named after the innermost layer of its messages", DROP
    ),
    "pieces of two buses belong together": Mutant(
        messages.MessageDecoder._read_pieces,
        "pieces of two buses have nothing in common",
        Through(lambda names: [name for name in names if not name.startswith("bus.")]),
    ),
    # memory
    "memory is not bounded": Mutant(
        assembler.Assembler.make_room, "memory is bounded, the oldest message goes first", NEVER
    ),
    "runs are added though memory is short": Mutant(
        assembler.Assembler._parts,
        "messages are independent of each other only while none is dropped to make room",
        Through(lambda used: used + (1 << 30)),
    ),
    # runs
    "a run lacks a piece": Mutant(pieces._follows, "a run has all pieces of its message", NEVER),
    "a piece of a run is late": Mutant(pieces._follows, "no piece of a run is too late", Becomes(True)),
    "a run has a fragment that was cut": Mutant(
        pieces.find_fragment_runs, "a run has no fragment that is empty or was cut", NEVER
    ),
    "fragments of a run are in any order": Mutant(
        pieces.find_fragment_runs, "a fragment of a run begins where the one before it ends", NEVER
    ),
    "a run of fragments has any length": Mutant(
        pieces.find_fragment_runs, "a run is no longer than a message of fragments may be", NEVER
    ),
    "a run of fragments goes on with a message": Mutant(
        FRAGMENTS.begin_run, "a run of fragments continues nothing", Becomes(True)
    ),
    "segments of a run have any number": Mutant(
        pieces.find_segment_runs, "a segment of a run has the number that follows", NEVER
    ),
    "a run of segments has any length": Mutant(
        pieces.find_segment_runs, "a run is no longer than a message of segments may be", NEVER
    ),
    "a run of segments lacks its end": Mutant(
        pieces.find_segment_runs, "the total, or the last segment, ends a run", NEVER
    ),
    "a run of segments is one": Mutant(
        pieces.find_segment_runs, "the first segment of a run does not hold the whole message", ALWAYS
    ),
    "segments of a run have places": Mutant(
        SEGMENTS.find_runs, "a segment of a run has no place, and ends no other message", Through(np.zeros_like)
    ),
    "a run begins with a segment that comes twice": Mutant(
        SEGMENTS.begin_run, "a run of segments does not begin with a segment that comes twice", NEVER
    ),
    # fragments
    "a fragment may be as long as it says": Mutant(FRAGMENTS.add_piece, "no length is trusted", NEVER),
    "a fragment of a whole message begins another": Mutant(
        FRAGMENTS.add_piece,
        "a fragment that repeats a part of a whole message is ignored, unless it is its beginning",
        NEVER,
    ),
    "the beginning of a whole message is ignored": Mutant(
        FRAGMENTS.add_piece,
        "a fragment that repeats a part of a whole message is ignored, unless it is its beginning",
        Operation(ge, ast.Gt),
    ),
    "a message has no value": Mutant(FRAGMENTS.add_piece, "the first fragment tells what the message is", DROP),
    "fragments that come twice count twice": Mutant(
        FRAGMENT.add, "a fragment that comes twice counts once", Becomes(1)
    ),
    "a message is whole with each fragment": Mutant(
        FRAGMENT.__dict__["is_whole"].fget,
        "a message is whole when its last fragment and all before it are there",
        Becomes(True),
    ),
    "fragments are not bounded": Mutant(FRAGMENTS.add_piece, "the pieces of a message are bounded", NEVER),
    "a fragment is never too late": Mutant(
        FRAGMENTS.add_piece, "a fragment that comes too late begins a new message", NEVER
    ),
    "fragments of one message have two lengths": Mutant(
        FRAGMENT.contradicts, "fragments of a message agree on its length", NEVER
    ),
    "fragments overlap with other bytes": Mutant(
        FRAGMENT.contradicts, "bytes of two fragments of a message are the same where they overlap", Becomes(False)
    ),
    "a beginning belongs to the message before": Mutant(
        FRAGMENTS.add_piece, "a beginning may be that of another message", NEVER
    ),
    "fragments are always in order": Mutant(
        FRAGMENT.add, "fragments come in order if none begins behind the end", Becomes(True)
    ),
    "fragments are never in order": Mutant(
        FRAGMENT.add, "fragments come in order if none begins behind the end", Becomes(False)
    ),
    "the beginning always comes first": Mutant(FRAGMENT.add, "the beginning comes first", Becomes(True)),
    "the beginning never comes first": Mutant(FRAGMENT.add, "the beginning comes first", Becomes(False)),
    "no checksum is wrong": Mutant(FRAGMENTS._distrust, "the checksum of a message tells", NEVER),
    "a message that was cut is checked": Mutant(
        FRAGMENTS._distrust, "a message with a fragment that was cut when it was captured is not checked", DROP
    ),
    "fragments without a checksum come in any order": Mutant(FRAGMENTS._distrust, _IN_ORDER, DROP),
    "a beginning that comes again is a repeat": Mutant(
        FRAGMENTS._distrust,
        "without a checksum, a beginning that comes again is that of another message if the key may be",
        DROP,
    ),
    "fragments of one message need no beginning": Mutant(
        FRAGMENTS._distrust,
        "without a checksum, the beginning comes first if the key is that of one message",
        Becomes(None),
    ),
    "a message is whole though a fragment was cut": Mutant(
        FRAGMENTS._distrust,
        "if a fragment was cut, only a message that states its length is not taken for a whole one",
        NEVER,
    ),
    "a key is that of one message though it comes again": Mutant(
        FRAGMENTS._is_known,
        "a key that another message had within the time-out is not that of one message",
        Becomes(False),
    ),
    "fragments that contradict have one message": Mutant(
        FRAGMENTS.add_piece, "a key under which fragments contradict is not that of one message", DROP
    ),
    "what repeats a message may come at any time": Mutant(
        FRAGMENTS.add_piece, "what comes later than the time-out repeats nothing", DROP
    ),
    "a message that ends with its beginning is two gaps": Mutant(
        FRAGMENTS._end_messages, "a message that ends with its beginning is one gap", Becomes(False)
    ),
    # segments
    "a segment is never too late": Mutant(
        SEGMENTS.add_piece, "a segment that comes too late does not continue a message", NEVER
    ),
    "segments that come twice count twice": Mutant(SEGMENTS.add_piece, "a segment that comes twice counts once", NEVER),
    "a first segment hides a gap": Mutant(SEGMENTS.add_piece, "a first segment begins a new message", NEVER),
    "a segment without a first one is no gap": Mutant(
        SEGMENTS.add_piece, "a message without its first segment is lost", DROP
    ),
    "a first segment may hold the whole message": Mutant(
        SEGMENTS.add_piece, "a first segment does not hold the whole message", NEVER
    ),
    "a segment may be missing": Mutant(SEGMENTS.add_piece, "a missing segment ends the message", NEVER),
    "segments that are asked for come in order": Mutant(
        SEGMENTS._continues, "a segment that is asked for may come later", NEVER
    ),
    "segments that are asked for come once": Mutant(
        SEGMENTS._is_none_of, "a segment that is asked for may come again", Becomes(False)
    ),
    "a segment that comes again has other bytes": Mutant(
        SEGMENTS._continues, "a segment that comes again is the same", Becomes(True)
    ),
    "segments take places that they do not have": Mutant(
        SEGMENTS._is_none_of, "a number beyond the places is none", NEVER
    ),
    "the last place is none": Mutant(
        SEGMENTS._is_none_of, "a number beyond the places is none", Operation(lambda a, b: a + 1 >= b, ast.GtE)
    ),
    "a late segment ends the message after its own": Mutant(
        SEGMENTS._is_none_of, "the segment that the message before lacks may come late", NEVER
    ),
    "a message with places may have an empty one": Mutant(
        SEGMENTS._is_whole, "a message with places has no empty one", DROP
    ),
    "a segment that comes after its message begins another": Mutant(
        SEGMENTS.add_piece, "segments of a whole message may come again, if they are asked for", NEVER
    ),
    "a whole message goes on": Mutant(SEGMENTS.add_piece, "nothing else belongs to a whole message", NEVER),
    "a first segment repeats the last one of a whole message": Mutant(
        SEGMENTS.add_piece, "a first segment is none of the message before it", DROP
    ),
    "an end without its message ends another": Mutant(
        SEGMENTS.add_piece, "a message is ended by its own value", ALWAYS
    ),
    "a message has no end": Mutant(SEGMENTS.add_piece, "a message is ended by its own value", NEVER),
    "a message of segments may be as long as it says": Mutant(SEGMENTS.add_piece, "no length is trusted", NEVER),
    "a message of segments lacks its last one": Mutant(
        SEGMENTS.add_piece, "the total, or the last segment, ends a message", ALWAYS
    ),
    "numbers of segments do not wrap": Mutant(SEGMENTS._next_number, "numbers wrap", Becomes(-1)),
    # streams
    "messages of a stream have no value": Mutant(
        STREAMS._give, "what a stream tells of its messages is what its pieces say", Becomes(0)
    ),
    "a stream ends where its numbers wrap": Mutant(
        streams.Flow.position, "sequence numbers wrap", Operation(_left, ast.BitAnd)
    ),
    "the beginning of a stream has a byte": Mutant(
        STREAMS.add_piece, "the first byte follows the number of the beginning", DROP
    ),
    "another beginning continues the stream": Mutant(STREAMS.add_piece, "another beginning is another stream", NEVER),
    "a beginning after the end continues the stream": Mutant(
        STREAMS.add_piece, "a beginning after the end is another stream", DROP
    ),
    "the work for a stream is not bounded": Mutant(STREAMS._join, "the work for a stream is bounded", NEVER),
    "known bytes are always repeated ones": Mutant(
        STREAMS.add_piece, "known bytes that come too late are another stream", DROP
    ),
    "a keep-alive begins another stream": Mutant(STREAMS.add_piece, "a byte may be a keep-alive", DROP),
    "a beginning is sent again at any time": Mutant(
        STREAMS.add_piece, "a beginning that comes again behind data, and not soon, is another stream", DROP
    ),
    "bytes that overlap may differ": Mutant(
        STREAMS.add_piece, "bytes that differ from those of a message that is not whole are another stream", DROP
    ),
    "a segment that was cut gives nothing": Mutant(
        STREAMS.add_piece, "a segment that was cut when it was captured gives what it has of a message", NEVER
    ),
    "a message outlives its stream": Mutant(STREAMS.add_piece, "a message ends before its stream", DROP),
    "islands are not bounded": Mutant(STREAMS.add_piece, "the islands of a stream are bounded", NEVER),
    "a repeated byte is given twice": Mutant(
        STREAMS._add_bytes, "the bytes that came first count", Operation(lambda a, b: a < b - 1, ast.Lt)
    ),
    "a guess is believed more than a whole message": Mutant(
        STREAMS._add_bytes, "a message that is whole in its segment is believed more than a guess", NEVER
    ),
    "any header begins a whole message": Mutant(
        framing.Framing._is_whole, "zero bytes may be a header, but not one by which a message is found", Becomes(True)
    ),
    "streams are added one after the other though memory is short": Mutant(
        STREAMS.add_pieces,
        "streams are independent of each other only while none is dropped to make room",
        Argument(lambda room: room + (1 << 30), 1),
    ),
    "the window is the whole stream": Mutant(
        streams.Island.forget, "repeated bytes are recognized within a window", DROP
    ),
    "a guess right of a hole stays": Mutant(
        STREAMS._join, "what was decoded right of a hole stays, whatever ends there", ALWAYS
    ),
    "bytes before the first message are lost": Mutant(
        STREAMS._find_messages, "bytes before the first message may belong to one that begins left of the island", NEVER
    ),
    "a message is given before it is whole": Mutant(
        STREAMS._ends_of_messages, "a message is given when it is whole", Argument(lambda left: left + 100, 1)
    ),
    "messages that do not repeat are decoded together": Mutant(
        STREAMS._give_messages, "messages that do not repeat are decoded one by one", DROP
    ),
    "a message that is too long is no fault": Mutant(STREAMS._decode, "no length is trusted", DROP),
    "a bad header is no fault": Mutant(
        STREAMS._give_whole, "the decoder says what is wrong with a header", Argument(lambda run: run[:0], 1)
    ),
    "a stream of another protocol loses messages": Mutant(
        STREAMS._note_gap, "a stream of another protocol loses no messages", ALWAYS
    ),
    "no stream is known to have messages": Mutant(
        STREAMS._give_whole,
        "a stream that may be of another protocol is known by a whole message, or a plausible header",
        NEVER,
    ),
    "messages that resemble other bytes are found anywhere": Mutant(
        framing.Framing.find, "messages that resemble other bytes are not searched", ALWAYS
    ),
    "a stream has no first segment": Mutant(
        STREAMS.add_piece, "messages begin with the stream, or fill the first segment that was captured", NEVER
    ),
    "every segment behind a hole may begin with a message": Mutant(
        framing.Framing.resumes_with, "a segment behind a hole may begin with a message, if that is seldom wrong", NEVER
    ),
    "a message that resembles other bytes begins with a segment": Mutant(
        framing.Framing.resumes_with, "messages that resemble other bytes must fill the segment", ALWAYS
    ),
    "a message that is searched begins with a filled segment only": Mutant(
        framing.Framing.resumes_with, "messages that resemble other bytes must fill the segment", NEVER
    ),
    "only the first message of a filled segment is plausible": Mutant(
        framing.Framing.is_filled,
        "a message among others may be empty, unless any segment may be taken for messages",
        Operation(lambda resumes, filled: False),
    ),
    "no message of the first segment is empty": Mutant(
        framing.Framing.is_filled,
        "a message among others may be empty, unless any segment may be taken for messages",
        Operation(lambda resumes, filled: True),
    ),
    "a segment that was cut is not filled": Mutant(
        framing.Framing.is_filled,
        "a segment that was cut when it was captured counts as if it were whole",
        Through(lambda filled: False),
    ),
    "every message follows one that was cut": Mutant(
        STREAMS._end_island, "only messages that are searched follow one that was cut", NEVER
    ),
    "anything follows a message": Mutant(
        framing.Framing.is_start, "another header follows a message that was found", Becomes(True)
    ),
}
