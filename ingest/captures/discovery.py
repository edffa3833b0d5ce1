"""Finds possible captures from the files, folders, globs and URIs on a command line, without reading their contents.

A file that is named, directly or by a glob, is explicit; a file in a named folder or below a prefix is not. Files of the
lake itself are never found, and no file is found twice.

Links to files and folders are followed, each folder once, if they lead into the named folder. That of a glob is the folder
before its first wildcard. A link that leads out of it is followed only on request. A link that is itself named is followed.
"""

from __future__ import annotations

import asyncio
import errno
import glob
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import BinaryIO, cast

from pcaplake.common.errors import PcaplakeError, WrongUsage
from pcaplake.lake.identity import LAKE_JSON
from pcaplake.lake.store.store import ObjectMeta, Store, is_nameable
from pcaplake.parser.capture.recognition import has_capture_suffix, should_be_capture
from pcaplake.parser.schemas import TABLES

from .objects import Gone
from .reference import ObjectRef, is_remote_uri, local_reference
from .source import Sources

_MAGIC = frozenset("*?[")
_LAKE_FOLDERS = frozenset({*TABLES, LAKE_JSON.partition("/")[0]})  # of a lake; captures may lie beside them
_Skipped = Callable[[str], object]


class NotThere(WrongUsage):
    """A name on the command line does not exist, or there is no capture at all."""


async def find_captures(
    names: Sequence[str],
    sources: Sources,
    lake: Store | None = None,
    *,
    skipped: Callable[[str], None] = lambda uri: None,
    follow_links: bool = False,
) -> list[ObjectRef]:
    """All captures in the order of their names, with folders sorted by name. Raises NotThere for a name that matches nothing.

    follow_links: also those that lead out of the named folder. References have the time, and in an object store the eTag.
    `skipped` gets, once each, links that are not followed and what cannot be a capture:
    pipes, devices, broken links that are not named like a capture, and empty objects below a prefix, such as folder markers,
    that are not named like one either. What cannot be read, such as a subfolder or a broken link to a capture, is returned
    like an unreadable file, so that opening it reports the error.
    """
    refs_by_uri: dict[str, ObjectRef] = {}
    skipped_uris: dict[str, None] = {}
    for name in names:
        if is_remote_uri(name):
            refs = await _find_remote(name, sources, skipped_uris.setdefault)
        else:
            finder = _LocalFinder(name.removeprefix("file://"), skipped_uris.setdefault, follow_links=follow_links)
            refs = await asyncio.to_thread(finder.find)
        for ref in refs:
            known = refs_by_uri.setdefault(ref.uri, ref)
            if ref.explicit and not known.explicit:
                refs_by_uri[ref.uri] = ref
    inside = f"{lake.uri}/" if lake is not None else None
    found = [ref for ref in refs_by_uri.values() if inside is None or not ref.uri.startswith(inside)]
    if refs_by_uri and not found:
        raise NotThere(
            f"{', '.join(names)}: all files are inside the folder of the lake {inside}, where captures are never read; name "
            "another folder with --lake, or move the captures"
        )
    for uri in skipped_uris:
        if inside is None or not uri.startswith(inside):
            skipped(uri)
    return found


async def require_captures(refs: Sequence[ObjectRef], sources: Sources, names: Sequence[str]) -> None:
    """Raise NotThere if none of these files counts as a capture. Reads the first bytes of files until one does."""
    loop = asyncio.get_running_loop()

    def may_be_capture(ref: ObjectRef) -> bool:
        try:
            with sources.open_blocking(ref.uri, loop) as file:
                return should_be_capture(cast(BinaryIO, file), ref.uri)
        except (OSError, PcaplakeError):
            return True  # the ingest reports it

    if any(counts_by_name(ref) for ref in refs):
        return
    for ref in refs:
        if await asyncio.to_thread(may_be_capture, ref):
            return
    raise NotThere(
        f"{', '.join(names)}: no captures, because no file has the name (.pcap, .pcapng, .cap) or the first bytes of one"
    )


def counts_by_name(ref: ObjectRef) -> bool:
    """Whether this is a capture, whatever is in it. Other files count as captures only by their first bytes."""
    return ref.explicit or has_capture_suffix(ref.uri)


class _LocalFinder:
    """The files that one name on the command line means, without `file://`."""

    def __init__(self, name: str, skipped: _Skipped, *, follow_links: bool) -> None:
        self._name, self._skipped, self._follow_links = name, skipped, follow_links
        self._is_glob = bool(_MAGIC & set(name)) and not os.path.exists(name)
        # a file that is named itself may be a link to anywhere
        fixed = re.split(r"[*?[]", name, maxsplit=1)[0].rpartition("/")[0] if self._is_glob else name
        self._named = os.path.realpath(fixed or ("/" if name.startswith("/") else "."))
        self._left_out = False  # whether a link is not followed

    def find(self) -> list[ObjectRef]:
        """Raises NotThere if there is nothing of this name."""
        if not self._is_glob:
            if not os.path.exists(self._name):
                raise NotThere(f"{self._name} does not exist")
            return self._or_say_why(list(self._find_at_path(Path(self._name))))
        matches = sorted(self._expand_glob(self._name))
        if not matches and not self._left_out:
            raise NotThere(f"{self._name} matches nothing")
        return self._or_say_why([ref for match in matches for ref in self._find_at_path(Path(match))])

    def _or_say_why(self, refs: list[ObjectRef]) -> list[ObjectRef]:
        if self._left_out and not refs:
            raise NotThere(f"{self._name}: only links that lead out of {self._named}; follow them with --follow-links")
        return refs

    def _is_followed(self, path: str | Path) -> bool:
        """Whether the path leads into the named folder, or may lead anywhere. If not, it is skipped."""
        real = os.path.realpath(path)
        if self._follow_links or os.path.commonpath([real, self._named]) == self._named:
            return True
        self._left_out = True
        self._skipped(f"file://{Path(path).parent.resolve() / Path(path).name}")
        return False

    def _expand_glob(self, pattern: str) -> set[str]:
        """Names that match, as `glob.glob(recursive=True)` finds them, except that `**` enters each folder once.

        `glob` follows links to folders as often as it meets them, which does not end if they form loops.
        """
        parts = re.split(r"(?:^|(?<=/))\*\*(?:/|$)", pattern, maxsplit=1)
        if len(parts) == 1:
            return set(glob.glob(pattern))
        before, after = parts
        matches = set[str]()
        for top in glob.glob(before) if before else ["."]:
            if self._is_followed(top):
                for folder, _ in self._walk_folders(top, lambda error: None, hidden=False):
                    matches |= self._expand_glob(os.path.join(glob.escape(folder), after or "*"))
        return matches

    def _walk_folders(
        self, top: str | Path, failed: Callable[[OSError], None], *, hidden: bool = True
    ) -> Iterator[tuple[str, list[str]]]:
        """A folder and all folders below it, each with the names of its files. Enters each folder once.

        `failed` gets the errors of folders that cannot be read. `hidden`: also enter folders with names that begin with a dot.
        The tables of a lake are not entered.
        """
        entered = set[tuple[int, int]]()

        def is_new(folder: str) -> bool:
            if os.path.islink(folder) and not self._is_followed(folder):
                return False
            try:
                found = os.stat(folder)
            except OSError:
                return True  # `os.walk` reports it
            here = found.st_dev, found.st_ino
            new = here not in entered
            entered.add(here)
            return new

        is_new(os.fspath(top))
        for parent, folders, files in os.walk(top, onerror=failed, followlinks=True):
            tables = _LAKE_FOLDERS if os.path.exists(os.path.join(parent, LAKE_JSON)) else ()
            folders[:] = [
                name
                for name in sorted(folders)
                if name not in tables and (hidden or not name.startswith(".")) and is_new(os.path.join(parent, name))
            ]
            yield parent, sorted(files)

    def _find_at_path(self, path: Path) -> Iterator[ObjectRef]:
        if not path.is_dir():
            yield from self._find_file(path, in_folder=False)
            return
        if self._is_glob and not self._is_followed(path):
            return
        top = path.resolve()
        closed: list[OSError] = []
        for parent, files in self._walk_folders(top, closed.append):
            for name in files:
                yield from self._find_file(Path(parent, name), in_folder=True)
        for folder in closed:
            if folder.filename == str(top):
                raise NotThere(f"the folder {top} cannot be read: {folder.strerror}")
            yield _unreadable_reference(folder.filename)

    def _find_file(self, path: Path, *, in_folder: bool) -> Iterator[ObjectRef]:
        # a link has two names, and counts as a capture by either
        explicit = not in_folder or (path.is_symlink() and has_capture_suffix(path.name))
        try:
            if not in_folder or stat.S_ISREG(path.stat().st_mode):
                ref = local_reference(path, explicit=explicit)
                if (self._is_glob or path.is_symlink()) and not self._is_followed(path):
                    return
                yield ref
                return
        except OSError as error:
            deleted = error.errno == errno.ENOENT and not path.is_symlink()
            broken_link = error.errno in (errno.ENOENT, errno.ELOOP) and not has_capture_suffix(path.name)
            if not (deleted or broken_link):
                yield _unreadable_reference(str(path.absolute()))
                return
        self._skipped(f"file://{path.parent.resolve() / path.name}")


def _unreadable_reference(name: str) -> ObjectRef:
    return ObjectRef(uri=f"file://{name}", size=0, explicit=False)


async def _find_remote(uri: str, sources: Sources, skipped: _Skipped) -> list[ObjectRef]:
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
    refs = []
    for meta in inside:
        if meta.size or has_capture_suffix(meta.path):
            refs.append(make_reference(meta, explicit=False))
        else:
            skipped(f"{store.uri}/{meta.path}")
    return refs


def _is_folder_marker(meta: ObjectMeta) -> bool:
    """True for the folder marker of a console or a file manager."""
    return not meta.size and meta.path.endswith("/")
