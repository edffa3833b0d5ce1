"""Generations that begin without a record, as in versions before 2026-11-22."""

from __future__ import annotations

from dataclasses import replace

from pcaplake.lake.commit.overwrite import reserve_generation
from pcaplake.lake.identity import LAKE_JSON, Identity, read_identity
from pcaplake.lake.store.store import Store


async def raise_generation(store: Store) -> Identity:
    """An overwrite as versions before 2026-11-22 began it: nothing is staged yet, and nothing is recorded."""
    number = await reserve_generation(store)
    found = await read_identity(store)
    assert found is not None
    assert await store.replace(LAKE_JSON, replace(found[0], generation=number).to_json(), found[1])
    return replace(found[0], generation=number)
