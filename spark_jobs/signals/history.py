"""What the job remembers of a lake between runs: with which definitions its history is decoded, and how far it read.

    _pcaplake/spark/signals/<generation>/state.json     bus -> id -> hash of the definitions; one job at a time writes it
    _pcaplake/spark/signals/<generation>/can, .../lin   checkpoints of the streams

A definition that changed is marked first, decoded again over all history then, and noted last: whoever is killed in
between does it once more. A lake that was overwritten (`ingest --mode overwrite`) is a new generation: everything begins anew.

Knows the lake's folders through the worker's store, and what a Delta source writes into a checkpoint. Must not know
Spark sessions nor frames.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from worker.errors import Fatal
from worker.lake.identity import read_identity
from worker.lake.manifest import Manifest, manifest_path
from worker.lake.store import Store

from .database import OTHERS, Databases
from .frames import messages_of
from .model import Kind
from .tables import SOURCES

FOLDER: Final = "_pcaplake/spark/signals"
PENDING: Final = "pending"
APP_ID: Final = "pcaplake"  # whose transactions in a table carry the numbers of batches
_T = TypeVar("_T")
Ids: TypeAlias = Mapping[tuple[Kind, int], str]
"""(kind, id) -> hash of all definitions of that id on one bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """`buses`: those with ids of their own, and OTHERS. `wide`: message -> hash of what its own table holds."""

    buses: Mapping[str, Ids] = field(default_factory=dict)
    wide: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, databases: Databases, wide: Iterable[str] = ()) -> State:
        """What history is decoded with once all of it is decoded with these."""
        buses: dict[str, Ids] = {}
        for bus in {*databases.named, OTHERS}:
            network = databases.at(None if bus == OTHERS else bus)
            hashes: dict[tuple[Kind, int], str] = {}
            for (kind, number, extended), message in sorted(network.messages.items() if network else ()):
                hashes[kind, number] = f"{hashes.get((kind, number), '')}{extended:d}{message.hash}"
            buses[bus] = hashes
        return cls(
            buses=buses,
            wide={name: "".join(sorted(one.hash for one in messages_of(databases, name))) for name in wide},
        )

    def at(self, bus: str) -> Ids:
        return self.buses.get(bus, self.buses.get(OTHERS, {}))

    def changed(self, new: State) -> Changes:
        """What history must be decoded again of, to be as `new` says."""
        named = sorted({*self.buses, *new.buses} - {OTHERS})
        ids = {}
        for bus in (*named, OTHERS):
            before, after = self.at(bus), new.at(bus)
            ids[bus] = frozenset(key for key in {*before, *after} if before.get(key) != after.get(key))
        return Changes(
            named=tuple(named),
            ids={bus: keys for bus, keys in ids.items() if keys},
            wide=tuple(sorted(name for name, text in new.wide.items() if self.wide.get(name) != text)),
        )

    def marked(self, changes: Changes) -> State:
        """With what changes as neither the old nor the new."""
        buses = {bus: dict(self.at(bus)) for bus in {*self.buses, *changes.ids, OTHERS}}
        for bus, keys in changes.ids.items():
            buses[bus] |= dict.fromkeys(keys, PENDING)
        return State(buses=buses, wide={**self.wide, **dict.fromkeys(changes.wide, PENDING)})

    def to_json(self) -> bytes:
        buses = {
            bus: {f"{kind}:{number}": text for (kind, number), text in ids.items()} for bus, ids in self.buses.items()
        }
        return json.dumps({"format": 1, "buses": buses, "wide": dict(self.wide)}, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> State:
        try:
            said = json.loads(data)
            if said["format"] != 1:
                raise ValueError(f"format {said['format']}")
            return cls(
                buses={bus: dict(map(_key, ids.items())) for bus, ids in said["buses"].items()}, wide=said["wide"]
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Fatal(
                f"the state of the signals cannot be read ({error!r}): put back what was there, or delete the folder "
                f"{FOLDER} of the lake with all its checkpoints, then everything is decoded anew"
            ) from error


def _key(item: tuple[str, str]) -> tuple[tuple[Kind, int], str]:
    name, _, number = item[0].partition(":")
    kind: Kind = "can" if name == "can" else "lin"
    if name != kind:
        raise ValueError(item[0])
    return (kind, int(number)), item[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """`named`: buses that the old or the new definitions name. `ids`: by bus, those to decode again. `wide`: tables."""

    named: tuple[str, ...]
    ids: Mapping[str, Collection[tuple[Kind, int]]]
    wide: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.ids or self.wide)

    @property
    def messages(self) -> int:
        return sum(len(keys) for keys in self.ids.values())

    def predicate(self, kinds: Collection[Kind]) -> str | None:
        """Spark SQL that holds for the frames, and for the rows of `signals`, of these ids; None: there are none."""
        parts = []
        for bus, keys in sorted(self.ids.items()):
            for kind in sorted(kinds):
                numbers = sorted(number for one, number in keys if one == kind)
                if numbers:
                    of_kind = f"{kind}_id IN ({', '.join(map(str, numbers))})"
                    parts.append(" AND ".join([*([where] if (where := self._bus(bus)) else []), of_kind]))
        return " OR ".join(f"({part})" for part in parts) or None

    def _bus(self, bus: str) -> str:
        if bus != OTHERS:
            return f"bus = {literal(bus)}"
        return f"(bus IS NULL OR bus NOT IN ({', '.join(map(literal, self.named))}))" if self.named else ""


def literal(text: str) -> str:
    """A text in Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far a stream has read: all of the versions below `version`, and `partly` something of that one."""

    version: int
    partly: bool


class Memory:
    """The folder of one lake and generation."""

    def __init__(self, store: Store, generation: int) -> None:
        self._store, self.generation = store, generation
        self.folder = f"{FOLDER}/{generation}"
        self._etag: str | None = None

    @classmethod
    def open(cls, lake: str, storage: Mapping[str, str] | None = None) -> Memory:
        """Of the generation that the tables are in now. Fatal, Retryable as the store raises them."""
        store = Store.open(lake, storage)
        return cls(store, generation(store))

    def load(self) -> State | None:
        """None: nothing was ever decoded here."""
        found = settle(lambda: self._store.get(f"{self.folder}/state.json"))
        self._etag = None if found is None else found[1].etag or ""
        return None if found is None else State.from_json(found[0])

    def save(self, state: State) -> None:
        """Fatal when somebody else has written since `load`."""
        path, data = f"{self.folder}/state.json", state.to_json()
        if self._etag is None:
            done = settle(lambda: self._store.put_if_absent(path, data))
        else:
            etag = self._etag
            done = settle(lambda: self._store.replace(path, data, etag))
        if not done:
            raise Fatal(
                "another signals job changes the definitions of this lake right now: let it end, run this again"
            )
        self.load()

    def checkpoint(self, kind: Kind) -> str:
        """The folder of a stream's checkpoint, below the lake."""
        return f"{self.folder}/{kind}"

    def query_id(self, kind: Kind) -> str | None:
        """What Spark calls the stream, as long as its checkpoint lives; None: it has never begun."""
        found = settle(lambda: self._store.get(f"{self.checkpoint(kind)}/metadata"))
        return None if found is None else str(json.loads(found[0])["id"])

    def position(self, kind: Kind) -> Position | None:
        """As of the last batch that is done; None: none is."""
        done = settle(lambda: self._store.list(f"{self.checkpoint(kind)}/commits"))
        numbers = [int(name) for one in done if (name := one.path.rpartition("/")[2]).isdigit()]
        if not numbers:
            return None
        path = f"{self.checkpoint(kind)}/offsets/{max(numbers)}"
        found = settle(lambda: self._store.get(path))
        if found is None:
            raise Fatal(
                f"{path} is gone: the checkpoint is damaged; delete its folder, then everything is decoded anew"
            )
        offset = json.loads(found[0].decode().splitlines()[-1])
        return Position(version=int(offset["reservoirVersion"]), partly=int(offset["index"]) >= 0)


def generation(store: Store) -> int:
    """Of what the tables of frames hold now; 0 where no worker ever wrote."""
    known = settle(lambda: read_identity(store))
    if known is None or known[0].generation == 0:
        return 0
    return min((_generation(store, table) for table in SOURCES.values()), default=0)


def _generation(store: Store, table: str) -> int:
    try:
        read = DeltaTable(store.location(table), storage_options=store.options_now() or None)
        batches = read.transaction_version(APP_ID)
    except TableNotFoundError:
        return 0
    if batches is None:
        return 0
    found = settle(lambda: store.get(manifest_path(batches)))
    return 0 if found is None else Manifest.from_json(found[0]).generation


def settle(request: Callable[[], Awaitable[_T]]) -> _T:
    """A request of the store to its end; also where an event loop runs already, as in a notebook."""

    async def whole() -> _T:
        return await request()

    with ThreadPoolExecutor(max_workers=1) as beside:
        return beside.submit(asyncio.run, whole()).result()
