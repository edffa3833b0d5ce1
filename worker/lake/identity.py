"""Who a lake is (lake.json), and what a capture is called.

Knows the one file that every command reads first, and refuses what does not belong together. Knows no table.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from blake3 import blake3

from ..errors import Fatal, WrongChoice
from .ledger import Ledger
from .store import Store

FORMAT = 1
LAKE_JSON = "_pcaplake/lake.json"
LEDGER_FILE = "_pcaplake/ledger.sqlite"
LOG_STORE = "put-if-absent"
_CHUNK = 1 << 20
_TRIES = 5
_CHOSEN = "the partition columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What lake.json says. `uri` is None for a local lake, which may be moved; a remote one has one spelling."""

    lake_id: str
    generation: int
    ledger_kind: str
    ledger_name: str
    ledger_id: str
    log_store: str
    shards: int
    partition_columns: tuple[str, ...]
    uri: str | None
    format: int = FORMAT

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=2).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        try:
            raw: dict[str, Any] = json.loads(data)
            if raw["format"] != FORMAT:
                raise Fatal(
                    f"{LAKE_JSON} has format {raw['format']}, this version reads {FORMAT}: use a newer pcaplake"
                )
            return cls(**{**raw, "partition_columns": tuple(raw["partition_columns"])})
        except (ValueError, KeyError, TypeError) as error:
            raise Fatal(f"{LAKE_JSON} cannot be read ({error!r}): put back what was there") from error


async def read_identity(store: Store) -> tuple[Identity, str] | None:
    """lake.json and its eTag, or None where there is no lake yet."""
    found = await store.get(LAKE_JSON)
    return None if found is None else (Identity.from_json(found[0]), found[1].etag or "")


async def refuse_locked(store: Store) -> None:
    """Fatal for a lake whose versions are made under a lock table: whoever commits without it makes Spark lose commits."""
    known = await read_identity(store)
    if known is not None and known[0].log_store != LOG_STORE:
        raise Fatal(
            f"{store.uri} commits under a lock table ({known[0].log_store}), which `deltalake` does not know: let Spark "
            "compact and vacuum it"
        )


async def open_lake(
    store: Store,
    ledger: Ledger,
    *,
    partition_columns: tuple[str, ...] | None = None,
    shards: int = 1,
    log_store: str = LOG_STORE,
) -> Identity:
    """Read lake.json, made first where there is none; Fatal when what was opened does not belong to it.

    WrongChoice for a new lake inside another one, which would take its files for orphans.

    `partition_columns` None means: as the lake has them, ("date",) for a new one. `shards`: of a new one.
    `log_store`: the kind that was opened, and its lock table.
    """
    mine = Identity(
        lake_id=uuid.uuid4().hex,
        generation=0,
        ledger_kind=ledger.kind,
        ledger_name=ledger.name,
        ledger_id=await ledger.identity(),
        log_store=log_store,
        shards=shards,
        partition_columns=("date",) if partition_columns is None else partition_columns,
        uri=_spelling(store),
    )
    for _ in range(_TRIES):  # "there is one" may only mean that somebody else's is on its way
        if (found := await read_identity(store)) is not None:
            break
        await _refuse_nested(store)
        await store.put_if_absent(LAKE_JSON, mine.to_json())
    else:
        raise Fatal(f"{LAKE_JSON} was written and is gone again: somebody else deletes from this lake")
    lake = found[0]
    _check(lake, replace(mine, partition_columns=partition_columns or lake.partition_columns))
    await _bind(lake, ledger)
    return lake


async def _refuse_nested(store: Store) -> None:
    for outer in store.above():
        try:
            found = await outer.head(LAKE_JSON)
        except Fatal:
            continue  # rights may end at the lake itself
        if found is not None:
            raise WrongChoice(f"{store.uri}: {outer.uri} is a lake: name a place outside it for another one")


async def adopt(store: Store, ledger: Ledger) -> Identity:
    """Make this ledger the lake's, whatever lake.json said; with all processes stopped and the ledger rebuilt."""
    while True:
        found = await read_identity(store)
        if found is None:
            raise Fatal("there is no lake here to adopt a ledger for: leave --adopt away")
        lake = replace(
            found[0],
            ledger_kind=ledger.kind,
            ledger_name=ledger.name,
            ledger_id=await ledger.identity(),
            uri=_spelling(store),
        )
        await _bind(lake, ledger)
        if lake == found[0] or await store.replace(LAKE_JSON, lake.to_json(), found[1]):
            return lake


async def raise_generation(store: Store) -> Identity:
    """Begin a new generation: the next batch replaces everything that the lake shows."""
    while True:
        found = await read_identity(store)
        if found is None:
            raise Fatal(f"{LAKE_JSON} is gone: somebody else deletes from this lake")
        lake = replace(found[0], generation=found[0].generation + 1)
        if await store.replace(LAKE_JSON, lake.to_json(), found[1]):
            return lake


def _check(lake: Identity, mine: Identity) -> None:
    said = {
        "the ledger": (
            f"{lake.ledger_kind} {lake.ledger_id} at {lake.ledger_name}",
            f"{mine.ledger_kind} {mine.ledger_id} at {mine.ledger_name}",
            (lake.ledger_kind, lake.ledger_id) == (mine.ledger_kind, mine.ledger_id),
            "name the right one with --ledger, or stop all processes and make this one the lake's with --adopt",
        ),
        "the log store": (
            lake.log_store,
            mine.log_store,
            lake.log_store == mine.log_store,
            "use the one the lake was set up with: two kinds on one table lose commits",
        ),
        "the URI": (
            str(lake.uri),
            str(mine.uri),
            lake.uri == mine.uri,
            "spell it as the lake does, or make this spelling the lake's with --adopt",
        ),
        _CHOSEN: (
            ", ".join(lake.partition_columns),
            ", ".join(mine.partition_columns),
            lake.partition_columns == mine.partition_columns,
            "leave them away: they are chosen once, when the lake is set up",
        ),
    }
    for what, (theirs, ours, equal, advice) in said.items():
        if not equal:
            kind = WrongChoice if what == _CHOSEN else Fatal
            raise kind(f"this lake has {what} {theirs}, not {ours}; {advice}")


async def _bind(lake: Identity, ledger: Ledger) -> None:
    bound = await ledger.bind(lake.lake_id)
    if bound != lake.lake_id:
        raise Fatal(
            f"the ledger {ledger.name} belongs to the lake {bound}, this lake is {lake.lake_id}: one ledger serves one "
            "lake; name another one with --ledger"
        )


def _spelling(store: Store) -> str | None:
    return store.uri.rstrip("/") if store.local is None else None


def capture_id(uri: str, etag: str) -> str:
    """The name of one capture: 32 hex digits of BLAKE2b (16 bytes) over uri, NUL, eTag without quotes."""
    return hashlib.blake2b(f"{uri}\0{etag.strip(chr(34))}".encode(errors="surrogateescape"), digest_size=16).hexdigest()


def local_uri(path: Path) -> str:
    """`file://` and the real path, not percent-encoded."""
    return f"file://{path.resolve()}"


def local_etag(path: Path) -> str:
    """32 hex digits of BLAKE3 (16 bytes) over the content, read once in bounded memory. OSError as `open` raises it."""
    digest = blake3()
    buffer = bytearray(_CHUNK)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(view[:count])
    return digest.hexdigest(length=16)


class Current:
    """The lake's identity as this process last read it; `reload` when somebody may have raised the generation."""

    def __init__(self, store: Store, identity: Identity) -> None:
        self._store = store
        self.identity = identity

    @property
    def generation(self) -> int:
        return self.identity.generation

    async def reload(self) -> int:
        """-> the generation now. Fatal when lake.json is gone."""
        found = await read_identity(self._store)
        if found is None or found[0].lake_id != self.identity.lake_id:
            raise Fatal(f"{LAKE_JSON} is gone or of another lake: somebody deleted this lake while we worked on it")
        self.identity = found[0]
        return self.identity.generation
