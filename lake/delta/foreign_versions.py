"""Judges the versions that other programs wrote to a table of a lake: are rows gone that pcaplake has committed?

    ours       the version has a `txn` of pcaplake
    harmless   it takes no file with `dataChange` out of the table: an append, a compaction, a new property
    an edit    DELETE with a predicate, UPDATE, MERGE: somebody means these rows
    RESTORE    to version v: what pcaplake has committed after v is lost, and what was lost at v is lost again
    the rest   (overwrite, TRUNCATE, DELETE without predicate) is a loss if it removes more rows than it adds

The files that a version adds and removes decide, and not its name: a RESTORE counts as one only if the table has exactly the
files of v after it. So a RESTORE back ends a loss. Each batch that pcaplake commits also writes `txn(pcaplake-judged, N)`: the
versions up to N are judged. Like every `txn` it stays in checkpoints and after a RESTORE, and is copied with the log. Where
versions were cleaned away before they were judged, `txn(pcaplake-unjudged, N)` says so, and the doctor counts rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pcaplake.common.errors import Retryable
from pcaplake.common.plain_text import counted
from pcaplake.lake.store.store import Store

from .actions import parse_json_lines, parse_num_records
from .errors import RowsLost, TableBlocked
from .file_checks import END_OF_TIME
from .live_files import LiveFiles, read_live_files
from .log_state import LAKE, LogState, is_written_by_pcaplake, read_log_state_at, version_file_path

JUDGED = f"{LAKE}-judged"
UNJUDGED = f"{LAKE}-unjudged"
_VERSIONS_AT_ONCE = 16
_MOST_HIDDEN = 1_000  # versions below a checkpoint that are read; before them rows are counted
_MOST_SEARCHED = 10_000  # versions in which the target of a RESTORE to a time is looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignVersion:
    """A version of another program. `removed`: files that it removes with `dataChange`, as paths in the log.

    `added_rows`: None if a file has no row count. `timestamp`: epoch ms, by the clock of the other program; None without
    one, or if it is not in ms.
    """

    version: int
    operation: str
    parameters: Mapping[str, Any]
    writer: str
    timestamp: int | None
    removed: tuple[str, ...]
    added_rows: int | None

    @property
    def is_edit(self) -> bool:
        """Whether it changes rows that a predicate selects."""
        if self.operation == "DELETE":
            return str(self.parameters.get("predicate") or "[]").strip('[]"() ').lower() not in ("", "true")
        return self.operation in ("UPDATE", "MERGE")

    def describe(self) -> str:
        """What it is, who wrote it and when."""
        selects = self.parameters.get("predicate") or self.parameters.get("mergePredicate")
        to = self.parameters.get("version") or self.parameters.get("timestamp") or self.parameters.get("datetime")
        what = " ".join(
            [self.operation, *([f"to {to}"] if self.operation == "RESTORE" else [f"where {selects}"] * self.is_edit)]
        )
        when = (
            ""
            if self.timestamp is None
            else f" at {datetime.fromtimestamp(self.timestamp / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
        )
        return f"version {self.version}, {what} by {self.writer}{when}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A version that took out rows. `rows`: how many more than it added, None if unknown.

    `batches`: those whose rows are gone or changed, at most. `restored`: the transactions of the version to which a RESTORE
    put the table back; None: it is no RESTORE, or not all of what had happened before that version is known.
    """

    cause: ForeignVersion
    rows: int | None
    batches: range
    restored: Mapping[str, int] | None = None

    def describe(self) -> str:
        if not self.batches:
            return f"{self.cause.describe()}, brought back rows that were replaced since"
        first, last = self.batches.start, self.batches.stop - 1
        batches = f"batch {first}" if first == last else f"the batches {first} to {last}"
        if self.rows is not None and self.rows <= 0:
            return f"{self.cause.describe()}, replaced rows of {batches}"
        rows = "an unknown number of rows" if self.rows is None else counted(self.rows, "row")
        return f"{self.cause.describe()}, took out {rows} of {batches}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """`version`: up to which the log was read. `losses`: rows that are still out. `unjudged`: the last version that was cleaned
    away before it was judged, and whose rows nobody has counted since; 0: none.
    """

    version: int
    losses: tuple[Loss, ...] = ()
    unjudged: int = 0

    def error(self, table: str) -> RowsLost | None:
        """Why the table is blocked; None: it has lost nothing."""
        if not self.losses:
            return None
        batches = range(min(loss.batches.start for loss in self.losses), max(loss.batches.stop for loss in self.losses))
        return RowsLost(table, "; ".join(loss.describe() for loss in self.losses), batches, self._find_restored())

    def _find_restored(self) -> dict[str, int] | None:
        """What the table certainly has of each application, after several losses; None: that is not known."""
        restored = dict[str, int]()
        for number, loss in enumerate(self.losses):
            if loss.restored is None:
                return None
            had = loss.restored
            restored = {app: min(restored.get(app, had[app]), had[app]) for app in had if not number or app in restored}
        return restored


def parse_foreign_version(version: int, data: bytes) -> ForeignVersion | None:
    """None for a version of pcaplake. Raises ValueError for a damaged one."""
    lines = parse_json_lines(data)
    if any(is_written_by_pcaplake(line) for line in lines):
        return None
    info: Mapping[str, Any] = next((line["commitInfo"] for line in lines if line.get("commitInfo")), {})
    removes = [line["remove"] for line in lines if line.get("remove")]
    adds = [line["add"] for line in lines if line.get("add")]
    rows = [parse_num_records(add.get("stats") or "") for add in adds if add.get("dataChange", True)]
    time = info.get("timestamp")
    writer = [info.get("userName"), info.get("engineInfo") or "another program"]
    return ForeignVersion(
        version=version,
        operation=str(info.get("operation") or "a change without a name"),
        parameters=info.get("operationParameters") or {},
        writer=", ".join(str(name) for name in writer if name),
        timestamp=time if type(time) is int and 0 <= time < END_OF_TIME else None,
        removed=tuple(remove["path"] for remove in removes if remove.get("dataChange", True)),
        added_rows=None if None in rows else sum(row or 0 for row in rows),
    )


async def judge(store: Store, table: str, state: LogState) -> Judgement:
    """Judge the versions up to that of `state` which were not judged yet. Reads nothing if no other program removed files.

    Raises TableBlocked for a damaged log, Retryable when it was cleaned up while it was read.
    """
    losses = await _Judge(store, table).find_losses(state)
    hidden = state.hides_from > max(state.txns.get(JUDGED, -1), 0) + 1
    return Judgement(
        version=state.version,
        losses=losses,
        unjudged=state.hides_from - 1 if hidden else state.txns.get(UNJUDGED, 0),
    )


async def _read_hidden_versions(store: Store, table: str, state: LogState, judged: int) -> None:
    """Note what versions did that `state` has only as a checkpoint, from the newest down to the last judged one."""
    above = state.checkpoint_version
    lowest = max(judged, above - _MOST_HIDDEN)
    state.hides_from = above + 1
    while above > lowest:
        versions = range(above, max(above - _VERSIONS_AT_ONCE, lowest), -1)
        for version, data in zip(versions, await _get_versions(store, table, versions), strict=True):
            if data is None:
                return
            state.note_row_changes(version, data)
            state.hides_from = version
        above = versions[-1] - 1


async def list_foreign_versions(store: Store, table: str, versions: Sequence[int]) -> list[ForeignVersion]:
    """Those of these versions in which other programs removed rows or files, or called it a RESTORE."""
    found = list[ForeignVersion]()
    for start in range(0, len(versions), _VERSIONS_AT_ONCE):
        some, state = versions[start : start + _VERSIONS_AT_ONCE], LogState()
        for version, data in zip(some, await _get_versions(store, table, some), strict=True):
            if data is not None:
                state.note_row_changes(version, data)
                if version in state.foreign and (foreign := parse_foreign_version(version, data)) is not None:
                    found.append(foreign)
    return found


async def _get_versions(store: Store, table: str, versions: Iterable[int]) -> list[bytes | None]:
    objects = await asyncio.gather(*(store.get(version_file_path(table, version)) for version in versions))
    return [None if found is None else found[0] for found in objects]


class _Judge:
    """Judges versions of one table, each of them once."""

    def __init__(self, store: Store, table: str) -> None:
        self._store, self._table = store, table
        self._known: dict[tuple[int, int], tuple[Loss, ...]] = {}  # version, and where it began -> losses after it

    async def find_losses(self, state: LogState) -> tuple[Loss, ...]:
        """The losses at the version of a state."""
        losses: tuple[Loss, ...] = ()
        if LAKE not in state.txns:
            return losses
        judged = state.txns.get(JUDGED, -1)
        # rule: versions that a checkpoint hides are judged too
        if state.hides_from < 0:
            await _read_hidden_versions(self._store, self._table, state, judged)
        after = max(judged, state.emptied)
        for version in sorted(version for version in state.foreign if version > after):
            if (version, after) not in self._known:
                self._known[version, after] = await self._judge_version(version, losses)
            losses = self._known[version, after]
        return losses

    async def _judge_version(self, version: int, losses: tuple[Loss, ...]) -> tuple[Loss, ...]:
        """The losses after a version. `losses`: before it."""
        (data,) = await _get_versions(self._store, self._table, [version])
        if data is None:
            raise Retryable(f"{version_file_path(self._table, version)} was cleaned up while it was read")
        try:
            foreign = parse_foreign_version(version, data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TableBlocked(f"{version_file_path(self._table, version)} is damaged: {error}; restore it") from error
        if foreign is None or foreign.is_edit:
            return losses
        before = await read_log_state_at(self._store, self._table, version - 1)
        files = None if before is None else await read_live_files(self._store, self._table, before)
        rows = _count_removed_rows(foreign, files)
        last = 0 if before is None else before.txns.get(LAKE, -1)
        target = None
        if foreign.operation == "RESTORE" and files is not None:
            target = await self._find_target(foreign, data, files)
        if target is None or before is None:
            # rule: a version of another program that removes more rows than it adds is a loss
            if rows is None or rows > 0 or (foreign.operation == "RESTORE" and foreign.removed):
                return (*losses, Loss(cause=foreign, rows=rows, batches=range(last + 1)))
            return losses
        had = await read_log_state_at(self._store, self._table, target)
        if had is None:
            raise Retryable(f"the log of {self._table} was cleaned up while it was read")
        # rule: a table that is restored has the losses of the version that it is restored to
        losses = await self.find_losses(had)
        unjudged = _is_partly_unjudged(had)
        # rule: a batch that was committed after the version that a table is restored to is lost
        if _own_transactions(had) != _own_transactions(before) or unjudged:
            lost = range(had.txns.get(LAKE, -1) + 1, last + 1)
            restored = None if unjudged else dict(had.txns)
            losses = (*losses, Loss(cause=foreign, rows=rows, batches=lost, restored=restored))
        return losses

    async def _find_target(self, foreign: ForeignVersion, data: bytes, before: LiveFiles) -> int | None:
        """The version whose files are exactly those of the table after a RESTORE; None: there is none, or the log forgot it."""
        after = set(before.live)
        _apply_paths(before, after, parse_json_lines(data), undo=False)
        if after == before.live.keys():
            return foreign.version - 1  # it changes nothing
        if str(said := foreign.parameters.get("version")).isdigit():
            target = int(str(said))
            # rule: a RESTORE counts as one only if the table has the files of that version
            return target if target < foreign.version and await self._has_files(target, after) else None
        live, version, added_again = set(before.live), foreign.version - 1, set[str]()
        while version >= max(0, foreign.version - _MOST_SEARCHED):  # to a time: the newest version with these files
            if live == after or (live < after <= live | added_again and await self._has_files(version, after)):
                return version
            (undone,) = await _get_versions(self._store, self._table, [version])
            if undone is None:
                return None
            lines = parse_json_lines(undone)
            # such a version may only give other statistics to files that the table had before
            added_again |= {
                before.relative_path(add["path"])
                for add in (line.get("add") for line in lines)
                if add and not add.get("dataChange", True)
            }
            _apply_paths(before, live, lines, undo=True)
            version -= 1
        return None

    async def _has_files(self, version: int, paths: set[str]) -> bool:
        """Whether the table had exactly these files at a version that the log still has."""
        state = await read_log_state_at(self._store, self._table, version)
        return state is not None and (await read_live_files(self._store, self._table, state)).live.keys() == paths


def _apply_paths(files: LiveFiles, live: set[str], lines: Sequence[Mapping[str, Any]], *, undo: bool) -> None:
    """Apply a version to the paths of a table, or take it back."""
    adds = {files.relative_path(line["add"]["path"]) for line in lines if line.get("add")}
    removes = {files.relative_path(line["remove"]["path"]) for line in lines if line.get("remove")}
    if undo:
        live -= adds - removes
        live |= removes
    else:
        live -= removes - adds
        live |= adds


def _count_removed_rows(foreign: ForeignVersion, before: LiveFiles | None) -> int | None:
    """How many more rows a version removes than it adds; None if it is not known."""
    if not foreign.removed:
        return -(foreign.added_rows or 0)
    if before is None or foreign.added_rows is None:
        return None
    files = [before.live.get(before.relative_path(uri)) for uri in foreign.removed]
    rows = [0 if file is None else file.rows for file in files]  # a file that was not live has no rows
    return None if None in rows else sum(row or 0 for row in rows) - foreign.added_rows


def _is_partly_unjudged(state: LogState) -> bool:
    """Whether versions were cleaned away that an older state may have lost rows by, after pcaplake began to judge versions."""
    return JUDGED in state.txns and state.hides_from > state.txns[JUDGED] + 1


def _own_transactions(state: LogState) -> dict[str, int]:
    return {
        app: version for app, version in state.txns.items() if app.startswith(LAKE) and app not in (JUDGED, UNJUDGED)
    }
