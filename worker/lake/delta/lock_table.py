"""Who may make a version of a table that Spark writes too: the port, and what an entry of it looks like.

Knows the layout that `io.delta.storage.S3DynamoDBLogStore` reads and writes, byte for byte: an item that one of us
writes is repaired by the other. Must not know DynamoDB, stores, or in which order the steps of a commit go.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self
from urllib.parse import quote

from worker.errors import Fatal

from .errors import TableBlocked

EXPIRES_AFTER = 86_400  # seconds from completion until an entry may go
_FILE_NAME = re.compile(r"(\d{20})\.json")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_BUCKET = re.compile(r"[^/@:?#%\s]+")
_SCHEMES = ("s3", "s3n", "s3a")


@dataclass(frozen=True, slots=True)
class TablePath:
    """`s3a://bucket/path`, the one spelling of a table: who spells it otherwise asks another arbiter.

    Spark's is what Hadoop makes of the path it was given: no slash at the end, none doubled, nothing percent-encoded.
    """

    uri: str

    @classmethod
    def of(cls, lake: str, table: str) -> Self:
        """Of a table in a lake at `s3://`, `s3n://` or `s3a://`; Fatal for a lake that can be spelled in two ways."""
        scheme, separator, rest = lake.partition("://")
        if not separator or scheme not in _SCHEMES:
            raise Fatal(f"{lake}: only a lake on S3 has a lock table; write s3://bucket/path, or name no lock table")
        bucket, _, folder = rest.rstrip("/").partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise Fatal(f"{lake}: {bucket!r} is no bucket; write s3://bucket/path, without a key, a port or a query")
        parts = [*(folder.split("/") if folder else ()), *table.split("/")]
        if any(part in ("", ".", "..") for part in parts):
            better = "/".join([bucket, *(part for part in parts if part not in ("", "."))])
            raise Fatal(f"{lake}: {table}: a part of the path is empty, '.' or '..'; write s3://{better}")
        path = "/".join(parts)
        if _ESCAPE.search(path):
            raise Fatal(f"{lake}: {path!r} is percent-encoded, which Spark takes for the name; write the name itself")
        if odd := next((char for char in path if char in "?#%\\" or not char.isprintable()), None):
            raise Fatal(f"{lake}: {path!r} has {odd!r}, which not everybody reads alike; use a path without it")
        if any(part != part.strip() for part in parts):
            raise Fatal(f"{lake}: a part of {path!r} begins or ends with a space, which gets lost; use another")
        return cls(f"s3a://{bucket}/{path}")

    def __str__(self) -> str:
        return self.uri

    def misspelled(self) -> Iterator[str]:
        """How others may have spelled it; their entries would not be seen by us, nor ours by them."""
        path = self.uri.removeprefix("s3a://")
        folder, _, table = path.rpartition("/")
        for scheme in _SCHEMES:
            for each in dict.fromkeys((path, f"{path}/", f"{folder}//{table}", quote(path, safe="/"))):
                if (spelling := f"{scheme}://{each}") != self.uri:
                    yield spelling


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """E(N): who makes version N. `temp_path`, below `_delta_log/`, holds the bytes that N.json gets.

    An entry is completed after N.json is there, never before. `expires`: epoch seconds, of a complete one.
    """

    table: TablePath
    version: int
    temp_path: str
    complete: bool = False
    expires: int | None = None

    @classmethod
    def new(cls, table: TablePath, version: int) -> Self:
        """For an attempt at a version, with a temp object that nobody else has."""
        return cls(table=table, version=version, temp_path=f".tmp/{version:020d}.json.{uuid.uuid4()}")

    @property
    def file_name(self) -> str:
        return f"{self.version:020d}.json"

    def completed(self, now: float) -> Entry:
        return replace(self, complete=True, expires=int(now) + EXPIRES_AFTER)

    def to_item(self) -> dict[str, str | int]:
        """As Java writes it: strings, and a number for `expireTime`."""
        item: dict[str, str | int] = {
            "tablePath": self.table.uri,
            "fileName": self.file_name,
            "tempPath": self.temp_path,
            "complete": "true" if self.complete else "false",
        }
        return item if self.expires is None else {**item, "expireTime": self.expires}

    @classmethod
    def from_item(cls, item: Mapping[str, Any]) -> Self:
        """Raises TableBlocked for an item that is no entry of a version, or whose temp object is nowhere."""
        match = _FILE_NAME.fullmatch(str(item.get("fileName")))
        temp_path, expires = item.get("tempPath"), item.get("expireTime")
        if match is None or type(temp_path) is not str or {"", ".", ".."} & set(temp_path.split("/")):
            raise TableBlocked(
                f"the lock table has an item that no Delta log store wrote: {dict(item)}. Delete it if its fileName "
                "is in the table's _delta_log, else mend its tempPath"
            )
        return cls(
            table=TablePath(item["tablePath"]),
            version=int(match[1]),
            temp_path=temp_path,
            complete=item.get("complete") == "true",
            expires=expires if type(expires) is int else None,
        )


def is_version(file_name: str) -> bool:
    """Is it the name of an N.json? A log store may arbitrate other files of a log too."""
    return _FILE_NAME.fullmatch(file_name) is not None


class Arbiter(Protocol):
    """One lock table, which other programs use too. What was read is what was last written (strongly consistent).

    Methods raise Retryable, OutcomeUnknown (a write that may have been carried out) and Fatal. A write may be carried
    out more often than it is asked for, so it may be refused because of itself: look whose `temp_path` it is.
    """

    async def newest(self, table: TablePath) -> Entry | None:
        """The entry of the highest version."""
        ...

    async def put(self, entry: Entry) -> Entry | None:
        """Put an entry if its version has none. None: done; else the entry that is there."""
        ...

    async def complete(self, entry: Entry) -> Entry | None:
        """Mark it complete, on condition that its version still has this `temp_path`; `entry` carries `expires`.

        None: done, or there is none any more; else the entry of somebody else that is there.
        """
        ...

    async def incomplete(self, table: TablePath, *, above: int = -1) -> Sequence[Entry]:
        """The incomplete entries of versions above one, ascending."""
        ...

    async def knows(self, spelling: str) -> bool:
        """Is there any entry under exactly this table path?"""
        ...

    async def verify(self) -> float | None:
        """Its clock now, epoch seconds, if it tells. Fatal when it is not there, of another shape, or replicated."""
        ...

    async def close(self) -> None: ...
