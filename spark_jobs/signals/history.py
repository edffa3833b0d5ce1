"""The state of the signals job between runs: the definitions that frames were decoded with, and the position of the streams.

    _pcaplake/spark/signals/<generation>/state.json     bus -> id -> hash of the definitions; one job at a time writes it
    _pcaplake/spark/signals/<generation>/can, .../lin   checkpoints of the streams

A changed definition is marked first; then its frames are decoded again; then the new definition is recorded. If a run is
killed in between, the next one repeats it. An overwritten lake (`ingest --mode overwrite`) has a new generation without state.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from pcaplake.spark_jobs.common.event_loop import run_request
from pcaplake.spark_jobs.common.sql import text_literal
from pcaplake.worker.errors import Fatal
from pcaplake.worker.lake.identity import read_identity
from pcaplake.worker.lake.records import Manifest, manifest_path
from pcaplake.worker.lake.store.store import ObjectMeta, Store

from .database import OTHERS, Databases
from .frames import messages_named
from .model import Kind
from .tables import SOURCES

FOLDER: Final = "_pcaplake/spark/signals"
PENDING: Final = "pending"
APP_ID: Final = "pcaplake"  # the application id of the committer's txn, whose versions are batch numbers
_T = TypeVar("_T")
Ids: TypeAlias = Mapping[tuple[Kind, int], str]
"""(kind, id) -> hash of all definitions of that id on one bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionState:
    """`buses`: named buses and OTHERS -> hashes by id. `wide`: message -> hash of the definitions of its table."""

    buses: Mapping[str, Ids] = field(default_factory=dict)
    wide: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_databases(cls, databases: Databases, wide: Iterable[str] = ()) -> DefinitionState:
        """The state when all frames are decoded with these databases."""
        buses: dict[str, Ids] = {}
        for bus in {*databases.named_buses, OTHERS}:
            network = databases.network_of_bus(None if bus == OTHERS else bus)
            hashes: dict[tuple[Kind, int], str] = {}
            for (kind, number, extended), message in sorted(network.messages.items() if network else ()):
                hashes[kind, number] = f"{hashes.get((kind, number), '')}{extended:d}{message.definition_hash}"
            buses[bus] = hashes
        return cls(
            buses=buses,
            wide={
                name: "".join(sorted(definition.definition_hash for definition in messages_named(databases, name)))
                for name in wide
            },
        )

    def hashes_of_bus(self, bus: str) -> Ids:
        return self.buses.get(bus, self.buses.get(OTHERS, {}))

    def find_changes(self, new: DefinitionState) -> DefinitionChanges:
        """The definitions whose older frames must be decoded again to reach the state `new`."""
        named = sorted({*self.buses, *new.buses} - {OTHERS})
        ids = {}
        for bus in (*named, OTHERS):
            before, after = self.hashes_of_bus(bus), new.hashes_of_bus(bus)
            ids[bus] = frozenset(key for key in {*before, *after} if before.get(key) != after.get(key))
        return DefinitionChanges(
            named=tuple(named),
            ids={bus: keys for bus, keys in ids.items() if keys},
            wide=tuple(sorted(name for name, text in new.wide.items() if self.wide.get(name) != text)),
        )

    def with_pending_changes(self, changes: DefinitionChanges) -> DefinitionState:
        """The state with all changed definitions marked as pending."""
        buses = {bus: dict(self.hashes_of_bus(bus)) for bus in {*self.buses, *changes.ids, OTHERS}}
        for bus, keys in changes.ids.items():
            buses[bus] |= dict.fromkeys(keys, PENDING)
        return DefinitionState(buses=buses, wide={**self.wide, **dict.fromkeys(changes.wide, PENDING)})

    def to_json(self) -> bytes:
        buses = {
            bus: {f"{kind}:{number}": text for (kind, number), text in ids.items()} for bus, ids in self.buses.items()
        }
        return json.dumps({"format": 1, "buses": buses, "wide": dict(self.wide)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> DefinitionState:
        try:
            content = json.loads(data)
            if content["format"] != 1:
                raise ValueError(f"format {content['format']}")
            return cls(
                buses={bus: dict(map(_parse_definition_key, ids.items())) for bus, ids in content["buses"].items()},
                wide=content["wide"],
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Fatal(
                f"the state of the signals job cannot be read ({error!r}): restore state.json, or delete the folder "
                f"{FOLDER} of the lake with its checkpoints, and the next run decodes all frames again"
            ) from error


def _parse_definition_key(item: tuple[str, str]) -> tuple[tuple[Kind, int], str]:
    name, _, number = item[0].partition(":")
    kind: Kind = "can" if name == "can" else "lin"
    if name != kind:
        raise ValueError(item[0])
    return (kind, int(number)), item[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionChanges:
    """`named`: buses in the old or new definitions. `ids`: ids to decode again, by bus. `wide`: tables to write again."""

    named: tuple[str, ...]
    ids: Mapping[str, Collection[tuple[Kind, int]]]
    wide: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.ids or self.wide)

    @property
    def message_count(self) -> int:
        return sum(len(keys) for keys in self.ids.values())

    def to_sql_condition(self, kinds: Collection[Kind]) -> str | None:
        """An SQL condition on frames, and on rows of `signals`, for the changed ids; None: no id changed."""
        parts = []
        for bus, keys in sorted(self.ids.items()):
            for kind in sorted(kinds):
                numbers = sorted(number for key_kind, number in keys if key_kind == kind)
                if numbers:
                    of_kind = f"{kind}_id IN ({', '.join(map(str, numbers))})"
                    parts.append(" AND ".join([*([where] if (where := self._bus_condition(bus)) else []), of_kind]))
        return " OR ".join(f"({part})" for part in parts) or None

    def _bus_condition(self, bus: str) -> str:
        if bus != OTHERS:
            return f"bus = {text_literal(bus)}"
        return f"(bus IS NULL OR bus NOT IN ({', '.join(map(text_literal, self.named))}))" if self.named else ""


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
        return cls(store, read_generation(store))

    def load_state(self) -> DefinitionState | None:
        """Read the state; None: nothing is decoded yet."""
        state_object = run_request(lambda: self._store.get(f"{self.folder}/state.json"))
        self._seen = None if state_object is None else state_object[1]
        return None if state_object is None else DefinitionState.from_json(state_object[0])

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

    def checkpoint_folder(self, kind: Kind) -> str:
        """The folder of a stream's checkpoint, below the lake."""
        return f"{self.folder}/{kind}"

    def read_query_id(self, kind: Kind) -> str | None:
        """Spark's id of the stream, which lives as long as its checkpoint; None: the stream has never run."""
        metadata_object = run_request(lambda: self._store.get(f"{self.checkpoint_folder(kind)}/metadata"))
        return None if metadata_object is None else str(json.loads(metadata_object[0])["id"])

    def read_position(self, kind: Kind) -> StreamPosition | None:
        """The position after the last finished batch; None: no batch is finished."""
        done = run_request(lambda: self._store.list(f"{self.checkpoint_folder(kind)}/commits"))
        numbers = [int(name) for entry in done if (name := entry.path.rpartition("/")[2]).isdigit()]
        if not numbers:
            return None
        path = f"{self.checkpoint_folder(kind)}/offsets/{max(numbers)}"
        offset_object = run_request(lambda: self._store.get(path))
        if offset_object is None:
            raise Fatal(
                f"{path} is missing, so the checkpoint is damaged: delete its folder, and the next run decodes all frames again"
            )
        offset = json.loads(offset_object[0].decode().splitlines()[-1])
        return StreamPosition(version=int(offset["reservoirVersion"]), partly=int(offset["index"]) >= 0)


def read_generation(store: Store) -> int:
    """The generation that the tables of frames hold now; 0 if no worker has written yet."""
    lake_identity = run_request(lambda: read_identity(store))
    if lake_identity is None or lake_identity[0].generation == 0:
        return 0
    return min((_table_generation(store, table) for table in SOURCES.values()), default=0)


def _table_generation(store: Store, table: str) -> int:
    try:
        read = DeltaTable(store.external_location(table), storage_options=store.current_options() or None)
        batches = read.transaction_version(APP_ID)
    except TableNotFoundError:
        return 0
    if batches is None:
        return 0
    manifest_object = run_request(lambda: store.get(manifest_path(batches)))
    return 0 if manifest_object is None else Manifest.from_json(manifest_object[0]).generation
