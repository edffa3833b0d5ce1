"""Opens the parts of a lake: object store, ledger, identity and tables. Creates missing ones if that is allowed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pcaplake.common import VERSION
from pcaplake.common.errors import Fatal, WrongChoice
from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.lake.commit.rebuild_ledger import rebuild_from_manifests
from pcaplake.lake.commit.swaps import Swaps
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.delta.preflight import check_lock_table
from pcaplake.lake.ledger.sqlite import SqliteLedger
from pcaplake.lake.store.store import Store

from . import adoption, identity
from .config import LakeConfig
from .lake_parts import LakeParts
from .ledger import Ledger
from .ledger_path import ledger_file_path
from .shared_tables import SharedTables
from .tables import SCHEMAS, create_tables

log = logging.getLogger(__name__)
if TYPE_CHECKING:
    from pcaplake.lake.ledger.dynamodb import DynamoLedger


async def open_lake_parts(
    uri: str | Path,
    *,
    lake_config: LakeConfig,
    ledger: Path | SharedTables | None,
    storage_options: Mapping[str, str] | None,
    adopt: bool,
    runtime: Runtime,
) -> LakeParts:
    """See `Lake.open`. Closes the ledger if it raises."""
    store = Store.open(uri, storage_options, meter=runtime.meter)
    identity_object = await identity.read_identity(store)
    known = None if identity_object is None else identity_object[0]
    shared_tables = ledger if isinstance(ledger, SharedTables) else None
    creation = lake_config.creation
    log_store_kind = identity.LOG_STORE if shared_tables is None else shared_tables.log_store_kind
    # whatever is wrong is found before anything is written: another process may rely on what is there
    if known is None:
        await identity.refuse_nested_lake(store)
        await identity.refuse_lost_identity(store)
        if adopt:
            raise Fatal(adoption.NO_LAKE)
        if not creation.allowed:
            how = "--create" if shared_tables is None else "`pcaplake setup`"
            raise WrongChoice(f"{store.uri} is not a lake yet: create it with {how}, or name another lake")
    else:
        identity.refuse_other_log_store(known, log_store_kind)
        identity.refuse_other_partitions(known, creation.partition_columns)
    lock_table = None if shared_tables is None else shared_tables.lock_table
    if lock_table is not None:
        await check_lock_table(store, lock_table, list(SCHEMAS))
    if shared_tables is not None:
        opened: Ledger = _open_dynamodb_ledger(store, known, shared_tables, lake_config, adopt=adopt)
    else:
        folder = ledger if isinstance(ledger, Path) else None
        opened = await _open_sqlite_ledger(store, known, folder, lock_timeout=lake_config.commit_timeout, adopt=adopt)
    try:
        if known is None:
            await identity.refuse_deleted_lake(store, opened)
        lake = await identity.open_identity(
            store,
            opened,
            partition_columns=creation.partition_columns,
            shards=identity.UNSHARDED if shared_tables is None else creation.shards,
            log_store=log_store_kind,
        )
        if lake_config.commits:
            await store.delete_abandoned_uploads()
        log_store = LogStore(
            store,
            lock_table=lock_table,
            properties=creation.table_properties,
            engine_info=f"pcaplake/{VERSION}",
            commit_timeout=lake_config.commit_timeout,
            runtime=runtime,
        )
        await create_tables(store, opened, log_store, lake.partition_columns, creation.allowed)
        leaving = dict[str, str]()
        if isinstance(opened, SqliteLedger):
            swaps = Swaps(
                store=store,
                log_store=log_store,
                ledger=opened,
                generation=lake.generation,
                lake_config=lake_config,
                runtime=runtime,
            )
            await swaps.finish()
            if leaving := swaps.leaving:
                log.warning(
                    "%s cannot be removed from every table yet, and will not be read again until then: %s; see `pcaplake doctor`",
                    counted(len(leaving), "capture"),
                    next(iter(leaving.values())),
                )
    except BaseException:
        await opened.close()
        raise
    current = identity.CurrentIdentity(store, lake, opened)
    return LakeParts(store=store, log_store=log_store, ledger=opened, current=current, leaving=leaving)


def _open_dynamodb_ledger(
    store: Store, known: identity.Identity | None, shared_tables: SharedTables, lake_config: LakeConfig, *, adopt: bool
) -> DynamoLedger:
    if store.local is not None:
        raise Fatal(f"{store.uri} is a folder, but lakes of a fleet are in a bucket; write s3://bucket/path")
    if adopt:
        raise Fatal(f"{store.uri}: adopt its ledger with `pcaplake doctor --repair --adopt`")
    from pcaplake.lake.ledger.dynamodb import DynamoLedger  # a lake on one machine starts without it

    lake_id = None if known is None else known.lake_id
    return DynamoLedger(shared_tables.ledger, store, lake_id=lake_id, shards=lake_config.creation.shards)


async def _open_sqlite_ledger(
    store: Store, known: identity.Identity | None, folder: Path | None, *, lock_timeout: float, adopt: bool
) -> SqliteLedger:
    """`adopt`: first rebuild the ledger from the manifests and make it the lake's ledger."""
    ledger = await _open_sqlite_ledger_file(
        store, known, folder, create=known is None or adopt, lock_timeout=lock_timeout
    )
    if not adopt:
        return ledger
    try:
        assert known is not None, "a lake that does not exist is not adopted"
        adopted = await adoption.identity_to_adopt(store, known, ledger, identity.LOG_STORE)
        if adopted.lake_id != known.lake_id:  # this is a copy, and `ledger` is that of the original
            original, ledger = (
                ledger,
                await _open_sqlite_ledger_file(store, adopted, folder, create=True, lock_timeout=lock_timeout),
            )
            await original.close()
        await rebuild_from_manifests(store, ledger)
        await adoption.adopt_ledger(store, ledger, adopted.lake_id)
    except BaseException:
        await ledger.close()
        raise
    return ledger


async def _open_sqlite_ledger_file(
    store: Store, lake: identity.Identity | None, folder: Path | None, *, create: bool, lock_timeout: float
) -> SqliteLedger:
    if folder is not None:
        path = ledger_file_path(folder, store, lake)
    elif store.local is not None:
        path = store.local / identity.LEDGER_FILE
    else:
        raise Fatal(f"{store.uri} is not a local lake: name a folder on this machine for its ledger with --ledger")
    return await SqliteLedger.open(path, create=create, lock_timeout=lock_timeout)
