"""Overwrites of the model's lake: by nothing yet, by some captures at once, or cut off before they begin."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.reference import capture_from_reference
from pcaplake.lake.identity import LAKE_JSON
from pcaplake.lake.ledger import STAGED, CaptureItem, StageItem
from pcaplake.lake.records import Manifest, Stage
from pcaplake.lake.staging.window import Window
from pcaplake.lake.store.store import ObjectMeta
from pcaplake.worker.service.notification import parse_notification
from tests.worker.model.captures import NAMES, SCHEMAS, rows, tables_of
from tests.worker.model.processes import KNOBS, identity
from tests.worker.model.tables import JsonSink

if TYPE_CHECKING:
    from tests.worker.model.world import World

MOST = 4  # in one schedule


class Overwrites:
    """`cut_off`: generations that are never the lake's. `recorded`: each is a process of its own, as it is in this version,
    which may die at any request; else all of it happens at once and leaves no record, as in versions before.
    """

    def __init__(self, world: World, seed: int, *, recorded: bool) -> None:
        self.cut_off: set[int] = set()
        self.recorded = recorded
        self._world, self._number = world, 0
        self._rng = random.Random(f"overwrites of {seed}")  # of its own: what is drawn here moves nothing else

    def happen(self) -> tuple[bytes, ObjectMeta] | None:
        """One more -> lake.json before it; None: there were enough."""
        if self._number >= MOST:
            return None
        world = self._world
        if self.recorded:
            self._run()
            return None
        before, lake = world.store.objects[LAKE_JSON], identity(world.store)
        self._number = number = max(lake.generation, lake.reserved, self._number) + 1
        usable = [one for one in world.captures.there if world.captures.key(one) in NAMES]
        names = [one for one in usable if self._rng.random() < 0.5]
        for one in names:
            self._stage(one, number)
        generation = number
        if names and self._rng.random() < 0.4:
            self.cut_off.add(number)
            generation = lake.generation
            world.schedule.tell("cut_off", "cut_off")
        world.store.put_past_faults(LAKE_JSON, replace(lake, reserved=number, generation=generation).to_json())
        return before

    def _run(self) -> None:
        world = self._world
        usable = [one for one in world.captures.there if world.captures.key(one) in NAMES]
        if usable:
            self._number += 1
            names = self._rng.sample(usable, self._rng.randint(1, len(usable)))
            world.processes.overwrite(lambda lake: self._written(lake.window(), names))

    def _stage(self, capture_id: str, generation: int) -> None:
        world = self._world
        window = Window(
            world.store, SCHEMAS, lake_config=KNOBS, generation=generation, decoder_version="1", sink=JsonSink,
            runtime=Runtime(rng=self._rng),
        )  # fmt: skip
        stage = self._written(window, [capture_id])
        shared, key = world.ledger.shared, (generation, stage.stage_id)
        shared.stages[key], shared.pending[key] = StageItem(stage=stage), None
        for one in stage.captures:
            shared.captures[generation, one.capture_id] = CaptureItem(
                capture=one, stage_id=stage.stage_id, state=STAGED
            )

    def _written(self, window: Window, capture_ids: Sequence[str]) -> Stage:
        captures = self._world.captures
        for capture_id in capture_ids:
            announced = map(capture_from_reference, parse_notification(captures.bodies[capture_id]).objects)
            window.begin(next(one for one in announced if one.capture_id == capture_id))
            for table in sorted(tables_of(captures.lines[capture_id])):
                window.write(table, rows(capture_id, table))
            window.end()
        stage = window.close()
        assert stage is not None
        return stage

    def _check_recorded(self, manifests: Sequence[Manifest]) -> None:
        """A generation begins with all that its overwrite has staged, and one that is the lake's begins."""
        world = self._world
        for one in manifests:
            wanted = world.processes.overwrites.get(one.generation, set())
            assert not one.opens or wanted <= {stage.stage_id for stage in one.stages}, (
                f"batch {one.batch} lacks {wanted}"
            )
            assert one.generation in world.store.generations, f"batch {one.batch}: the lake never had its generation"
        assert not manifests or manifests[-1].shown_generation == world.generation, (
            "an overwrite began, and nobody goes on with it"
        )

    def kept(self) -> set[str]:
        """Captures that the tables must have by the manifests: old rows stay until new ones come."""
        manifests = self._world.manifests(0)
        if self.recorded:
            self._check_recorded(manifests)
        used = {one.generation for one in manifests}
        assert not used & self.cut_off, f"a batch of an overwrite that was cut off: {used & self.cut_off}"
        shown = next((one.generation for one in reversed(manifests) if one.stages), 0)
        stages = (stage for one in manifests if one.generation == shown for stage in one.stages)
        return {each.capture_id for stage in stages for each in stage.captures}
