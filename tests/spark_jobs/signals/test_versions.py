"""A new version of a database: what changed is decoded again over all history, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from pcaplake.signals import Databases
from pcaplake.signals.definitions import DefinitionChanges, DefinitionState
from pcaplake.signals.errors import DatabaseError
from pcaplake.spark_jobs.common.sql import text_literal
from pcaplake.spark_jobs.compact import job as compact
from pcaplake.spark_jobs.compact import plan as compact_plan
from pcaplake.spark_jobs.signals import SignalOptions, SignalReport, run
from pcaplake.spark_jobs.signals.history import StateFolder, of_changed_frames, of_changed_rows
from pcaplake.worker.errors import Fatal
from pcaplake.worker.lake.store.store import Store
from tests.signals.databases import A_DBC, TWO_BUSES, databases
from tests.signals.lakes import SignalLake


def follow(spark: Any, lake: SignalLake, known: Databases, **given: Any) -> SignalReport:
    step = given.pop("step", lambda name: None)
    return run(spark, str(lake.folder), SignalOptions(databases=known, files=1, **given), step=step)


def changed(folder: Path, said: str = TWO_BUSES) -> Databases:
    """`Speed` of a.dbc has another factor, `Other` is gone; b.dbc is as it was, but for a comment."""
    (folder / "a.dbc").write_text(
        A_DBC.replace("(0.5,0)", "(0.25,1)").replace(' SG_ x : 0|8@1+ (1,0) [0|0] "" A\n', "")
    )
    (folder / "b.dbc").write_text((folder / "b.dbc").read_text() + '\nCM_ "a comment";\n')
    (folder / "buses.yaml").write_text(said)
    return Databases.from_file(folder / "buses.yaml")


def test_only_what_changed_is_decoded_again(spark: Any, tmp_path: Path) -> None:
    lake, known = SignalLake(tmp_path / "lake"), databases(tmp_path, TWO_BUSES)
    lake.can(20)
    lake.can(10, bus="2")
    lake.append("can_frames", [{"can_id": 256, "extended": True, "payload": b"\x07\x08"}])
    lake.lin(5)
    follow(spark, lake, known)
    untouched = DeltaTable(str(lake.folder / "signals")).to_pyarrow_table(filters=[("bus", "=", "2")])

    new = changed(tmp_path)
    lake.can(4)  # not read yet
    report = follow(spark, lake, new)
    assert report.decoded_again == 1
    assert lake.signals() == lake.expected(new)
    assert "Other" not in lake.table("signals")["message"].to_pylist()
    assert DeltaTable(str(lake.folder / "signals")).to_pyarrow_table(filters=[("bus", "=", "2")]).equals(untouched)
    catalog = lake.table("signal_catalog").to_pylist()
    assert {row["factor"] for row in catalog if (row["message"], row["signal"]) == ("Speed", "Wheel")} == {0.25}

    again = follow(spark, lake, new)
    assert (again.decoded_again, again.rows) == (0, 0)
    # a bus that gets another database is decoded again too; its frames alone
    moved = changed(tmp_path, TWO_BUSES.replace('"2": b', '"2": a'))
    assert follow(spark, lake, moved).decoded_again == 1
    assert lake.signals() == lake.expected(moved)


def test_tables_of_an_older_version_get_their_new_columns(spark: Any, tmp_path: Path) -> None:
    """Without a change of any definition; and the job that found a signal it cannot decode goes on with the others."""
    lake, path = SignalLake(tmp_path / "lake"), tmp_path / "a.dbc"
    path.write_text(A_DBC.replace("BO_ 256 Speed: 8 A\n", 'BO_ 256 Speed: 8 A\n SG_ Bad : 0|24@1- (1,0) [0|0] "" A\n'))
    path.write_text(path.read_text() + "SIG_VALTYPE_ 256 Bad : 1;\n")
    known = Databases.from_file(path)
    lake.can(5)
    report = follow(spark, lake, known)
    assert list(report.unreadable) == ["Speed.Bad"]
    assert lake.signals() == lake.expected(known)
    place = str(lake.folder / "signal_catalog")
    older = spark.read.format("delta").load(place).drop("unreadable")
    older.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(place)
    signals = str(lake.folder / "signals")
    older = spark.read.format("delta").load(signals).drop("tp_packets", "contained_no")
    older.write.format("delta").mode("overwrite").option("overwriteSchema", "true").partitionBy("date").save(signals)
    lake.can(3)
    assert follow(spark, lake, known).catalog_rows == report.catalog_rows
    assert lake.signals() == lake.expected(known)
    reasons = {row["signal"]: row["unreadable"] for row in lake.table("signal_catalog").to_pylist()}
    assert {name for name, reason in reasons.items() if reason is not None} == {"Bad"}


def test_killed_while_history_is_decoded_again(spark: Any, tmp_path: Path, torture: bool) -> None:
    """At one step after the other, each time from where the last one left it."""
    steps = ("marked", "before signals", "after batch", "drained", "decoded again")
    lake, known = SignalLake(tmp_path / "lake"), databases(tmp_path, TWO_BUSES)
    lake.can(8)
    follow(spark, lake, known)
    new = changed(tmp_path)
    for where in steps if torture else steps[::2]:
        lake.can(4)

        def step(name: str, where: str = where) -> None:
            if name == where:
                raise ValueError("killed here")

        with pytest.raises(Exception, match="killed here"):
            follow(spark, lake, new, step=step)
    assert follow(spark, lake, new).decoded_again == 1
    assert lake.signals() == lake.expected(new)


def test_a_change_that_is_taken_back(spark: Any, tmp_path: Path) -> None:
    """Some rows are of the new version already when somebody goes back to the old one: that is a change, too."""
    lake, known = SignalLake(tmp_path / "lake"), databases(tmp_path, TWO_BUSES)
    lake.can(8)
    follow(spark, lake, known)
    lake.can(4)

    def step(name: str) -> None:
        if name == "drained":
            raise ValueError("killed here")

    with pytest.raises(ValueError, match="killed here"):
        follow(spark, lake, changed(tmp_path), step=step)
    old = databases(tmp_path, TWO_BUSES)
    assert lake.signals() != lake.expected(old)
    assert follow(spark, lake, old).decoded_again == 1
    assert lake.signals() == lake.expected(old)


def test_wide_tables_follow(spark: Any, tmp_path: Path) -> None:
    lake, known = SignalLake(tmp_path / "lake"), databases(tmp_path, TWO_BUSES)
    lake.can(6)
    follow(spark, lake, known)
    follow(spark, lake, known, wide=("Speed",))  # asked for later: with all history
    lake.can(4)
    follow(spark, lake, known, wide=("Speed",))
    wide = lake.table("signals_Speed")
    assert len(wide) == 10
    assert {"Wheel", "Gear", "Gear_label", "Late"} <= set(wide.column_names)
    (tmp_path / "a.dbc").write_text(A_DBC.replace("SG_ Late", "SG_ Later"))
    lake.can(1)
    lake.lin(2)  # the first ones
    follow(spark, lake, Databases.from_file(tmp_path / "buses.yaml"), wide=("Speed", "Cmd"))
    wide = lake.table("signals_Speed")
    assert (len(wide), len(lake.table("signals_Cmd"))) == (11, 2)
    assert wide["Later"].null_count == 0
    assert "Late" not in wide.column_names
    with pytest.raises(DatabaseError, match="no database has a message 'Nothing'"):
        follow(spark, lake, known, wide=("Nothing",))


def test_wide_tables_are_compacted(spark: Any, tmp_path: Path) -> None:
    """By `compact` without a table's name, in an order of their own, while the stream goes on."""
    lake, known = SignalLake(tmp_path / "lake"), databases(tmp_path, TWO_BUSES)
    for count in (3, 2, 4, 1):
        lake.can(count)
    follow(spark, lake, known, wide=("Speed",))  # a file in a batch
    before = lake.table("signals_Speed").sort_by([("capture_id", "ascending"), ("packet_no", "ascending")])
    assert (len(before), len(files(lake))) == (10, 4)
    options = compact_plan.CompactOptions(min_files=2, zorder={"signals_Speed": ("Wheel", "ts")})
    report = compact.run(spark, str(lake.folder), options)
    assert [one.files_after for one in report.partitions if one.table == "signals_Speed"] == [1, 1], "two days"
    assert len(files(lake)) == 2
    after = lake.table("signals_Speed").sort_by([("capture_id", "ascending"), ("packet_no", "ascending")])
    assert after.equals(before)
    lake.can(5)
    follow(spark, lake, known, wide=("Speed",))
    assert len(lake.table("signals_Speed")) == 15
    assert lake.signals() == lake.expected(known)


def files(lake: SignalLake) -> list[str]:
    return DeltaTable(str(lake.folder / "signals_Speed")).file_uris()


def test_changes_and_their_predicate() -> None:
    old = DefinitionState(buses={"*": {("can", 1): "a", ("lin", 1): "l"}, "it's": {("can", 1): "b"}}, wide={"M": "1"})
    new = DefinitionState(buses={"*": {("can", 1): "a", ("can", 2): "c"}, "B": {}}, wide={"M": "2", "N": "1"})
    changes = old.find_changes(new)
    assert changes.named == ("B", "it's")
    assert dict(changes.ids) == {
        "*": {("can", 2), ("lin", 1)},
        "B": {("can", 1), ("lin", 1)},
        "it's": {("can", 1), ("can", 2)},
    }
    assert changes.wide == ("M", "N")
    others = "(bus IS NULL OR bus NOT IN ('B', 'it\\'s'))"
    assert of_changed_frames(changes, "can") == (
        f"({others} AND can_id IN (2)) OR (bus = 'B' AND can_id IN (1)) OR (bus = 'it\\'s' AND can_id IN (1, 2))"
    )
    assert of_changed_frames(changes, "lin") == f"({others} AND lin_id IN (1)) OR (bus = 'B' AND lin_id IN (1))"
    one = DefinitionChanges(named=(), ids={"*": [("can", 1)]}, wide=())
    assert of_changed_frames(one, "lin") is None
    assert of_changed_rows(one, ["lin", "j1939"]) is None
    assert of_changed_rows(one, ["lin", "can"]) == "(can_id IS NOT NULL AND tp_packets IS NULL AND ((can_id IN (1))))"
    methods = DefinitionChanges(named=("B",), ids={}, wide=(), methods=frozenset({(7, 2), (7, 1), (9, 3)}))
    assert of_changed_frames(methods, "someip") == (
        "(service_id = 7 AND method_id IN (1, 2)) OR (service_id = 9 AND method_id IN (3))"
    )
    assert of_changed_frames(methods, "can") is None
    marked = old.with_pending_changes(changes)
    for one in (old, new):
        assert marked.find_changes(one).ids.keys() >= changes.ids.keys()
    assert DefinitionState.from_json(marked.to_json()) == marked
    assert not new.find_changes(new)
    assert text_literal("${x}") == "'\\u0024{x}'", "Spark would take it for a variable"
    assert text_literal("a\\'") == "'a\\\\\\''"
    with pytest.raises(ValueError, match="format"):
        DefinitionState.from_json(b"{}")


def test_a_state_that_cannot_be_read_tells_what_to_delete(tmp_path: Path) -> None:
    memory = StateFolder(Store.open(str(tmp_path)), 0)
    (tmp_path / memory.folder).mkdir(parents=True)
    (tmp_path / memory.folder / "state.json").write_text("{}")
    with pytest.raises(Fatal, match=r"cannot be read.*delete the folder"):
        memory.load_state()
