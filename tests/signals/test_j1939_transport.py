"""Signals of J1939 messages that come in several frames: equal to cantools on the bytes that the sender put in, and by hand."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import cantools
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from pcaplake import read_signals
from pcaplake.derived.signals.conditions import of_changed_frames
from pcaplake.parser.schemas import TABLES
from pcaplake.signals import Databases
from pcaplake.signals.compiled import CompiledMessage
from pcaplake.signals.definitions import DefinitionState, hash_wide_table
from pcaplake.signals.frames import FrameDecoder
from pcaplake.worker.inspection.known_messages import KnownMessages
from tests.derived.signals.runs import decode
from tests.parser import captures, j1939_frames
from tests.parser.j1939_frames import EVERYONE, Frame, Message, to_all
from tests.signals.frame_mutants import MUTANTS
from tests.signals.j1939_files import LONG, PLAIN, long_dbc, transported, with_plain_message
from tests.signals.lakes import SignalLake, make_nullable

PRIORITY = 7  # of the transport protocol's own frames


def pcap(tmp_path: Path, frames: list[Frame]) -> Path:
    path = tmp_path / "truck.pcap"
    packets = [struct.pack(">I4B", word, len(data), 0, 0, 0) + data for word, data in frames]
    path.write_bytes(captures.pcap(packets, 227))
    return path


def identifier(message: Message) -> int:
    to_one = message.pgn >> 8 & 0xFF < 240
    return PRIORITY << 26 | (message.pgn | message.destination * to_one) << 8 | message.source


def load(tmp_path: Path, text: str) -> Databases:
    (tmp_path / "truck.dbc").write_text(text)
    return Databases.from_file(tmp_path / "truck.dbc")


@pytest.mark.parametrize("seed", range(2))
def test_as_cantools_on_what_was_sent(tmp_path: Path, seed: int) -> None:
    r = Random(seed)
    frames, messages = j1939_frames.interleaved(r, 8, aborts=0.1)
    longest = Message(5, EVERYONE, 65200, r.randbytes(1785))
    frames += to_all(longest)
    messages.append(longest)
    single = [(0x80000000 | LONG["Component"] & ~0xFF | n, r.randbytes(r.randrange(9))) for n in range(20)]
    for frame in single:
        frames.insert(r.randrange(len(frames)), frame)
    databases = load(tmp_path, long_dbc())
    theirs = cantools.database.load_string(long_dbc(), "dbc")
    groups = {can_id >> 8 & (0x3FFFF if can_id >> 16 & 0xFF >= 240 else 0x3FF00): name for name, can_id in LONG.items()}
    sent = [(identifier(one), groups[one.pgn], -(-len(one.body) // 7), one.body) for one in messages]
    sent += [(word & 0x1FFFFFFF, "Component", None, data) for word, data in single]
    expected: Counter[tuple[Any, ...]] = Counter()
    for can_id, name, packets, body in sent:
        values = theirs.get_message_by_name(name).decode(body, allow_truncated=True)
        expected.update((can_id, name, signal, value, packets) for signal, value in values.items())
    assert len({signal for _, _, signal, *_ in expected}) == 4
    found = read_signals(pcap(tmp_path, frames), databases).to_pylist()
    names = ("can_id", "message", "signal", "value", "tp_packets")
    assert Counter(tuple(row[name] for name in names) for row in found) == expected


def test_by_hand(tmp_path: Path) -> None:
    """A message of 16 bytes to all and one to one receiver, whose destination is not compared (SAE J1939-21, 5.10)."""
    frames = [
        (0x9CECFF21, bytes.fromhex("20 10 00 03 ff b0 fe 00")),
        (0x9CEBFF21, bytes.fromhex("01 34 12 00 00 00 00 00")),
        (0x9CEBFF21, bytes.fromhex("02 a0 7f 00 00 00 00 00")),
        (0x9CEBFF21, bytes.fromhex("03 00 00 ff ff ff ff ff")),
        (0x98EC0302, bytes.fromhex("10 09 00 02 02 00 df 00")),
        (0x98EC0203, bytes.fromhex("11 02 01 ff ff 00 df 00")),
        (0x98EB0302, bytes.fromhex("01 06 00 00 00 00 00 00")),
        (0x98EB0302, bytes.fromhex("02 00 80 ff ff ff ff ff")),
        (0x98EC0203, bytes.fromhex("13 09 00 02 ff 00 df 00")),
    ]
    path = pcap(tmp_path, frames)
    found = read_signals(path, load(tmp_path, long_dbc())).to_pylist()
    rows = {(row["packet_no"], hex(row["can_id"]), row["message"], row["signal"], row["value"]) for row in found}
    assert rows == {
        (4, "0x1cfeb021", "Component", "Head", 0x1234 * 0.5 - 10),
        (4, "0x1cfeb021", "Component", "Across", 0x7FA * 0.5 - 10),  # 12 bits from bit 4 of byte 7: a, f and 7
        (8, "0x18df0302", "Answer", "Head", 6 * 0.5 - 10),
        (8, "0x18df0302", "Answer", "Across", (0x800 - 0x1000) * 0.5 - 10),
    }
    assert [row["tp_packets"] for row in found if row["signal"] == "Head"] == [3, 2]
    assert read_signals(path, tmp_path / "truck.dbc", profile=profile(tmp_path, "{}")).num_rows == 0


def profile(tmp_path: Path, text: str) -> Path:
    (tmp_path / "profile.yaml").write_text(text)
    return tmp_path / "profile.yaml"


def test_short_payloads_need_no_wide_matrix(tmp_path: Path) -> None:
    ((_, message), *_) = load(tmp_path, long_dbc())
    compiled = CompiledMessage(message)
    assert [compiled.width(longest) for longest in (0, 8, 9, 1785)] == [1, 9, 16, 1792]


def decode_transported(databases: Databases, packets: int | None) -> int:
    schema = make_nullable(TABLES["j1939_messages"].schema)
    rows = [{"packet_no": n, **row} for n, row in enumerate(transported(12, packets=packets))]
    return FrameDecoder(databases).decode_signals("j1939", pa.RecordBatch.from_pylist(rows, schema)).num_rows


def test_a_single_frame_has_no_rows_of_j1939_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    databases = load(tmp_path, long_dbc())
    assert decode_transported(databases, 3) > 0
    assert decode_transported(databases, None) == 0
    MUTANTS["a message of one frame comes twice"](monkeypatch)
    assert decode_transported(databases, None) > 0


@pytest.mark.slow
def test_a_lake_has_each_message_once_and_single_frames_once(tmp_path: Path) -> None:
    lake, databases = SignalLake(tmp_path / "lake"), load(tmp_path, long_dbc())
    lake.append("can_frames", [{"can_id": LONG["Component"], "extended": True, "payload": bytes(8)}] * 3)
    lake.append("j1939_messages", transported(12))
    lake.append("j1939_messages", transported(12, packets=None))  # single frames, which are in `can_frames` too
    decode(lake, databases, wide=("Component",))
    table = lake.table("signals")
    assert lake.signals() == lake.expected(databases)
    assert Counter(row["can_id"] for row in table.to_pylist() if row["signal"] == "Head")[LONG["Component"]] == 3
    assert table["tp_packets"].null_count == 3
    assert lake.wide("Component") == lake.expected_wide(databases, "Component")
    assert lake.table("signals_Component").num_rows == 3
    # the message of one group changes, and another one is new
    lake.append("j1939_messages", transported(12))
    changed = load(tmp_path, long_dbc(factor=0.25).replace("Torque", "Moment"))
    untouched = load(tmp_path, long_dbc())
    assert decode(lake, untouched).decoded_again == 0
    before = lake.version("signals")
    assert decode(lake, changed, wide=("Component",)).decoded_again == 4
    assert lake.version("signals") > before
    assert lake.signals() == lake.expected(changed)
    assert lake.wide("Component") == lake.expected_wide(changed, "Component")
    assert decode(lake, changed).rows == 0


@pytest.mark.slow
@pytest.mark.parametrize("is_older", [False, True])
def test_rows_of_messages_of_several_frames_outlive_those_of_a_frame_with_their_id(
    tmp_path: Path, is_older: bool
) -> None:
    """A message that is found by its whole identifier, which a message of several frames has, too.

    Also in a table whose files are older than `tp_packets`.
    """
    lake, databases = SignalLake(tmp_path / "lake"), load(tmp_path, with_plain_message(1))
    lake.append("can_frames", [{"can_id": PLAIN, "extended": True, "payload": bytes([7])}] * 3)
    decode(lake, databases)
    if is_older:
        older = lake.table("signals").drop_columns(["tp_packets", "contained_no"])
        place = str(lake.folder / "signals")
        write_deltalake(place, older, mode="overwrite", schema_mode="overwrite", partition_by=["date"])
    lake.append("j1939_messages", transported(12))
    changed = load(tmp_path, with_plain_message(2))
    assert decode(lake, changed).decoded_again == 1
    assert lake.signals() == lake.expected(changed)
    rows = lake.table("signals").to_pylist()
    assert {"Plain", "Component"} == {row["message"] for row in rows if row["can_id"] == PLAIN}


def test_a_wide_table_of_frames_is_not_that_of_messages_of_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an update: the definition is the same, and the rows are others."""
    databases = load(tmp_path, long_dbc())
    new = hash_wide_table(databases, "Answer")
    monkeypatch.setattr(type(next(iter(databases))[1]), "wide_carrier", "can")
    assert hash_wide_table(databases, "Answer") != new


def test_only_messages_of_changed_groups_are_decoded_again(tmp_path: Path) -> None:
    before = DefinitionState.from_databases(load(tmp_path, long_dbc()))
    after = DefinitionState.from_databases(load(tmp_path, long_dbc().replace("Answer", "Reply")))
    condition = of_changed_frames(before.find_changes(after), "j1939")
    assert condition is not None
    lake = SignalLake(tmp_path / "lake")
    lake.append("j1939_messages", transported(12))
    assert set(lake.table("j1939_messages").filter(condition)["pgn"].to_pylist()) == {0xDF00}


def test_inspect_counts_them_as_known(tmp_path: Path) -> None:
    lake = SignalLake(tmp_path / "lake")
    lake.append("j1939_messages", [*transported(12), transported(12)[0] | {"pgn": 0xFEB1}])
    known = KnownMessages(load(tmp_path, long_dbc()))
    for batch in lake.table("j1939_messages").to_batches():
        known.add("j1939", batch)
    found = known.describe()
    assert (found["known_frames"], found["unknown_frames"]) == (12, 1)
    assert {row["message"] for row in found["messages"]} == set(LONG)


def test_a_group_of_more_than_18_bits_is_nobodys(tmp_path: Path) -> None:
    (one,) = [Message(1, EVERYONE, 0xFEB0 | 1 << 18, bytes(9))]
    assert read_signals(pcap(tmp_path, list(to_all(one))), load(tmp_path, long_dbc())).num_rows == 0
