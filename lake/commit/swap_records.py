"""The records of swaps: `_pcaplake/swaps/<number>.json`, created if absent and never deleted. See `swaps`."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from pcaplake.common.errors import Fatal
from pcaplake.lake.delta.actions import AddFile, Txn
from pcaplake.lake.formats import check_format
from pcaplake.lake.ledger import Ledger
from pcaplake.lake.records import Stage
from pcaplake.lake.store.store import Store

from .history import SWAPPED, opening_version

FOLDER: Final = "_pcaplake/swaps"
_FORMAT: Final = 1
_NAME: Final = re.compile(rf"{FOLDER}/(\d{{20}})(\.dropped)?\.json")
_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSwap:
    """All rows of some captures go, and the files of `stages` come. Without stages, the captures leave the lake.

    `captures`: capture_id -> the batch up to which its rows go; a capture that is in a later batch has come back since.
    """

    number: int
    generation: int
    captures: Mapping[str, int]
    stages: Sequence[Stage] = ()
    removal_id: str = ""
    """Of the removal that a process began in the ledger of a fleet, and that this records."""

    @property
    def removes(self) -> bool:
        """Whether the captures leave the lake."""
        return not self.stages

    @property
    def txn(self) -> Txn:
        """The transaction of this swap in each table."""
        return Txn(app_id=SWAPPED, version=opening_version(self.generation) + self.number)

    @property
    def file_paths(self) -> list[str]:
        """The paths of all its files, below the lake's root."""
        return [path for stage in self.stages for path in stage.file_paths]

    def adds_of(self, table: str) -> list[AddFile]:
        """The files with new rows for a table."""
        return [add for stage in self.stages for add in stage.adds.get(table, ())]

    def split_adds(self, table: str, captures: Collection[str]) -> tuple[list[AddFile], list[AddFile]]:
        """The files of a table with new rows of these captures only, and those that may also have rows of others."""
        whole, shared = list[AddFile](), list[AddFile]()
        for stage in self.stages:
            # rule: a swap that is done again leaves out captures that came back
            if all(capture.capture_id in captures for capture in stage.captures):
                whole += stage.adds.get(table, ())
            else:
                shared += stage.adds.get(table, ())
        return whole, shared

    def schema_of(self, table: str) -> Mapping[str, Any] | None:
        """The Delta struct of these files; None: there are none. All stages are of one version of pcaplake."""
        return next((stage.schemas[table] for stage in self.stages if table in stage.adds), None)

    def to_json(self) -> bytes:
        body = {
            "format": _FORMAT,
            "generation": self.generation,
            "captures": dict(self.captures),
            "stages": [stage.to_dict() for stage in self.stages],
        } | ({"removal": self.removal_id} if self.removal_id else {})
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, number: int, data: bytes) -> Self:
        """Raises Fatal for a record that cannot be read."""
        try:
            raw = json.loads(data)
            check_format(_path(number), raw["format"], _FORMAT)
            stages = tuple(map(Stage.from_dict, raw["stages"]))
            return cls(
                number=number,
                generation=raw["generation"],
                captures=raw["captures"],
                stages=stages,
                removal_id=raw.get("removal", ""),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise Fatal(f"{_path(number)} cannot be read ({error!r}): restore it") from error


def _path(number: int) -> str:
    return f"{FOLDER}/{number:020d}.json"


async def newest_swap(store: Store, after: int = 0) -> int:
    """The number of the newest record; 0: there is none. `after`: that of a record that there is: only later ones are listed."""
    return (await _list_swaps(store, after))[0]


async def _list_swaps(store: Store, after: int = 0) -> tuple[int, set[int]]:
    """The number of the newest record, and those of the swaps that were given up, of records later than `after`."""
    listed = await store.list(FOLDER, _path(after) if after else None)
    names = [name for meta in listed if (name := _NAME.fullmatch(meta.path))]
    newest = max((int(name[1]) for name in names if not name[2]), default=after)
    return newest, {int(name[1]) for name in names if name[2]}


async def read_swaps(store: Store, numbers: range) -> list[RowSwap]:
    """The swaps with these numbers, in order. Raises Fatal if a record is missing or cannot be read."""
    swaps = list[RowSwap]()
    for start in range(0, len(numbers), _AT_ONCE):
        some = numbers[start : start + _AT_ONCE]
        for number, body in zip(some, await asyncio.gather(*(store.get(_path(one)) for one in some)), strict=True):
            if body is None:
                raise Fatal(f"{_path(number)} is missing: restore it")
            swaps.append(RowSwap.from_json(number, body[0]))
    return swaps


async def put_swap(store: Store, swap: RowSwap) -> bool:
    """Create the record; False: another swap has its number."""
    return await store.put_if_absent(_path(swap.number), swap.to_json())


async def drop_swap(store: Store, number: int, tables: Sequence[str]) -> None:
    """Give a swap up: every table that lacks it keeps its rows, whoever comes to it. `tables`: these, for people."""
    await store.put_if_absent(_dropped_path(number), json.dumps({"tables": list(tables)}).encode())


async def is_dropped(store: Store, number: int) -> bool:
    """Whether somebody has given a swap up."""
    return await store.head(_dropped_path(number)) is not None


def _dropped_path(number: int) -> str:
    return f"{FOLDER}/{number:020d}.dropped.json"


async def read_removed_captures(store: Store) -> dict[str, int]:
    """capture_id -> the batch up to which its rows were removed, of all captures that have ever left the lake."""
    removed = dict[str, int]()
    for swap in await read_swaps(store, range(1, await newest_swap(store) + 1)):
        for capture_id, batch in swap.captures.items() if swap.removes else ():
            removed[capture_id] = max(batch, removed.get(capture_id, -1))
    return removed


async def find_half_swapped(store: Store, generation: int) -> dict[str, str]:
    """capture_id -> URI, of captures whose rows may be of two decodings: a swap of theirs was given up, and none came later."""
    newest, dropped = await _list_swaps(store)
    uris = dict[str, str]()
    for swap in await read_swaps(store, range(min(dropped), newest + 1)) if dropped else ():
        known = {capture.capture_id: capture.uri for stage in swap.stages for capture in stage.captures}
        if swap.number not in dropped:
            uris = {capture_id: uri for capture_id, uri in uris.items() if capture_id not in swap.captures}
        # rule: captures of a swap that was given up are read again
        elif swap.generation == generation:
            uris |= {capture_id: known.get(capture_id, capture_id) for capture_id in swap.captures}
    return uris


class LastSwap:
    """The last swap that every table of a lake has, and its ledger."""

    def __init__(self, store: Store, ledger: Ledger) -> None:
        self._store, self._ledger = store, ledger
        self._known = (0, -1)  # its number and transaction

    async def read_transaction(self) -> int:
        """The transaction that each table must have at least; -1: no rows were swapped, or this ledger does not know."""
        number = await self._ledger.read_last_swap()
        if number != self._known[0]:
            (swap,) = await read_swaps(self._store, range(number, number + 1)) if number else (None,)
            self._known = (number, -1 if swap is None else swap.txn.version)
        # rule: a table that lost a swap gets no batch, which may have contents that the swap removed
        return self._known[1]
