"""One random schedule from its beginning to its end, and what must hold then.

Processes work while the world is unkind. Then everything is healed and runs until nothing is left to do: what was
promised was kept before anybody announced anything again, and when all that was lost on the way has been announced
again, every capture that there is is in each of its tables once, and the next one comes in as if nothing had been.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Collection

from pcaplake.common.runtime import Runtime
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.identity import open_identity
from pcaplake.lake.ledger import COMMITTED
from pcaplake.lake.records import manifest_path
from tests.worker.model.captures import NUMBERS, SCHEMAS, captures_of, owed
from tests.worker.model.world import World

PATIENCE = 200.0  # seconds until everything that was left is done
HISTORY = 60  # lines


class Story:
    def __init__(self, world: World) -> None:
        self.world = world

    async def told(self) -> None:
        """AssertionError, or whatever ended a process."""
        world = self.world
        log_store = LogStore(world.store, lock_table=world.lock_table, runtime=Runtime(now=world.now, rng=world.rng))
        await open_identity(world.store, world.ledger)
        for table, schema in SCHEMAS.items():
            await log_store.create(table, schema, partition_columns=("date",))
        world.queue.put_message("what is this?" if world.redrives else json.dumps({"Event": "s3:TestEvent"}))
        await self._work()
        await self._heal()
        await self._quiet()
        kept = {one for one, generation in world.promises.kept.items() if generation == world.generation}
        self._check(kept - self._dead_letters())
        for _ in range(3):
            if self._dead_letters():
                world.queue.redrive_dead_letters()
                await self._quiet()
        assert not self._dead_letters(), "there are dead letters for no reason"
        world.reconcile()
        await self._quiet()
        self._check(world.captures.there)
        world.queue.put_message(world.captures.put("next"))
        await self._quiet()
        self._check(world.captures.there)
        for table in NUMBERS:
            await log_store.clean(table)
        assert not world.tables.incomplete()
        if world.rollouts is not None:
            world.rollouts.check()

    async def _work(self) -> None:
        world, rng, rng_harms = self.world, self.world.rng, self.world.harms_rng
        for _ in range(rng.randint(4, 24)):  # of two seconds: long enough for leaders and their batches
            if world.restored and rng.random() < 0.5:  # meanwhile, who only stages goes on with what the copy knows
                await world.rebuild()
            if rng_harms.random() < 0.15:
                world.put_back_what_was_harmed()
            await world.use_copy()
            world.harm()
            if not world.restored and rng.random() < 0.7:
                world.processes.tend()
            for _ in range(rng.choice([1, 1, 4])):
                if len(world.captures.bodies) < 5 or rng.random() < 0.1:
                    world.upload()
            await asyncio.sleep(rng.random() * 4.0)

    async def _heal(self) -> None:
        """No fault any more; what was in flight lands, what somebody did to the lake is undone."""
        world = self.world
        world.schedule.calm = True
        world.loop.thaw(*list(world.loop.frozen))
        world.forget()
        world.schedule.land()
        if world.restored:
            await world.rebuild()
        world.put_back_what_was_harmed()
        await world.use_copy()
        world.tables.mend()
        for message in world.queue._messages.values():
            message.visible_at = world.loop.now
        if world.rng.random() < 0.7:
            world.processes.restart()
        else:
            world.processes.spawn("all")

    async def _quiet(self) -> None:
        """Until nobody has anything left to do.

        Whoever saw a column changed holds what does not fit, and does not write to the table again before it is started
        again: so it is here, once.
        """
        world = self.world
        for _ in range(2):
            patience = world.loop.now + PATIENCE
            while (why := self._busy()) and world.loop.now < patience:
                world.put_back()
                await asyncio.sleep(0.2)
            world.put_back()
            if not why and self._held() <= world.captures.odd:
                return
            if not world.retypes and "leader" in world.strict:
                break
            world.processes.restart()
            await asyncio.sleep(10.0)
        raise AssertionError(f"it does not come to rest: {why or self._held()}")

    def _busy(self) -> str:
        """What is left to do."""
        world, shared = self.world, self.world.ledger.shared
        if len(world.queue) or any(service.messages_in_flight for _, service in world.processes.alive.values()):
            return f"{len(world.queue)} messages"
        if world.processes.overwriting:
            return "an overwrite"
        if waiting := [key for key in shared.pending if key[0] == world.generation]:
            return f"pending: {waiting}"
        if manifest_path(shared.head + 1) in world.store.objects:
            return f"head is {shared.head}"
        return ""

    def _held(self) -> set[str]:
        """Captures that wait until somebody changes a table or their rows."""
        world = self.world
        stages = [
            world.ledger.shared.stages[key].stage for key in world.ledger.shared.held if key[0] == world.generation
        ]
        return {each.capture_id for stage in stages if stage is not None for each in stage.captures}

    def _dead_letters(self) -> set[str]:
        """Captures that dead letters are about, but for those that nobody can read any more."""
        gone = self.world.captures.uncertain
        return {one for body in self.world.queue.dead if not owed(body) & gone for one in captures_of(body)}

    def _check(self, due: Collection[str]) -> None:
        """Every row once, every capture whole or not at all, and those that are due; the ledger knows of all."""
        world, captures = self.world, self.world.captures
        rows = {table: world.tables.rows(table) for table in NUMBERS}
        for table, found in rows.items():
            assert max(found.values(), default=0) <= 1, f"{table}: twice {[key for key, n in found.items() if n > 1]}"
        present = {one for found in rows.values() for one, _ in found}
        known = {one for (_, one), item in world.ledger.shared.captures.items() if item.state == COMMITTED}
        for one in sorted(present):
            name = captures.key(one)
            for table, found in rows.items():
                have, want = {number for other, number in found if other == one}, captures.numbers(one, table)
                assert have == want, f"{table} has {have} of {name}, not {want}"
            assert one in known, f"{name} is in the tables, and the ledger does not know"
        assert not present & captures.odd
        owed = {one for generation, one in world.owed if generation == world.generation}
        due = world.overwrites.kept().union(due)
        missing = (due - captures.uncertain | owed) - present - captures.odd
        assert not missing, f"lost: {sorted(map(captures.key, missing))}"
        head = world.ledger.shared.head
        assert head < 0 or manifest_path(head) in world.store.objects


def survive(seed: int, strict: Collection[str] = ()) -> Counter[str]:
    """One schedule -> what happened in it, and how often. AssertionError with the seed, and what led to it."""
    world = World(seed, strict)
    try:
        world.schedule.run(Story(world).told())
    except Exception as error:
        raise AssertionError(f"seed {seed}: {error!r}\n" + "\n".join(world.schedule.history[-HISTORY:])) from error
    return world.schedule.counts + Counter(batches=world.ledger.shared.head + 1, picks=world.schedule.picks)
