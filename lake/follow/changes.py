"""What a range of versions did to the rows of a table: files that were appended, and rows that may have changed.

    a batch of pcaplake without removed files      its files are appended: nobody looks at older rows
    removed or added rows, by anybody              the rows of their captures are touched, on their days
    compaction, other statistics                   nothing (`dataChange` false)

A superset of the touched rows is always right. So where it is not known which rows a version changed, more are taken: each
capture of its files, or all rows of their days if these files are gone or are too many.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pcaplake.lake.delta.actions import Json, parse_json_lines
from pcaplake.lake.delta.commit_content import CAPTURES
from pcaplake.lake.delta.log_state import is_written_by_pcaplake, version_file_path
from pcaplake.lake.store.store import Store

from .table_files import LostVersions, TableFile, TableFiles
from .touched import COLUMNS, Summary, Touched, summarize

_VERSIONS_AT_ONCE: Final = 16
_MOST_FILES: Final = 1_000  # of a version, that are read to know their captures


@dataclass(slots=True, kw_only=True)
class Changes:
    """`appended`: files with new rows, in the order of the log; rows that are touched are not new. `exact`: a later call for the
    same versions says the same. False if files are gone."""

    appended: list[TableFile] = field(default_factory=list)
    touched: Touched = field(default_factory=Touched)
    exact: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What one version did to rows. `adds`, `removes`: files with other rows than before. `gone`: paths of all files that it
    removes. `ours`: pcaplake wrote it."""

    adds: Sequence[TableFile]
    removes: Sequence[TableFile]
    gone: Collection[str]
    info: Mapping[str, Any]
    ours: bool

    @classmethod
    def from_lines(cls, lines: Sequence[Json]) -> Version:
        """From the actions of its N.json."""
        added = [
            line["add"]
            for line in lines
            if "add" in line
            # rule: compaction touches nothing
            and _changes_rows(line["add"])
        ]
        gone = [line["remove"] for line in lines if "remove" in line]
        return cls(
            adds=list(map(TableFile.from_action, added)),
            removes=[TableFile.from_action(action) for action in gone if _changes_rows(action)],
            gone={TableFile.from_action(action).path for action in gone},
            info=next((line["commitInfo"] for line in lines if line.get("commitInfo")), {}),
            ours=any(map(is_written_by_pcaplake, lines)),
        )


async def read_versions(store: Store, table: str, versions: range) -> AsyncIterator[Version]:
    """Raises `LostVersions` if the log no longer has one of them."""
    for start in range(versions.start, versions.stop, _VERSIONS_AT_ONCE):
        some = range(start, min(start + _VERSIONS_AT_ONCE, versions.stop))
        paths = [version_file_path(table, version) for version in some]
        for version, stored in zip(some, await asyncio.gather(*map(store.get, paths)), strict=True):
            if stored is None:
                raise LostVersions(f"version {version} of {table} was removed from its log")
            yield Version.from_lines(parse_json_lines(stored[0]))


async def read_changes(store: Store, files: TableFiles, versions: range, *, only_of_others: bool = False) -> Changes:
    """What these versions did. `only_of_others`: without those that pcaplake wrote.

    Raises `LostVersions` if the log no longer has one of them.
    """
    reader = _ChangesReader(files, Changes())
    async for version in read_versions(store, files.table, versions):
        if not (only_of_others and version.ours):
            await reader.apply_version(version)
    return await reader.finish()


class _ChangesReader:
    def __init__(self, files: TableFiles, changes: Changes) -> None:
        self._files, self._changes = files, changes
        self._removed = set[str]()  # paths, in any way

    async def apply_version(self, version: Version) -> None:
        self._removed |= set(version.gone)
        if any("=" in file.path and not file.partition_values for file in version.removes):
            raise LostVersions(f"a version of {self._files.table} does not say from which partition it removes files")
        # rule: only a batch of pcaplake appends files without a look at older rows
        if not version.removes and version.ours:
            self._changes.appended += version.adds
            return
        await self._touch(version.adds, version.removes, version.info, version.ours)

    async def _touch(
        self, adds: Sequence[TableFile], removes: Sequence[TableFile], info: Mapping[str, Any], ours: bool
    ) -> None:
        changed, touched = [*adds, *removes], self._changes.touched
        missing = await self._find_missing(changed) if len(changed) <= _MOST_FILES else changed
        self._touch_days(missing)
        left = {file.path for file in changed} - {file.path for file in missing}
        kept, gone = [
            await asyncio.to_thread(self._summarize, [file for file in some if file.path in left])
            for some in (adds, removes)
        ]
        if info.get("operation") == "DELETE":
            touched.add_deleted_rows(gone, kept)
            return
        only = _named_captures(info) if ours else None
        # rule: rows that a version removes are touched
        touched.add_rows(gone, only)
        # rule: rows that another program adds are touched
        touched.add_rows(kept, only)

    async def finish(self) -> Changes:
        """A file that is not live any more may be gone; what it had is in other files of its day then."""
        changes = self._changes
        replaced = [file for file in changes.appended if file.path in self._removed]
        missing = await self._find_missing(replaced)
        self._touch_days(missing)
        gone = {file.path for file in missing}
        changes.appended = [file for file in changes.appended if file.path not in gone]
        return changes

    def _touch_days(self, files: Sequence[TableFile]) -> None:
        for file in files:
            if not file.has_one_day:
                raise LostVersions(
                    f"{file.path} of {self._files.table} was deleted, and the log does not say of which day it was"
                )
            # rule: all rows of a day are touched if the files that changed are gone
            self._changes.touched.add_day(file.day)

    async def _find_missing(self, files: Sequence[TableFile]) -> Sequence[TableFile]:
        missing = await self._files.find_missing(files)
        self._changes.exact = self._changes.exact and not missing
        return missing

    def _summarize(self, files: Sequence[TableFile]) -> Summary:
        return summarize(batch for file in files for batch in self._files.read(file, COLUMNS))


def _named_captures(info: Mapping[str, Any]) -> Collection[str] | None:
    named = (info.get("operationParameters") or {}).get(CAPTURES)
    return None if named is None else frozenset(json.loads(named))


def _changes_rows(action: Json) -> bool:
    return bool(action.get("dataChange", True))
