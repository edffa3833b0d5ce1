"""One committer over adapters in memory, and on a real folder, that takes its turns when a test says so."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pcaplake.common.runtime import Runtime
from pcaplake.lake.commit.history import find_tables_written_above_head, read_last_batches
from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import LAKE_JSON, CurrentIdentity, open_identity
from pcaplake.lake.lake import Lake
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.records import Capture, Stage, manifest_path
from pcaplake.lake.staging.window import Window
from tests.worker.adapters.faults import Faults, crash_at_step
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.memory_store import MemoryStore
from tests.worker.lakes import PROCESSES

SCHEMA = pa.schema([("capture_id", pa.string()), ("date", pa.date32()), ("packet_no", pa.int64())])


SCHEMAS = {"captures": SCHEMA, "packets": SCHEMA}


TABLES = list(SCHEMAS)


def capture(name: str) -> Capture:
    return Capture(capture_id=name, uri=f"file:///{name}.pcap", etag="e", size=1)


def fill(window: Window, name: str, tables: Sequence[str] = TABLES, packets: int = 2) -> None:
    window.begin(capture(name))
    for table in tables:
        count = 1 if table == "captures" else packets
        columns = [pa.array([name] * count), pa.array([date(2026, 1, 2)] * count), pa.array(range(count), pa.int64())]
        window.write(table, pa.RecordBatch.from_arrays(columns, names=SCHEMA.names))
    window.end()


class Source:
    """Remembers what must be read again; `there`: the captures can still be read."""

    def __init__(self) -> None:
        self.replayed: list[str] = []
        self.there = True
        self.packets = 2  # rows that are read from a capture
        self.remade = 0
        self.lake: Bench

    async def replay_captures(self, captures: Sequence[Capture]) -> None:
        self.replayed += [one.capture_id for one in captures]

    async def find_unreadable(self, captures: Sequence[Capture]) -> Sequence[Capture]:
        return () if self.there else captures

    async def rebuild_files(self, table: str, lost: Stage) -> Sequence[AddFile] | None:
        if not self.there:
            return None
        self.remade += 1
        window = self.lake.lake.window(tables=[table])
        for one in lost.captures:
            fill(window, one.capture_id, [table], self.packets)
        stage = window.close()
        return None if stage is None else stage.adds[table]


class Bench:
    """One process over shared memory; its committer takes a turn when the test says so. Times are the test's."""

    def __init__(self, other: Bench | None = None, **lake_config: object) -> None:
        self.now = 1_000.0
        self.days = other.days if other else [0.0]
        self.faults, self.source, self.steps = Faults(), Source(), list[str]()
        first = MemoryStore(self.faults, lambda: 1.8e9 + self.days[0] * 86_400)
        self.store = other.store.as_process(self.faults) if other else first
        self.ledger = other.ledger.as_process(self.faults) if other else MemoryLedger(self.faults)
        self.lake_config = LakeConfig(**{"max_batch_age": 0.0, "commit_timeout": 0.0, **lake_config})  # type: ignore[arg-type]
        self.lake: Lake

    async def start(self) -> Bench:
        identity = await open_identity(self.store, self.ledger)
        log, had = LogStore(self.store), set(await read_last_batches(self.store, self.ledger))
        had |= await find_tables_written_above_head(self.store, self.ledger)
        for table, schema in SCHEMAS.items():
            if table not in had:
                await log.create(table, schema, partition_columns=("date",))
        self.source.lake = self
        current = CurrentIdentity(self.store, identity, self.ledger)
        self.lake = Lake(
            LakeParts(store=self.store, log_store=log, ledger=self.ledger, current=current), schemas=SCHEMAS,
            lake_config=self.lake_config, source=self.source,
            runtime=Runtime(clock=lambda: self.now, step=self.steps.append),
        )  # fmt: skip
        return self

    async def staged(self, *names: str, tables: Sequence[str] = TABLES) -> Stage:
        window = self.lake.window()
        for name in names:
            fill(window, name, tables)
        stage = window.close()
        assert stage is not None
        assert [one.capture_id for one in (await self.lake.stage(stage)).staged] == list(names)
        return stage

    async def turn(self) -> None:
        await self.lake.committer.run_turn()

    def live(self, table: str) -> list[str]:
        files: dict[str, None] = {}
        for name in sorted(
            n for n in self.store.objects if n.startswith(f"{table}/_delta_log/") and n.endswith(".json")
        ):
            for line in self.store.objects[name][0].splitlines():
                action = json.loads(line)
                if "remove" in action:
                    files.pop(action["remove"]["path"], None)
                if "add" in action:
                    assert action["add"]["path"] not in files
                    files[action["add"]["path"]] = None
        return list(files)

    def rows(self, table: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for path in self.live(table):
            data = pa.BufferReader(self.store.objects[f"{table}/{path}"][0])
            found.update(pq.read_table(data, partitioning=None)["capture_id"].to_pylist())
        return found

    def foreign(self, table: str, *actions: dict[str, object]) -> None:
        """Somebody else's commit."""
        prefix = f"{table}/_delta_log/"
        version = len([name for name in self.store.objects if name.startswith(prefix) and name.endswith(".json")])
        info = {"commitInfo": {"timestamp": 0, "operation": "MANUAL", "operationParameters": {}}}
        lines = "".join(json.dumps(action) + "\n" for action in (info, *actions))
        self.store.put_past_faults(f"{prefix}{version:020d}.json", lines.encode())

    def configure(self, table: str, properties: dict[str, str]) -> None:
        first = self.store.objects[f"{table}/_delta_log/{0:020d}.json"][0].splitlines()
        metadata = next(json.loads(line)["metaData"] for line in first if b'"metaData"' in line)
        self.foreign(table, {"metaData": {**metadata, "configuration": properties}})

    @property
    def head(self) -> int:
        return self.ledger.shared.head

    def whole(self, *names: str) -> None:
        """These captures are in, each once, and nothing is left to do."""
        assert self.rows("captures") == Counter(names)
        assert self.rows("packets") == Counter(dict.fromkeys(names, 2))
        assert manifest_path(self.head + 1) not in self.store.objects
        generation = json.loads(self.store.objects[LAKE_JSON][0])["generation"]
        items = self.ledger.shared.captures
        assert all(items[generation, name].state == "COMMITTED" for name in names)
        assert not [one for g, one in self.ledger.shared.pending if g == generation]


def options(**changes: Any) -> dict[str, Any]:
    return {"lake_config": LakeConfig(**{"max_batch_age": 0.05, "lease_timeout": 0.3, **changes})}


async def ingest(lake: Lake, *names: str) -> None:
    await filled(lake, *names)
    await lake.drain()


async def filled(lake: Lake, *names: str) -> None:
    """What `pcaplake ingest` does with a lake, with captures of two rows in the real tables."""
    seen = await lake.capture_states(names)
    for name in names:
        if name not in seen:
            window = lake.window()
            window.begin(capture(name))
            window.write("faults", real_rows(name))
            window.end()
            stage = window.close()
            assert stage is not None
            await lake.stage(stage)


def real_rows(name: str) -> pa.RecordBatch:
    from pcaplake.parser.schemas import TABLES as REAL

    schema = REAL["faults"].schema
    given = {"capture_id": name, "sub_no": 0, "layer": "can", "reason": "gap", "date": date(2026, 1, 2)}
    return pa.RecordBatch.from_pylist([{**given, "packet_no": number} for number in (1, 2)], schema)


def counts(folder: Path) -> Counter[str]:
    return Counter(DeltaTable(str(folder / "faults")).to_pyarrow_table()["capture_id"].to_pylist())


def opening(folder: Path, *, commits: bool = True) -> Any:
    return Lake.open(folder, overwrite=True, **options(commits=commits))


def generation(folder: Path) -> int:
    return int(json.loads((folder / LAKE_JSON).read_bytes())["generation"])


def _stage_and_commit(folder: str, where: str, names: tuple[str, ...]) -> None:
    async def run() -> None:
        runtime = Runtime(step=crash_at_step(where) if where else (lambda name: None))
        async with await Lake.open(folder, runtime=runtime, **options()) as lake:
            await ingest(lake, *names)

    asyncio.run(run())


def program(lake: Path, where: str, *names: str) -> Any:
    """A process that stages these captures and commits, and dies at the step `where`."""
    process = PROCESSES.Process(target=_stage_and_commit, args=(str(lake), where, names))
    process.start()
    return process


def exit_code(process: Any) -> int | None:
    process.join()
    code: int | None = process.exitcode
    return code
