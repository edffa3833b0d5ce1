"""Manifests as the committer reads them; the last ones are cached."""

from __future__ import annotations

from pcaplake.common.errors import Fatal
from pcaplake.lake.records import Manifest, manifest_path
from pcaplake.lake.store.store import Store

_CACHED = 16


class Manifests:
    """Loads manifests. They never change, so those in the cache are right."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._cache: dict[int, Manifest] = {}

    async def load(self, batch: int) -> Manifest | None:
        """The manifest of a batch; None when there is none."""
        if batch in self._cache:
            return self._cache[batch]
        manifest = await read_manifest(self._store, batch)
        if manifest is None:
            return None
        self._cache[batch] = manifest
        for old in list(self._cache)[:-_CACHED]:
            del self._cache[old]
        return manifest

    async def require(self, batch: int) -> Manifest:
        """The manifest of a batch that exists. Raises Fatal when it is gone."""
        manifest = await self.load(batch)
        if manifest is None:
            raise Fatal(lost_history_message(batch, f"manifest {batch} is gone"))
        return manifest

    async def put_if_absent(self, manifest: Manifest) -> bool:
        """Write a manifest. False: another process wrote this batch."""
        return await self._store.put_if_absent(manifest_path(manifest.batch), manifest.to_json())

    def keep(self, manifest: Manifest) -> None:
        """Cache a manifest that this process wrote."""
        self._cache[manifest.batch] = manifest

    def forget(self, batch: int) -> None:
        """Take a manifest out of the cache: it may be large."""
        self._cache.pop(batch, None)


async def read_manifest(store: Store, batch: int) -> Manifest | None:
    """The manifest of a batch; None when there is none. Raises Fatal for one that cannot be read."""
    manifest_object = await store.get(manifest_path(batch))
    return None if manifest_object is None else Manifest.from_json(manifest_object[0])


def lost_history_message(batch: int, what: str) -> str:
    """What happened, and what to do, when the ledger or manifests were lost."""
    return (
        f"{what}: the ledger or the manifests after batch {batch} were lost or are an old copy. Stop all processes on "
        "this lake and put them back; if only the ledger is lost, rebuild it from the manifests with --adopt"
    )
