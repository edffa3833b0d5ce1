"""A rollout in the model: other settings, and perhaps a newer version of the formats, for every process that starts.

A newer version knows fields that this one does not: they are in the stages and captures that its processes hand over,
in the manifests that they put, and in lake.json. Whoever does not know them must keep them where it writes again.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pcaplake.lake.config import LakeConfig
from pcaplake.lake.identity import LAKE_JSON
from pcaplake.lake.records import Stage, manifest_path
from pcaplake.lake.store.store import ObjectMeta
from tests.worker.model.tables import Lakes

if TYPE_CHECKING:
    from tests.worker.model.world import World

FIELD = "of_a_newer_version"
_BATCHES = manifest_path(0).rpartition("/")[0] + "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What the processes of one revision have in common. `newer`: they write a field that others do not know."""

    number: int
    lake_config: LakeConfig
    newer: bool = False


class Rollouts:
    """`release`: of the processes that start from now on."""

    def __init__(self, world: World, seed: int, first: LakeConfig) -> None:
        self.release = Release(number=0, lake_config=first)
        self._world, self._rng = world, random.Random(f"rollouts of {seed}")  # of its own: moves nothing else
        self._marked = False

    def begin(self) -> None:
        """A rollout or a rollback; `Processes.tend` replaces one process after the other."""
        rng, world = self._rng, self._world
        lake_config = replace(
            self.release.lake_config,
            target_file_size=rng.choice([100, 200, 10_000]),
            flush_interval=rng.choice([0.5, 3.0, 6.0]),
            max_batch_adds=rng.choice([1, 3, 5_000]),
            max_batch_age=rng.choice([1.0, 4.0, 8.0]),
        )
        self.release = Release(number=self.release.number + 1, lake_config=lake_config, newer=rng.random() < 0.5)
        if self.release.newer:
            data, _ = world.store.objects[LAKE_JSON]
            world.store.put_past_faults(LAKE_JSON, with_field(data))
            self._marked = True

    def check(self) -> None:
        """What only the newer version knows is still there."""
        if self._marked:
            assert FIELD in json.loads(self._world.store.objects[LAKE_JSON][0]), "lake.json has lost a field"
        for stage in (stage for one in self._world.manifests(0) for stage in (*one.stages, *one.returned)):
            newer = FIELD in stage.unknown
            assert all((FIELD in one.unknown) == newer for one in stage.captures), f"{stage} has lost fields"
            assert newer or stage.stage_id not in self._world.processes.newer_stages, f"{stage} has lost a field"


class NewerLakes(Lakes):
    """The lake as a process of the newer version writes it."""

    def put_past_faults(self, path: str, data: bytes) -> ObjectMeta:
        return super().put_past_faults(path, with_field(data) if path.startswith(_BATCHES) else data)


def with_field(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), FIELD: {"a": [1]}}).encode()


def newer_stage(stage: Stage) -> Stage:
    """The stage as the newer version hands it over."""
    captures = tuple(replace(one, unknown={**one.unknown, FIELD: 1}) for one in stage.captures)
    return replace(stage, captures=captures, unknown={**stage.unknown, FIELD: "x"})
