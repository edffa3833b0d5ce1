"""Tables that were dropped or rolled back to an older copy: they are blocked, and what makes each writable again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pcaplake.common.errors import Fatal, WrongChoice
from pcaplake.lake.adoption import adopt_ledger
from pcaplake.lake.commit.history import (
    accept_table_loss,
    extend_last_batches,
    find_last_batches,
    read_last_batches,
)
from pcaplake.lake.commit.rebuild_ledger import rebuild_from_manifests
from pcaplake.lake.delta.actions import Txn
from pcaplake.lake.delta.errors import RolledBack, TableBlocked
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.delta.schema import to_delta_struct
from pcaplake.lake.records import Manifest, manifest_path
from pcaplake.lake.tables import SCHEMAS, create_tables
from pcaplake.worker.admin.case import Case
from pcaplake.worker.admin.doctor.rebuild_ledger import rebuild_lake_ledger as rebuild_of_doctor
from tests.lake.commit.bench import SCHEMA, Bench
from tests.lake.generations import raise_generation
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.fleets import Fleet
from tests.worker.patients import Place

Harm = Callable[[Bench], None]


def log_of(bench: Bench, table: str) -> list[str]:
    prefix = f"{table}/_delta_log/"
    return sorted(name for name in bench.store.objects if name.startswith(prefix) and name.endswith(".json"))


def roll_back(bench: Bench, table: str = "packets") -> None:
    """Its newest N.json is gone."""
    del bench.store.objects[log_of(bench, table)[-1]]


def drop(bench: Bench, table: str = "packets") -> None:
    for name in [name for name in bench.store.objects if name.startswith(f"{table}/")]:
        del bench.store.objects[name]


def make_anew(bench: Bench, table: str = "packets") -> None:
    """Somebody dropped it, and made an empty one."""
    made = bench.store.objects[log_of(bench, table)[0]][0]
    drop(bench, table)
    bench.store.put_past_faults(f"{table}/_delta_log/{0:020d}.json", made)


def forget(bench: Bench, table: str = "packets") -> None:
    """The transactions of its log are gone, and the rows are there."""
    for name in log_of(bench, table):
        lines = bench.store.objects[name][0].splitlines(keepends=True)
        bench.store.put_past_faults(name, b"".join(line for line in lines if not line.startswith(b'{"txn"')))


def as_before(bench: Bench) -> None:
    """All manifests are of a version that did not write down the last batches."""
    batch = 0
    while (found := bench.store.objects.get(manifest_path(batch))) is not None:
        raw = json.loads(found[0])
        raw.pop("last_batches", None)
        bench.store.put_past_faults(manifest_path(batch), json.dumps(raw).encode())
        batch += 1


async def filled() -> Bench:
    """`a` and `b` are in both tables, and the batch of head has rows of `captures` alone."""
    bench = await Bench().start()
    for name, tables in (("a", ["captures", "packets"]), ("b", ["captures", "packets"]), ("c", ["captures"])):
        await bench.staged(name, tables=tables)
        await bench.turn()
    assert bench.head == 2
    return bench


async def copied_before_a_batch_waits(bench: Bench) -> dict[str, Any]:
    """A copy of all objects; after it a batch with `d` waits for `packets`, which nobody can write."""
    copy = dict(bench.store.objects)
    bench.configure("packets", {"delta.constraints.some": "rows > 0"})
    await bench.staged("d")
    await bench.turn()
    assert bench.head == 2
    return copy


async def goes_on(bench: Bench) -> None:
    """A minute later no table is blocked, and `packets` has each row once."""
    bench.now += 60
    await bench.turn()
    assert bench.rows("packets") == Counter(a=2, b=2, d=2)
    assert (bench.head, bench.lake.committer.blocked) == (3, {})


@pytest.mark.parametrize("manifests", ["of now", "of before"])
@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (roll_back, "it had batch 1, and its log says 0"),
        (make_anew, "it had batch 1, and its log says -1"),
        (forget, "it had batch 1, and its log says -1"),
        (drop, "it had batch 1, and the table is gone"),
    ],
)
async def test_a_table_that_lacks_a_batch_is_blocked_alone(harm: Harm, says: str, manifests: str) -> None:
    bench = await filled()
    if manifests == "of before":
        as_before(bench)
    harm(bench)
    before = {name: data for name, data in bench.store.objects.items() if name.startswith("packets/_delta_log")}
    other = await Bench(bench).start()
    await other.turn()
    assert says in other.lake.committer.blocked["packets"], "it is told before there is anything to commit"
    await other.staged("d")
    await other.turn()
    assert other.rows("captures") == Counter("abcd")
    assert {n: data for n, data in other.store.objects.items() if n.startswith("packets/_delta_log")} == before
    assert other.head == 2
    assert other.lake.committer.is_stuck


@pytest.mark.parametrize("harm", [roll_back, make_anew, drop])
async def test_a_loss_that_is_accepted_frees_the_table(harm: Harm) -> None:
    bench = await filled()
    lost = Counter({"drop": {}, "make_anew": {}, "roll_back": {"a": 2}}[harm.__name__])
    harm(bench)
    other = await Bench(bench).start()
    await other.staged("d")
    await other.turn()
    last = await read_last_batches(other.store, other.ledger)
    assert last == {"captures": 2, "packets": 1}
    for _ in range(2):
        await accept_table_loss(LogStore(other.store), "packets", SCHEMA, ["date"], last["packets"])
    other.now += 60
    await other.turn()
    assert other.lake.committer.blocked == {}
    assert (other.rows("captures"), other.rows("packets")) == (Counter("abcd"), lost + Counter(d=2))
    assert other.head == 3


async def test_files_that_were_lost_with_the_table_are_made_again() -> None:
    """They waited for it, and are not old."""
    bench = await filled()
    await bench.staged("d")
    drop(bench)
    other = await Bench(bench).start()
    await other.turn()
    await accept_table_loss(LogStore(other.store), "packets", SCHEMA, ["date"], 1)
    other.now += 60
    await other.turn()
    assert other.rows("packets") == Counter(d=2)
    assert (other.head, other.lake.committer.blocked) == (3, {})


async def test_a_table_that_is_put_back_goes_on() -> None:
    bench = await filled()
    copy = dict(bench.store.objects)
    drop(bench)
    other = await Bench(bench).start()
    await other.staged("d")
    await other.turn()
    assert "packets" in other.lake.committer.blocked
    bench.store.objects.update({name: data for name, data in copy.items() if name.startswith("packets/")})
    await goes_on(other)


async def test_what_does_not_fit_a_table_is_held_while_the_table_is_gone() -> None:
    """In a batch it would keep the table from going on when it is put back."""
    bench = await filled()
    copy = dict(bench.store.objects)
    drop(bench)
    other = await Bench(bench).start()
    stage = await other.staged("odd")
    key = (0, stage.stage_id)
    retyped = to_delta_struct(SCHEMA.set(2, pa.field("packet_no", pa.string())), "packets")
    odd = replace(stage, schemas={**stage.schemas, "packets": retyped})
    other.ledger.shared.stages[key] = replace(other.ledger.shared.stages[key], stage=odd)
    await other.turn()
    assert list(other.ledger.shared.held) == [key]
    bench.store.objects.update({name: data for name, data in copy.items() if name.startswith("packets/")})
    await other.staged("d")
    other.now += 60
    await other.turn()
    assert other.rows("packets") == Counter(a=2, b=2, d=2)


async def test_what_was_in_above_head_is_committed_again_when_the_table_is_rolled_back_to_head() -> None:
    """The process that committed it lives on."""
    bench = await filled()
    bench.configure("captures", {"delta.constraints.some": "rows > 0"})
    await bench.staged("d")
    await bench.turn()
    assert (bench.head, bench.rows("packets")) == (2, Counter(a=2, b=2, d=2))
    roll_back(bench)
    bench.lake.committer._progress.batch = None  # it recovers, as after any error
    await bench.staged("e")
    bench.configure("captures", {})
    for _ in range(2):
        bench.now += 60
        await bench.turn()
    assert bench.rows("packets") == Counter(a=2, b=2, d=2, e=2)
    assert bench.rows("captures") == Counter("abcde")
    assert bench.lake.committer.blocked == {}


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("harm", [roll_back, make_anew, forget, drop])
async def test_a_batch_that_opens_a_generation_empties_the_table_whatever_was_in_it(harm: Harm, rows: bool) -> None:
    bench = await filled()
    harm(bench)
    await raise_generation(bench.store)
    other = await Bench(bench).start()
    await other.staged("e", tables=["captures", *(["packets"] if rows else [])])
    await other.turn()
    assert other.lake.committer.blocked == {}
    assert (other.rows("captures"), other.rows("packets")) == (Counter("e"), Counter({"e": 2} if rows else {}))
    assert other.head == 3
    again = await Bench(bench).start()
    await again.staged("f")
    await again.turn()
    assert again.rows("packets") == Counter({"e": 2, "f": 2} if rows else {"f": 2})


@pytest.mark.parametrize("harm", [roll_back, make_anew, drop])
async def test_an_overwrite_frees_a_table_also_when_a_batch_waits_for_it_already(harm: Harm) -> None:
    bench = await filled()
    harm(bench)
    other = await Bench(bench).start()
    await other.staged("d")
    await other.turn()
    assert (other.head, "packets" in other.lake.committer.blocked) == (2, True)
    await raise_generation(other.store)
    again = await Bench(other).start()
    await again.staged("e")
    for _ in range(2):
        await again.turn()
        again.now += 60
    again.whole("e")
    assert (again.head, again.lake.committer.blocked) == (4, {})


def restore(bench: Bench, copy: dict[str, Any]) -> None:
    """A table is as it was in a copy: what waited for it is not there."""
    drop(bench)
    bench.store.objects.update({name: data for name, data in copy.items() if name.startswith("packets/")})


@pytest.mark.parametrize("composed", [False, True])
async def test_files_that_went_with_a_table_before_its_first_batch_are_made_again(composed: bool) -> None:
    """Its process was killed when it had staged, or committed to it; the next one makes the table anew."""
    bench = await Bench().start()
    await bench.staged("a")
    if composed:
        bench.configure("captures", {"delta.constraints.some": "rows > 0"})
        await bench.turn()
        bench.configure("captures", {})
    assert (bench.head, bool(bench.rows("packets"))) == (-1, composed)
    drop(bench)
    other = await Bench(bench).start()
    await other.turn()
    other.whole("a")


async def test_files_that_were_not_in_the_copy_from_which_a_table_was_restored_are_made_again() -> None:
    """Its transaction is that of head, and a batch above head waits."""
    bench = await filled()
    restore(bench, await copied_before_a_batch_waits(bench))
    await goes_on(await Bench(bench).start())


async def test_the_same_while_the_process_that_waits_for_the_table_lives() -> None:
    bench = await filled()
    bench.days[0] += 0.1
    restore(bench, await copied_before_a_batch_waits(bench))
    await goes_on(bench)


async def test_files_that_were_written_in_sight_of_the_table_are_not_looked_for() -> None:
    bench = await filled()
    bench.days[0] += 0.1
    stage = await bench.staged("d")
    path = f"packets/{stage.adds['packets'][0].path}"
    looked: list[str] = []
    real = bench.lake.committer._files.find_missing

    async def missing(paths: Any) -> Any:
        looked.extend(paths)
        return await real(paths)

    bench.lake.committer._files.find_missing = missing  # type: ignore[method-assign]
    await bench.turn()
    assert (path in looked, bench.head) == (False, 3)


async def test_the_log_store_itself_refuses_a_table_that_lacks_the_transaction_before() -> None:
    bench = await filled()
    knows = LogStore(bench.store)
    await knows.read_transaction("packets", "pcaplake")
    drop(bench)
    commit = {"txn": Txn(app_id="pcaplake", version=3), "schema": SCHEMA, "least": {"pcaplake": 1}}
    with pytest.raises(RolledBack, match="the table is gone"):
        await LogStore(bench.store).commit("packets", [], **commit)
    assert log_of(bench, "packets") == []
    with pytest.raises(TableBlocked, match="version 0 is missing and version 3 is there"):
        await knows.commit("packets", [], **commit)  # it went on from where it stood


async def test_a_lake_opens_without_a_table_that_was_dropped() -> None:
    fleet = Fleet()
    lake = await fleet.lake()
    made = Manifest(
        batch=0,
        generation=0,
        opens=False,
        tables=tuple(SCHEMAS),
        stages=(),
        last_batches={"can_frames": 0},
    )
    fleet.store.put_past_faults(manifest_path(0), made.to_json())
    fleet.ledger.shared.head = fleet.ledger.shared.marked = 0
    drop(fleet, "can_frames")  # type: ignore[arg-type]
    drop(fleet, "captures")  # type: ignore[arg-type]
    with pytest.raises(WrongChoice, match="tables are missing: captures;"):
        await create_tables(fleet.store, fleet.ledger, LogStore(fleet.store), ["date"], False)
    lake = await fleet.lake()
    assert (await lake.log.read_version("captures"), await lake.log.read_version("can_frames")) == (0, -1)


async def ledger_lost(bench: Bench, by: str) -> Bench:
    """The ledger is gone, and is built again from the manifests."""
    other = Bench(bench)
    other.ledger = MemoryLedger(other.faults)
    other.ledger.shared.identity = "new"
    if by == "doctor --repair --adopt":
        await rebuild_of_doctor(Case(store=other.store, place=Place(ledger=other.ledger), lease_wait=0.0), adopt=True)
    else:
        await rebuild_from_manifests(other.store, other.ledger)
        await adopt_ledger(other.store, other.ledger)
    return other


@pytest.mark.parametrize("by", ["ingest --adopt", "doctor --repair --adopt"])
@pytest.mark.parametrize("harm", [roll_back, make_anew, forget, drop])
async def test_a_ledger_that_is_rebuilt_knows_which_batches_each_table_had(harm: Harm, by: str) -> None:
    bench = await filled()
    harm(bench)
    before = {name: data for name, data in bench.store.objects.items() if name.startswith("packets/_delta_log")}
    other = await (await ledger_lost(bench, by)).start()
    assert other.head == 2
    assert {other.ledger.shared.captures[0, name].state for name in "abc"} == {"COMMITTED"}
    await other.staged("d")
    await other.turn()
    assert "it had batch 1" in other.lake.committer.blocked["packets"]
    assert {n: data for n, data in other.store.objects.items() if n.startswith("packets/_delta_log")} == before
    assert other.rows("captures") == Counter("abcd")


@pytest.mark.parametrize("by", ["ingest --adopt", "doctor --repair --adopt"])
@pytest.mark.parametrize("harm", [roll_back, make_anew, forget, drop])
async def test_so_it_is_with_the_last_batch_which_no_manifest_knows_to_be_in(harm: Harm, by: str) -> None:
    """A table that has its rows without the transaction is blocked; the others take the batch again."""
    bench = await Bench().start()
    await bench.staged("a")
    await bench.turn()
    harm(bench)
    other = await ledger_lost(bench, by)
    await create_tables(other.store, other.ledger, LogStore(other.store), ["date"], True)
    assert (await LogStore(other.store).read_version("packets") < 0) == (harm is drop), (
        "an empty one would name files that are gone"
    )
    await other.start()
    await other.turn()
    assert other.rows("packets") == Counter(a=2)
    assert ("packets" in other.lake.committer.blocked) == (harm is forget)
    assert other.head == 0


@pytest.mark.parametrize("by", ["ingest --adopt", "doctor --repair --adopt"])
async def test_no_ledger_is_rebuilt_that_would_double_rows_or_lose_them(by: str) -> None:
    bench = await Bench().start()
    await bench.staged("a")
    await bench.turn()
    forget(bench)
    roll_back(bench, "captures")
    with pytest.raises(Fatal, match="packets: it has rows and no transaction of pcaplake"):
        await ledger_lost(bench, by)
    drop(bench)
    other = await (await ledger_lost(bench, by)).start()
    await other.turn()
    other.whole("a")


def batch(number: int, *tables: str, opens: bool = False, last: dict[str, int] | None = None) -> Manifest:
    schemas: dict[str, Any] = {table: {} for table in tables}
    return Manifest(batch=number, generation=0, opens=opens, tables=(), stages=(), schemas=schemas, last_batches=last)


async def test_manifests_of_before_are_read_back_as_far_as_need_be() -> None:
    read = []

    def loading(*manifests: Manifest) -> Any:
        async def load(number: int) -> Manifest | None:
            read.append(number)
            return next((one for one in manifests if one.batch == number), None)

        read.clear()
        return load

    old = [batch(number, *(["rare"] if number == 3 else []), "often") for number in range(600)]
    assert await find_last_batches(loading(*old[:5]), 4) == {"rare": 3, "often": 4}
    assert await find_last_batches(loading(*old), 599) == {"often": 599}
    assert len(read) <= 530
    known = batch(40, "often", last={"rare": 3, "often": 40})
    assert await find_last_batches(loading(*old[:40], known, *old[41:44]), 43) == {"rare": 3, "often": 43}
    assert await find_last_batches(loading(*old[:40], known), 40) == {"rare": 3, "often": 40}
    assert read == [40]
    assert await find_last_batches(loading(), -1) == {}
    opening = [*old[:5], replace(batch(5, "new", opens=True)), batch(6, "often")]
    assert await find_last_batches(loading(*opening), 6) == {"rare": 5, "often": 6, "new": 5}
    assert extend_last_batches({"rare": 3}, opening[5]) == {"rare": 5, "new": 5}
