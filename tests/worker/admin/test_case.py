"""What an opened lake tells about itself."""

from __future__ import annotations

from pcaplake.lake.records import manifest_path
from pcaplake.worker.admin.case import list_batches_from
from tests.worker.adapters.memory_store import MemoryStore


async def test_batches_are_those_of_the_folder_itself() -> None:
    store = MemoryStore()
    folder, _, name = manifest_path(9).rpartition("/")
    for path in (manifest_path(0), manifest_path(3), f"{folder}/date=1/{name}", f"{folder}/odd.json"):
        assert await store.put_if_absent(path, b"{}")
    assert await list_batches_from(store, 0) == (0, 3)
    assert await list_batches_from(store, 1) == (3,)
