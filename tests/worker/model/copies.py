"""A copy of the lake of the model: adopted and used at once and past all faults, while the original goes on.

Its ledger is in the table of the original's, so what keeps the two apart is the id of the lake alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pcaplake.common.runtime import Runtime
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import CurrentIdentity, Identity, open_identity
from pcaplake.lake.lake import Lake
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.ledger import Ledger
from pcaplake.lake.records import Capture
from pcaplake.worker.admin.case import Case
from pcaplake.worker.admin.doctor.rebuild_ledger import rebuild_lake_ledger
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.model.captures import NUMBERS, SCHEMAS, rows
from tests.worker.model.processes import KNOBS, identity
from tests.worker.model.tables import JsonSink, Lakes, Tables

if TYPE_CHECKING:
    from tests.worker.model.world import World

OWN = "of the copy alone"


@dataclass(kw_only=True)
class Table:
    """Ledgers by the id of their lake."""

    ledgers: dict[str, MemoryLedger]
    kind: str = "memory"

    def ledger_name(self, lake: Identity) -> str:
        return "memory"

    async def open(self, lake: Identity, *, create: bool) -> Ledger:
        return self.ledgers.setdefault(lake.lake_id, MemoryLedger())


class Copy:
    """Everything that the lake of `world` has now, at another place."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.store = Lakes(world.now)
        self.store.uri, self.store.places = "s3://bucket/copy", {world.store.uri: world.store}
        self.store.objects.update(world.store.objects)
        self.store.versions.update({name: dict(known) for name, known in world.store.versions.items()})

    async def use(self) -> None:
        """AssertionError where a row is in it twice."""
        world, store = self._world, self.store
        place = Table(ledgers={identity(store).lake_id: world.ledger})
        await rebuild_lake_ledger(Case(store=store, place=place, lease_wait=0.0), adopt=True)
        ledger = place.ledgers[identity(store).lake_id]
        lake = Lake(
            LakeParts(
                store=store, log_store=LogStore(store, commit_timeout=0.0, runtime=Runtime(now=world.now)), ledger=ledger,
                current=CurrentIdentity(store, await open_identity(store, ledger), ledger),
            ),
            lake_config=KNOBS, schemas=SCHEMAS, sink=JsonSink,
        )  # fmt: skip
        lake.committer.flush_now = True
        window = lake.window()
        window.begin(Capture(capture_id=OWN, uri="file:///own", etag="e", size=1))
        for table in NUMBERS:
            window.write(table, rows(OWN, table))
        window.end()
        stage = window.close()
        assert stage is not None
        assert (await lake.stage(stage)).staged
        for _ in range(2):
            await lake.committer.run_turn()
        if await ledger.list_held_stages(lake._current.generation):
            return  # somebody has changed a column
        tables = Tables(list(NUMBERS), store, None, world.harms_rng, world.now)
        for table in set(NUMBERS) - lake.committer.blocked.keys():
            found = tables.rows(table)
            assert set(found.values()) == {1}, f"{table} of the copy: {found}"
            assert {number for name, number in found if name == OWN} == set(NUMBERS[table])
