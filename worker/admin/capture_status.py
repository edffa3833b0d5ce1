"""What the ledgers of the lakes know of captures. Knows routes, lake.json and the ledger's port; reads, never writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import Fatal
from ..lake.fleet import Services
from ..lake.identity import LAKE_JSON, read_identity
from ..lake.ledger import COMMITTED, Ledger
from ..lake.ledger.dynamodb import DynamoLedger
from ..lake.store import Store
from ..routes import Routes
from ..source import ObjectRef, capture

Standing = Literal["nowhere", "absent", "staged", "committed"]
"""No route takes it; a lake that it goes to has never had it; all have, and in one it waits; it is in all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Book:
    """The ledger of one lake, and where its lake.json is."""

    store: Store
    ledger: Ledger

    async def generation(self) -> int:
        """Of now. Fatal when the lake is gone."""
        found = await read_identity(self.store)
        if found is None:
            raise Fatal(f"there is no lake at {self.store.uri}: make it with `pcaplake setup`, or mend the routes")
        return found[0].generation


class Known:
    """`books`: by the lake's URI."""

    def __init__(self, routes: Routes, books: Mapping[str, Book]) -> None:
        self._routes, self._books = routes, books

    async def standing(self, refs: Sequence[ObjectRef]) -> list[Standing]:
        """Of each, in their order; they have eTags. Fatal, Retryable as the ledgers and stores raise them."""
        lakes = [[route.lake for route in self._routes.of(ref.uri)] for ref in refs]
        ids = [capture(ref).capture_id for ref in refs]
        asked = {lake: {one for one, to in zip(ids, lakes, strict=True) if lake in to} for lake in self._books}
        answers = await asyncio.gather(*(self._ask(lake, wanted) for lake, wanted in asked.items()))
        states = dict(zip(asked, answers, strict=True))
        return [
            _standing([states[lake].get(one) for lake in to]) if to else "nowhere"
            for one, to in zip(ids, lakes, strict=True)
        ]

    async def _ask(self, lake: str, capture_ids: set[str]) -> dict[str, str]:
        if not capture_ids:
            return {}
        book = self._books[lake]
        items = await book.ledger.captures(await book.generation(), capture_ids)
        return {one: item.state for one, item in items.items()}


def _standing(states: Sequence[str | None]) -> Standing:
    if None in states:
        return "absent"
    return "committed" if set(states) == {COMMITTED} else "staged"


async def open_books(
    routes: Routes, services: Services, *, storage: Callable[[str], Mapping[str, str]] = lambda uri: {}
) -> dict[str, Book]:
    """The books of all lakes. Fatal where there is no lake, or it has another ledger: all captures would seem new.

    `storage`: options of the object store of a lake, by its URI.
    """
    books = {}
    for uri in routes.lakes:
        store = Store.open(uri, storage(uri))
        found = await read_identity(store)
        if found is None:
            raise Fatal(f"there is no lake at {uri}: make it with `pcaplake setup`, or mend the routes")
        lake = found[0]
        ledger = DynamoLedger(services.ledger, store, lake_id=lake.lake_id, shards=lake.shards)
        here = await ledger.identity()
        if (lake.ledger_kind, lake.ledger_id) != (ledger.kind, here):
            raise Fatal(
                f"{uri}/{LAKE_JSON} names the ledger {lake.ledger_kind} {lake.ledger_id} at {lake.ledger_name}, not "
                f"{here} at {ledger.name}: set the ledger table and the region of that lake"
            )
        books[uri] = Book(store=store, ledger=ledger)
    return books
