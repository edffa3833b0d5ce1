"""Gives a lake a rebuilt ledger, and gives a copied lake its own identity.

The ledger stores captures, work list, head and lease by `lake_id`. Two lakes with one id in one ledger would commit each
other's rows, so adopting first checks the recorded places of the lake.
"""

from __future__ import annotations

import uuid
from dataclasses import replace

from pcaplake.common.errors import Fatal
from pcaplake.lake.store.store import Store

from .identity import (
    LAKE_JSON,
    Identity,
    bind_ledger,
    enrollment_of_lake,
    is_lake_still_at,
    is_ledger_inside_lake,
    read_identity,
    recorded_uri,
    refuse_other_log_store,
)
from .ledger import Ledger

NO_LAKE = f"there is no lake to adopt a ledger for ({LAKE_JSON} does not exist): run this without --adopt"


async def find_original_lake(store: Store, lake: Identity, ledger: Ledger | None) -> str | None:
    """The URI of the lake that this one was copied from, if it still exists; None if this is not a copy or the original is gone.

    The places to check come from lake.json, which is copied too, and from the ledger (bound to `lake`), if there is one.
    Raises Fatal if a place cannot be read.
    """
    known = None if ledger is None or is_ledger_inside_lake(store, ledger.name) else await ledger.read_enrollment()
    places = {lake.uri: None, None if known is None else known.uri: None}
    for uri in places:
        if uri is not None and uri != store.uri and await is_lake_still_at(store, uri, lake.lake_id):
            return uri
    return None


async def identity_to_adopt(store: Store, lake: Identity, ledger: Ledger | None, log_store: str) -> Identity:
    """The lake's identity after adoption. Rebuild the ledger for its id, then call `adopt_ledger`.

    A copy gets a new id and has no ledger yet, so its `ledger_id` is empty. Raises Fatal if the processes that will use
    the lake do not commit with its log store (`log_store`, as in lake.json): all of them would refuse it.
    """
    refuse_other_log_store(lake, log_store)
    if await find_original_lake(store, lake, ledger) is not None:
        return replace(lake, lake_id=uuid.uuid4().hex, ledger_id="", uri=recorded_uri(store))
    return replace(lake, uri=recorded_uri(store))


async def adopt_ledger(store: Store, ledger: Ledger, lake_id: str | None = None) -> Identity:
    """Make this ledger the lake's ledger and `lake_id` its id, whatever lake.json says. Stop all processes before.

    Rebuild the ledger first. Raises Fatal if it belongs to another lake.
    """
    while True:
        identity_object = await read_identity(store)
        if identity_object is None:
            raise Fatal(NO_LAKE)
        lake = replace(
            identity_object[0],
            lake_id=lake_id or identity_object[0].lake_id,
            ledger_kind=ledger.kind,
            ledger_name=ledger.name,
            ledger_id=await ledger.read_ledger_id(),
            uri=recorded_uri(store),
        )
        await bind_ledger(lake, ledger)
        await ledger.enroll_lake(enrollment_of_lake(store, lake), moved=True)
        if lake == identity_object[0] or await store.replace(LAKE_JSON, lake.to_json(), identity_object[1]):
            return lake
