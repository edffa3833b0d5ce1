"""`pcaplake signals`: every row once, through restarts, compaction, replaced rows, other databases and other runs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Fatal
from pcaplake.derived.signals.output import RUN_APP
from pcaplake.derived.signals.run import Options, SignalsRun
from pcaplake.lake.corrections import FileCorrector
from pcaplake.lake.delta import PROPERTIES, LogStore
from pcaplake.lake.store.store import Store
from pcaplake.signals import Databases
from pcaplake.signals.catalog import holds_catalog
from tests.derived.signals.runs import decode
from tests.signals.databases import A_DBC, TWO_BUSES, databases
from tests.signals.lakes import SignalLake
from tests.worker.adapters.faults import Killed
from tests.worker.lakes import forget_bounds

pytestmark = pytest.mark.slow

STATE = "_pcaplake/spark/signals"


@pytest.fixture
def lake(tmp_path: Path) -> SignalLake:
    return SignalLake(tmp_path / "lake")


@pytest.fixture
def known(tmp_path: Path) -> Databases:
    return databases(tmp_path, TWO_BUSES)


def fill(lake: SignalLake) -> None:
    lake.can(20)
    lake.can(10, bus="2")
    lake.append("can_frames", [{"can_id": 256, "extended": True, "payload": b"\x07\x08"}])
    lake.lin(5)


def changed(folder: Path, said: str = TWO_BUSES) -> Databases:
    """`Speed` of a.dbc has another factor, `Other` is gone; b.dbc is as it was, but for a comment."""
    text = A_DBC.replace("(0.5,0)", "(0.25,1)").replace(' SG_ x : 0|8@1+ (1,0) [0|0] "" A\n', "")
    (folder / "a.dbc").write_text(text)
    (folder / "b.dbc").write_text((folder / "b.dbc").read_text() + '\nCM_ "a comment";\n')
    (folder / "buses.yaml").write_text(said)
    return Databases.from_file(folder / "buses.yaml")


def test_the_log_of_signals_is_cleaned_beside_its_checkpoints(
    lake: SignalLake, known: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.can(2)
    decode(lake, known)
    log = lake.folder / "signals" / "_delta_log"
    for path in log.glob("*.json"):  # older than the retention of a log
        os.utime(path, (0, 0))
    for every in ("output._CHECKPOINT_VERSIONS", "checks.EMPTY_VERSIONS"):
        monkeypatch.setattr(f"pcaplake.derived.signals.{every}", 1)
    for _ in range(2):  # the version up to which the table is checked stays readable
        lake.can(1)
        decode(lake, known)
    assert not (log / f"{0:020d}.json").exists()
    assert lake.signals() == lake.expected(known)


class TestNewFrames:
    def test_every_row_once_from_run_to_run(self, lake: SignalLake, known: Databases) -> None:
        fill(lake)
        tally = decode(lake, known)
        assert lake.signals() == lake.expected(known)
        assert (tally.rows, tally.batches, tally.read_bytes) == (lake.table("signals").num_rows, 4, tally.total_bytes)
        assert decode(lake, known).rows == 0
        lake.can(7)
        lake.lin(3)
        assert decode(lake, known).batches == 2
        assert lake.signals() == lake.expected(known)

    @pytest.mark.parametrize("batch_bytes", [1, 6_000, 1 << 30])
    def test_batches_of_any_size_and_files_of_one_version(
        self, batch_bytes: int, lake: SignalLake, known: Databases
    ) -> None:
        for number in range(5):
            lake.can(number + 1)
        rows = [{"can_id": 256, "extended": False, "payload": b"\x01\x02\x03"}] * 40
        decode(lake, known, batch_bytes=batch_bytes)  # all live files
        lake.append("can_frames", rows)
        lake.can(3)
        decode(lake, known, batch_bytes=batch_bytes)
        assert lake.signals() == lake.expected(known)

    def test_the_table_is_as_the_workers_create_theirs(self, lake: SignalLake, known: Databases) -> None:
        fill(lake)
        decode(lake, known)
        table = DeltaTable(str(lake.folder / "signals"))
        assert table.metadata().partition_columns == ["date"]
        assert table.metadata().configuration == dict(PROPERTIES)
        catalog = lake.table("signal_catalog").to_pylist()
        assert holds_catalog(({**row, "choices": dict(row["choices"])} for row in catalog), known)
        version = lake.version("signal_catalog")
        decode(lake, known)
        assert lake.version("signal_catalog") == version

    def test_missing_tables_are_empty_and_may_come_later(self, lake: SignalLake, known: Databases) -> None:
        assert decode(lake, known).missing == ["can_frames", "lin_frames"]
        lake.lin(4)
        assert decode(lake, known).missing == ["can_frames"]
        lake.can(4)
        assert decode(lake, known).missing == []
        assert lake.signals() == lake.expected(known)

    def test_compaction_and_new_columns_change_no_row(self, lake: SignalLake, known: Databases) -> None:
        lake.can(6)
        decode(lake, known)
        lake.can(6, extra=pa.array(range(6)))
        lake.can(2)
        DeltaTable(str(lake.folder / "can_frames")).optimize.compact()
        lake.can(5)
        decode(lake, known)
        DeltaTable(str(lake.folder / "signals")).optimize.compact()
        lake.can(1)
        decode(lake, known)
        assert lake.signals() == lake.expected(known)

    def test_corrected_files_are_no_new_frames(self, lake: SignalLake, known: Databases) -> None:
        """A correction adds a file again, or a copy of it."""
        lake.can(6)
        lake.can(2)
        decode(lake, known)
        lake.can(5)
        for table, files in (("can_frames", 3), ("signals", 2)):
            assert forget_bounds(lake.folder / table) == files
            store = Store.open(lake.folder)
            corrector = FileCorrector(store=store, log_store=LogStore(store))
            assert asyncio.run(corrector.correct_table(table)) == files
        decode(lake, known)
        lake.can(1)
        decode(lake, known)
        assert lake.signals() == lake.expected(known)
        assert max(lake.signals().values()) == 1

    def test_versions_that_change_rows_are_followed(self, lake: SignalLake, known: Databases) -> None:
        first = lake.can(6)
        lake.can(3)
        decode(lake, known)
        frames = DeltaTable(str(lake.folder / "can_frames"))
        frames.delete(f"capture_id = '{first}' AND packet_no > 3")
        decode(lake, known)
        assert lake.signals() == lake.expected(known)
        lake.can(2)
        frames.update({"bus": "'2'"}, predicate=f"capture_id = '{first}' AND packet_no = 1")
        lake.lin(2)
        decode(lake, known)
        assert lake.signals() == lake.expected(known)

    def test_of_shared_files_only_the_rows_of_changed_captures_are_decoded(
        self, lake: SignalLake, known: Databases
    ) -> None:
        captures = [lake.can(4) for _ in range(6)]
        frames = DeltaTable(str(lake.folder / "can_frames"))
        frames.optimize.compact()  # three captures are in each of its two files
        decode(lake, known)
        DeltaTable(str(lake.folder / "signals")).optimize.compact()
        of_one = 4 * lake.table("signals").num_rows // 24
        frames.delete(f"capture_id = '{captures[0]}' AND packet_no = 4")
        assert decode(lake, known).rows == of_one * 3 // 4
        frames.update({"bus": "'2'"}, predicate=f"capture_id = '{captures[1]}'")
        frames.restore(frames.version() - 1)
        assert decode(lake, known).rows == 3 * of_one  # an UPDATE does not say of which captures it is
        assert lake.signals() == lake.expected(known)

    def test_many_versions_without_files_move_the_position(self, lake: SignalLake, known: Databases) -> None:
        lake.can(2)
        decode(lake, known)
        frames = DeltaTable(str(lake.folder / "can_frames"))
        for number in range(21):
            frames.alter.set_table_properties({"note": str(number)}, raise_if_not_exists=False)
        version = lake.version("signals")
        decode(lake, known)
        assert lake.version("signals") == version + 2  # the run, and the position
        decode(lake, known)
        assert lake.version("signals") == version + 3

    def test_a_log_that_lost_versions_means_all_again(self, lake: SignalLake, known: Databases) -> None:
        lake.can(2)
        decode(lake, known)
        lake.can(2)
        DeltaTable(str(lake.folder / "can_frames")).delete("packet_no = 1")
        lake.can(2)
        DeltaTable(str(lake.folder / "can_frames")).create_checkpoint()
        (lake.folder / "can_frames" / "_delta_log" / f"{1:020}.json").unlink()
        decode(lake, known)
        assert lake.signals() == lake.expected(known)
        version = lake.version("signals")
        assert decode(lake, known).batches == 0
        assert lake.version("signals") == version + 1

    def test_a_table_whose_files_have_other_rows_is_refused(self, lake: SignalLake, known: Databases) -> None:
        lake.can(2)
        decode(lake, known)
        log = lake.folder / "can_frames" / "_delta_log" / f"{1:020}.json"
        names = ["deletionVectors"]
        features = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": names, "writerFeatures": names}
        log.write_text(json.dumps({"protocol": features}) + "\n")
        with pytest.raises(Fatal, match=r"can_frames has features .* such as deletion vectors"):
            decode(lake, known)

    def test_a_file_with_fewer_rows_than_its_log_says_is_not_passed(self, lake: SignalLake, known: Databases) -> None:
        lake.can(2)
        decode(lake, known)
        lake.can(4)
        log = lake.folder / "can_frames" / "_delta_log" / f"{1:020}.json"
        log.write_text(log.read_text().replace('\\"numRecords\\":4', '\\"numRecords\\":5'))
        with pytest.raises(Exception, match="has 5 rows, and 4 were read"):
            decode(lake, known)


class TestOtherDatabases:
    def test_only_what_changed_is_decoded_again(self, lake: SignalLake, known: Databases, tmp_path: Path) -> None:
        fill(lake)
        decode(lake, known)
        other_bus = [row for row in lake.table("signals").to_pylist() if row["bus"] == "2"]
        new = changed(tmp_path)
        tally = decode(lake, new)
        assert tally.decoded_again == 1  # of `Speed`, and of `Other`, which is gone
        assert lake.signals() == lake.expected(new)
        assert [row for row in lake.table("signals").to_pylist() if row["bus"] == "2"] == other_bus
        assert decode(lake, new).decoded_again == 0

    def test_a_bus_with_another_database(self, lake: SignalLake, known: Databases, tmp_path: Path) -> None:
        fill(lake)
        lake.can(3, bus=None)
        decode(lake, known)
        for said in (TWO_BUSES.replace('"2": b', '"2": a'), "databases: {b: b.dbc}", TWO_BUSES):
            new = databases(tmp_path, said)
            decode(lake, new)
            assert lake.signals() == lake.expected(new)

    def test_new_frames_and_a_new_database_at_once(self, lake: SignalLake, known: Databases, tmp_path: Path) -> None:
        fill(lake)
        decode(lake, known)
        fill(lake)
        new = changed(tmp_path)
        decode(lake, new)
        assert lake.signals() == lake.expected(new)


class TestOneProgramAtATime:
    def test_the_newest_run_takes_over(self, lake: SignalLake, known: Databases) -> None:
        fill(lake)
        begun = False

        def begin_another(name: str) -> None:
            nonlocal begun
            if name == "after signals.decode can" and not begun:
                begun = True
                with ThreadPoolExecutor(1) as thread:  # it needs an event loop of its own
                    thread.submit(decode, lake, known).result()

        with pytest.raises(Fatal, match=r"another run .* has taken over"):
            decode(lake, known, step=begin_another)
        assert begun
        assert lake.signals() == lake.expected(known)

    def test_a_lake_of_an_older_spark_job(self, lake: SignalLake, known: Databases) -> None:
        """It has no id and no position: the rows stay until their frames are decoded again, day by day."""
        fill(lake)
        decode(lake, known)
        state = lake.folder / STATE / "0" / "state.json"
        content = json.loads(state.read_text())
        state.write_text(json.dumps({"format": 1, "buses": content["buses"], "wide": {}}))
        (lake.folder / STATE / "0" / "can").mkdir()  # a checkpoint
        rows = lake.signals()
        lake.can(3)
        DeltaTable(str(lake.folder / "can_frames")).delete("packet_no = 1")

        def step(name: str) -> None:
            if name == "after signals.begin":
                assert lake.signals() == rows
                raise Killed

        with pytest.raises(Killed):
            decode(lake, known, step)
        decode(lake, known)
        assert lake.signals() == lake.expected(known)
        assert decode(lake, known).rows == 0

    def test_a_damaged_state_is_refused(self, lake: SignalLake, known: Databases) -> None:
        fill(lake)
        decode(lake, known)
        state = lake.folder / STATE / "0" / "state.json"
        assert json.loads(state.read_text())["format"] == 2
        state.write_text('{"format": 2}')
        with pytest.raises(Fatal, match=r"state\.json cannot be read"):
            decode(lake, known)


class TestAllAgain:
    def test_without_its_state_the_table_begins_anew(self, lake: SignalLake, known: Databases, tmp_path: Path) -> None:
        fill(lake)
        decode(lake, known)
        (lake.folder / STATE / "0" / "state.json").unlink()
        new = changed(tmp_path)
        decode(lake, new)
        assert lake.signals() == lake.expected(new)

    def test_a_dropped_table_is_filled_again(self, lake: SignalLake, known: Databases) -> None:
        fill(lake)
        decode(lake, known)
        shutil.rmtree(lake.folder / "signals")
        decode(lake, known)
        assert lake.signals() == lake.expected(known)

    def test_an_overwritten_lake(self, lake: SignalLake, known: Databases) -> None:
        """The generation is that of the last manifest, which is written here by hand."""
        fill(lake)
        decode(lake, known)
        generation = lake.folder / STATE / "1"
        (lake.folder / STATE / "0").rename(generation)  # as if the lake had been at 1, and is now at 0
        decode(lake, known)
        assert lake.signals() == lake.expected(known)


def test_each_run_has_a_number(lake: SignalLake, known: Databases) -> None:
    fill(lake)
    for number in range(3):
        decode(lake, known)
        assert DeltaTable(str(lake.folder / "signals")).transaction_version(RUN_APP) == number


async def test_why_there_are_no_rows(lake: SignalLake, known: Databases) -> None:
    lake.can(5, can_id=77)
    lake.append("can_frames", [{"can_id": 77, "extended": False, "rtr": True, "payload": b""}])
    lake.can(2, can_id=256, bus="9")
    one = SignalsRun(Store.open(str(lake.folder)), Options(databases=known))
    await one.run()
    unmatched = await one.explain_no_rows()
    assert unmatched.frames == {"can_frames": {"1": 5, "9": 2}}
    assert unmatched.unknown_ids == 2
    assert [hint.partition(":")[0] for hint in unmatched.hints] == [
        "1 id found in the databases of bus 1, bus 2, not of bus 9"
    ]
