"""An overwrite: rows of captures that replace all other rows, in the transactions that add them.

    reserve   reserve a new generation number; the lake still has the generation before
    stage     stage the captures in the reserved generation, where no batch is composed
    record    put `_pcaplake/overwrites/<generation>.json`, which lists its stages, if absent; it is never deleted
    begin     lake.json names the reserved generation as the lake's; the next batch opens it (compose.py)

An overwrite that ends before `begin` leaves only files and ledger items in a generation that the lake never has. After
`begin`, only a batch with all recorded stages opens the generation, whatever the ledger has lost.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.delta.errors import SchemaConflict, TableBlocked
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.delta.schema import evolve_schema
from pcaplake.lake.formats import check_format
from pcaplake.lake.identity import LAKE_JSON, Identity, read_identity, require_same_lake
from pcaplake.lake.ledger import EVERYTHING, Ledger
from pcaplake.lake.records import Stage, manifest_path
from pcaplake.lake.staging.stage_files import StageFiles
from pcaplake.lake.store.store import ObjectMeta, Store

LONGEST_MS = 5 * 86_400_000
"""The longest time from the first file to `begin`: after seven days VACUUM and the doctor delete uncommitted files."""
FOLDER = "_pcaplake/overwrites"
FORMAT = 1  # of records
_STAGES_AT_ONCE = 100


async def reserve_generation(store: Store) -> int:
    """Reserve a new generation for an overwrite. Raises Fatal when there is no lake."""
    while True:
        lake, meta = await _require_identity(store)
        number = max(lake.generation, lake.reserved) + 1
        if await store.replace(LAKE_JSON, replace(lake, reserved=number).to_json(), meta):
            return number


async def begin_generation(store: Store, opened_as: Identity, number: int, stages: Sequence[Stage]) -> None:
    """Record the stages of a reserved generation and make it the lake's. Idempotent.

    `opened_as`: the lake as this process opened it. Raises Fatal, without a change of lake.json, when it names another
    lake, ledger or log store now, or when a newer generation or another overwrite with this number has begun.
    """
    record = _serialize_record(number, stages)
    while True:
        lake, meta = require_same_lake(opened_as, await read_identity(store))
        # rule: an overwrite does not begin after a newer one
        if lake.generation > number:
            raise Fatal("another overwrite finished meanwhile: nothing of this one is in the lake; run it again")
        # rule: an overwrite is recorded before it begins
        if not await store.put_if_absent(overwrite_record_path(number), record):
            existing = await store.get(overwrite_record_path(number))
            if existing is None:
                raise Retryable(f"{overwrite_record_path(number)} exists and cannot be read yet")
            if existing[0] != record:
                raise Fatal(
                    f"nothing was replaced: another overwrite has the number {number}, because {LAKE_JSON} was restored to "
                    "an older copy; run it again"
                )
        if lake.generation == number or await store.replace(
            LAKE_JSON, replace(lake, generation=number).to_json(), meta
        ):
            return


def overwrite_record_path(generation: int) -> str:
    """The path of an overwrite's record, below the lake's root."""
    return f"{FOLDER}/{generation:020d}.json"


def _serialize_record(generation: int, stages: Sequence[Stage]) -> bytes:
    listed = [stage.to_dict() for stage in sorted(stages, key=lambda stage: stage.stage_id)]
    body = {"format": FORMAT, "generation": generation, "stages": listed}
    return json.dumps(body, separators=(",", ":")).encode()


async def restore_recorded_stages(store: Store, ledger: Ledger, generation: int, *, after: int) -> frozenset[str]:
    """Ids of the stages that the batch which opens this generation must have; none without a record.

    Stages that the ledger has lost are staged again. `after`: the last known batch; raises Retryable when a later one
    exists, because stages of batches expire in the ledger. Raises Fatal for a record that cannot be read.
    """
    path = overwrite_record_path(generation)
    # rule: the record of an overwrite is read
    if (record := await store.get(path)) is None:
        return frozenset()
    try:
        raw = json.loads(record[0])
        check_format(path, raw["format"], FORMAT)
        stages = [Stage.from_dict(stage) for stage in raw["stages"]]
    except (ValueError, KeyError, TypeError) as error:
        raise Fatal(f"{path} cannot be read ({error!r}): restore it") from error
    for start in range(0, len(stages), _STAGES_AT_ONCE):
        some = stages[start : start + _STAGES_AT_ONCE]
        known = await ledger.get_stage_items(generation, [stage.stage_id for stage in some])
        lost = [stage for stage in some if stage.stage_id not in known]
        if lost and await store.head(manifest_path(after + 1)) is not None:
            raise Retryable(f"batch {after + 1} exists already")
        for stage in lost:
            # rule: recorded stages that the ledger has lost are staged again
            await ledger.put_stage_if_absent(stage)
    return frozenset(stage.stage_id for stage in stages)


async def _require_identity(store: Store) -> tuple[Identity, ObjectMeta]:
    stored = await read_identity(store)
    if stored is None:
        raise Fatal(f"{LAKE_JSON} is gone: another program deletes from this lake")
    return stored


async def check_overwrite(
    store: Store,
    log_store: LogStore,
    ledger: Ledger,
    generation: int,
    stage_ids: Collection[str],
    tables: Collection[str],
) -> list[Stage]:
    """The stages of an overwrite. Raises Fatal if the generation has other stages, or if the tables cannot take their rows."""
    waiting = await ledger.list_pending_stages(generation, EVERYTHING)
    if set(waiting) != set(stage_ids):
        raise Fatal(
            f"generation {generation} does not have the stages of this overwrite: {LAKE_JSON} or the ledger was restored to "
            "an older copy; run it again"
        )
    if not waiting:
        raise Fatal("nothing was staged")
    for table in tables:
        if (why := await log_store.read_block_reason(table)) is not None:
            raise Fatal(f"{table}: {why}")
    files = StageFiles(store)
    now = await files.read_store_clock()
    stages: list[Stage] = []
    for start in range(0, len(waiting), _STAGES_AT_ONCE):
        items = await ledger.get_stage_items(generation, waiting[start : start + _STAGES_AT_ONCE])
        stages += [item.stage for item in items.values() if item.stage is not None]
    if len(stages) < len(waiting):
        raise Fatal(f"{len(waiting) - len(stages)} of its stages are gone from the ledger: run it again")
    for stage in stages:
        await _check_overwrite_stage(stage, log_store, files, now)
    return stages


async def _check_overwrite_stage(stage: Stage, log_store: LogStore, files: StageFiles, now: int) -> None:
    if now - stage.written_at > LONGEST_MS:
        raise Fatal("it took longer than five days, so a VACUUM may delete its files: overwrite in smaller parts")
    # at any age: a VACUUM with a wrong clock may have deleted them
    if missing := await files.find_missing(stage.file_paths):
        raise Fatal(f"{len(missing)} of its files were deleted, for example {missing[0]}: run it again")
    for table, schema in stage.schemas.items():
        try:
            struct = await log_store.read_schema_struct(table)
            if struct is not None:
                evolve_schema(table, struct, schema)
        except (TableBlocked, SchemaConflict) as problem:
            raise Fatal(f"the table {table} cannot take the new rows: {problem}") from problem
