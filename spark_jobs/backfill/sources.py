"""Finds the captures of a backfill, page by page: from list files, folders, prefixes and S3 inventories.

A file that a list names is explicit and leaves a row whatever it holds. A file in a folder, below a prefix or in an inventory
leaves a row only if it counts as a capture (`pcaplake.parser.capture.recognition`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pcaplake.common.errors import Fatal
from pcaplake.ingest.captures.discovery import NotThere, find_captures
from pcaplake.ingest.captures.reference import UNKNOWN_SIZE, ObjectRef, is_remote_uri
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.identity import local_file_uri
from pcaplake.worker.admin.aws_clients import Clients
from pcaplake.worker.admin.replay import listing
from pcaplake.worker.config.s3_prefixes import parse_place

from .inventory import ListedObject, read_inventory

_PAGE = 1000
Page = tuple[ListedObject, ...]


async def list_capture_pages(
    names: Sequence[str],
    *,
    lists: Sequence[str] = (),
    inventories: Sequence[str] = (),
    region: str | None = None,
    storage: Callable[[str], Mapping[str, str]] = lambda uri: {},
) -> AsyncIterator[Page]:
    """All sources, in order. Raises Fatal if one does not exist or cannot be listed, and Retryable.

    `storage`: options of the object store that a URI is in.
    """
    sources = Sources(storage)
    for name in names:
        if name.startswith(("s3://", "s3a://", "s3n://")):
            with Clients(region=region, options=storage(name)) as clients:
                async for page in _list_prefix(clients, name):
                    yield page
        else:
            yield await _find_captures(name, sources)
    for name in lists:
        async for page in _read_list_file(name, sources):
            yield page
    for name in inventories:
        async for page in read_inventory(name, sources):
            yield page


async def _list_prefix(clients: Clients, uri: str) -> AsyncIterator[Page]:
    """Objects with their exact keys and eTags; an object whose own key is given is explicit."""
    from fnmatch import fnmatchcase

    try:
        place, pattern = parse_place(uri)
    except ValueError as error:
        raise Fatal(str(error)) from error
    async for page in listing.pages(clients.s3, place):
        yield tuple(
            ListedObject(ref=replace(entry.ref, explicit=entry.key == place.prefix), archived=entry.archived)
            for entry in page
            if not entry.folder and fnmatchcase(entry.key, pattern)
        )


async def _find_captures(name: str, sources: Sources) -> Page:
    try:
        return tuple(ListedObject(ref=ref) for ref in await find_captures([name], sources))
    except NotThere as error:
        raise Fatal(str(error)) from error


async def _read_list_file(name: str, sources: Sources) -> AsyncIterator[Page]:
    """One URI or path a line; empty lines and lines that begin with # are ignored. `-`: standard input."""
    refs: list[ListedObject] = []
    for line in (await _load_list_text(name, sources)).splitlines():
        name_in_list = line.strip()
        if not name_in_list or name_in_list.startswith("#"):
            continue
        uri = _normalize_uri(name_in_list)
        refs.append(ListedObject(ref=ObjectRef(uri=uri, size=_local_file_size(uri), explicit=True)))
        if len(refs) == _PAGE:
            yield tuple(refs)
            refs = []
    yield tuple(refs)


async def _load_list_text(name: str, sources: Sources) -> str:
    try:
        if name == "-":
            return sys.stdin.read()
        if not is_remote_uri(name):
            return await asyncio.to_thread(Path(name.removeprefix("file://")).read_text, "utf-8")
        store, key = sources.open_store(name)
        list_object = await store.get(key)
        if list_object is None:
            raise Fatal(f"the list {name} does not exist")
        return list_object[0].decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Fatal(f"the list {name} cannot be read: {error}") from error


def _normalize_uri(path_or_uri: str) -> str:
    if is_remote_uri(path_or_uri):
        scheme, _, rest = path_or_uri.partition("://")
        return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"
    return local_file_uri(Path(path_or_uri.removeprefix("file://")))


def _local_file_size(uri: str) -> int:
    """Size of a local file. Remote objects are looked up later, many at once."""
    if is_remote_uri(uri):
        return UNKNOWN_SIZE
    try:
        return Path(uri.removeprefix("file://")).stat().st_size
    except OSError:
        return UNKNOWN_SIZE
