"""What every program follows that swaps rows of captures for newly decoded ones: `ingest --reread`, and Spark's `replace`.

A run notes the captures before it swaps them, in a folder of its own. One transaction in each table then removes their old
rows and adds the new ones, `captures` last. The note is deleted after that, so a note names captures that a killed run may
have swapped in some tables only: the next run decodes them again, whatever `captures` says.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping
from typing import Final

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import read_identity
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES

from .overwrite import OPENED, opening_transaction

FOLDER: Final = "_pcaplake/spark/replace"
_NOTE: Final = "captures.json"  # in a run's folder: the captures that it swaps
_LEFT_SECONDS: Final = 86_400.0  # age after which files of a killed run are deleted


class SwapFence:
    """Allows swaps only while the lake has the generation whose captures were chosen, and while no other run swaps rows.

    Each swap writes a `txn` of one application with a higher version than the table has; the batch that opens another
    generation writes a far higher one. So a swap that begins after the opening is refused, and a swap that began before
    conflicts with it. The table is read before lake.json, which names a generation before any table has it.
    """

    def __init__(self, store: Store, log_store: LogStore, generation: int) -> None:
        self._store, self._log, self._generation = store, log_store, generation
        self._begun: dict[str, int] = {}

    async def begin(self) -> None:
        """Remember the swaps that each table has. Call it before the captures of these swaps are noted.

        Raises Fatal if a table is missing: the swap would create it, and the committer could not tell which batches it has.
        """
        for table in TABLES:
            if await self._log.read_version(table) < 0:
                raise Fatal(
                    f"the table {table} does not exist. If it was dropped, restore it, or accept the loss with "
                    f"`pcaplake doctor --repair --accept-loss {table} --yes`; if it is new in this version, start a worker. "
                    "Then run this again"
                )
            self._begun[table] = await self._log.read_transaction(table, OPENED)

    async def next_version(self, table: str) -> int:
        """The `txn` version of the next swap, random to differ from other runs'.

        Raises Fatal if the lake was overwritten, Retryable if another run has swapped rows of the table.
        """
        newest = await self._log.read_transaction(table, OPENED)
        await self._require_same_generation(table)
        # else a table could have rows of one run, and `captures` those of the other
        if newest != self._begun[table]:
            raise _conflict_with_other_run(table)
        return max(newest, opening_transaction(self._generation).version) + random.randint(1, 1 << 16)

    async def is_empty(self, table: str) -> bool:
        """Whether a table has no files, and so no rows to swap."""
        snapshot = await self._log.read_snapshot(table)
        return snapshot is None or not snapshot.files.live

    async def verify(self, table: str, version: int) -> None:
        """Check that the swap was written. Raises as `next_version` if an overwrite or another run came first."""
        if await self._log.read_transaction(table, OPENED) != version:
            await self._require_same_generation(table)
            raise _conflict_with_other_run(table)

    async def _require_same_generation(self, table: str) -> None:
        identity = await read_identity(self._store)
        if identity is None or identity[0].generation != self._generation:
            raise Fatal(
                f"the lake was overwritten while captures were replaced: {table} is unchanged, and rows that were swapped in "
                "other tables went with the old rows. Run it again on the lake as it is now"
            )


def _conflict_with_other_run(table: str) -> Retryable:
    return Retryable(
        f"{table}: another run replaces captures at the same time: wait until it ends, then run this again"
    )


async def write_note(store: Store, folder: str, capture_ids: Collection[str], generation: int) -> None:
    """Note the captures of a generation that the run of a folder begins to swap."""
    note = {"generation": generation, "captures": sorted(capture_ids)}
    await store.put(f"{folder}/{_NOTE}", json.dumps(note).encode())


async def read_notes(store: Store, generation: int) -> dict[str, frozenset[str]]:
    """Notes of killed and of running swaps: path -> captures. An overwrite has removed the rows of older generations."""
    return {path: captures for path, (noted, captures) in (await _read_all_notes(store)).items() if noted == generation}


async def _read_all_notes(store: Store) -> dict[str, tuple[int, frozenset[str]]]:
    notes = {}
    for entry in await store.list(FOLDER):
        if entry.path.endswith(f"/{_NOTE}") and (read := await store.get(entry.path)) is not None:
            note = json.loads(read[0])
            notes[entry.path] = (note["generation"], frozenset(note["captures"]))
    return notes


async def settle_notes(
    store: Store, notes: Mapping[str, frozenset[str]], done: Collection[str]
) -> dict[str, frozenset[str]]:
    """Delete the notes of killed runs whose captures are all done. Returns the others, without the captures that are done."""
    left = {path: begun.difference(done) for path, begun in notes.items()}
    for path in [path for path, begun in left.items() if not begun]:
        await store.delete(path)
    return {path: begun for path, begun in left.items() if begun}


async def delete_run_folder(store: Store, folder: str) -> None:
    """Delete the folder of a run, with its note."""
    for entry in await store.list(folder):
        await store.delete(entry.path)


async def delete_outdated_notes(store: Store, generation: int) -> None:
    """Delete the notes of killed runs whose rows an overwrite has removed since."""
    for path, (noted, _) in (await _read_all_notes(store)).items():
        if noted < generation:
            await store.delete(path)


async def delete_stale_files(store: Store, clock: Callable[[], float]) -> None:
    """Delete old files of killed runs, but keep their notes. `clock`: epoch seconds."""
    for entry in await store.list(FOLDER):
        if clock() - entry.last_modified.timestamp() > _LEFT_SECONDS and not entry.path.endswith(f"/{_NOTE}"):
            await store.delete(entry.path)
