"""The ledger in a SQLite file, for all processes of one machine.

WAL with `synchronous=FULL`: a write is on the disk when it is answered. Each method is one transaction in the ledger's
thread, so the event loop never waits for the disk; processes share SQLite's lock. Not for network drives.
"""

from __future__ import annotations

import operator
import sqlite3
import uuid
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from pcaplake.lake.formats import check_format
from pcaplake.lake.records import SEEN, Capture, Manifest, Stage

from . import COMMITTED, STAGED, CaptureItem, Enrollment, Lease, LedgerLost, StageItem, captures_of_other_stages
from .sqlite_file import LOCK_TIMEOUT, SqliteFile, in_thread, in_transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS captures (
  generation INTEGER, capture_id TEXT, uri TEXT, etag TEXT, size INTEGER, rows INTEGER, outcome TEXT,
  stage_id TEXT, state TEXT, batch INTEGER, version_id TEXT, modified INTEGER, sequencer TEXT,
  PRIMARY KEY (generation, capture_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS stages (
  generation INTEGER, stage_id TEXT, body BLOB, batch INTEGER, displaced INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (generation, stage_id));
CREATE TABLE IF NOT EXISTS pending (
  staged_at INTEGER PRIMARY KEY AUTOINCREMENT, generation INTEGER, stage_id TEXT, UNIQUE (generation, stage_id));
CREATE TABLE IF NOT EXISTS held (
  generation INTEGER, stage_id TEXT, reason TEXT, PRIMARY KEY (generation, stage_id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS captures_by_uri ON captures (generation, uri);
"""
_CAPTURE = "capture_id, uri, etag, size, rows, outcome, version_id, modified, sequencer"
_VALUES = operator.attrgetter(*_CAPTURE.split(", "))
_FORMAT = 1  # `user_version` of the file; 0: from a version that did not write it
_LATER = {
    "captures": {"version_id": "TEXT", "modified": "INTEGER", "sequencer": "TEXT"}
}  # columns that older files lack
_FITS = (  # another program's file may have tables with these names
    f"SELECT generation, {_CAPTURE}, stage_id, state, batch FROM captures LIMIT 0",
    "SELECT generation, stage_id, body, batch, displaced FROM stages LIMIT 0",
    "SELECT staged_at, generation, stage_id FROM pending LIMIT 0",
    "SELECT generation, stage_id, reason FROM held LIMIT 0",
)
_CHUNK = 500  # host parameters in one statement


class SqliteLedger(SqliteFile):
    """A `Ledger` in a SQLite file. `open` with `create=False` raises Fatal when there is no file."""

    kind = "sqlite"

    @property
    def name(self) -> str:
        return str(self.path)

    @classmethod
    async def open(cls, path: Path, *, create: bool = True, lock_timeout: float = LOCK_TIMEOUT) -> SqliteLedger:
        ledger = cls(path, lock_timeout=lock_timeout)
        try:
            await ledger._run_in_thread(lambda: ledger._open_database(create, ledger._prepare_tables), writes=True)
        except BaseException:
            ledger._thread.shutdown()
            raise
        return ledger

    def _refuse_newer_format(self) -> None:
        check_format(f"the ledger {self.path}", self._db.execute("PRAGMA user_version").fetchone()[0] or 1, _FORMAT)

    def _prepare_tables(self) -> None:
        for statement in _SCHEMA.split(";"):
            self._db.execute(statement)
        for table, columns in _LATER.items():
            there = {row[1] for row in self._db.execute(f"PRAGMA table_info({table})")}
            for column in columns.keys() - there:
                self._db.execute(f"ALTER TABLE {table} ADD COLUMN {column} {columns[column]}")
        for statement in _FITS:
            self._db.execute(statement)
        self._db.execute("INSERT OR IGNORE INTO facts (name, value) VALUES ('identity', ?)", (uuid.uuid4().hex,))
        self._db.execute(f"PRAGMA user_version={_FORMAT}")

    def _select_by_ids(self, sql: str, generation: int, ids: Collection[str]) -> Iterator[tuple[Any, ...]]:
        """Rows of `sql`, whose last condition is `IN ({})`, for any number of ids."""
        id_list = list(ids)
        for start in range(0, len(id_list), _CHUNK):
            chunk = id_list[start : start + _CHUNK]
            yield from self._db.execute(sql.format(",".join("?" * len(chunk))), (generation, *chunk))

    def _read_fact(self, name: str, default: Any) -> Any:
        row = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return default if row is None else row[0]

    def _write_fact(self, name: str, value: str | int) -> None:
        self._db.execute("INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (name, value))

    @in_thread
    def read_ledger_id(self) -> str:
        return str(self._read_fact("identity", ""))

    @in_transaction
    def bind_to_lake(self, lake_id: str) -> str:
        self._db.execute("INSERT OR IGNORE INTO facts (name, value) VALUES ('lake_id', ?)", (lake_id,))
        return str(self._read_fact("lake_id", ""))

    def _select_enrollment(self) -> Enrollment | None:
        uri = self._read_fact("uri", None)
        if uri is None:
            return None
        return Enrollment(uri=uri, generation=self._read_fact("generation", 0), shards=self._read_fact("shards", 1))

    read_enrollment = in_thread(_select_enrollment)

    @in_thread
    def find_lake_at(self, uri: str) -> str | None:
        lake_id = self._read_fact("lake_id", None)
        return None if lake_id is None else str(lake_id)

    @in_transaction
    def enroll_lake(self, lake: Enrollment, *, moved: bool = False) -> Enrollment:
        before = self._select_enrollment() or lake
        uri, generation = lake.uri if moved else before.uri, max(lake.generation, before.generation)
        for name, value in (("uri", uri), ("generation", generation), ("shards", lake.shards)):
            self._write_fact(name, value)
        return replace(lake, uri=uri, generation=generation)

    @in_thread
    def get_capture_items(self, generation: int, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        sql = f"SELECT {_CAPTURE}, stage_id, state, batch FROM captures WHERE generation = ? AND capture_id IN ({{}})"
        return {
            row[0]: CaptureItem(capture=_capture_from_row(row), stage_id=row[-3], state=row[-2], batch=row[-1])
            for row in self._select_by_ids(sql, generation, capture_ids)
        }

    @in_thread
    def find_contents_by_uri(self, generation: int, uris: Collection[str] | None = None) -> dict[str, list[str]]:
        """uri -> capture_ids of its contents that are staged or committed; without URIs that have none.

        `uris` None: all that have several contents.
        """
        if uris is None:
            several = "SELECT uri FROM captures WHERE generation = ? AND outcome != ? GROUP BY uri HAVING count(*) > 1"
            uris = [row[0] for row in self._db.execute(several, (generation, SEEN))]
        sql = f"SELECT uri, capture_id FROM captures WHERE generation = ? AND outcome != '{SEEN}' AND uri IN ({{}})"
        ids_by_uri: dict[str, list[str]] = {}
        for uri, capture_id in self._select_by_ids(sql, generation, uris):
            ids_by_uri.setdefault(uri, []).append(capture_id)
        return ids_by_uri

    @in_thread
    def read_last_swap(self) -> int:
        return int(self._read_fact("swap", 0))

    @in_transaction
    def forget_captures(self, generation: int, captures: Mapping[str, str], *, last_swap: int) -> None:
        if self._read_fact("swap", 0) >= last_swap:
            return
        self._write_fact("swap", last_swap)
        self._db.executemany(
            f"DELETE FROM captures WHERE generation = ?1 AND outcome = '{SEEN}' AND (uri, etag) = "
            "(SELECT uri, etag FROM captures WHERE generation = ?1 AND capture_id = ?2)",
            [(generation, capture_id) for capture_id in captures],
        )
        self._db.executemany(
            "DELETE FROM captures WHERE generation = ? AND capture_id = ? AND stage_id = ?",
            [(generation, capture_id, stage_id) for capture_id, stage_id in captures.items()],
        )

    def _find_capture_holders(self, stage: Stage) -> dict[str, str]:
        sql = "SELECT capture_id, stage_id FROM captures WHERE generation = ? AND capture_id IN ({})"
        return dict(self._select_by_ids(sql, stage.generation, [capture.capture_id for capture in stage.captures]))

    def _has_stage(self, stage: Stage) -> bool:
        sql = "SELECT 1 FROM stages WHERE generation = ? AND stage_id = ?"
        return self._db.execute(sql, (stage.generation, stage.stage_id)).fetchone() is not None

    def _insert_stage(self, stage: Stage, batch: int | None) -> None:
        self._db.execute(
            "INSERT INTO stages (generation, stage_id, body, batch) VALUES (?, ?, ?, ?)",
            (stage.generation, stage.stage_id, zlib.compress(stage.to_json(), 1), batch),
        )

    def _insert_captures(self, stage: Stage, captures: Iterable[Capture]) -> None:
        self._db.executemany(
            f"INSERT OR REPLACE INTO captures (generation, {_CAPTURE}, stage_id, state) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            [(stage.generation, *_VALUES(capture), stage.stage_id, STAGED) for capture in captures],
        )

    @in_transaction
    def put_stage_if_absent(self, stage: Stage) -> dict[str, str]:
        known = self._has_stage(stage)
        others = captures_of_other_stages(stage, self._find_capture_holders(stage), known=known)
        # All captures or none: the files of a stage would bring the rows of a capture that another stage has a second time.
        if not known and not others:
            self._insert_stage(stage, None)
            self._insert_captures(stage, stage.captures)
            key = (stage.generation, stage.stage_id)
            self._db.execute("INSERT INTO pending (generation, stage_id) VALUES (?, ?)", key)
        return others

    @in_thread
    def list_pending_stages(self, generation: int, limit: int) -> list[str]:
        sql = "SELECT stage_id FROM pending WHERE generation = ? ORDER BY staged_at LIMIT ?"
        return [row[0] for row in self._db.execute(sql, (generation, limit))]

    @in_thread
    def get_stage_items(self, generation: int, stage_ids: Collection[str]) -> dict[str, StageItem]:
        sql = "SELECT stage_id, body, batch, displaced FROM stages WHERE generation = ? AND stage_id IN ({})"
        return {
            stage_id: StageItem(
                stage=None if body is None else Stage.from_json(zlib.decompress(body)),
                batch=batch,
                displaced=bool(displaced),
            )
            for stage_id, body, batch, displaced in self._select_by_ids(sql, generation, stage_ids)
        }

    def _delete_pending_stages(self, generation: int, stage_ids: Iterable[str]) -> None:
        self._db.executemany(
            "DELETE FROM pending WHERE generation = ? AND stage_id = ?",
            [(generation, stage_id) for stage_id in stage_ids],
        )

    remove_pending_stages = in_transaction(_delete_pending_stages)

    @in_transaction
    def hold_stage(self, generation: int, stage_id: str, reason: str) -> bool:
        free = "SELECT 1 FROM stages WHERE generation = ? AND stage_id = ? AND batch IS NULL"
        if self._db.execute(free, (generation, stage_id)).fetchone() is None:
            return False
        self._delete_pending_stages(generation, [stage_id])
        self._db.execute(
            "INSERT OR REPLACE INTO held (generation, stage_id, reason) VALUES (?, ?, ?)",
            (generation, stage_id, reason),
        )
        return True

    @in_thread
    def list_held_stages(self, generation: int) -> dict[str, str]:
        sql = "SELECT stage_id, reason FROM held WHERE generation = ?"
        return dict(self._db.execute(sql, (generation,)).fetchall())

    @in_transaction
    def release_held_stages(self, generation: int) -> None:
        self._db.execute(
            "INSERT OR IGNORE INTO pending (generation, stage_id) SELECT generation, stage_id FROM held "
            "WHERE generation = ?",
            (generation,),
        )
        self._db.execute("DELETE FROM held WHERE generation = ?", (generation,))

    @in_transaction
    def mark_batch_stages(self, manifest: Manifest, *, rebuild: bool = False) -> None:
        live = rebuild or manifest.batch > self._select_head()
        for stage in (*manifest.stages, *manifest.returned):
            if not self._has_stage(stage):
                if not live:
                    continue
                if not rebuild:
                    raise LedgerLost(manifest.batch, stage.stage_id)
                self._insert_stage(stage, manifest.batch)
                self._write_fact("swap", 0)  # it may have captures that swaps removed: these are forgotten again
            self._db.execute(
                "UPDATE stages SET batch = ? WHERE generation = ? AND stage_id = ?",
                (manifest.batch, stage.generation, stage.stage_id),
            )
        # Every table has a batch up to head. What happened to its captures since, such as their deletion, must stay.
        for stage in manifest.stages if live else ():
            self._reclaim_captures(stage)
        self._write_fact("marked", max(manifest.batch, self._read_fact("marked", -1)))

    def _reclaim_captures(self, stage: Stage) -> None:
        holders = self._find_capture_holders(stage)
        foreign = [c for c in stage.captures if holders.get(c.capture_id) != stage.stage_id]
        self._db.executemany(
            "UPDATE stages SET displaced = 1 WHERE generation = ? AND stage_id = ?",
            [(stage.generation, holders[c.capture_id]) for c in foreign if c.capture_id in holders],
        )
        self._insert_captures(stage, foreign)

    @in_thread
    def read_watermark(self) -> int:
        return int(self._read_fact("marked", -1))

    @in_transaction
    def unstage_returned_captures(self, manifest: Manifest) -> list[Capture]:
        free: list[Capture] = []
        for stage in manifest.returned:
            self._db.executemany(
                "DELETE FROM captures WHERE generation = ? AND capture_id = ? AND stage_id = ?",
                [(stage.generation, c.capture_id, stage.stage_id) for c in stage.captures],
            )
            # A capture that another stage has already is not read again: its rows are on their way.
            holders = self._find_capture_holders(stage)
            free += [c for c in stage.captures if c.capture_id not in holders]
        return free

    @in_transaction
    def flag_batch_committed(self, manifest: Manifest) -> None:
        for stage in manifest.stages:
            self._db.executemany(
                "UPDATE captures SET state = ?, batch = ? WHERE generation = ? AND capture_id = ? AND stage_id = ?",
                [(COMMITTED, manifest.batch, stage.generation, c.capture_id, stage.stage_id) for c in stage.captures],
            )
        for stage in (*manifest.stages, *manifest.returned):
            self._delete_pending_stages(stage.generation, [stage.stage_id])
            self._db.execute(
                "UPDATE stages SET body = NULL WHERE generation = ? AND stage_id = ?",
                (stage.generation, stage.stage_id),
            )

    def _select_head(self) -> int:
        return int(self._read_fact("head", -1))

    read_head = in_thread(_select_head)

    @in_transaction
    def advance_head(self, batch: int) -> bool:
        if self._select_head() != batch - 1:
            return False
        self._write_fact("head", batch)
        return True

    def _select_lease(self) -> Lease:
        return Lease(owner=self._read_fact("owner", ""), beat=self._read_fact("beat", 0))

    read_lease = in_thread(_select_lease)

    @in_transaction
    def take_lease(self, seen: Lease, owner: str) -> bool:
        if self._select_lease() != seen:
            return False
        self._write_fact("owner", owner)
        self._write_fact("beat", seen.beat + 1)
        return True


def read_ledger_id_of_file(path: Path) -> str | None:
    """The identity of the ledger in a file, opened read-only. "" without a file; None when it cannot be read."""
    if not path.exists():
        return ""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            row = database.execute("SELECT value FROM facts WHERE name = 'identity'").fetchone()
    except sqlite3.DatabaseError:
        return None
    return None if row is None else str(row[0])


def _capture_from_row(row: tuple[Any, ...]) -> Capture:
    return Capture(**dict(zip(_CAPTURE.split(", "), row, strict=False)))
