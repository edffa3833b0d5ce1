"""Wide tables of `pcaplake signals`: every row once, each table by itself."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Fatal
from pcaplake.lake.delta.properties import PROPERTIES
from pcaplake.signals import DatabaseError, Databases
from pcaplake.signals.wide import require_wide_messages
from tests.derived.signals.runs import decode
from tests.signals.databases import A_DBC, TWO_BUSES, databases
from tests.signals.j1939_files import ANY, ENGINE, dbc
from tests.signals.lakes import SignalLake

pytestmark = pytest.mark.slow

WIDE = ("Speed", "Cmd")
OTHER_COLUMNS = A_DBC.replace("Late", "Gear_label").replace('VAL_ 256 Gear 0 "P" 3 "D" ;', "")
OTHER_FACTOR = A_DBC.replace("(0.5,0)", "(0.25,1)")


@pytest.fixture
def lake(tmp_path: Path) -> SignalLake:
    lake = SignalLake(tmp_path / "lake")
    fill(lake)
    return lake


@pytest.fixture
def known(tmp_path: Path) -> Databases:
    return databases(tmp_path, TWO_BUSES)


def fill(lake: SignalLake) -> None:
    lake.can(20)
    lake.can(10, bus="2")
    lake.can(5, can_id=99)
    lake.lin(5)


def check(lake: SignalLake, known: Databases, wide: tuple[str, ...] = WIDE) -> None:
    assert lake.signals() == lake.expected(known)
    for name in wide:
        assert lake.wide(name) == lake.expected_wide(known, name)
        assert max(lake.wide(name).values()) == 1


def other(folder: Path, a_dbc: str) -> Databases:
    (folder / "a.dbc").write_text(a_dbc)
    return Databases.from_file(folder / "buses.yaml")


def test_every_row_once_from_run_to_run(lake: SignalLake, known: Databases) -> None:
    assert decode(lake, known, wide=WIDE).wide == {"signals_Speed": 20, "signals_Cmd": 5}
    check(lake, known)
    assert decode(lake, known, wide=WIDE).wide == {"signals_Speed": 0, "signals_Cmd": 0}
    fill(lake)
    DeltaTable(str(lake.folder / "can_frames")).optimize.compact()
    fill(lake)
    assert decode(lake, known, wide=WIDE).wide == {"signals_Speed": 40, "signals_Cmd": 10}
    check(lake, known)


def test_the_table_is_as_the_workers_create_theirs(lake: SignalLake, known: Databases) -> None:
    decode(lake, known, wide=WIDE)
    table = DeltaTable(str(lake.folder / "signals_Speed"))
    assert table.metadata().partition_columns == ["date"]
    assert table.metadata().configuration == dict(PROPERTIES)


def test_an_added_table_begins_with_all_frames(lake: SignalLake, known: Databases) -> None:
    decode(lake, known)
    fill(lake)
    decode(lake, known, wide=("Speed",))
    check(lake, known, ("Speed",))


def test_a_table_that_was_left_out_for_a_while(lake: SignalLake, known: Databases) -> None:
    decode(lake, known, wide=WIDE)
    fill(lake)
    decode(lake, known)
    assert lake.wide("Speed").total() == 20
    assert decode(lake, known, wide=WIDE).wide == {"signals_Speed": 20, "signals_Cmd": 5}
    check(lake, known)


def test_missing_tables_are_empty_and_may_come_later(tmp_path: Path, known: Databases) -> None:
    lake = SignalLake(tmp_path / "empty")
    decode(lake, known, wide=WIDE)
    assert lake.wide("Speed").total() == 0
    fill(lake)
    decode(lake, known, wide=WIDE)
    check(lake, known)


def test_other_definitions_replace_all_rows_and_columns(lake: SignalLake, known: Databases, tmp_path: Path) -> None:
    """Also a definition that the table had before, and a column that becomes a number."""
    decode(lake, known, wide=WIDE)
    before = DeltaTable(str(lake.folder / "signals_Cmd")).version()
    for said in (OTHER_FACTOR, OTHER_COLUMNS, A_DBC, OTHER_FACTOR):
        fill(lake)
        new = other(tmp_path, said)
        decode(lake, new, wide=WIDE)
        check(lake, new)
    table = DeltaTable(str(lake.folder / "signals_Cmd"))
    kept = [action["mode"] for action in table.history() if action["version"] > before and "mode" in action]
    assert "Overwrite" not in kept  # its definitions are as they were


def test_a_bus_with_another_database(lake: SignalLake, known: Databases, tmp_path: Path) -> None:
    lake.can(3, bus=None)
    decode(lake, known, wide=("Speed",))
    for said in (TWO_BUSES.replace('"2": b', '"2": a'), "databases: {a: a.dbc}", TWO_BUSES):
        new = databases(tmp_path, said)
        decode(lake, new, wide=("Speed",))
        check(lake, new, ("Speed",))


def test_a_dropped_table_and_a_lost_state_begin_anew(lake: SignalLake, known: Databases) -> None:
    decode(lake, known, wide=WIDE)
    (lake.folder / "signals_Speed").rename(lake.folder / "gone")
    assert decode(lake, known, wide=WIDE).wide == {"signals_Speed": 20, "signals_Cmd": 0}
    (lake.folder / "_pcaplake/spark/signals/0/state.json").unlink()
    fill(lake)
    assert decode(lake, known, wide=WIDE).wide == {"signals_Speed": 40, "signals_Cmd": 10}
    check(lake, known)


def test_a_state_without_wide_tables_is_read(lake: SignalLake, known: Databases) -> None:
    decode(lake, known)
    state = lake.folder / "_pcaplake/spark/signals/0/state.json"
    content = json.loads(state.read_text())
    del content["wide_ids"]
    state.write_text(json.dumps(content))
    assert decode(lake, known, wide=("Speed",)).rows == 0
    check(lake, known, ("Speed",))


@pytest.mark.parametrize("when", ["after signals.wide", "after signals_Speed.begin", "after signals_Speed.decode can"])
@pytest.mark.parametrize("changed", [False, True])
def test_the_newest_run_takes_over(
    when: str, changed: bool, lake: SignalLake, known: Databases, tmp_path: Path
) -> None:
    decode(lake, known, wide=WIDE)
    fill(lake)
    older, newer = other(tmp_path, OTHER_FACTOR), other(tmp_path, A_DBC if changed else OTHER_FACTOR)
    begun = False

    def begin_another(name: str) -> None:
        nonlocal begun
        if name == when and not begun:
            begun = True
            with ThreadPoolExecutor(1) as thread:  # it needs an event loop of its own
                thread.submit(decode, lake, newer, wide=WIDE).result()

    with pytest.raises(Fatal, match=r"another run .* has taken over"):
        decode(lake, older, step=begin_another, wide=WIDE)
    assert begun
    fill(lake)
    decode(lake, newer, wide=WIDE)
    check(lake, newer)


def test_a_log_that_lost_versions_means_all_again(lake: SignalLake, known: Databases) -> None:
    decode(lake, known, wide=("Speed",))
    lake.can(2)
    decode(lake, known)
    lake.can(2)
    DeltaTable(str(lake.folder / "can_frames")).create_checkpoint()
    (lake.folder / "can_frames" / "_delta_log" / f"{3:020}.json").unlink()
    decode(lake, known, wide=("Speed",))
    check(lake, known, ("Speed",))


def test_a_j1939_message_has_the_frames_of_all_senders(lake: SignalLake, tmp_path: Path) -> None:
    (tmp_path / "truck.dbc").write_text(dbc(("Axle", ANY), ("Engine", ENGINE)))
    senders = (0x18FEF100, 0x0CFEF117, 0x18FEF200, ENGINE, ENGINE | 1)
    lake.append("can_frames", [{"can_id": one, "extended": True, "payload": bytes(8)} for one in senders])
    known = Databases.from_file(tmp_path / "truck.dbc")
    assert decode(lake, known, wide=("Axle", "Engine")).wide == {"signals_Axle": 2, "signals_Engine": 1}
    check(lake, known, ("Axle", "Engine"))


def test_messages_that_cannot_have_a_table(known: Databases, tmp_path: Path) -> None:
    with pytest.raises(DatabaseError, match="no database has a message 'Sped'"):
        require_wide_messages(known, ["Speed", "Sped"])
    with pytest.raises(DatabaseError, match="would have the same table"):
        require_wide_messages(known, ["Speed", "Speed"])
    (tmp_path / "a.dbc").write_text(A_DBC.replace("Other", "Cmd"))
    (tmp_path / "buses.yaml").write_text("databases: {a: a.dbc, doors: doors.ldf}")
    with pytest.raises(DatabaseError, match="a message of can and of lin, which cannot share a table"):
        require_wide_messages(Databases.from_file(tmp_path / "buses.yaml"), ["Cmd"])
