"""A store in a folder of this machine. Everything is synced to disk before a method returns (see `durable`)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

from pcaplake.common.errors import Fatal, Retryable, WrongChoice
from pcaplake.common.meter import Meter

from . import durable
from .store import Buffer, Listing, ObjectMeta, Store, Upload, checked_path, is_utf8, register_opener

MAKE_ROOM = "free space on this file system, or raise its quota; no ingested data is lost"


@register_opener("", "file")
def open_local_store(uri: str, options: Mapping[str, str], meter: Meter) -> Store:
    scheme, separator, rest = uri.partition("://")
    return LocalStore(Path("/" + rest.lstrip("/")) if separator and scheme == "file" else Path(uri))


class LocalStore(Store):
    """A folder. The blocking calls run in threads, so that an fsync does not hold up the event loop."""

    def __init__(self, folder: Path) -> None:
        self.local: Path = folder.resolve()
        if not is_utf8(str(self.local)):
            raise WrongChoice(f"the path {str(self.local)!r} is not UTF-8: name another path, or rename the folder")
        self.uri = f"file://{self.local}".rstrip("/")
        self.options = {}

    def parent_stores(self) -> Iterator[Store]:
        return map(LocalStore, self.local.parents)

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        return await asyncio.to_thread(self._create_file, self._target_path(path), data)

    async def put(self, path: str, data: bytes) -> None:
        await asyncio.to_thread(self._replace_file, self._target_path(path), data, None)

    async def replace(self, path: str, data: bytes, seen: ObjectMeta) -> bool:
        return await asyncio.to_thread(self._replace_file, self._target_path(path), data, seen.etag)

    async def get(self, path: str) -> tuple[bytes, ObjectMeta] | None:
        return await asyncio.to_thread(self._read_file, self._target_path(path))

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        return await asyncio.to_thread(self._read_file_range, self._target_path(path), start, length)

    async def head(self, path: str) -> ObjectMeta | None:
        return await asyncio.to_thread(self._stat_file, self._target_path(path))

    async def list(self, prefix: str, start_after: str | None = None) -> Listing:
        folder = self.local / checked_path(prefix.rstrip("/")) if prefix.rstrip("/") else self.local
        return await asyncio.to_thread(self._list_files, folder, start_after)

    async def list_folders(self) -> tuple[str, ...]:
        return await asyncio.to_thread(self._list_top_folders)

    async def delete(self, path: str) -> None:
        await asyncio.to_thread(self._delete_file, self._target_path(path))

    def upload(self, path: str) -> Upload:
        target = self._target_path(path)
        with _translate_os_errors(target):
            return _LocalUpload(self, durable.NewFile(target, self.local))

    async def delete_abandoned_uploads(self) -> int:
        return await asyncio.to_thread(durable.delete_abandoned_files, self.local)

    def object_meta(self, target: Path, stat: os.stat_result) -> ObjectMeta:
        return ObjectMeta(
            path=target.relative_to(self.local).as_posix(),
            size=stat.st_size,
            etag=durable.file_etag(stat),
            last_modified=datetime.fromtimestamp(stat.st_mtime, UTC),
        )

    def _target_path(self, path: str) -> Path:
        return self.local / checked_path(path)

    def _create_file(self, target: Path, data: bytes) -> bool:
        with _translate_os_errors(target):
            return durable.create_file(target, self.local, data)

    def _replace_file(self, target: Path, data: bytes, etag: str | None) -> bool:
        with _translate_os_errors(target):
            return durable.replace_file(target, self.local, data, etag)

    def _read_file(self, target: Path) -> tuple[bytes, ObjectMeta] | None:
        with _translate_os_errors(target):
            try:
                data, stat = durable.read_durable_file(target)
            except FileNotFoundError:
                return None
        return data, self.object_meta(target, stat)

    def _read_file_range(self, target: Path, start: int, length: int) -> bytes:
        with _translate_os_errors(target, FileNotFoundError), target.open("rb") as file:
            return os.pread(file.fileno(), length, start)

    def _stat_file(self, target: Path) -> ObjectMeta | None:
        with _translate_os_errors(target):
            try:
                return self.object_meta(target, target.stat())
            except FileNotFoundError:
                return None

    def _list_files(self, folder: Path, start_after: str | None) -> Listing:
        metas = []
        with _translate_os_errors(folder):
            for parent, _, names in os.walk(folder):
                for name in names:
                    target = Path(parent, name)
                    relative = target.relative_to(self.local).as_posix()
                    if name.endswith(durable.TEMPORARY) or (start_after is not None and relative <= start_after):
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        metas.append(self.object_meta(target, target.stat()))
        return sorted(metas, key=lambda meta: meta.path)

    def _list_top_folders(self) -> tuple[str, ...]:
        with _translate_os_errors(self.local), contextlib.suppress(FileNotFoundError), os.scandir(self.local) as names:
            return tuple(sorted(entry.name for entry in names if entry.is_dir()))
        return ()

    def _delete_file(self, target: Path) -> None:
        with _translate_os_errors(target):
            durable.delete_file(target)


class _LocalUpload:
    def __init__(self, store: LocalStore, file: durable.NewFile) -> None:
        self._store, self._file = store, file

    def write(self, data: Buffer) -> None:
        with _translate_os_errors(self._file.path):
            self._file.write(data)

    def finish(self) -> ObjectMeta:
        with _translate_os_errors(self._file.path):
            if not self._file.finish():
                raise Fatal(f"{self._file.path} exists already, but names of files are unique")
            return self._store.object_meta(self._file.path, self._file.path.stat())

    def abort(self) -> None:
        self._file.abort()


@contextlib.contextmanager
def _translate_os_errors(target: Path, *known: type[OSError]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, known):
            raise
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR):
            raise Fatal(f"{target}: {error.strerror}") from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Retryable(f"{target}: {error.strerror}: {MAKE_ROOM}") from error
        raise Retryable(f"{target}: {error.strerror}") from error
