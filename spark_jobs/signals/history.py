"""The state of the signals job between runs: the definitions that frames were decoded with, and the position of the streams.

    _pcaplake/spark/signals/<generation>/state.json     bus -> id -> hash of the definitions; one job at a time writes it
    _pcaplake/spark/signals/<generation>/can, ...       checkpoints of the streams, one for each source

A changed definition is marked first; then its frames are decoded again; then the new definition is recorded. If a run is
killed in between, the next one repeats it. An overwritten lake (`ingest --mode overwrite`) has a new generation without state.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from pcaplake.signals.database import OTHERS
from pcaplake.signals.definitions import DefinitionChanges, DefinitionState
from pcaplake.signals.model import BUSLESS, Kind
from pcaplake.signals.sources import Source
from pcaplake.signals.tables import SOURCES
from pcaplake.spark_jobs.common.event_loop import run_request
from pcaplake.spark_jobs.common.sql import text_literal
from pcaplake.worker.errors import Fatal
from pcaplake.worker.lake.delta.log_store import LogStore
from pcaplake.worker.lake.store.store import ObjectMeta, Store
from pcaplake.worker.signals.state import FOLDER, LOCAL, SERVED_BY_LOCAL, read_format, read_generation


def build_sql_condition(
    changes: DefinitionChanges, sources: Collection[Source], columns: Mapping[Kind, str]
) -> str | None:
    """An SQL condition for the changed ids of these sources; None: no id changed. `columns`: FRAME_IDS or ROW_IDS."""
    parts: list[tuple[Kind, str, str]] = []
    for kind in SOURCES:
        for bus, numbers in changes.numbers_by_bus(kind).items() if kind in sources else ():
            parts.append((kind, bus, f"{columns[kind]} IN {_list(numbers)}"))
    for bus, groups in changes.groups_by_bus().items() if "can" in sources else ():
        parts += [("can", bus, f"(can_id & {mask}) IN {_list(bits)}") for mask, bits in groups.items()]
    conditions = [
        " AND ".join([*([where] if (where := _bus_condition(changes, kind, bus)) else []), of_ids])
        for kind, bus, of_ids in parts
    ]
    if "someip" in sources:
        methods = changes.methods_by_service().items()
        conditions += [f"service_id = {service} AND method_id IN {_list(ids)}" for service, ids in methods]
    return " OR ".join(f"({condition})" for condition in conditions) or None


def _list(numbers: Iterable[int]) -> str:
    return f"({', '.join(map(str, numbers))})"


def _bus_condition(changes: DefinitionChanges, kind: Kind, bus: str) -> str:
    if kind in BUSLESS:
        return ""
    if bus != OTHERS:
        return f"bus = {text_literal(bus)}"
    if not changes.named:
        return ""
    return f"(bus IS NULL OR bus NOT IN ({', '.join(map(text_literal, changes.named))}))"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """The position of a stream: it has read all versions below `version`, and, if `partly`, a part of that version."""

    version: int
    partly: bool


class StateFolder:
    """The state folder of one lake and generation."""

    def __init__(self, store: Store, generation: int) -> None:
        self._store, self.generation = store, generation
        self.folder = f"{FOLDER}/{generation}"
        self._seen: ObjectMeta | None = None

    @classmethod
    def open(cls, lake: str, storage: Mapping[str, str] | None = None) -> StateFolder:
        """The folder of the generation that the tables hold now. Raises `Fatal` and `Retryable` as the store does."""
        store = Store.open(lake, storage)
        return cls(store, _read_generation(store))

    def load_state(self) -> DefinitionState | None:
        """Read the state; None: nothing is decoded yet."""
        state_object = run_request(lambda: self._store.get(f"{self.folder}/state.json"))
        self._seen = None if state_object is None else state_object[1]
        if state_object is None:
            return None
        try:
            if read_format(state_object[0]) == LOCAL:
                raise Fatal(SERVED_BY_LOCAL.format(folder=self.folder))
            return DefinitionState.from_json(state_object[0])
        except ValueError as error:
            raise Fatal(
                f"the state of the signals job cannot be read ({error}): restore state.json, or delete the folder "
                f"{FOLDER} of the lake with its checkpoints, and the next run decodes all frames again"
            ) from error

    def save_state(self, state: DefinitionState) -> None:
        """Write the state. Raises `Fatal` if another job has written it since `load_state`."""
        path, data = f"{self.folder}/state.json", state.to_json()
        seen = self._seen
        if seen is None:
            done = run_request(lambda: self._store.put_if_absent(path, data))
        else:
            done = run_request(lambda: self._store.replace(path, data, seen))
        if not done:
            raise Fatal(
                "another signals job is changing the definitions of this lake: wait until it ends, then run this again"
            )
        self.load_state()

    def checkpoint_folder(self, source: Source) -> str:
        """The folder of a stream's checkpoint, below the lake."""
        return f"{self.folder}/{source}"

    def read_query_id(self, source: Source) -> str | None:
        """Spark's id of the stream, which lives as long as its checkpoint; None: the stream has never run."""
        metadata_object = run_request(lambda: self._store.get(f"{self.checkpoint_folder(source)}/metadata"))
        return None if metadata_object is None else str(json.loads(metadata_object[0])["id"])

    def read_position(self, source: Source) -> StreamPosition | None:
        """The position after the last finished batch; None: no batch is finished."""
        done = run_request(lambda: self._store.list(f"{self.checkpoint_folder(source)}/commits"))
        numbers = [int(name) for entry in done if (name := entry.path.rpartition("/")[2]).isdigit()]
        if not numbers:
            return None
        path = f"{self.checkpoint_folder(source)}/offsets/{max(numbers)}"
        offset_object = run_request(lambda: self._store.get(path))
        if offset_object is None:
            raise Fatal(
                f"{path} is missing, so the checkpoint is damaged: delete its folder, and the next run decodes all frames again"
            )
        offset = json.loads(offset_object[0].decode().splitlines()[-1])
        return StreamPosition(version=int(offset["reservoirVersion"]), partly=int(offset["index"]) >= 0)


def _read_generation(store: Store) -> int:
    return run_request(lambda: read_generation(store, LogStore(store)))
