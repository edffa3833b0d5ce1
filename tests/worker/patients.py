"""Lakes that are ill: one in memory with its lock table, and what can happen to it, by name."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pcaplake.common.errors import Fatal
from pcaplake.common.runtime import Runtime
from pcaplake.lake.commit.history import read_last_batches
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import AddFile, parse_json_lines
from pcaplake.lake.delta.lock_table import Entry, TablePath
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import LAKE_JSON, LOG_STORE, CurrentIdentity, Identity, open_identity
from pcaplake.lake.lake import Lake
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.ledger import Ledger
from pcaplake.lake.records import Manifest, Stage, manifest_path
from pcaplake.worker.admin.case import Case
from pcaplake.worker.admin.doctor.doctor import CHECKS, apply_repairs, collect_repairs, examine_lake
from pcaplake.worker.admin.doctor.findings import Finding
from tests.lake.commit.bench import SCHEMA, SCHEMAS, TABLES, Source, fill
from tests.lake.delta.deltas import checkpoint, checkpoint_bytes, foreign, metadata, parse_add
from tests.worker.adapters.faults import Faults
from tests.worker.adapters.lock_table import MemoryLockTable, MemoryS3Store
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.memory_store import MemoryStore

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

    def ledger_name(self, lake: Identity) -> str:
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
        store = (MemoryS3Store if locks else MemoryStore)(self.faults, self.time)
        self.store: MemoryStore = store
        self.lock_table = MemoryLockTable(self.faults, self.time) if locks else None
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
        return LogStore(
            self.store,
            lock_table=self.lock_table,
            commit_timeout=0.0,
            runtime=Runtime(now=self.time, sleep=self.sleep),
        )

    async def start(self, *names: str) -> Ground:
        await self.process()
        for name in names or ("a", "b", "c"):
            await self.batch(name)
        return self

    async def process(self) -> Lake:
        """Somebody opens the lake anew."""
        identity = await open_identity(self.store, self.ledger, log_store=self.log_store)
        log, had = self.log(), await read_last_batches(self.store, self.ledger)
        for table, schema in SCHEMAS.items():
            if table not in had:
                await log.create(table, schema, partition_columns=("date",))
        lake_config = LakeConfig(max_batch_age=0.0, commit_timeout=0.0)
        current = CurrentIdentity(self.store, identity, self.ledger)
        self.lake = Lake(
            LakeParts(store=self.store, log_store=log, ledger=self.ledger, current=current),
            lake_config=lake_config,
            schemas=SCHEMAS,
            source=self.source,
        )
        return self.lake

    @property
    def log_store(self) -> str:
        return LOCKS if self.lock_table is not None else LOG_STORE

    async def staged(self, *names: str, tables: Sequence[str] = TABLES) -> Stage:
        window = self.lake.window()
        for name in names:
            fill(window, name, tables)
        stage = window.close()
        assert stage is not None
        assert not (await self.lake.stage(stage)).retry
        return stage

    async def batch(self, *names: str, tables: Sequence[str] = TABLES) -> Stage:
        stage = await self.staged(*names, tables=tables)
        await self.lake.committer.run_turn()
        return stage

    def case(self, **changes: Any) -> Case:
        given = {
            "place": self.place,
            "log_store": self.log_store,
            "lock_table": self.lock_table,
            "now": self.time,
            **changes,
        }
        return Case(store=self.store, schemas=SCHEMAS, lease_wait=1.0, sleep=self.sleep, **given)

    async def examined(self, **changes: Any) -> list[Finding]:
        """What is found; nothing is changed by it, and each check says something unless it is not for this lake."""
        before = self.snapshot()
        found = await examine_lake(self.case(**changes))
        assert self.snapshot() == before
        if self.lock_table is not None:
            assert {one.check for one in found} >= CHECKS.keys() - {"dynamodb"}
        assert all(one.do for one in found if one.level == "warning")
        assert all(one.lake == self.store.uri for one in found)
        return found

    def snapshot(self) -> Any:
        items = None if self.lock_table is None else self.lock_table.items
        return copy.deepcopy((self.store.objects, self.ledger.shared, items))

    async def mended(self, **changes: Any) -> list[str]:
        """Every repair that is offered is made, and once more: the second time changes nothing."""
        wanted = collect_repairs(await self.examined(**changes))
        done = await apply_repairs(wanted)
        before = self.snapshot()
        await apply_repairs(wanted)
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
        await self.lake.committer.run_turn()
        wanted = [*(names or ("a", "b", "c")), "next"]
        assert self.rows("captures") == Counter(wanted)
        assert self.rows("packets") == Counter(dict.fromkeys(wanted, 2))
        assert manifest_path(self.ledger.shared.head) in self.store.objects
        assert manifest_path(self.ledger.shared.head + 1) not in self.store.objects

    def entry(self, table: str, version: int) -> dict[str, Any]:
        assert self.lock_table is not None
        return self.lock_table.items[TablePath.for_table(self.store.uri, table).uri, f"{version:020d}.json"]


def unwell(found: list[Finding]) -> set[tuple[str, str, str | None]]:
    """What is not ok, without what only could not be examined because of it."""
    return {
        (one.level, one.check, one.table)
        for one in found
        if one.level != "ok" and not one.what.startswith(("not examined", "did not look for orphaned"))
    }


@dataclass(frozen=True, slots=True)
class Damage:
    do: Callable[[Ground], object]
    found: set[tuple[str, str, str | None]]
    says: str
    advises: str = ""
    changes: dict[str, Any] = field(default_factory=dict)


def edit(ground: Ground, **values: Any) -> None:
    said = json.loads(ground.store.objects[LAKE_JSON][0])
    ground.store.put_past_faults(LAKE_JSON, json.dumps(said | values).encode())


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
    if ground.lock_table is not None:
        entry = Entry.for_new_version(TablePath.for_table(ground.store.uri, table), number)
        ground.lock_table.put_item(entry.as_completed(ground.time()).to_item())


def field_of(ground: Ground, table: str, name: str, **values: Any) -> str:
    struct = json.loads(metadata(ground.store, table)["schemaString"])
    fields = [{**one, **values} if one["name"] == name else one for one in struct["fields"]]
    return json.dumps({**struct, "fields": fields})


def incomplete(ground: Ground, table: str, number: int) -> None:
    item = {**ground.entry(table, number), "complete": "false"}
    del item["expireTime"]
    assert ground.lock_table is not None
    ground.lock_table.put_item(item)


def begun(ground: Ground, *, temp: bool) -> None:
    """A writer died after step 2 of version 4 of packets."""
    entry = Entry.for_new_version(TablePath.for_table(ground.store.uri, "packets"), 4)
    assert ground.lock_table is not None
    ground.lock_table.put_item(entry.to_item())
    if temp:
        ground.store.put_past_faults(f"packets/_delta_log/{entry.temp_path}", b'{"commitInfo":{}}\n')


def misspelled(ground: Ground) -> None:
    assert ground.lock_table is not None
    ground.lock_table.put_item(Entry.for_new_version(TablePath("s3a://bucket/lake//packets"), 3).to_item())


def roll_back(ground: Ground, table: str, versions: int = 1) -> None:
    """The last versions and their entries are gone."""
    for path in ground.objects(table, ".json")[-versions:]:
        drop(ground, path)
        if ground.lock_table is not None:
            del ground.lock_table.items[TablePath.for_table(ground.store.uri, table).uri, path.rpartition("/")[2]]


def dropped(ground: Ground, table: str) -> None:
    """The table and its entries are gone."""
    drop(ground, *(name for name in list(ground.store.objects) if name.startswith(f"{table}/")))
    if ground.lock_table is not None:
        uri = TablePath.for_table(ground.store.uri, table).uri
        for key in [key for key in ground.lock_table.items if key[0] == uri]:
            del ground.lock_table.items[key]


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
        lambda g: drop(g, LAKE_JSON), {error("lake.json")}, "manifests of its batches exist", "restore the file"
    ),
    "lake.json damaged": Damage(
        lambda g: g.store.put_past_faults(LAKE_JSON, b"{"), {error("lake.json")}, "cannot be read", "restore the file"
    ),
    "lake.json rolled back": Damage(
        lambda g: setattr(g.ledger.shared, "enrolled", replace(g.ledger.shared.enrolled, generation=2)),
        {error("ledger")},
        "generation 2 is in use: the file was restored",
        "restore the newest lake.json",
    ),
    "another log store": Damage(
        lambda g: edit(g, log_store="put-if-absent"), {error("lake.json")}, "two kinds of log stores", "`lock_table`"
    ),
    "another spelling of the lake": Damage(
        lambda g: edit(g, uri="s3://bucket/Lake"), {error("lake.json")}, "is at s3://bucket/Lake", "use the URI"
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
        lambda g: incomplete(g, "packets", 2),
        {warning("lock entries", "packets")},
        "version 2 is incomplete",
        "--repair",
    ),
    "the newest entry incomplete": Damage(
        lambda g: incomplete(g, "packets", 3), {warning("lock entries", "packets")}, "json exists", "--repair"
    ),
    "an entry begun": Damage(
        lambda g: begun(g, temp=True), {warning("lock entries", "packets")}, "its writer died", "--repair"
    ),
    "an entry with nothing": Damage(
        lambda g: begun(g, temp=False), {error("lock entries", "packets")}, "no writer can commit", "delete the item"
    ),
    "an item that is no entry": Damage(
        lambda g: g.entry("packets", 3).update(tempPath=".."),
        {error("lock entries", "packets")},
        "is not from a Delta log store",
    ),
    "a version without an entry": Damage(
        lambda g: foreign(g.store, "packets"),
        {warning("lock entries", "packets")},
        "version 4 was written without",
        "make every",
    ),
    "the end of a log gone": Damage(
        lambda g: drop(g, version("packets", 3)),
        {error("lock entries", "packets"), error("transactions", "packets")},
        "lacks the batches 2 (",
        "restore the table's log",
    ),
    "a gap in a log": Damage(
        lambda g: drop(g, version("packets", 2)), {error("versions", "packets")}, "version 2 is missing and version 3"
    ),
    "a damaged version": Damage(
        lambda g: g.store.put_past_faults(version("packets", 2), b"{"), {error("versions", "packets")}, "is damaged"
    ),
    "a table rolled back": Damage(
        lambda g: roll_back(g, "packets"),
        {error("transactions", "packets")},
        "lacks the batches 2 (",
        "restore the table's log",
    ),
    "a table rolled back by more than head's batch": Damage(
        lambda g: roll_back(g, "packets", 2),
        {error("transactions", "packets")},
        "lacks the batches 1, 2 (",
        "--accept-loss packets",
    ),
    "a table dropped": Damage(
        lambda g: dropped(g, "packets"),
        {error("transactions", "packets")},
        "the table was dropped, with the batches 0, 1, 2 (",
        "restore the table",
    ),
    "the last manifest gone": Damage(
        lambda g: drop(g, manifest_path(2)),
        {error("transactions"), error("transactions", "packets"), error("transactions", "captures")},
        "the last manifest is 1",
        "restore the manifests",
    ),
    "a damaged manifest": Damage(
        lambda g: g.store.put_past_faults(manifest_path(1), b"{"), {error("ledger contents")}, "1.json is damaged"
    ),
    "captures forgotten": Damage(
        lambda g: forget(g, 1),
        {error("ledger contents")},
        "1 stage that the ledger has lost, in 1 batch from 1 to 1",
        "--repair",
    ),
    "a live file gone": Damage(live_file, {error("files", "packets")}, "1 live file is missing", "restore them"),
    "a live file cut": Damage(
        lambda g: g.store.put_past_faults(g.objects("packets", ".parquet")[0], b"PAR1"),
        {error("files", "packets")},
        "1 live file is damaged: packets/",
        "restore them",
    ),
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
        "reader 3, writer 7 (deletionVectors)",
        f"{WHERE} DROP FEATURE deletionVectors;",
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
        "partitioned by [], but the lake by ['date']",
    ),
    "a clock that is far off": Damage(
        lambda g: None, {error("clocks")}, "that of the object store by +86400 s", "NTP", {"now": lambda: 1.8e9 + DAY}
    ),
    "a clock that is a little off": Damage(
        lambda g: None, {warning("clocks")}, "that of the lock table by -100 s", "NTP", {"now": lambda: 1.8e9 - 100}
    ),
}


def added(data: bytes) -> list[AddFile]:
    return [parse_add(line["add"]) for line in parse_json_lines(data) if "add" in line]


def with_checkpoint(ground: Ground, table: str, number: int, files: Sequence[AddFile], *, clean_up: bool) -> None:
    last = ground.ledger.shared.head
    described = metadata(ground.store, table)["id"]
    data = checkpoint_bytes(list(files), table_id=described, txns={"pcaplake": last}, schema=SCHEMA)
    checkpoint(ground.store, table, number, data, clean_up=clean_up)
