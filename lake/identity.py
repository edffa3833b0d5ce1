"""The identity of a lake (lake.json), and the ids of captures.

Every command reads lake.json first, and refuses a ledger or log store that does not belong to the lake.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from pcaplake.common.errors import Fatal, WrongChoice
from pcaplake.lake.store.conditional import require_conditional_writes
from pcaplake.lake.store.store import ObjectMeta, Store

from .delta.log_state import LAKE, read_log_state
from .formats import check_format, read_fields, unknown_fields, written_fields
from .ledger import Enrollment, Ledger
from .records import FOLDER

FORMAT = 1
LAKE_JSON = "_pcaplake/lake.json"
LEDGER_FILE = "_pcaplake/ledger.sqlite"
LOG_STORE = "put-if-absent"
UNSHARDED = 1  # shards of a ledger that is no DynamoDB table
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The contents of lake.json. `uri` is None for a local lake, which may be moved; the URI of a remote lake has one spelling.

    `proven`: the URI of the store whose conditional writes were tested; None if they were not tested yet.
    `reserved`: the last generation in which an overwrite staged, even if the lake has not reached it (overwrite.py); 0 if
    there was no overwrite. `unknown`: fields of a newer version, which are kept when this version writes the file.
    """

    lake_id: str
    generation: int
    ledger_kind: str
    ledger_name: str
    ledger_id: str
    log_store: str
    shards: int
    partition_columns: tuple[str, ...]
    uri: str | None
    proven: str | None = None
    format: int = FORMAT
    reserved: int = 0
    unknown: Mapping[str, Any] = unknown_fields()

    def to_json(self) -> bytes:
        written = written_fields(self)
        if not self.reserved:
            del written["reserved"]  # older versions refuse a lake.json with an additional field
        return json.dumps(written, indent=2).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        try:
            raw: dict[str, Any] = json.loads(data)
            check_format(LAKE_JSON, raw["format"], FORMAT)
            return cls(**{**read_fields(cls, raw), "partition_columns": tuple(raw["partition_columns"])})
        except (ValueError, KeyError, TypeError) as error:
            raise Fatal(f"{LAKE_JSON} cannot be read ({error!r}): restore the file") from error


async def read_identity(store: Store) -> tuple[Identity, ObjectMeta] | None:
    """The identity in lake.json and the metadata of the file, or None if there is no lake yet."""
    stored = await store.get(LAKE_JSON)
    return None if stored is None else (Identity.from_json(stored[0]), stored[1])


async def require_lake(store: Store) -> None:
    """Raises WrongChoice if there is no lake, Fatal if it has lost its lake.json."""
    if await read_identity(store) is None:
        await refuse_lost_identity(store)
        raise WrongChoice(f"lake {store.local or store.uri} does not exist; `pcaplake ingest` creates it")


async def refuse_lake_with_lock_table(store: Store) -> None:
    """Raise Fatal for a lake with a lock table: commits without the lock table make Spark lose commits."""
    known = await read_identity(store)
    if known is not None and known[0].log_store != LOG_STORE:
        raise Fatal(
            f"{store.uri} commits under a lock table ({known[0].log_store}), which this command does not know: use the "
            "Spark job instead (pcaplake-spark compact, vacuum or signals)"
        )


async def open_identity(
    store: Store,
    ledger: Ledger,
    *,
    partition_columns: tuple[str, ...] | None = None,
    shards: int = UNSHARDED,
    log_store: str = LOG_STORE,
) -> Identity:
    """Read lake.json, or create it. Raises Fatal if the ledger or the log store does not belong to the lake.

    Raises Fatal for a store that ignores conditions of writes; this is tested once for each lake.

    `partition_columns` None means those of the lake, or ("date",) for a new lake. `shards` is only for a new lake.
    `log_store` is the kind of the log store, with its lock table.
    """
    chosen = Identity(
        lake_id=uuid.uuid4().hex,
        generation=0,
        ledger_kind=ledger.kind,
        ledger_name=ledger.name,
        ledger_id=await ledger.read_ledger_id(),
        log_store=log_store,
        shards=shards,
        partition_columns=("date",) if partition_columns is None else partition_columns,
        uri=recorded_uri(store),
    )
    for _ in range(_TRIES):  # a failed conditional write may mean that another process is just writing the file
        if (identity_object := await read_identity(store)) is not None:
            break
        if store.unproven:
            await require_conditional_writes(store)
        proven = store.uri if store.unproven else None
        await store.put_if_absent(LAKE_JSON, replace(chosen, proven=proven).to_json())
    else:
        raise Fatal(f"{LAKE_JSON} was written and is gone again: something deletes files of this lake")
    lake = identity_object[0]
    _check_identity(lake, replace(chosen, partition_columns=partition_columns or lake.partition_columns))
    if store.unproven and lake.proven != store.uri:
        await require_conditional_writes(store)
        with suppress(Fatal):  # without the right to write, the next start tests again
            await store.replace(LAKE_JSON, replace(lake, proven=store.uri).to_json(), identity_object[1])
    await bind_ledger(lake, ledger)
    await _enroll_lake(store, lake, ledger)
    return lake


async def _enroll_lake(store: Store, lake: Identity, ledger: Ledger) -> None:
    """Record the lake's generation and place in the ledger, before the ledger is used in this generation.

    Raises Fatal if the ledger knows a later generation, or knows the lake at another place where it still exists.
    """
    enrollment = enrollment_of_lake(store, lake)
    known = await ledger.enroll_lake(enrollment, moved=is_ledger_inside_lake(store, ledger.name))
    if known.uri != enrollment.uri:
        if await is_lake_still_at(store, known.uri, lake.lake_id):
            raise Fatal(
                f"{store.uri} is a copy of {known.uri} and would use its ledger: give the copy its own identity and "
                "ledger with `pcaplake doctor --repair --adopt`"
            )
        known = await ledger.enroll_lake(enrollment, moved=True)
    if known.generation > lake.generation:
        raise Fatal(rolled_back_message(lake.generation, f"the ledger knows generation {known.generation}"))


def is_ledger_inside_lake(store: Store, ledger_name: str) -> bool:
    """True if the ledger is a file inside the lake, which is moved and copied with it."""
    return store.local is not None and Path(ledger_name).is_relative_to(store.local)


async def is_lake_still_at(store: Store, uri: str, lake_id: str) -> bool:
    """True if a lake with this id exists at `uri`, and `uri` is not another name of `store`. Raises Fatal if that is unknown."""
    try:
        other = store.open_other_store(uri)
        other_identity = await other.get(LAKE_JSON)
        if other_identity is None or json.loads(other_identity[0])["lake_id"] != lake_id:
            return False
        probe = f"_pcaplake/doctor/{uuid.uuid4().hex}"
        await store.put(probe, b"")
        try:
            return await other.head(probe) is None
        finally:
            await store.delete(probe)
    except (Fatal, ValueError, KeyError, TypeError) as why:
        raise Fatal(
            f"cannot tell whether {store.uri} is a copy of {uri} ({why}): allow this role to read {uri}/{LAKE_JSON}, or, "
            "if that lake is no longer used, delete this file"
        ) from why


def enrollment_of_lake(store: Store, lake: Identity) -> Enrollment:
    """What the ledger records about a lake."""
    return Enrollment(uri=store.uri, generation=lake.generation, shards=lake.shards)


def rolled_back_message(generation: int, why: str) -> str:
    """The error for a lake.json with an old generation: writing in that generation would duplicate or lose rows."""
    return (
        f"{LAKE_JSON} says generation {generation}, and {why}: an older copy of {LAKE_JSON} was restored. Stop all "
        f"processes on this lake, then restore the newest {LAKE_JSON}, or raise its generation again with "
        "`pcaplake doctor --repair`"
    )


async def refuse_nested_lake(store: Store) -> None:
    """Raises WrongChoice for a new lake inside another lake, whose VACUUM would delete its files as orphans."""
    for outer in store.parent_stores():
        try:
            outer_meta = await outer.head(LAKE_JSON)
        except Fatal:
            continue  # the role may only have rights inside the lake
        if outer_meta is not None:
            raise WrongChoice(f"{store.uri}: {outer.uri} is a lake: name a place outside it for the new lake")


async def restore_generation(store: Store, generation: int) -> Identity:
    """Raise the generation in a lake.json that was restored to at least this one, without starting a new generation."""
    while True:
        identity_object = await read_identity(store)
        if identity_object is None:
            raise Fatal(f"{LAKE_JSON} is gone: restore the file")
        lake = replace(identity_object[0], generation=max(generation, identity_object[0].generation))
        if lake == identity_object[0] or await store.replace(LAKE_JSON, lake.to_json(), identity_object[1]):
            return lake


async def refuse_lost_identity(store: Store) -> None:
    """Raise Fatal for manifests or batches without a lake.json: a new lake would begin with batches that exist already."""
    if await store.list(FOLDER):
        rest, lost = "manifests of a lake's batches", LAKE_JSON
    elif LAKE in (await read_log_state(store, "captures")).txns:  # each batch has rows there
        rest, lost = "tables with a lake's batches", LAKE_JSON.rpartition("/")[0]
    else:
        return
    if await read_identity(store) is None:  # else another process has just created the lake
        raise Fatal(
            f"{store.uri} has no {LAKE_JSON}, but {rest}: restore {lost} from a backup or from the bucket's object versions, or "
            "move the folder away"
        )


async def refuse_deleted_lake(store: Store, ledger: Ledger) -> None:
    """Raise Fatal where the ledger knows a lake that is gone: a new one there would hide what was lost."""
    lake_id = await ledger.find_lake_at(store.uri)
    if lake_id is None or await read_identity(store) is not None:  # another process has just created the lake
        return
    anew = (
        f"delete its ledger {ledger.name}, and ingest the captures again"
        if ledger.kind == "sqlite"
        else "run `pcaplake doctor --repair --yes`, start the fleet, and announce the captures again with `pcaplake replay`"
    )
    # rule: no lake begins where the ledger knows one that is gone
    raise Fatal(
        f"the ledger {ledger.name} has the lake {lake_id}, and {store.uri} has no {LAKE_JSON}: the lake's objects were "
        "deleted. Stop all processes that use this lake; then restore its objects from a backup or from the bucket's object "
        f"versions. To begin anew without its rows: {anew}"
    )


def refuse_other_log_store(lake: Identity, log_store: str) -> None:
    """Raise Fatal unless the tables of this lake are committed with this kind of log store."""
    if lake.log_store != log_store:
        of_a_fleet = (
            "; this is the lake of a fleet, whose processes commit under a lock table: upload captures where its routes "
            "find them, or announce them with `pcaplake replay`"
        )
        raise Fatal(
            f"this lake has the log store {lake.log_store}, not {log_store}; use the one that the lake was created with: two "
            f"kinds on one table lose commits{of_a_fleet if log_store == LOG_STORE else ''}"
        )


def refuse_other_partitions(lake: Identity, partition_columns: tuple[str, ...] | None) -> None:
    """Raise WrongChoice unless these are the partition columns of this lake; None: any."""
    if partition_columns is not None and lake.partition_columns != partition_columns:
        raise WrongChoice(
            f"this lake has the partition columns {', '.join(lake.partition_columns)}, not {', '.join(partition_columns)}; do "
            "not pass them: they are chosen once, when the lake is created"
        )


def _check_identity(lake: Identity, mine: Identity) -> None:
    refuse_other_log_store(lake, mine.log_store)
    comparisons = {
        "the ledger": (
            f"{lake.ledger_kind} {lake.ledger_id} at {lake.ledger_name}",
            f"{mine.ledger_kind} {mine.ledger_id} at {mine.ledger_name}",
            (lake.ledger_kind, lake.ledger_id) == (mine.ledger_kind, mine.ledger_id),
            "name the right one with --ledger, or stop all processes and make this one the lake's with --adopt",
        ),
        "the URI": (
            str(lake.uri),
            str(mine.uri),
            lake.uri == mine.uri,
            "spell it as the lake does, or make this spelling the lake's with --adopt",
        ),
    }
    for what, (theirs, ours, equal, advice) in comparisons.items():
        if not equal:
            raise Fatal(f"this lake has {what} {theirs}, not {ours}; {advice}")
    refuse_other_partitions(lake, mine.partition_columns)


async def bind_ledger(lake: Identity, ledger: Ledger) -> None:
    """Bind the ledger to the lake. Raises Fatal if it belongs to another lake."""
    bound = await ledger.bind_to_lake(lake.lake_id)
    if bound != lake.lake_id:
        raise Fatal(
            f"the ledger {ledger.name} belongs to the lake {bound}, but this lake is {lake.lake_id}: one ledger serves one "
            "lake; name another ledger with --ledger"
        )


def recorded_uri(store: Store) -> str | None:
    return store.uri.rstrip("/") if store.local is None else None


def local_file_uri(path: Path) -> str:
    """`file://` and the real path, not percent-encoded."""
    return f"file://{path.resolve()}"


def require_same_lake(
    opened: Identity, identity_object: tuple[Identity, ObjectMeta] | None
) -> tuple[Identity, ObjectMeta]:
    """Check the result of `read_identity`: Fatal unless it is the lake, ledger and log store that this process opened."""
    if identity_object is None or identity_object[0].lake_id != opened.lake_id:
        raise Fatal(
            f"{LAKE_JSON} is gone or belongs to another lake: this lake was deleted while this process worked on it"
        )
    lake = identity_object[0]
    for what, before, now in (
        ("ledger", f"{opened.ledger_kind} {opened.ledger_id}", f"{lake.ledger_kind} {lake.ledger_id}"),
        ("log store", opened.log_store, lake.log_store),
    ):
        if before != now:
            raise Fatal(
                f"the lake's {what} was {before}, and {LAKE_JSON} now names {now}: what this process writes now "
                "would be lost. Restart it with the current settings of the lake"
            )
    return identity_object


class CurrentIdentity:
    """The lake's identity as this process last read it. Call `reload_generation` if the generation may have been raised."""

    def __init__(self, store: Store, identity: Identity, ledger: Ledger) -> None:
        self._store, self._ledger = store, ledger
        self.identity = identity
        self._seen: ObjectMeta | None = None

    @property
    def generation(self) -> int:
        return self.identity.generation

    async def reload_generation(self) -> int:
        """Read the current generation. Raises Fatal if lake.json is gone, names another ledger, or is an older copy."""
        identity_object = await read_identity(self._store)
        lake, meta = require_same_lake(self.identity, identity_object)
        if meta != self._seen:  # an older copy has another time, but may have the same eTag
            await _enroll_lake(self._store, lake, self._ledger)
            self._seen = meta
        self.identity = lake
        return lake.generation
