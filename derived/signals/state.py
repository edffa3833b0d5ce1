"""The id of the signals of a lake, and the definitions that its frames were decoded with.

    _pcaplake/spark/signals/<generation>/state.json     format 1: of the Spark job of older versions, which had no id

The file is created only if it is absent, and replaced only if it is unchanged, so all runs on a lake have one state.
An overwritten lake (`ingest --mode overwrite`) has a new generation without state.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pcaplake.common.errors import Fatal
from pcaplake.lake.commit.history import APP_ID
from pcaplake.lake.delta.log_reader import LogReader
from pcaplake.lake.identity import read_identity
from pcaplake.lake.records import Manifest, manifest_path
from pcaplake.lake.signal_tables import state_folder
from pcaplake.lake.store.store import ObjectMeta, Store
from pcaplake.signals.definitions import DefinitionState
from pcaplake.signals.sources import TABLES

OTHER_RUN: Final = "another run of `pcaplake signals` has taken over this lake; its work continues there"
_FORMAT, _OF_SPARK = 2, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalState:
    """`id`: names the transactions of this state; another id means that all frames are decoded again. "": it has none yet.

    `wide_ids`: the same of each wide table, by message; `definitions.wide` has the hashes that they stand for. `after_spark`: the
    Spark job of an older version has written the rows that the table had; they stay until their frames are decoded again.
    """

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    definitions: DefinitionState = field(default_factory=DefinitionState)
    wide_ids: Mapping[str, str] = field(default_factory=dict)
    after_spark: bool = False

    def with_wide_tables(self, hashes: Mapping[str, str]) -> SignalState:
        """The state with these wide tables. A table whose definitions differ gets a new id, which no table has had."""
        same = {
            name
            for name, text in hashes.items()
            if name in self.wide_ids
            # rule: other definitions give a wide table another id
            and self.definitions.wide.get(name) == text
        }
        ids = {name: self.wide_ids[name] if name in same else uuid.uuid4().hex for name in hashes}
        definitions = replace(self.definitions, wide={**self.definitions.wide, **hashes})
        return replace(self, definitions=definitions, wide_ids={**self.wide_ids, **ids})

    def to_json(self) -> bytes:
        content: dict[str, Any] = json.loads(self.definitions.to_json())
        added = {"format": _FORMAT, "id": self.id, "wide_ids": dict(self.wide_ids), "after_spark": self.after_spark}
        return json.dumps(content | added, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes) -> SignalState:
        """Raises `ValueError` for anything that `to_json` did not write."""
        content = json.loads(data)
        if not isinstance(content, dict) or content.get("format") not in (_FORMAT, _OF_SPARK):
            raise ValueError("it has another format")
        if content["format"] == _OF_SPARK:
            return cls(id="", definitions=DefinitionState.from_json(data), after_spark=True)
        if not isinstance(content.get("id"), str):
            raise ValueError("it has no id")
        return cls(
            id=content["id"],
            definitions=DefinitionState.from_json(json.dumps(content | {"format": 1}).encode()),
            wide_ids=dict(
                content.get("wide_ids", {})
            ),  # absent in a state that was written before there were wide tables
            after_spark=bool(content.get("after_spark")),
        )


class StateFile:
    """The state of one generation of a lake."""

    def __init__(self, store: Store, generation: int) -> None:
        self._store, self.generation = store, generation
        self.folder = state_folder(generation)
        self._path = f"{self.folder}/state.json"
        self._seen: ObjectMeta | None = None

    async def load(self) -> SignalState | None:
        """The state; None: nothing is decoded yet. Raises `Fatal` if it is damaged."""
        stored = await self._store.get(self._path)
        if stored is None:
            self._seen = None
            return None
        data, self._seen = stored
        try:
            return SignalState.from_json(data)
        except ValueError as error:
            raise Fatal(
                f"{self._path} cannot be read ({error}): restore it, or delete it, and the next run decodes all frames again"
            ) from error

    async def claim(self) -> SignalState:
        """The state, with an id that is stored. Raises as `load` and `save`."""
        state = await self.load()
        if state is None or not state.id:
            state = SignalState() if state is None else replace(state, id=uuid.uuid4().hex)
            await self.save(state)
        return state

    async def save(self, state: SignalState) -> None:
        """Write the state. Raises `Fatal` if another program has written it since `load`."""
        data = state.to_json()
        if self._seen is None:
            done = await self._store.put_if_absent(self._path, data)
        else:
            done = await self._store.replace(self._path, data, self._seen)
        if not done:
            await self.load()
            raise Fatal(OTHER_RUN)
        stored = await self._store.get(self._path)
        if stored is None or stored[0] != data:
            raise Fatal(OTHER_RUN)
        self._seen = stored[1]

    async def save_definitions(self, state: SignalState, definitions: DefinitionState) -> SignalState:
        """Write the state with other definitions, and return it. Raises as `save`."""
        changed = replace(state, definitions=definitions)
        await self.save(changed)
        return changed


async def read_generation(store: Store, log: LogReader) -> int:
    """The generation that the tables of frames hold now; 0 if no worker has written yet."""
    known = await read_identity(store)
    if known is None or known[0].generation == 0:
        return 0
    found = [await _table_generation(store, log, table) for table in TABLES.values()]
    # a table that no batch has reached yet, as one that a newer worker created, has none
    return min([generation for generation in found if generation is not None], default=0)


async def _table_generation(store: Store, log: LogReader, table: str) -> int | None:
    batch = await log.read_transaction(table, APP_ID)
    if batch < 0:
        return None
    stored = await store.get(manifest_path(batch))
    return 0 if stored is None else Manifest.from_json(stored[0]).generation
