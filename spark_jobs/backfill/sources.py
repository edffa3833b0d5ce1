"""Which captures a backfill is about: a list file, folders and prefixes, or an S3 inventory, page by page.

Knows where captures are named. Must not know lakes or ledgers. What a list names is explicit: it leaves a row whatever
it is. What lies in a folder, below a prefix or in an inventory is a capture only if its first bytes say so.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from worker.errors import Fatal
from worker.fleet import listing
from worker.fleet.clients import Clients
from worker.fleet.places import named
from worker.lake.identity import local_uri
from worker.queue.directory import NotThere, find
from worker.source import UNKNOWN_SIZE, ObjectRef, Sources, is_remote

from .backfill_inventory import Listed, inventory

_PAGE = 1000
Page = tuple[Listed, ...]


async def pages(
    names: Sequence[str],
    *,
    lists: Sequence[str] = (),
    inventories: Sequence[str] = (),
    region: str | None = None,
    storage: Callable[[str], Mapping[str, str]] = lambda uri: {},
) -> AsyncIterator[Page]:
    """Every source in its order. Fatal where one is not there or cannot be listed; Retryable.

    `storage`: options of the object store that a URI is in.
    """
    sources = Sources(storage)
    for name in names:
        if name.startswith(("s3://", "s3a://", "s3n://")):
            with Clients(region=region, options=storage(name)) as clients:
                async for page in _below(clients, name):
                    yield page
        else:
            yield await _found(name, sources)
    for name in lists:
        async for page in _listed(name, sources):
            yield page
    for name in inventories:
        async for page in inventory(name, sources):
            yield page


async def _below(clients: Clients, uri: str) -> AsyncIterator[Page]:
    """Keys as they are, with their eTags; a key that is named by itself is explicit."""
    from fnmatch import fnmatchcase

    try:
        place, pattern = named(uri)
    except ValueError as error:
        raise Fatal(str(error)) from error
    async for page in listing.pages(clients.s3, place):
        yield tuple(
            Listed(ref=replace(one.ref, explicit=one.key == place.prefix), archived=one.archived)
            for one in page
            if not one.folder and fnmatchcase(one.key, pattern)
        )


async def _found(name: str, sources: Sources) -> Page:
    try:
        return tuple(Listed(ref=ref) for ref in await find([name], sources))
    except NotThere as error:
        raise Fatal(str(error)) from error


async def _listed(name: str, sources: Sources) -> AsyncIterator[Page]:
    """A URI or a path on each line; empty lines and those that begin with # are for people. `-`: standard input."""
    refs: list[Listed] = []
    for line in (await _text(name, sources)).splitlines():
        said = line.strip()
        if not said or said.startswith("#"):
            continue
        uri = _uri(said)
        refs.append(Listed(ref=ObjectRef(uri=uri, size=_size(uri), explicit=True)))
        if len(refs) == _PAGE:
            yield tuple(refs)
            refs = []
    yield tuple(refs)


async def _text(name: str, sources: Sources) -> str:
    try:
        if name == "-":
            return sys.stdin.read()
        if not is_remote(name):
            return await asyncio.to_thread(Path(name.removeprefix("file://")).read_text, "utf-8")
        store, key = sources.store(name)
        found = await store.get(key)
        if found is None:
            raise Fatal(f"the list {name} is not there")
        return found[0].decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Fatal(f"the list {name} cannot be read: {error}") from error


def _uri(said: str) -> str:
    if is_remote(said):
        scheme, _, rest = said.partition("://")
        return f"{'s3' if scheme in ('s3a', 's3n') else scheme}://{rest}"
    return local_uri(Path(said.removeprefix("file://")))


def _size(uri: str) -> int:
    """Of a local file; a remote one is asked for later, with many others."""
    if is_remote(uri):
        return UNKNOWN_SIZE
    try:
        return Path(uri.removeprefix("file://")).stat().st_size
    except OSError:
        return UNKNOWN_SIZE
