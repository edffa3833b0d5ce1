"""Files, folders, globs and URIs -> the captures they may be.

Knows how captures are named on a command line. Must not know what is in a file: that is looked at when its turn comes.

What is named, by itself or by a glob, is explicit; what lies in a folder or below a prefix is not. Nothing below the
lake itself is ever found, and nothing twice.
"""

from __future__ import annotations

import asyncio
import errno
import glob
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from ..lake.store import ObjectMeta, Store
from ..source import ObjectRef, Sources, is_remote, local

_MAGIC = frozenset("*?[")


class NotThere(ValueError):
    """What was named does not exist; the message says it."""


async def find(
    names: Sequence[str],
    sources: Sources,
    lake: Store | None = None,
    *,
    skipped: Callable[[str], None] = lambda uri: None,
) -> list[ObjectRef]:
    """Everything that was named, in that order; folders sorted by name. NotThere for a name that stands for nothing.

    With the time of each; with the eTag of what is in an object store. `skipped` is told of everything in a folder that
    is no file: pipes, devices, links to nowhere. A folder in a folder that cannot be read is found like a file that
    cannot: who opens it learns why.
    """
    found: dict[str, ObjectRef] = {}
    for name in names:
        if is_remote(name):
            some = await _remote(name, sources)
        else:
            some = await asyncio.to_thread(_local, name.removeprefix("file://"), skipped)
        for ref in some:
            known = found.setdefault(ref.uri, ref)
            if ref.explicit and not known.explicit:
                found[ref.uri] = ref
    return [ref for ref in found.values() if lake is None or not ref.uri.startswith(f"{lake.uri}/")]


def _local(name: str, skipped: Callable[[str], None]) -> list[ObjectRef]:
    path = Path(name)
    if path.exists():
        return list(_named(path, skipped))
    matches = sorted(glob.glob(name, recursive=True)) if _MAGIC & set(name) else []
    if not matches:
        raise NotThere(f"{name} does not exist" if not _MAGIC & set(name) else f"{name} matches nothing")
    return [ref for match in matches for ref in _named(Path(match), skipped)]


def _named(path: Path, skipped: Callable[[str], None]) -> Iterator[ObjectRef]:
    if not path.is_dir():
        yield local(path, explicit=True)
        return
    top = path.resolve()
    closed: list[OSError] = []
    for parent, folders, files in os.walk(top, onerror=closed.append):
        folders.sort()
        for one in sorted(files):
            inside = Path(parent, one)
            try:
                if stat.S_ISREG(inside.stat().st_mode):
                    yield local(inside, explicit=False)
                    continue
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ELOOP):  # else a link to nowhere, or gone in the meantime
                    yield _unreadable(str(inside))
                    continue
            skipped(f"file://{inside}")
    for folder in closed:
        if folder.filename == str(top):
            raise NotThere(f"the folder {top} cannot be read: {folder.strerror}")
        yield _unreadable(folder.filename)


def _unreadable(name: str) -> ObjectRef:
    return ObjectRef(uri=f"file://{name}", size=0, explicit=False)


async def _remote(uri: str, sources: Sources) -> list[ObjectRef]:
    store, key = sources.store(uri)

    def ref(one: ObjectMeta, *, explicit: bool) -> ObjectRef:
        etag = (one.etag or "").strip('"') or None
        uri = f"{store.uri}/{one.path}"
        return ObjectRef(uri=uri, size=one.size, explicit=explicit, etag=etag, event_time=one.last_modified)

    meta = await store.head(key) if key and not key.endswith("/") else None
    if meta is not None:
        return [ref(meta, explicit=True)]
    if _MAGIC & set(key):
        fixed = key[: min(key.index(one) for one in _MAGIC & set(key))]
        inside = await store.list(fixed.rpartition("/")[0])
        some = [ref(one, explicit=True) for one in inside if fnmatchcase(one.path, key)]
        if not some:
            raise NotThere(f"{uri} matches nothing")
        return some
    inside = await store.list(key)
    if not inside:
        raise NotThere(f"{uri} does not exist, as an object or as a prefix")
    return [ref(one, explicit=False) for one in inside]
