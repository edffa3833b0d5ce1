"""The ledger in one SQLite file: for all processes and threads of one machine.

WAL with `synchronous=FULL`: what is answered is on the disk. Each method is one transaction in one thread of its own,
so that the event loop never waits for the disk; between processes SQLite's lock decides. Not for network drives.
"""

from __future__ import annotations

import asyncio
import operator
import os
import sqlite3
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ...errors import Fatal, OutcomeUnknown, Retryable
from ..manifest import Capture, Manifest, Stage
from . import COMMITTED, STAGED, CaptureItem, Lease, LedgerLost, StageItem, taken

T = TypeVar("T")

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS captures (
  generation INTEGER, capture_id TEXT, uri TEXT, etag TEXT, size INTEGER, rows INTEGER, outcome TEXT,
  stage_id TEXT, state TEXT, batch INTEGER, version_id TEXT, PRIMARY KEY (generation, capture_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stages (
  generation INTEGER, stage_id TEXT, body BLOB, batch INTEGER, displaced INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (generation, stage_id));
CREATE TABLE IF NOT EXISTS pending (
  staged_at INTEGER PRIMARY KEY AUTOINCREMENT, generation INTEGER, stage_id TEXT, UNIQUE (generation, stage_id));
CREATE TABLE IF NOT EXISTS held (
  generation INTEGER, stage_id TEXT, reason TEXT, PRIMARY KEY (generation, stage_id)) WITHOUT ROWID;
"""
_CAPTURE = "capture_id, uri, etag, size, rows, outcome, version_id"
_VALUES = operator.attrgetter(*_CAPTURE.split(", "))
_LATER = {"captures": {"version_id": "TEXT"}}  # columns that the files of before have not
_CHUNK = 500  # host parameters in one statement
_BUSY_SECONDS = 30.0
_OPEN_TRIES = 100


class SqliteLedger:
    """`await SqliteLedger.open(path)`; with `create=False` a file that is not there is Fatal."""

    kind = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._db: sqlite3.Connection

    @property
    def name(self) -> str:
        return str(self.path)

    @classmethod
    async def open(cls, path: Path, *, create: bool = True) -> SqliteLedger:
        ledger = cls(path)
        for last in (False,) * _OPEN_TRIES + (True,):
            try:
                await ledger._call(lambda: ledger._connect(create))
                break
            except Retryable:  # several processes at the very first start: the switch to WAL does not wait for its lock
                if last:
                    raise
                await asyncio.sleep(0.05)
            except BaseException:
                ledger._thread.shutdown()
                raise
        return ledger

    def _connect(self, create: bool) -> None:
        if not create and not self.path.exists():
            raise Fatal(
                f"the ledger {self.path} is not there, but the lake has one: put it back, name the right one with "
                "--ledger, or let a new one be built from the lake's manifests with --adopt"
            )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Fatal(
                f"the folder {self.path.parent} cannot be made: {error.strerror}; name another --lake"
            ) from error
        self._db = sqlite3.connect(self.path, isolation_level=None, timeout=_BUSY_SECONDS)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            with self._writing():
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                for table, columns in _LATER.items():
                    there = {row[1] for row in self._db.execute(f"PRAGMA table_info({table})")}
                    for column in columns.keys() - there:
                        self._db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {columns[column]}")
                self._db.execute("INSERT OR IGNORE INTO facts VALUES ('identity', ?)", (uuid.uuid4().hex,))
        except sqlite3.OperationalError:
            self._db.close()
            raise
        except sqlite3.DatabaseError as error:
            self._db.close()
            raise Fatal(f"{self.path} is not a ledger ({error}): name the right file with --ledger") from error
        folder = os.open(self.path.parent, os.O_RDONLY)  # the names of the new files are durable too
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    async def _call(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.OperationalError as error:
            if "locked" in str(error) or "busy" in str(error):
                raise Retryable(f"the ledger {self.path} is busy: {error}") from error
            raise OutcomeUnknown(f"the ledger {self.path} could not be written or read: {error}") from error

    @contextmanager
    def _writing(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        try:
            self._db.execute("COMMIT")
        except sqlite3.OperationalError:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    async def _write(self, work: Callable[[], T]) -> T:
        def transaction() -> T:
            with self._writing():
                return work()

        return await self._call(transaction)

    def _select(self, sql: str, generation: int, ids: Collection[str]) -> Iterator[tuple[Any, ...]]:
        """Rows of `sql`, whose last condition is `IN ({})`, for any number of ids."""
        wanted = list(ids)
        for start in range(0, len(wanted), _CHUNK):
            chunk = wanted[start : start + _CHUNK]
            yield from self._db.execute(sql.format(",".join("?" * len(chunk))), (generation, *chunk))

    def _fact(self, name: str, default: Any) -> Any:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return default if row is None else row[0]

    def _set(self, name: str, value: str | int) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    async def identity(self) -> str:
        return str(await self._call(lambda: self._fact("identity", "")))

    async def bind(self, lake_id: str) -> str:
        def work() -> str:
            self._db.execute("INSERT OR IGNORE INTO facts VALUES ('lake_id', ?)", (lake_id,))
            return str(self._fact("lake_id", ""))

        return await self._write(work)

    async def captures(self, generation: int, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        sql = f"SELECT {_CAPTURE}, stage_id, state, batch FROM captures WHERE generation = ? AND capture_id IN ({{}})"

        def work() -> dict[str, CaptureItem]:
            return {
                row[0]: CaptureItem(capture=_capture(row), stage_id=row[7], state=row[8], batch=row[9])
                for row in self._select(sql, generation, capture_ids)
            }

        return await self._call(work)

    def _holders(self, stage: Stage) -> dict[str, str]:
        sql = "SELECT capture_id, stage_id FROM captures WHERE generation = ? AND capture_id IN ({})"
        return dict(self._select(sql, stage.generation, [capture.capture_id for capture in stage.captures]))

    def _known(self, stage: Stage) -> bool:
        sql = "SELECT 1 FROM stages WHERE generation = ? AND stage_id = ?"
        return self._db.execute(sql, (stage.generation, stage.stage_id)).fetchone() is not None

    def _put_stage(self, stage: Stage, batch: int | None) -> None:
        self._db.execute(
            "INSERT INTO stages (generation, stage_id, body, batch) VALUES (?, ?, ?, ?)",
            (stage.generation, stage.stage_id, zlib.compress(stage.to_json(), 1), batch),
        )

    def _put_captures(self, stage: Stage, captures: Iterable[Capture]) -> None:
        self._db.executemany(
            f"INSERT OR REPLACE INTO captures (generation, {_CAPTURE}, stage_id, state) VALUES (?,?,?,?,?,?,?,?,?,?)",
            [(stage.generation, *_VALUES(capture), stage.stage_id, STAGED) for capture in captures],
        )

    async def stage(self, stage: Stage) -> dict[str, str]:
        body = (stage.generation, stage.stage_id)

        def work() -> dict[str, str]:
            known = self._known(stage)
            others = taken(stage, self._holders(stage), known=known)
            if not known and not others:
                self._put_stage(stage, None)
                self._put_captures(stage, stage.captures)
                self._db.execute("INSERT INTO pending (generation, stage_id) VALUES (?, ?)", body)
            return others

        return await self._write(work)

    async def pending(self, generation: int, limit: int) -> list[str]:
        sql = "SELECT stage_id FROM pending WHERE generation = ? ORDER BY staged_at LIMIT ?"
        return await self._call(lambda: [row[0] for row in self._db.execute(sql, (generation, limit))])

    async def stages(self, generation: int, stage_ids: Collection[str]) -> dict[str, StageItem]:
        sql = "SELECT stage_id, body, batch, displaced FROM stages WHERE generation = ? AND stage_id IN ({})"

        def work() -> dict[str, StageItem]:
            return {
                stage_id: StageItem(
                    stage=None if body is None else Stage.from_json(zlib.decompress(body)),
                    batch=batch,
                    displaced=bool(displaced),
                )
                for stage_id, body, batch, displaced in self._select(sql, generation, stage_ids)
            }

        return await self._call(work)

    def _unpend(self, generation: int, stage_ids: Iterable[str]) -> None:
        self._db.executemany(
            "DELETE FROM pending WHERE generation = ? AND stage_id = ?", [(generation, one) for one in stage_ids]
        )

    async def unpend(self, generation: int, stage_ids: Collection[str]) -> None:
        await self._write(lambda: self._unpend(generation, stage_ids))

    async def hold(self, generation: int, stage_id: str, reason: str) -> bool:
        free = "SELECT 1 FROM stages WHERE generation = ? AND stage_id = ? AND batch IS NULL"

        def work() -> bool:
            if self._db.execute(free, (generation, stage_id)).fetchone() is None:
                return False
            self._unpend(generation, [stage_id])
            self._db.execute("INSERT OR REPLACE INTO held VALUES (?, ?, ?)", (generation, stage_id, reason))
            return True

        return await self._write(work)

    async def held(self, generation: int) -> dict[str, str]:
        sql = "SELECT stage_id, reason FROM held WHERE generation = ?"
        return await self._call(lambda: dict(self._db.execute(sql, (generation,)).fetchall()))

    async def release(self, generation: int) -> None:
        def work() -> None:
            self._db.execute(
                "INSERT OR IGNORE INTO pending (generation, stage_id) SELECT generation, stage_id FROM held "
                "WHERE generation = ?",
                (generation,),
            )
            self._db.execute("DELETE FROM held WHERE generation = ?", (generation,))

        await self._write(work)

    async def mark(self, manifest: Manifest, *, rebuild: bool = False) -> None:
        def work() -> None:
            live = rebuild or manifest.batch > self._head()
            for stage in (*manifest.stages, *manifest.returned):
                if not self._known(stage):
                    if not live:
                        continue
                    if not rebuild:
                        raise LedgerLost(manifest.batch, stage.stage_id)
                    self._put_stage(stage, manifest.batch)
                self._db.execute(
                    "UPDATE stages SET batch = ? WHERE generation = ? AND stage_id = ?",
                    (manifest.batch, stage.generation, stage.stage_id),
                )
            for stage in manifest.stages if live else ():
                self._reclaim(stage)
            self._set("marked", max(manifest.batch, self._fact("marked", -1)))

        await self._write(work)

    def _reclaim(self, stage: Stage) -> None:
        holders = self._holders(stage)
        foreign = [c for c in stage.captures if holders.get(c.capture_id) != stage.stage_id]
        self._db.executemany(
            "UPDATE stages SET displaced = 1 WHERE generation = ? AND stage_id = ?",
            [(stage.generation, holders[c.capture_id]) for c in foreign if c.capture_id in holders],
        )
        self._put_captures(stage, foreign)

    async def marked(self) -> int:
        return int(await self._call(lambda: self._fact("marked", -1)))

    async def unstage(self, manifest: Manifest) -> list[Capture]:
        def work() -> list[Capture]:
            free: list[Capture] = []
            for stage in manifest.returned:
                self._db.executemany(
                    "DELETE FROM captures WHERE generation = ? AND capture_id = ? AND stage_id = ?",
                    [(stage.generation, c.capture_id, stage.stage_id) for c in stage.captures],
                )
                holders = self._holders(stage)
                free += [c for c in stage.captures if c.capture_id not in holders]
            return free

        return await self._write(work)

    async def flag(self, manifest: Manifest) -> None:
        def work() -> None:
            for stage in manifest.stages:
                self._db.executemany(
                    "UPDATE captures SET state = ?, batch = ? WHERE generation = ? AND capture_id = ? AND stage_id = ?",
                    [
                        (COMMITTED, manifest.batch, stage.generation, c.capture_id, stage.stage_id)
                        for c in stage.captures
                    ],
                )
            for stage in (*manifest.stages, *manifest.returned):
                self._unpend(stage.generation, [stage.stage_id])
                self._db.execute(
                    "UPDATE stages SET body = NULL WHERE generation = ? AND stage_id = ?",
                    (stage.generation, stage.stage_id),
                )

        await self._write(work)

    def _head(self) -> int:
        return int(self._fact("head", -1))

    async def head(self) -> int:
        return await self._call(self._head)

    async def advance(self, batch: int) -> bool:
        def work() -> bool:
            if self._head() != batch - 1:
                return False
            self._set("head", batch)
            return True

        return await self._write(work)

    def _lease(self) -> Lease:
        return Lease(owner=self._fact("owner", ""), beat=self._fact("beat", 0))

    async def lease(self) -> Lease:
        return await self._call(self._lease)

    async def take(self, seen: Lease, owner: str) -> bool:
        def work() -> bool:
            if self._lease() != seen:
                return False
            self._set("owner", owner)
            self._set("beat", seen.beat + 1)
            return True

        return await self._write(work)

    async def close(self) -> None:
        await self._call(self._db.close)
        self._thread.shutdown()


def _capture(row: tuple[Any, ...]) -> Capture:
    return Capture(**dict(zip(_CAPTURE.split(", "), row, strict=False)))
