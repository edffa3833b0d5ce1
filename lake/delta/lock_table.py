"""The lock table that decides which writer, pcaplake or Spark, creates a version of a Delta table: port and entries.

An entry has the layout that `io.delta.storage.S3DynamoDBLogStore` (Delta 4) reads and writes, byte for byte: either
program can complete what the other began.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self
from urllib.parse import quote

from pcaplake.common.errors import Fatal
from pcaplake.lake.store.place import refuse_ambiguous_uri

from .errors import TableBlocked

EXPIRES_AFTER = 86_400  # seconds after completion, then TTL may delete an entry
_FILE_NAME = re.compile(r"(\d{20})\.json")
_SCHEMES = ("s3", "s3n", "s3a")


@dataclass(frozen=True, slots=True)
class TablePath:
    """The key of a table in the lock table, `s3a://bucket/path`: a writer with another spelling finds other entries.

    It is what Hadoop makes of a path: no slash at the end, no double slash, nothing percent-encoded.
    """

    uri: str

    @classmethod
    def for_table(cls, lake: str, table: str) -> Self:
        """For a table of a lake at `s3://`, `s3n://` or `s3a://`. Raises Fatal for a lake that can be spelled in two ways."""
        scheme, separator, place = lake.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise Fatal(f"{lake}: only a lake on S3 has a lock table; write s3://bucket/path, or name no lock table")
        path = f"{place.rstrip('/')}/{table}"
        refuse_ambiguous_uri(f"{scheme}://{path}")
        return cls(f"s3a://{path}")

    def __str__(self) -> str:
        return self.uri

    def other_spellings(self) -> Iterator[str]:
        """Other spellings of this path, whose entries this writer would not see."""
        path = self.uri.removeprefix("s3a://")
        folder, _, table = path.rpartition("/")
        for scheme in _SCHEMES:
            for path_spelling in dict.fromkeys((path, f"{path}/", f"{folder}//{table}", quote(path, safe="/"))):
                if (spelling := f"{scheme}://{path_spelling}") != self.uri:
                    yield spelling


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The entry of version N, E(N). `temp_path`, below `_delta_log/`, names an object with the bytes of N.json.

    An entry becomes complete only when N.json exists. `expires`: epoch seconds, in a complete entry.
    """

    table: TablePath
    version: int
    temp_path: str
    complete: bool = False
    expires: int | None = None

    @classmethod
    def for_new_version(cls, table: TablePath, version: int) -> Self:
        """An entry for an attempt to create a version, with a temp object of its own."""
        return cls(table=table, version=version, temp_path=f".tmp/{version:020d}.json.{uuid.uuid4()}")

    @property
    def file_name(self) -> str:
        return f"{self.version:020d}.json"

    def as_completed(self, now: float) -> Entry:
        """A copy of the entry that is complete; `now`: epoch seconds."""
        return replace(self, complete=True, expires=int(now) + EXPIRES_AFTER)

    def to_item(self) -> dict[str, str | int]:
        """The item as Delta's log store writes it: strings, and a number for `expireTime`."""
        item: dict[str, str | int] = {
            "tablePath": self.table.uri,
            "fileName": self.file_name,
            "tempPath": self.temp_path,
            "complete": "true" if self.complete else "false",
        }
        return item if self.expires is None else {**item, "expireTime": self.expires}

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> Self:
        """Raises TableBlocked for an item that is not an entry of a version, or that names no temp object."""
        match = _FILE_NAME.fullmatch(str(item.get("fileName")))
        temp_path, expires = item.get("tempPath"), item.get("expireTime")
        if match is None or type(temp_path) is not str or {"", ".", ".."} & set(temp_path.split("/")):
            raise TableBlocked(
                f"the lock table has an item that is not from a Delta log store: {dict(item)}. Delete it if its fileName "
                "is in the table's _delta_log, else correct its tempPath"
            )
        return cls(
            table=TablePath(item["tablePath"]),
            version=int(match[1]),
            temp_path=temp_path,
            complete=item.get("complete") == "true",
            expires=expires if type(expires) is int else None,
        )


def is_version_file_name(file_name: str) -> bool:
    """Whether this is the name of an N.json. The lock table may have entries of other files of a log."""
    return _FILE_NAME.fullmatch(file_name) is not None


class LockTable(Protocol):
    """A lock table, which Spark uses as well. Reads are strongly consistent.

    Methods raise Retryable, OutcomeUnknown (a write may have happened) and Fatal. A client may repeat a write, so a write
    can be refused because of itself: compare `temp_path`.
    """

    async def get_newest_entry(self, table: TablePath) -> Entry | None:
        """The entry of the highest version."""
        ...

    async def put_entry_if_absent(self, entry: Entry) -> Entry | None:
        """Put an entry if its version has none. Returns None, or the entry that is there."""
        ...

    async def complete_entry(self, entry: Entry) -> Entry | None:
        """Mark an entry complete if its version still has this `temp_path`; `entry` has `expires`.

        Returns None when that is done or there is no entry, else the entry of another writer.
        """
        ...

    async def list_incomplete_entries(self, table: TablePath, *, above: int = -1) -> Sequence[Entry]:
        """Incomplete entries of versions above `above`, ascending."""
        ...

    async def list_entries_below(self, folder: str) -> Sequence[Entry]:
        """All entries of tables whose paths begin with `folder`. Reads the whole lock table."""
        ...

    async def delete_entry(self, entry: Entry) -> None:
        """Delete an entry if its version still has this `temp_path`."""
        ...

    async def has_entries_for(self, spelling: str) -> bool:
        """Whether there is an entry with exactly this table path."""
        ...

    async def verify_and_read_clock(self) -> float | None:
        """Its clock, epoch seconds, or None. Raises Fatal when it does not exist, has another key schema, or is replicated."""
        ...

    async def close(self) -> None: ...
