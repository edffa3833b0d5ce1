"""An S3 inventory: all objects of a bucket as S3 lists them once a day, in files that a manifest.json names.

Knows the layout (Amazon S3 User Guide, "Locating your inventory list" and "Inventory lists") as CSV, Parquet and ORC.
Must not know what becomes of the objects. Keys in CSV are URL-encoded, in the others they are not.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import pyarrow.orc as orc
import pyarrow.parquet as pq

from worker.errors import Fatal
from worker.source import UNKNOWN_SIZE, ObjectRef, Sources

_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One object. `archived`: it must be restored to be read."""

    ref: ObjectRef
    archived: bool = False


async def inventory(uri: str, sources: Sources) -> AsyncIterator[tuple[Listed, ...]]:
    """The newest content of every key, page by page. Fatal where a file of it is missing or is not what it was."""
    store, key = sources.store(uri)
    found = await store.get(key)
    if found is None:
        raise Fatal(f"{uri} is not there: name the manifest.json of an inventory")
    manifest = _parsed(uri, found[0])
    bucket = str(manifest["destinationBucket"]).rpartition(":")[2]
    inside, _ = sources.store(f"{uri.partition('://')[0]}://{bucket}/x")
    for one in manifest["files"]:
        body = await inside.get(one["key"])
        if body is None:
            raise Fatal(f"{inside.uri}/{one['key']} is not there, but {uri} names it: take a whole inventory")
        if hashlib.md5(body[0], usedforsecurity=False).hexdigest() != one["MD5checksum"]:
            raise Fatal(f"{inside.uri}/{one['key']} is not what {uri} says it is: take a whole inventory")
        page: list[Listed] = []
        for row in _rows(body[0], manifest):
            listed = _listed(row)
            if listed is not None:
                page.append(listed)
            if len(page) == _PAGE:
                yield tuple(page)
                page = []
        yield tuple(page)


def _parsed(uri: str, raw: bytes) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(raw)
        if not {"destinationBucket", "fileFormat", "files"} <= manifest.keys():
            raise ValueError("it lacks destinationBucket, fileFormat or files")
        if manifest["fileFormat"] not in ("CSV", "Parquet", "ORC"):
            raise ValueError(f"its format is {manifest['fileFormat']}")
    except (ValueError, AttributeError) as error:
        raise Fatal(f"{uri} is no manifest.json of an S3 inventory: {error}") from error
    return manifest


def _rows(body: bytes, manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """By names of small letters, without underscores."""
    if manifest["fileFormat"] == "CSV":
        names = [_plain(name) for name in manifest["fileSchema"].split(",")]
        text = io.TextIOWrapper(gzip.GzipFile(fileobj=io.BytesIO(body)), encoding="utf-8", newline="")
        for row in csv.reader(text):
            given = dict(zip(names, row, strict=True))
            yield {**given, "key": unquote_plus(given["key"])}
        return
    if manifest["fileFormat"] == "Parquet":
        batches = pq.ParquetFile(io.BytesIO(body)).iter_batches(_PAGE)
    else:
        file = orc.ORCFile(io.BytesIO(body))
        batches = (file.read_stripe(number) for number in range(file.nstripes))
    for batch in batches:
        for row in batch.to_pylist():
            yield {_plain(name): value for name, value in row.items()}


def _plain(name: str) -> str:
    return name.strip().replace("_", "").lower()


def _listed(row: Mapping[str, Any]) -> Listed | None:
    """None for what is not the newest content of its key, and for the marker of a folder."""
    size, key = row.get("size"), row["key"]
    if _is(row.get("islatest"), False) or _is(row.get("isdeletemarker"), True):
        return None
    number = UNKNOWN_SIZE if size in (None, "") else int(size)
    if key.endswith("/") and number == 0:
        return None
    ref = ObjectRef(
        uri=f"s3://{row['bucket']}/{key}",
        size=number,
        explicit=False,
        etag=(row.get("etag") or "").strip('"') or None,
        version_id=row.get("versionid") or None,
    )
    return Listed(ref=ref, archived=row.get("storageclass") in _ARCHIVES)


def _is(value: Any, wanted: bool) -> bool:
    return value is not None and str(value).lower() == str(wanted).lower()
