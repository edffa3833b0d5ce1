"""An object store in memory that passes the suite of the `Store` port; each operation goes through `Faults`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from pcaplake.common.errors import Fatal
from pcaplake.lake.store.store import Buffer, Listing, ObjectMeta, Store, Upload, checked_path
from tests.worker.adapters.faults import Faults


class MemoryStore(Store):
    """A `Store` in a dict. `clock`: the store's time, epoch seconds."""

    def __init__(self, faults: Faults | None = None, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.uri = "memory:///test"
        self.options = {}
        self.objects: dict[str, tuple[bytes, ObjectMeta]] = {}
        self.places: dict[str, MemoryStore] = {}  # other stores, by URI
        self._faults = faults or Faults()
        self._clock = clock

    def as_process(self, faults: Faults) -> MemoryStore:
        """The same objects for another process, which has its own faults."""
        other = MemoryStore(faults, self._clock)
        other.objects, other.places = self.objects, self.places
        return other

    def open_other_store(self, uri: str) -> Store:
        return self.places[uri] if uri in self.places else MemoryStore(self._faults, self._clock)

    def put_past_faults(self, path: str, data: bytes) -> ObjectMeta:
        """Put an object without faults."""
        before = self.objects.get(checked_path(path))
        version = 0 if before is None else int(before[1].etag or 0) + 1
        modified = datetime.fromtimestamp(self._clock(), UTC)
        meta = ObjectMeta(path=path, size=len(data), etag=str(version), last_modified=modified)
        self.objects[path] = (bytes(data), meta)
        return meta

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        def create_object() -> bool:
            if path in self.objects:
                return False
            self.put_past_faults(path, data)
            return True

        return await self._faults.run_with_faults(f"store.put_if_absent {checked_path(path)}", create_object)

    async def put(self, path: str, data: bytes) -> None:
        await self._faults.run_with_faults(f"store.put {path}", lambda: self.put_past_faults(path, data))

    async def replace(self, path: str, data: bytes, seen: ObjectMeta) -> bool:
        def replace_if_unchanged() -> bool:
            if path not in self.objects or self.objects[path][1].etag != seen.etag:
                return False
            self.put_past_faults(path, data)
            return True

        return await self._faults.run_with_faults(f"store.replace {checked_path(path)}", replace_if_unchanged)

    async def get(self, path: str) -> tuple[bytes, ObjectMeta] | None:
        return await self._faults.run_with_faults(f"store.get {checked_path(path)}", lambda: self.objects.get(path))

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        stored = await self.get(path)
        if stored is None:
            raise FileNotFoundError(path)
        return stored[0][start : start + length]

    async def head(self, path: str) -> ObjectMeta | None:
        def find_meta() -> ObjectMeta | None:
            stored = self.objects.get(checked_path(path))
            return None if stored is None else stored[1]

        return await self._faults.run_with_faults(f"store.head {path}", find_meta)

    async def list(self, prefix: str, start_after: str | None = None) -> Listing:
        folder = prefix.rstrip("/") + "/" if prefix.rstrip("/") else ""

        def list_objects() -> Listing:
            found = sorted(self.objects.copy().items())  # other threads change the store meanwhile
            return [meta for path, (_, meta) in found if path.startswith(folder) and path > (start_after or "")]

        return await self._faults.run_with_faults(f"store.list {prefix}", list_objects)

    async def list_folders(self) -> tuple[str, ...]:
        return tuple(sorted({path.partition("/")[0] for path in self.objects.copy() if "/" in path}))

    async def delete(self, path: str) -> None:
        await self._faults.run_with_faults(f"store.delete {checked_path(path)}", lambda: self.objects.pop(path, None))

    def upload(self, path: str) -> Upload:
        return _MemoryUpload(self, checked_path(path))


class _MemoryUpload:
    def __init__(self, store: MemoryStore, path: str) -> None:
        self._store, self._path, self._data = store, path, bytearray()

    def write(self, data: Buffer) -> None:
        self._data += data

    def finish(self) -> ObjectMeta:
        if self._path in self._store.objects:
            raise Fatal(f"{self._path} exists already, but names of files are unique")
        return self._store.put_past_faults(self._path, bytes(self._data))

    def abort(self) -> None:
        self._data.clear()
