"""Looks captures up in the ledgers of their lakes. Only reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pcaplake.common.errors import Fatal
from pcaplake.ingest.captures.reference import ObjectRef, capture_from_reference
from pcaplake.lake.identity import LAKE_JSON, read_identity, rolled_back_message
from pcaplake.lake.ledger import COMMITTED, Ledger
from pcaplake.lake.ledger.dynamodb import DynamoLedger
from pcaplake.lake.records import Capture
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.lake.sightings import ids_of_listed, is_later
from pcaplake.lake.store.store import Store
from pcaplake.worker.config.routes import Routes

Standing = Literal["no_route", "absent", "staged", "committed"]
"""No route selects it; one of its lakes does not have it, or does not know that the object got it again; all have it, but one
has not committed it; all have committed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeLedger:
    """The ledger of one lake, and where its lake.json is."""

    store: Store
    ledger: Ledger

    async def read_generation(self) -> int:
        """The current generation. Raises Fatal if the lake is gone, or its lake.json was replaced by an older copy."""
        identity_object = await read_identity(self.store)
        if identity_object is None:
            raise _no_lake_error(self.store.uri)
        generation, known = identity_object[0].generation, await self.ledger.read_enrollment()
        if known is not None and known.generation > generation:
            raise Fatal(rolled_back_message(generation, f"the ledger knows generation {known.generation}"))
        return generation


class CaptureStatusReader:
    """Finds the status of captures. `lake_ledgers` has the ledger for the URI of each lake."""

    def __init__(self, routes: Routes, lake_ledgers: Mapping[str, LakeLedger]) -> None:
        self._routes, self._lake_ledgers = routes, lake_ledgers

    async def find_standings(self, refs: Sequence[ObjectRef]) -> list[Standing]:
        """The standing of each reference, in order. References must have eTags. Raises Fatal and Retryable."""
        lakes = [[route.lake for route in self._routes.find_routes(ref.uri)] for ref in refs]
        captures = list(map(capture_from_reference, refs))
        by_lake = {
            lake: {capture.capture_id: capture for capture, to in zip(captures, lakes, strict=True) if lake in to}
            for lake in self._lake_ledgers
        }
        answers = await asyncio.gather(*(self._find_states(lake, of_lake) for lake, of_lake in by_lake.items()))
        states = dict(zip(by_lake, answers, strict=True))
        return [
            _combine_states([states[lake].get(capture.capture_id) for lake in to]) if to else "no_route"
            for capture, to in zip(captures, lakes, strict=True)
        ]

    async def _find_states(self, lake: str, captures: Mapping[str, Capture]) -> dict[str, str]:
        """capture_id -> its state in a lake, of those that it has with the time of the reference or a later one."""
        if not captures:
            return {}
        book = self._lake_ledgers[lake]
        items = await book.ledger.get_capture_items(await book.read_generation(), captures.keys())
        states: dict[str, str] = {capture_id: item.state for capture_id, item in items.items()}
        again = {
            capture_id: ids_of_listed(captures[capture_id])
            for capture_id, item in items.items()
            if is_later(captures[capture_id], item.capture)
        }
        if again:
            ids = {sighting_id for sighting_ids in again.values() for sighting_id in sighting_ids}
            sightings = await book.ledger.get_capture_items(await book.read_generation(), ids)
            for capture_id, sighting_ids in again.items():
                if not sightings.keys() & sighting_ids:
                    del states[capture_id]  # the lake may take another content for the current one
        return states


def _no_lake_error(uri: str) -> Fatal:
    return Fatal(f"lake {uri} does not exist: create it with `pcaplake setup`, or correct the routes")


def _combine_states(states: Sequence[str | None]) -> Standing:
    if None in states:
        return "absent"
    return "committed" if set(states) == {COMMITTED} else "staged"


async def open_lake_ledgers(
    routes: Routes, shared_tables: SharedTables, *, storage: Callable[[str], Mapping[str, str]] = lambda uri: {}
) -> dict[str, LakeLedger]:
    """The ledgers of all lakes. Raises Fatal if a lake does not exist or has another ledger, which would lack all captures.

    `storage` returns the options of the object store for the URI of a lake.
    """
    lake_ledgers = {}
    for uri in routes.lake_uris:
        store = Store.open(uri, storage(uri))
        identity_object = await read_identity(store)
        if identity_object is None:
            raise _no_lake_error(uri)
        lake = identity_object[0]
        ledger = DynamoLedger(shared_tables.ledger, store, lake_id=lake.lake_id, shards=lake.shards)
        here = await ledger.read_ledger_id()
        if (lake.ledger_kind, lake.ledger_id) != (ledger.kind, here):
            raise Fatal(
                f"{uri}/{LAKE_JSON} names the ledger {lake.ledger_kind} {lake.ledger_id} at {lake.ledger_name}, not "
                f"{here} at {ledger.name}: set the ledger table and the region of that lake"
            )
        lake_ledgers[uri] = LakeLedger(store=store, ledger=ledger)
    return lake_ledgers
