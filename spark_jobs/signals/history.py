"""The state of the signals job between runs: the definitions that frames were decoded with, and the position of the streams.

    _pcaplake/spark/signals/<generation>/state.json     bus -> id -> hash of the definitions; one job at a time writes it
    _pcaplake/spark/signals/<generation>/can, ...       checkpoints of the streams, one for each source

A changed definition is marked first; then its frames are decoded again; then the new definition is recorded. If a run is
killed in between, the next one repeats it. An overwritten lake (`ingest --mode overwrite`) has a new generation without state.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pcaplake.signals.database import OTHERS
from pcaplake.signals.definitions import DefinitionChanges, DefinitionState
from pcaplake.signals.model import BUSLESS, CAN_CARRIERS, Kind
from pcaplake.signals.sources import ROWS_SQL, Source
from pcaplake.signals.tables import FRAME_IDS, ROW_IDS
from pcaplake.spark_jobs.common.event_loop import run_request
from pcaplake.spark_jobs.common.sql import text_literal
from pcaplake.worker.errors import Fatal
from pcaplake.worker.lake.delta.log_store import LogStore
from pcaplake.worker.lake.signal_tables import FOLDER, LOCAL, read_format, state_folder
from pcaplake.worker.lake.store.store import ObjectMeta, Store
from pcaplake.worker.signals.state import SERVED_BY_LOCAL, read_generation


def of_changed_frames(changes: DefinitionChanges, source: Source) -> str | None:
    """An SQL condition: the frames of a source whose definitions changed; None: no definition changed."""
    return _of_methods(changes) if source == "someip" else _of_ids(changes, source, FRAME_IDS[source])


def of_changed_rows(changes: DefinitionChanges, sources: Iterable[Source]) -> str | None:
    """An SQL condition: the rows of `signals` that those frames of these sources have."""
    parts = []
    for source in sources:
        rows = _of_methods(changes) if source == "someip" else _of_ids(changes, source, ROW_IDS[source])
        # rows of `can` and `j1939` share `can_id`
        parts += [] if rows is None else [f"{ROWS_SQL[source]} AND ({rows})"]
    return _any(parts)


def _of_ids(changes: DefinitionChanges, kind: Kind, column: str) -> str | None:
    parts = [(bus, f"{column} IN {_list(numbers)}") for bus, numbers in changes.numbers_by_bus(kind).items()]
    for bus, groups in changes.groups_by_bus(column).items() if kind in CAN_CARRIERS else ():
        parts += [(bus, f"({column} & {mask}) IN {_list(bits)}") for mask, bits in groups.items()]
    return _any(_bus_condition(changes, kind, bus) + of_ids for bus, of_ids in parts)


def _of_methods(changes: DefinitionChanges) -> str | None:
    services = changes.methods_by_service().items()
    return _any(f"service_id = {service} AND method_id IN {_list(methods)}" for service, methods in services)


def _any(conditions: Iterable[str]) -> str | None:
    return " OR ".join(f"({condition})" for condition in conditions) or None


def _list(values: Iterable[object]) -> str:
    return f"({', '.join(map(str, values))})"


def _bus_condition(changes: DefinitionChanges, kind: Kind, bus: str) -> str:
    if kind in BUSLESS:
        return ""
    if bus != OTHERS:
        return f"bus = {text_literal(bus)} AND "
    if not changes.named:
        return ""
    return f"(bus IS NULL OR bus NOT IN {_list(map(text_literal, changes.named))}) AND "


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPosition:
    """The position of a stream: it has read all versions below `version`, and, if `partly`, a part of that version."""

    version: int
    partly: bool


class StateFolder:
    """The state folder of one lake and generation."""

    def __init__(self, store: Store, generation: int) -> None:
        self._store, self.generation = store, generation
        self.folder = state_folder(generation)
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
