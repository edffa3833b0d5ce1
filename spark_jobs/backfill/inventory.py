"""Reads an S3 inventory: the objects of a bucket, which S3 lists daily in files that a manifest.json names.

Formats: CSV, Parquet and ORC (Amazon S3 User Guide, "Locating your inventory list" and "Inventory lists"). Keys are
URL-encoded in CSV only.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_plus

import pyarrow.orc as orc
import pyarrow.parquet as pq

from pcaplake.common.errors import Fatal
from pcaplake.ingest.captures.reference import UNKNOWN_SIZE, ObjectRef, epoch_ms
from pcaplake.ingest.captures.source import Sources

_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
_PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedObject:
    """One object. `archived`: it must be restored before it can be read."""

    ref: ObjectRef
    archived: bool = False


async def read_inventory(uri: str, sources: Sources) -> AsyncIterator[tuple[ListedObject, ...]]:
    """The newest version of every key, page by page. Raises Fatal if a file of the inventory is missing or changed."""
    store, key = sources.open_store(uri)
    manifest_object = await store.get(key)
    if manifest_object is None:
        raise Fatal(f"{uri} does not exist: name the manifest.json of an inventory")
    manifest = _parse_manifest(uri, manifest_object[0])
    bucket = str(manifest["destinationBucket"]).rpartition(":")[2]
    inside, _ = sources.open_store(f"{uri.partition('://')[0]}://{bucket}/x")
    for inventory_file in manifest["files"]:
        body = await inside.get(inventory_file["key"])
        if body is None:
            raise Fatal(
                f"{inside.uri}/{inventory_file['key']} does not exist, but {uri} names it: use a complete inventory"
            )
        if hashlib.md5(body[0], usedforsecurity=False).hexdigest() != inventory_file["MD5checksum"]:
            raise Fatal(
                f"{inside.uri}/{inventory_file['key']} does not have the checksum in {uri}: use a complete inventory"
            )
        page: list[ListedObject] = []
        for row in _read_inventory_rows(body[0], manifest):
            listed = _parse_inventory_row(row)
            if listed is not None:
                page.append(listed)
            if len(page) == _PAGE:
                yield tuple(page)
                page = []
        yield tuple(page)


def _parse_manifest(uri: str, raw: bytes) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(raw)
        if not {"destinationBucket", "fileFormat", "files"} <= manifest.keys():
            raise ValueError("it lacks destinationBucket, fileFormat or files")
        if manifest["fileFormat"] not in ("CSV", "Parquet", "ORC"):
            raise ValueError(f"its format is {manifest['fileFormat']}")
    except (ValueError, AttributeError) as error:
        raise Fatal(f"{uri} is not a manifest.json of an S3 inventory: {error}") from error
    return manifest


def _read_inventory_rows(body: bytes, manifest: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Rows by column name, in lower case and without underscores."""
    if manifest["fileFormat"] == "CSV":
        names = [_normalize_column_name(name) for name in manifest["fileSchema"].split(",")]
        text = io.TextIOWrapper(gzip.GzipFile(fileobj=io.BytesIO(body)), encoding="utf-8", newline="")
        for row in csv.reader(text):
            values = dict(zip(names, row, strict=True))
            yield {**values, "key": unquote_plus(values["key"])}
        return
    if manifest["fileFormat"] == "Parquet":
        batches = pq.ParquetFile(io.BytesIO(body)).iter_batches(_PAGE)
    else:
        file = orc.ORCFile(io.BytesIO(body))
        batches = (file.read_stripe(number) for number in range(file.nstripes))
    for batch in batches:
        for row in batch.to_pylist():
            yield {_normalize_column_name(name): value for name, value in row.items()}


def _normalize_column_name(name: str) -> str:
    return name.strip().replace("_", "").lower()


def _parse_inventory_row(row: Mapping[str, Any]) -> ListedObject | None:
    """None for an older version, a delete marker and a folder marker."""
    size, key = row.get("size"), row["key"]
    if _flag_equals(row.get("islatest"), False) or _flag_equals(row.get("isdeletemarker"), True):
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
        modified=_parse_time(row.get("lastmodifieddate")),
    )
    return ListedObject(ref=ref, archived=row.get("storageclass") in _ARCHIVES)


def _parse_time(value: Any) -> int | None:
    """Epoch ms of a field LastModifiedDate: a text in CSV, a time in Parquet and ORC. None if it cannot be read."""
    try:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return epoch_ms(time.replace(tzinfo=UTC) if time.tzinfo is None else time)


def _flag_equals(value: Any, expected: bool) -> bool:
    return value is not None and str(value).lower() == str(expected).lower()
