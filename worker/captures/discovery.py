"""Finds possible captures from the files, folders, globs and URIs on a command line, without reading their contents.

A file that is named, directly or by a glob, is explicit; a file in a named folder or below a prefix is not. Files of the
lake itself are never found, and no file is found twice.
"""

from __future__ import annotations

import asyncio
import errno
import glob
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from pcaplake.worker.lake.store.store import ObjectMeta, Store, is_nameable

from .objects import Gone
from .source import ObjectRef, Sources, is_remote_uri, local_reference

_MAGIC = frozenset("*?[")


class NotThere(ValueError):
    """A name on the command line does not exist."""


async def find_captures(
    names: Sequence[str],
    sources: Sources,
    lake: Store | None = None,
    *,
    skipped: Callable[[str], None] = lambda uri: None,
) -> list[ObjectRef]:
    """All captures in the order of their names, with folders sorted by name. Raises NotThere for a name that matches nothing.

    References have the time, and in an object store the eTag. `skipped` gets everything in a folder that is not a regular
    file, such as pipes, devices and broken links, and empty objects below a prefix, such as folder markers. A subfolder
    that cannot be read is returned like an unreadable file, so that opening it reports the error.
    """
    refs_by_uri: dict[str, ObjectRef] = {}
    for name in names:
        if is_remote_uri(name):
            refs = await _find_remote(name, sources, skipped)
        else:
            refs = await asyncio.to_thread(_find_local, name.removeprefix("file://"), skipped)
        for ref in refs:
            known = refs_by_uri.setdefault(ref.uri, ref)
            if ref.explicit and not known.explicit:
                refs_by_uri[ref.uri] = ref
    return [ref for ref in refs_by_uri.values() if lake is None or not ref.uri.startswith(f"{lake.uri}/")]


def _find_local(name: str, skipped: Callable[[str], None]) -> list[ObjectRef]:
    path = Path(name)
    if path.exists():
        return list(_find_at_path(path, skipped))
    matches = sorted(glob.glob(name, recursive=True)) if _MAGIC & set(name) else []
    if not matches:
        raise NotThere(f"{name} does not exist" if not _MAGIC & set(name) else f"{name} matches nothing")
    return [ref for match in matches for ref in _find_at_path(Path(match), skipped)]


def _find_at_path(path: Path, skipped: Callable[[str], None]) -> Iterator[ObjectRef]:
    if not path.is_dir():
        yield local_reference(path, explicit=True)
        return
    top = path.resolve()
    closed: list[OSError] = []
    for parent, folders, files in os.walk(top, onerror=closed.append):
        folders.sort()
        for file_name in sorted(files):
            inside = Path(parent, file_name)
            try:
                if stat.S_ISREG(inside.stat().st_mode):
                    yield local_reference(inside, explicit=False)
                    continue
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP):  # otherwise a broken link, or deleted meanwhile
                    yield _unreadable_reference(str(inside))
                    continue
            skipped(f"file://{inside}")
    for folder in closed:
        if folder.filename == str(top):
            raise NotThere(f"the folder {top} cannot be read: {folder.strerror}")
        yield _unreadable_reference(folder.filename)


def _unreadable_reference(name: str) -> ObjectRef:
    return ObjectRef(uri=f"file://{name}", size=0, explicit=False)


async def _find_remote(uri: str, sources: Sources, skipped: Callable[[str], None]) -> list[ObjectRef]:
    store, key = sources.open_store(uri)

    def make_reference(meta: ObjectMeta, *, explicit: bool) -> ObjectRef:
        etag = (meta.etag or "").strip('"') or None
        uri = f"{store.uri}/{meta.path}"
        return ObjectRef(uri=uri, size=meta.size, explicit=explicit, etag=etag, event_time=meta.last_modified)

    if key and not key.endswith("/"):
        if is_nameable(key):
            meta = await store.head(key)
            if meta is not None:
                return [make_reference(meta, explicit=True)]
        else:
            with suppress(Gone):
                return [await sources.resolve_reference(ObjectRef(uri=f"{store.uri}/{key}", size=0, explicit=True))]
    if _MAGIC & set(key):
        fixed = key[: min(key.index(letter) for letter in _MAGIC & set(key))]
        inside = await sources.list_below(f"{store.uri}/{fixed.rpartition('/')[0]}")
        matches = [
            make_reference(meta, explicit=True)
            for meta in inside
            if fnmatchcase(meta.path, key) and not _is_folder_marker(meta)
        ]
        if not matches:
            raise NotThere(f"{uri} matches nothing")
        return matches
    inside = await sources.list_below(f"{store.uri}/{key}")
    if not inside:
        raise NotThere(f"{uri} does not exist, as an object or as a prefix")
    for meta in inside:
        if not meta.size:
            skipped(f"{store.uri}/{meta.path}")
    return [make_reference(meta, explicit=False) for meta in inside if meta.size]


def _is_folder_marker(meta: ObjectMeta) -> bool:
    """True for the folder marker of a console or a file manager."""
    return not meta.size and meta.path.endswith("/")
