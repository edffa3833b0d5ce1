"""The doctor over adapters in memory: each damage is made for real, found, told with what to do, and mended or left."""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.worker.lake.deltas import add, checkpoint, checkpoint_bytes, foreign, metadata
from tests.worker.lake.test_committer import SCHEMA, SCHEMAS, TABLES, Source, fill
from worker.errors import Fatal
from worker.fleet.alter import features, statements, undroppable
from worker.fleet.checks_common import RECENT, Case, Finding
from worker.fleet.checks_queue import QueueFacts, judge
from worker.fleet.doctor import CHECKS, examine, repair, repairs
from worker.lake.delta.actions import AddFile, Metadata, raw_lines
from worker.lake.delta.arbiter import Entry, TablePath
from worker.lake.delta.log import LogStore
from worker.lake.delta.schema import to_delta
from worker.lake.identity import LAKE_JSON, LOG_STORE, Current, Identity, open_lake, raise_generation
from worker.lake.knobs import Knobs
from worker.lake.lake import Lake
from worker.lake.lease import Leadership
from worker.lake.ledger import Ledger
from worker.lake.manifest import Manifest, Stage, manifest_path
from worker.testing import Faults, MemoryLedger, MemoryStore
from worker.testing_arbiter import MemoryArbiter, MemoryBucket

LOCKS = "dynamodb delta_log"
DAY = 86_400.0
HEX = "0123456789abcdef" * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the ledger is said to be; `there` False: it must be made first."""

    ledger: MemoryLedger
    called: str = "memory"
    kind: str = "memory"
    there: bool = True

    def name(self, lake: Identity) -> str:
        return self.called

    async def open(self, lake: Identity, *, create: bool) -> Ledger:
        if not (self.there or create):
            raise Fatal("the ledger is not there")
        return self.ledger


class Ground:
    """A lake in a bucket with a lock table, or without one; three captures are in it, one batch each."""

    def __init__(self, *, locks: bool = True) -> None:
        self.days = 0.0
        self.faults = Faults()
        store = (MemoryBucket if locks else MemoryStore)(self.faults, self.time)
        self.store: MemoryStore = store
        self.arbiter = MemoryArbiter(self.faults, self.time) if locks else None
        self.ledger = MemoryLedger(self.faults)
        self.place = Place(ledger=self.ledger)
        self.source = Source()
        self.slept = 0.0
        self.while_asleep: Callable[[], object] = lambda: None
        self.lake: Lake

    def time(self) -> float:
        return 1.8e9 + self.days * DAY

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.while_asleep()

    def log(self) -> LogStore:
        return LogStore(self.store, arbiter=self.arbiter, now=self.time, sleep=self.sleep, commit_timeout=0.0)

    async def start(self, *names: str) -> Ground:
        await self.process()
        for name in names or ("a", "b", "c"):
            await self.batch(name)
        return self

    async def process(self) -> Lake:
        """Somebody opens the lake anew."""
        identity = await open_lake(self.store, self.ledger, log_store=self.log_store)
        log = self.log()
        for table, schema in SCHEMAS.items():
            await log.create(table, schema, partition_columns=("date",))
        knobs = Knobs(max_batch_age=0.0, commit_timeout=0.0)
        self.lake = Lake(
            self.store,
            log,
            self.ledger,
            Current(self.store, identity),
            knobs=knobs,
            schemas=SCHEMAS,
            source=self.source,
        )
        return self.lake

    @property
    def log_store(self) -> str:
        return LOCKS if self.arbiter is not None else LOG_STORE

    async def staged(self, *names: str, tables: Sequence[str] = TABLES) -> Stage:
        window = self.lake.window()
        for name in names:
            fill(window, name, tables)
        stage = window.close()
        assert stage is not None
        assert not (await self.lake.stage(stage)).again
        return stage

    async def batch(self, *names: str, tables: Sequence[str] = TABLES) -> Stage:
        stage = await self.staged(*names, tables=tables)
        await self.lake.committer.turn()
        return stage

    def case(self, **changes: Any) -> Case:
        given = {"place": self.place, "log_store": self.log_store, "arbiter": self.arbiter, "now": self.time, **changes}
        return Case(store=self.store, schemas=SCHEMAS, patience=1.0, sleep=self.sleep, **given)

    async def examined(self, **changes: Any) -> list[Finding]:
        """What is found; nothing is changed by it, and each check says something unless it is not for this lake."""
        before = self.snapshot()
        found = await examine(self.case(**changes))
        assert self.snapshot() == before
        if self.arbiter is not None:
            assert {one.check for one in found} >= CHECKS.keys() - {"dynamodb"}
        assert all(one.do for one in found if one.level == "warning")
        assert all(one.lake == self.store.uri for one in found)
        return found

    def snapshot(self) -> Any:
        items = None if self.arbiter is None else self.arbiter.items
        return copy.deepcopy((self.store.objects, self.ledger.shared, items))

    async def mended(self, **changes: Any) -> list[str]:
        """Every repair that is offered is made, and once more: the second time changes nothing."""
        wanted = repairs(await self.examined(**changes))
        done = await repair(wanted)
        before = self.snapshot()
        await repair(wanted)
        assert self.snapshot() == before
        return done

    def objects(self, table: str, kind: str) -> list[str]:
        return sorted(name for name in self.store.objects if name.startswith(f"{table}/") and name.endswith(kind))

    def rows(self, table: str) -> Counter[str]:
        live: dict[str, None] = {}
        for name in self.objects(table, ".json"):
            for line in map(json.loads, self.store.objects[name][0].splitlines()):
                live |= {line["add"]["path"]: None} if "add" in line else {}
                live = {path: None for path in live if path != line.get("remove", {}).get("path")}
        found: Counter[str] = Counter()
        for path in live:
            data = pa.BufferReader(self.store.objects[f"{table}/{path}"][0])
            found.update(pq.read_table(data, partitioning=None)["capture_id"].to_pylist())
        return found

    async def goes_on(self, *names: str) -> None:
        """The next one that opens the lake commits; each row of all captures is there once."""
        await self.process()
        await self.batch("next")
        await self.lake.committer.turn()
        wanted = [*(names or ("a", "b", "c")), "next"]
        assert self.rows("captures") == Counter(wanted)
        assert self.rows("packets") == Counter(dict.fromkeys(wanted, 2))
        assert manifest_path(self.ledger.shared.head) in self.store.objects
        assert manifest_path(self.ledger.shared.head + 1) not in self.store.objects

    def entry(self, table: str, version: int) -> dict[str, Any]:
        assert self.arbiter is not None
        return self.arbiter.items[TablePath.of(self.store.uri, table).uri, f"{version:020d}.json"]


def unwell(found: list[Finding]) -> set[tuple[str, str, str | None]]:
    """What is not ok, without what only could not be examined because of it."""
    return {
        (one.level, one.check, one.table)
        for one in found
        if one.level != "ok" and not one.what.startswith(("not examined", "orphans were not"))
    }


def test_all_is_well() -> None:
    async def run() -> None:
        for locks in (True, False):
            ground = await Ground(locks=locks).start()
            found = await ground.examined()
            assert {one.level for one in found} == {"ok"}, found
            assert repairs(found) == []
            said = {one.check: one.what for one in found}
            assert said["transactions"] == "head 2, last batch 2"
            assert said["memory"] == "it knows all of the batches 0 to 2"
            await ground.goes_on()

    asyncio.run(run())


def test_a_lake_that_is_not_there_yet() -> None:
    async def run() -> None:
        ground = Ground()
        assert unwell(await ground.examined()) == {("warning", "lake.json", None)}
        await ground.process()
        assert unwell(await ground.examined()) == set()

    asyncio.run(run())


# -- damage, by name: what is done, what is found, and words of the advice ----------------------------------------------


@dataclass(frozen=True, slots=True)
class Damage:
    do: Callable[[Ground], object]
    found: set[tuple[str, str, str | None]]
    says: str
    advises: str = ""
    changes: dict[str, Any] = field(default_factory=dict)


def edit(ground: Ground, **values: Any) -> None:
    said = json.loads(ground.store.objects[LAKE_JSON][0])
    ground.store.write(LAKE_JSON, json.dumps(said | values).encode())


def drop(ground: Ground, *paths: str) -> None:
    for path in paths:
        del ground.store.objects[path]


def version(table: str, number: int) -> str:
    return f"{table}/_delta_log/{number:020d}.json"


def described(ground: Ground, table: str, **change: Any) -> dict[str, Any]:
    return {"metaData": {**metadata(ground.store, table), **change}}


def change(ground: Ground, table: str, *actions: dict[str, Any]) -> None:
    """Somebody's commit, with the lock table."""
    number = len(ground.objects(table, ".json"))
    foreign(ground.store, table, *actions)
    if ground.arbiter is not None:
        entry = Entry.new(TablePath.of(ground.store.uri, table), number)
        ground.arbiter.write(entry.completed(ground.time()).to_item())


def field_of(ground: Ground, table: str, name: str, **values: Any) -> str:
    struct = json.loads(metadata(ground.store, table)["schemaString"])
    fields = [{**one, **values} if one["name"] == name else one for one in struct["fields"]]
    return json.dumps({**struct, "fields": fields})


def incomplete(ground: Ground, table: str, number: int) -> None:
    item = {**ground.entry(table, number), "complete": "false"}
    del item["expireTime"]
    assert ground.arbiter is not None
    ground.arbiter.write(item)


def begun(ground: Ground, *, temp: bool) -> None:
    """A writer died after step 2 of version 4 of packets."""
    entry = Entry.new(TablePath.of(ground.store.uri, "packets"), 4)
    assert ground.arbiter is not None
    ground.arbiter.write(entry.to_item())
    if temp:
        ground.store.write(f"packets/_delta_log/{entry.temp_path}", b'{"commitInfo":{}}\n')


def misspelled(ground: Ground) -> None:
    assert ground.arbiter is not None
    ground.arbiter.write(Entry.new(TablePath("s3a://bucket/lake//packets"), 3).to_item())


def set_back(ground: Ground, table: str) -> None:
    """The last version and its entry are gone."""
    drop(ground, ground.objects(table, ".json")[-1])
    if ground.arbiter is not None:
        del ground.arbiter.items[TablePath.of(ground.store.uri, table).uri, f"{3:020d}.json"]


def forget(ground: Ground, batch: int) -> None:
    """The ledger loses what it knew of a batch."""
    manifest = Manifest.from_json(ground.store.objects[manifest_path(batch)][0])
    for stage in manifest.stages:
        ground.ledger.shared.stages.pop((0, stage.stage_id), None)
        for capture in stage.captures:
            ground.ledger.shared.captures.pop((0, capture.capture_id), None)


def live_file(ground: Ground) -> None:
    drop(ground, ground.objects("packets", ".parquet")[0])


PROTOCOL = {"minReaderVersion": 3, "minWriterVersion": 7}
DV = {**PROTOCOL, "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors", "appendOnly"]}
CDF = {"minReaderVersion": 1, "minWriterVersion": 4}
WHERE = "ALTER TABLE delta.`s3a://bucket/lake/packets`"


def error(check: str, table: str | None = None) -> tuple[str, str, str | None]:
    return ("error", check, table)


def warning(check: str, table: str | None = None) -> tuple[str, str, str | None]:
    return ("warning", check, table)


DAMAGES = {
    "lake.json gone": Damage(
        lambda g: drop(g, LAKE_JSON), {error("lake.json")}, "there are manifests of its batches", "put back"
    ),
    "lake.json damaged": Damage(
        lambda g: g.store.write(LAKE_JSON, b"{"), {error("lake.json")}, "cannot be read", "put back"
    ),
    "another log store": Damage(
        lambda g: edit(g, log_store="put-if-absent"), {error("lake.json")}, "two kinds on one table", "`lock_table`"
    ),
    "another spelling of the lake": Damage(
        lambda g: edit(g, uri="s3://bucket/Lake"), {error("lake.json")}, "calls itself s3://bucket/Lake", "spell it"
    ),
    "another ledger": Damage(
        lambda g: edit(g, ledger_name="there", ledger_id="1"), {error("ledger")}, "memory 1 at there", "--adopt"
    ),
    "a ledger of another lake": Damage(
        lambda g: setattr(g.ledger.shared, "lake_id", "other"), {error("ledger")}, "belongs to the lake other", "name"
    ),
    "an entry of another spelling": Damage(
        misspelled, {error("lock table", "packets")}, "s3a://bucket/lake//packets", "delete its entries"
    ),
    "an old entry incomplete": Damage(
        lambda g: incomplete(g, "packets", 2), {warning("entries", "packets")}, "version 2 is incomplete", "--repair"
    ),
    "the newest entry incomplete": Damage(
        lambda g: incomplete(g, "packets", 3), {warning("entries", "packets")}, "json is there", "--repair"
    ),
    "an entry begun": Damage(
        lambda g: begun(g, temp=True), {warning("entries", "packets")}, "its writer died", "--repair"
    ),
    "an entry with nothing": Damage(
        lambda g: begun(g, temp=False), {error("entries", "packets")}, "nobody can commit", "delete the item"
    ),
    "an item that is no entry": Damage(
        lambda g: g.entry("packets", 3).update(tempPath=".."), {error("entries", "packets")}, "no Delta log store wrote"
    ),
    "a version without an entry": Damage(
        lambda g: foreign(g.store, "packets"),
        {warning("entries", "packets")},
        "version 4 was made without",
        "let every",
    ),
    "the end of a log gone": Damage(
        lambda g: drop(g, version("packets", 3)),
        {error("entries", "packets"), error("transactions", "packets")},
        "batches 2 are not in it, and head is 2",
        "restore its log",
    ),
    "a gap in a log": Damage(
        lambda g: drop(g, version("packets", 2)), {error("versions", "packets")}, "version 2 is missing and version 3"
    ),
    "a damaged version": Damage(
        lambda g: g.store.write(version("packets", 2), b"{"), {error("versions", "packets")}, "is damaged"
    ),
    "a table set back": Damage(
        lambda g: set_back(g, "packets"),
        {error("transactions", "packets")},
        "batches 2 are not in it",
        "restore its log",
    ),
    "the last manifest gone": Damage(
        lambda g: drop(g, manifest_path(2)),
        {error("transactions"), error("transactions", "packets"), error("transactions", "captures")},
        "the last manifest is 1",
        "put the manifests back",
    ),
    "a damaged manifest": Damage(
        lambda g: g.store.write(manifest_path(1), b"{"), {error("memory")}, "1.json is damaged"
    ),
    "captures forgotten": Damage(
        lambda g: forget(g, 1),
        {error("memory")},
        "1 stages that the ledger has lost, in 1 batches from 1 to 1",
        "--repair",
    ),
    "a live file gone": Damage(live_file, {error("files", "packets")}, "1 of its files are gone", "put them back"),
    "a constraint": Damage(
        lambda g: change(g, "packets", described(g, "packets", configuration={"delta.constraints.positive": "x > 0"})),
        {error("blocked", "packets")},
        "delta.constraints.positive is set",
        f"{WHERE} DROP CONSTRAINT positive;",
    ),
    "a property that forgets transactions": Damage(
        lambda g: change(
            g,
            "packets",
            described(g, "packets", configuration={"delta.setTransactionRetentionDuration": "interval 1 day"}),
        ),
        {error("blocked", "packets")},
        "delta.setTransactionRetentionDuration is set",
        f"{WHERE} UNSET TBLPROPERTIES ('delta.setTransactionRetentionDuration');",
    ),
    "a protocol raised": Damage(
        lambda g: change(g, "packets", {"protocol": DV}),
        {error("blocked", "packets")},
        "reader 3, writer 7",
        f"{WHERE} DROP FEATURE deletionVectors TRUNCATE HISTORY;",
    ),
    "a protocol that no statement lowers": Damage(
        lambda g: change(g, "packets", {"protocol": CDF}),
        {error("blocked", "packets")},
        "reader 1, writer 4",
        "RESTORE TABLE delta.`s3a://bucket/lake/packets` TO VERSION AS OF 3;",
    ),
    "a column that may not be null": Damage(
        lambda g: change(
            g, "packets", described(g, "packets", schemaString=field_of(g, "packets", "packet_no", nullable=False))
        ),
        {error("blocked", "packets")},
        "column packet_no is NOT NULL",
        f"{WHERE} ALTER COLUMN `packet_no` DROP NOT NULL;",
    ),
    "a column of another type": Damage(
        lambda g: change(
            g, "packets", described(g, "packets", schemaString=field_of(g, "packets", "packet_no", type="string"))
        ),
        {error("blocked", "packets")},
        "column packet_no is string in the table and long in the rows",
    ),
    "other partitions": Damage(
        lambda g: change(g, "packets", described(g, "packets", partitionColumns=[])),
        {error("blocked", "packets")},
        "partitioned by [], the lake by ['date']",
    ),
    "a clock that is far off": Damage(
        lambda g: None, {error("clocks")}, "+86400 s from that of the object store", "NTP", {"now": lambda: 1.8e9 + DAY}
    ),
    "a clock that is a little off": Damage(
        lambda g: None, {warning("clocks")}, "-100 s from that of the lock table", "NTP", {"now": lambda: 1.8e9 - 100}
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_found_and_told_with_what_to_do(name: str) -> None:
    damage = DAMAGES[name]

    async def run() -> None:
        ground = await Ground().start()
        damage.do(ground)
        found = await ground.examined(**damage.changes)
        assert unwell(found) == damage.found, found
        said = [one for one in found if damage.says in one.what]
        assert said, [one.what for one in found]
        assert any(damage.advises in one.do for one in said), [one.do for one in said]

    asyncio.run(run())


def test_gaps_below_a_checkpoint_only_hide_old_versions() -> None:
    async def run() -> None:
        ground = await Ground().start()
        files = [add for name in ground.objects("packets", ".json") for add in added(ground.store.objects[name][0])]
        data = checkpoint_bytes(
            files, table_id=metadata(ground.store, "packets")["id"], txns={"pcaplake": 2}, schema=SCHEMA
        )
        checkpoint(ground.store, "packets", 3, data)
        drop(ground, version("packets", 1))
        found = await ground.examined()
        assert unwell(found) == {warning("versions", "packets")}
        assert "versions 1 are missing in its log, below its checkpoint 3" in {one.what for one in found}
        await ground.process()
        await ground.batch("next")
        assert ground.ledger.shared.head == 3

    asyncio.run(run())


def test_a_protocol_in_a_checkpoint_is_told_with_its_features() -> None:
    """A table of Spark's whose versions were cleaned up: what raised it is in the checkpoint alone."""

    async def run() -> None:
        ground = await Ground().start()
        table = pq.read_table(pa.BufferReader(checkpoint_bytes([], txns={"pcaplake": 2}, schema=SCHEMA)))
        rows = [{**row, "protocol": row["protocol"] and {**DV}} for row in table.to_pylist()]
        names = pa.list_(pa.string())
        kind = pa.struct(
            [
                ("minReaderVersion", pa.int32()),
                ("minWriterVersion", pa.int32()),
                ("readerFeatures", names),
                ("writerFeatures", names),
            ]
        )
        schema = table.schema.set(table.schema.get_field_index("protocol"), pa.field("protocol", kind))
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, schema), sink)
        checkpoint(ground.store, "packets", 3, sink.getvalue().to_pybytes())
        (one,) = [one for one in await ground.examined() if one.check == "blocked" and one.level == "error"]
        assert one.do == f"{WHERE} DROP FEATURE deletionVectors TRUNCATE HISTORY;"

    asyncio.run(run())


def added(data: bytes) -> list[AddFile]:
    return [AddFile.from_json(line["add"]) for line in raw_lines(data) if "add" in line]


# -- repairs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["an old entry incomplete", "the newest entry incomplete", "an entry begun"])
def test_incomplete_entries_are_finished(name: str) -> None:
    async def run() -> None:
        ground = await Ground().start()
        DAMAGES[name].do(ground)
        done = await ground.mended()
        assert len(done) == 1
        assert "are complete" in done[0]
        assert "incomplete" not in done[0]
        assert ground.arbiter is not None
        assert {item["complete"] for item in ground.arbiter.items.values()} == {"true"}
        assert unwell(await ground.examined()) == set()
        await ground.goes_on()

    asyncio.run(run())


def test_an_entry_that_is_completed_meanwhile_is_no_finding() -> None:
    async def run() -> None:
        ground = await Ground().start()
        whole = dict(ground.entry("packets", 3))
        incomplete(ground, "packets", 3)
        assert ground.arbiter is not None
        arbiter = ground.arbiter
        ground.while_asleep = lambda: arbiter.write(whole)
        assert unwell(await examine(ground.case())) == set()

    asyncio.run(run())


@pytest.mark.parametrize("head", [True, False])
def test_what_the_ledger_forgot_is_learnt_from_the_manifests(head: bool) -> None:
    """Captures and stages of all batches are gone, and perhaps the head with them; nothing is read or written twice."""

    async def run() -> None:
        ground = await Ground().start()
        for batch in range(3):
            forget(ground, batch)
        if not head:
            ground.ledger.shared.head = ground.ledger.shared.marked = -1
        assert unwell(await ground.examined()) == {error("memory")} | (set() if head else {warning("transactions")})
        (done,) = await ground.mended()
        assert done.startswith(
            "3 batches up to 2 were restored" if head else "0 batches up to -1 were restored, 3 above"
        )
        found = unwell(await ground.examined())
        assert found == (set() if head else {warning("transactions")}), "somebody must drive the batches again"
        captures = ground.ledger.shared.captures
        assert {name for _, name in captures} == {"a", "b", "c"}
        assert {item.state for item in captures.values()} == ({"COMMITTED"} if head else {"STAGED"})
        lake = await ground.process()
        window = lake.window()
        fill(window, "a")
        stage = window.close()
        assert stage is not None
        assert [one.capture_id for one in (await lake.stage(stage)).taken] == ["a"]
        await ground.goes_on()
        assert unwell(await ground.examined()) == set()

    asyncio.run(run())


def test_a_capture_that_was_staged_again_goes_back_to_its_batch() -> None:
    async def run() -> None:
        ground = await Ground().start()
        forget(ground, 1)
        again = await ground.staged("b")
        forget(ground, 0)
        await ground.mended()
        assert ground.ledger.shared.captures[0, "a"].state == "COMMITTED"
        assert unwell(await ground.examined()) == set()
        assert ground.ledger.shared.captures[0, "b"].stage_id == again.stage_id, "it was not missing"

    asyncio.run(run())


def test_a_ledger_that_is_lost_is_made_anew_where_it_was() -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.ledger = MemoryLedger(ground.faults)
        ground.ledger.shared.identity = "new"
        ground.place = Place(ledger=ground.ledger, there=False)
        found = await ground.examined()
        assert error("ledger") in unwell(found)
        (done,) = await ground.mended()
        assert "3 above it are known" in done
        assert json.loads(ground.store.objects[LAKE_JSON][0])["ledger_id"] == "new"
        ground.place = Place(ledger=ground.ledger)
        assert unwell(await ground.examined()) == {warning("transactions")}
        await ground.goes_on()
        assert unwell(await ground.examined()) == set()

    asyncio.run(run())


def test_a_ledger_of_another_name_is_only_taken_when_that_was_said() -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.ledger = MemoryLedger(ground.faults)
        ground.ledger.shared.identity = "new"
        ground.place = Place(ledger=ground.ledger, called="elsewhere")
        found = await ground.examined()
        assert error("ledger") in unwell(found)
        assert repairs(found) == []
        assert ["name the ledger of this lake, memory" in one.do for one in found if one.check == "ledger"] == [True]
        edit(ground, uri="s3a://bucket/lake")
        assert len(await ground.mended(adopt=True)) == 1, "one repair for the ledger and the spelling"
        assert json.loads(ground.store.objects[LAKE_JSON][0])["uri"] == "s3://bucket/lake"
        await ground.goes_on()

    asyncio.run(run())


def test_nothing_is_rebuilt_while_somebody_leads() -> None:
    async def run() -> None:
        ground = await Ground().start()
        forget(ground, 1)
        leader = Leadership(ground.ledger, owner="leader")
        ground.while_asleep = lambda: None

        async def nothing() -> None: ...

        assert await leader.lead(nothing)
        wanted = repairs(await ground.examined())
        lease = ground.ledger.shared.lease

        def beat() -> None:
            ground.ledger.shared.lease = type(lease)(owner=lease.owner, beat=ground.ledger.shared.lease.beat + 1)

        ground.while_asleep = beat
        (done,) = await repair(wanted)
        assert done.startswith("failed: rebuild")
        assert "leader is committing: stop everything" in done
        assert (0, "b") not in ground.ledger.shared.captures
        ground.while_asleep = lambda: None
        assert "failed" not in (await repair(wanted))[0]

    asyncio.run(run())


def test_a_ledger_that_is_anothers_is_not_rebuilt() -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.ledger = MemoryLedger(ground.faults)
        ground.ledger.shared.identity, ground.ledger.shared.lake_id = "new", "other"
        ground.place = Place(ledger=ground.ledger)
        (done,) = await ground.mended()
        assert "belongs to the lake other" in done
        assert not ground.ledger.shared.captures

    asyncio.run(run())


def test_held_stages_are_told_and_released() -> None:
    async def run() -> None:
        ground = await Ground().start()
        before = metadata(ground.store, "packets")
        change(
            ground,
            "packets",
            described(ground, "packets", schemaString=field_of(ground, "packets", "packet_no", type="string")),
        )
        stage = await ground.batch("d")
        found = await ground.examined()
        assert unwell(found) == {error("held"), error("blocked", "packets")}
        (held,) = [one for one in found if one.check == "held"]
        assert stage.stage_id in held.what
        assert "column packet_no is string in the table and long in the rows" in held.what
        change(ground, "packets", {"metaData": before})
        assert await ground.mended() == ["1 stages wait for the next batch again"]
        assert unwell(await ground.examined()) == set()
        await ground.goes_on("a", "b", "c", "d")

    asyncio.run(run())


def test_one_repair_that_fails_does_not_stop_the_others() -> None:
    async def run() -> None:
        ground = await Ground().start()
        incomplete(ground, "captures", 2)
        incomplete(ground, "packets", 2)
        wanted = repairs(await examine(ground.case()))
        ground.faults.at("arbiter.newest captures", "error")
        first, second = await repair(wanted)
        assert first.startswith("failed: finish the incomplete entries of s3a://bucket/lake/captures: 2: injected")
        assert second == "packets: version 3 and 1 older entries are complete"

    asyncio.run(run())


# -- what waits -----------------------------------------------------------------------------------------------------------


def test_stages_that_wait_for_long_by_the_clock_of_the_store() -> None:
    async def run() -> None:
        ground = await Ground().start()
        await ground.staged("d")
        assert unwell(await ground.examined()) == set()
        ground.days = 0.02
        (old,) = [one for one in await ground.examined() if one.level != "ok"]
        assert (old.level, old.check) == ("warning", "pending")
        assert "1 stages wait for more than 10 minutes, the oldest for 28 minutes" in old.what
        ground.days = 1.5
        assert unwell(await ground.examined()) == {error("pending")}
        await ground.goes_on("a", "b", "c", "d")

    asyncio.run(run())


def test_files_that_a_stage_waits_for_are_gone() -> None:
    async def run() -> None:
        ground = await Ground().start()
        stage = await ground.staged("d")
        drop(ground, stage.paths[0])
        (found,) = [one for one in await ground.examined() if one.level != "ok"]
        assert (found.level, found.check) == ("error", "pending")
        assert stage.paths[0] in found.what
        assert "file:///d.pcap" in found.do

    asyncio.run(run())


def test_items_of_the_work_list_that_have_no_stage() -> None:
    async def run() -> None:
        ground = await Ground().start()
        stage = await ground.staged("d")
        del ground.ledger.shared.stages[0, stage.stage_id]
        (found,) = [one for one in await ground.examined() if one.level != "ok"]
        assert (found.level, found.check) == ("error", "pending")
        assert stage.stage_id in found.what

    asyncio.run(run())


def test_batches_that_nobody_commits() -> None:
    async def run() -> None:
        ground = await Ground().start()
        stage = await ground.staged("d")
        manifest = Manifest(
            batch=3, generation=0, opens=False, tables=tuple(TABLES), stages=(stage,), schemas=stage.schemas
        )
        ground.store.write(manifest_path(3), manifest.to_json())
        assert unwell(await ground.examined()) == {warning("transactions")}
        lease = ground.ledger.shared.lease
        beats = iter(range(1, 100))

        def beat() -> None:
            ground.ledger.shared.lease = type(lease)(owner="leader", beat=next(beats))

        beat()
        ground.while_asleep = beat
        assert unwell(await examine(ground.case())) == set(), "somebody is at it"
        ground.while_asleep = lambda: None
        ground.ledger.shared.stages.pop((0, stage.stage_id))
        assert error("memory") in unwell(await ground.examined())

    asyncio.run(run())


def test_manifests_between_others_are_missed() -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.ledger.shared.head = 0
        drop(ground, manifest_path(1))
        found = await ground.examined()
        assert {one.what for one in found if one.level == "error"} == {"the manifests 1 are missing, and 2 is there"}
        ground.ledger.shared.head = 1
        assert any("head is 1, and" in one.what for one in await ground.examined())

    asyncio.run(run())


def test_only_the_last_batches_up_to_head_are_read() -> None:
    """What is looked at does not grow with the lake."""

    async def run() -> None:
        ground = await Ground().start()
        template = Manifest.from_json(ground.store.objects[manifest_path(2)][0])
        for batch in range(3, 3 * RECENT):
            empty = Manifest(batch=batch, generation=0, opens=False, tables=template.tables, stages=())
            ground.store.write(manifest_path(batch), empty.to_json())
        ground.ledger.shared.head = ground.ledger.shared.marked = 3 * RECENT - 1
        ground.faults.seen.clear()
        assert unwell(await examine(ground.case())) == set()
        read = {point for point in ground.faults.seen if point.startswith("store.get _pcaplake/batches/")}
        assert len(read) == RECENT

    asyncio.run(run())


# -- files ----------------------------------------------------------------------------------------------------------------


THEIRS = [f"captures/date=2026-01-02/{name}.parquet" for name in ("below-a-checkpoint", "above-it")]


def theirs(ground: Ground, path: str) -> None:
    """Somebody adds a file to captures, and takes it out in the next version."""
    name = path.removeprefix("captures/")
    ground.store.write(path, b"1234")
    change(ground, "captures", {"add": add(name).to_json() | {"path": name}})
    change(ground, "captures", {"remove": {"path": name, "dataChange": True}})


def with_checkpoint(ground: Ground, table: str, number: int, files: Sequence[AddFile], *, clean_up: bool) -> None:
    last = ground.ledger.shared.head
    described = metadata(ground.store, table)["id"]
    data = checkpoint_bytes(list(files), table_id=described, txns={"pcaplake": last}, schema=SCHEMA)
    checkpoint(ground.store, table, number, data, clean_up=clean_up)


async def with_orphans() -> tuple[Ground, list[str]]:
    """Orphans in two tables, and beside them everything that looks like one and is named somewhere.

    packets: the log is cleaned up; files of batches 0 to 2 are in their manifests alone. captures: others added and
    removed a file below its checkpoint and one above it. Stages of the generation before wait, are held, or are on no
    list; the files of two have names of their own.
    """
    ground = await Ground().start()
    orphans = [f"packets/date=2026-01-02/{HEX}-0.zstd.parquet", "captures/part-0.snappy.parquet"]
    for path in (*orphans, "packets/_change_data/cdc-0.parquet", "packets/date=2026-01-02/notes.txt"):
        ground.store.write(path, b"1234")
    for name in ("waits", "held"):
        stage = await ground.staged(name)
        key, renamed = (0, stage.stage_id), replace(stage, adds={"packets": (add(name),)})
        ground.store.write(f"packets/{add(name).path}", b"1234")
        ground.ledger.shared.stages[key] = replace(ground.ledger.shared.stages[key], stage=renamed)
        drop(ground, *stage.paths)
    assert await ground.ledger.hold(0, stage.stage_id, "a test")
    forgotten = await ground.staged("on no list")
    del ground.ledger.shared.pending[0, forgotten.stage_id]
    await raise_generation(ground.store)
    await ground.process()
    await ground.batch("new")
    await ground.batch("newer")
    live = [one for name in ground.objects("packets", ".json")[-2:] for one in added(ground.store.objects[name][0])]
    with_checkpoint(ground, "packets", 5, live, clean_up=True)
    theirs(ground, THEIRS[0])
    live = [one for name in ground.objects("captures", ".json")[-4:] for one in added(ground.store.objects[name][0])]
    with_checkpoint(ground, "captures", 7, live[:2], clean_up=False)
    theirs(ground, THEIRS[1])
    return ground, orphans


def test_orphans_are_deleted_after_seven_days_and_nothing_that_is_named_anywhere() -> None:
    async def run() -> None:
        ground, orphans = await with_orphans()
        assert "files" not in {one.check for one in await ground.examined() if one.level != "ok"}, "they are young"
        ground.days = 7.5
        young = f"packets/date=2026-01-02/{HEX}-1.zstd.parquet"
        ground.store.write(young, b"12")
        ground.days = 8
        found = [one for one in await ground.examined() if one.check == "files"]
        assert {(one.level, one.table) for one in found} == {("warning", "packets"), ("warning", "captures")}
        assert {path for one in found for path in orphans if path in one.what} == set(orphans)
        assert sorted(one.what for one in repairs(found)) == sorted(
            f"delete 1 orphan files of s3://bucket/lake: {path}" for path in orphans
        )
        before = set(ground.store.objects)
        done = await repair(repairs(found))
        assert sorted(done) == ["captures: 1 orphan files deleted", "packets: 1 orphan files deleted"]
        assert before - set(ground.store.objects) == set(orphans)
        assert "files" not in {one.check for one in await ground.examined() if one.level != "ok"}

    asyncio.run(run())


def test_an_orphan_that_was_made_anew_meanwhile_is_kept() -> None:
    async def run() -> None:
        ground, orphans = await with_orphans()
        ground.days = 8
        wanted = repairs(one for one in await ground.examined() if one.check == "files")
        ground.store.write(orphans[0], b"new")
        assert sorted(await repair(wanted)) == [
            "captures: 1 orphan files deleted",
            "packets: 0 orphan files deleted, 1 kept",
        ]
        assert orphans[0] in ground.store.objects

    asyncio.run(run())


@pytest.mark.parametrize("name", ["the last manifest gone", "captures forgotten", "a gap in a log"])
def test_no_orphan_is_looked_for_where_the_parts_contradict_each_other(name: str) -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.store.write(f"packets/date=2026-01-02/{HEX}-0.zstd.parquet", b"1234")
        DAMAGES[name].do(ground)
        ground.days = 8
        found = await ground.examined()
        assert not [one.what for one in repairs(found) if "orphan" in one.what]
        assert "warning" in {one.level for one in found if one.check == "files"}

    asyncio.run(run())


def test_without_the_ledger_no_file_is_judged() -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.store.write(f"packets/date=2026-01-02/{HEX}-0.zstd.parquet", b"1234")
        DAMAGES["another ledger"].do(ground)
        ground.days = 8
        (found,) = [one for one in await ground.examined() if one.check == "files"]
        assert found.what == "not examined: the lake's ledger is not at hand, see above"

    asyncio.run(run())


# -- services -------------------------------------------------------------------------------------------------------------


class Careless(MemoryStore):
    """Takes an object twice."""

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        self.write(path, data)
        return True


class Locked(MemoryStore):
    """Nobody may write."""

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        raise Fatal(f"{path}: AccessDenied")

    async def delete(self, path: str) -> None:
        raise Fatal(f"{path}: AccessDenied")


class Broken(MemoryArbiter):
    async def verify(self) -> float | None:
        raise Fatal("the DynamoDB table delta_log is no lock table")


def test_a_store_that_makes_an_object_twice_or_not_at_all() -> None:
    async def run() -> None:
        for kind, what in ((Careless, "takes an object twice"), (Locked, "AccessDenied")):
            ground = await Ground(locks=False).start()
            store = kind(clock=ground.time)
            store.objects = ground.store.objects
            ground.store = store
            found = [one for one in await ground.examined() if one.level == "error"]
            assert {one.check for one in found} == {"storage"}
            assert all(what in one.what for one in found)
            assert len(found) == (1 if kind is Careless else 2)

    asyncio.run(run())


def test_a_lock_table_of_another_shape() -> None:
    async def run() -> None:
        ground = await Ground().start()
        assert ground.arbiter is not None
        broken = Broken(clock=ground.time, shared=ground.arbiter._shared)
        assert unwell(await ground.examined(arbiter=broken)) == {error("lock table")}

    asyncio.run(run())


def test_what_does_not_answer_is_told_and_the_rest_is_examined() -> None:
    async def run() -> None:
        ground = await Ground().start()
        ground.faults.at("ledger.held", "error")
        found = await examine(ground.case())
        (one,) = [one for one in found if one.level != "ok"]
        assert (one.level, one.check, one.do) == ("error", "held", "run it again")
        assert {each.check for each in found} >= CHECKS.keys() - {"dynamodb"}

    asyncio.run(run())


def queue_of(**facts: Any) -> QueueFacts:
    given = {"visible": 3, "in_flight": 2, "delayed": 1, "visibility_timeout": 120, "retention": 345_600}
    dead = QueueFacts(name="q-dead", **{**given, "visible": 0, "in_flight": 0, "delayed": 0, "retention": 1_209_600})
    return QueueFacts(**{"name": "q", **given, "max_receives": 5, "dead_letters": dead, **facts})


@pytest.mark.parametrize(
    ("queue", "level", "says", "advises"),
    [
        (queue_of(), "ok", "q: 3 waiting, 2 in flight, 1 delayed", ""),
        (queue_of(visibility_timeout=10), "warning", "visibility timeout of 10 s", "60 s or more"),
        (queue_of(dead_letters=None, max_receives=None), "error", "until it is 96 h old", "pcaplake setup"),
        (queue_of(max_receives=1), "warning", "gives a message up after 1 receipts", "3 or more"),
        (queue_of(retention=1_209_600), "warning", "keeps messages for 336 h", "14 days"),
        (
            queue_of(dead_letters=queue_of(name="q-dead", dead_letters=None, retention=1_209_600)),
            "warning", "q-dead has 6 dead letters", "pcaplake redrive",
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_a_queue(queue: QueueFacts, level: str, says: str, advises: str) -> None:
    found = judge(queue)
    assert [one.level for one in found] == (["ok"] if level == "ok" else ["ok", level])
    assert says in found[-1].what
    assert advises in found[-1].do


# -- statements -----------------------------------------------------------------------------------------------------------


def described_as(schema: dict[str, Any] | None = None, **configuration: str) -> Metadata:
    return Metadata(id="1", schema=schema or to_delta(SCHEMA), partition_columns=(), configuration=configuration)


def test_statements_come_in_an_order_that_works() -> None:
    """Constraints and properties first: a feature that is in use cannot be dropped."""
    metadata = described_as(
        **{
            "delta.columnMapping.mode": "name",
            "delta.constraints.c": "x > 0",
            "delta.appendOnly": "false",
        }
    )
    protocol = {
        **PROTOCOL,
        "readerFeatures": ["columnMapping", "typeWidening-preview"],
        "writerFeatures": [
            "columnMapping",
            "typeWidening-preview",
            "checkConstraints",
            "invariants",
            "checkpointProtection",
        ],
    }
    table = "ALTER TABLE delta.`p`"
    assert statements("p", metadata, protocol, to_delta(SCHEMA)) == [
        f"{table} DROP CONSTRAINT c;",
        f"{table} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'none');",
        f"{table} DROP FEATURE checkConstraints;",
        f"{table} DROP FEATURE columnMapping TRUNCATE HISTORY;",
        f"{table} DROP FEATURE `typeWidening-preview` TRUNCATE HISTORY;",
        f"{table} DROP FEATURE checkpointProtection TRUNCATE HISTORY;",
    ]
    assert undroppable(protocol) == []


def test_a_column_in_a_struct_that_may_not_be_null() -> None:
    struct = to_delta(pa.schema([("s", pa.struct([("x", pa.int64())])), ("y", pa.int64())]))
    table = copy.deepcopy(struct)
    table["fields"][0]["type"]["fields"][0]["nullable"] = False
    assert statements("p", described_as(table), {}, struct) == [
        "ALTER TABLE delta.`p` ALTER COLUMN `s`.`x` DROP NOT NULL;"
    ]


@pytest.mark.parametrize(
    ("reader", "writer", "names", "stay"),
    [
        (1, 2, [], []),
        (1, 3, ["checkConstraints"], []),
        (1, 4, ["changeDataFeed", "checkConstraints", "generatedColumns"], ["changeDataFeed", "generatedColumns"]),
        (
            2, 6, ["changeDataFeed", "checkConstraints", "columnMapping", "generatedColumns", "identityColumns"],
            ["changeDataFeed", "generatedColumns", "identityColumns"],
        ),
        (1, 7, [], []),
    ],
)  # fmt: skip
def test_features_of_versions_without_a_list(reader: int, writer: int, names: list[str], stay: list[str]) -> None:
    protocol = {"minReaderVersion": reader, "minWriterVersion": writer}
    assert features(protocol) == names
    assert undroppable(protocol) == stay
