"""What is written down of captures, stages and batches, and how it becomes JSON and comes back.

Knows the shape of the records. Knows neither where they are kept nor when: that is the ledger's and the committer's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self

from .delta.actions import AddFile, Json

FORMAT = 1
FOLDER = "_pcaplake/batches"


def manifest_path(batch: int) -> str:
    """Where the manifest of a batch is, below the lake's root."""
    return f"{FOLDER}/{batch:020d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """One capture as the ledger knows it; `rows` is its rows over all tables, `outcome` is `ok` or `quarantined`.

    `version_id`: where its content can still be read when its key is overwritten; None where nobody said. It is no
    part of what a capture is: that is `uri` and `etag`.
    """

    capture_id: str
    uri: str
    etag: str
    size: int
    rows: int = 0
    outcome: str = "ok"
    version_id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Without what is not known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Names that nobody here knows are passed over: somebody newer wrote them."""
        return cls(**{name: raw[name] for name in cls.__slots__ if name in raw})


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Parquet files that hold the rows of some captures, for all tables. `written_at`: the store's clock, epoch ms.

    `schemas` are Delta structs by table, for every table in `adds`; paths in `adds` are relative to their table.
    """

    stage_id: str
    generation: int
    decoder_version: str
    captures: tuple[Capture, ...]
    schemas: Mapping[str, Mapping[str, Any]]
    adds: Mapping[str, tuple[AddFile, ...]]
    written_at: int

    @property
    def paths(self) -> list[str]:
        """Every file of the stage, below the lake's root."""
        return [f"{table}/{add.path}" for table, adds in self.adds.items() for add in adds]

    @property
    def add_count(self) -> int:
        return sum(len(adds) for adds in self.adds.values())

    @property
    def byte_count(self) -> int:
        """Bytes of all its files."""
        return sum(add.size for adds in self.adds.values() for add in adds)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "captures": [one.to_dict() for one in self.captures]}

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        return cls(
            **{
                **raw,
                "captures": tuple(map(Capture.from_dict, raw["captures"])),
                "adds": {table: tuple(AddFile(**add) for add in adds) for table, adds in raw["adds"].items()},
            }
        )

    def to_json(self) -> bytes:
        return json.dumps(self.to_dict(), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        return cls.from_dict(json.loads(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One batch: the stages committed together, and the stages whose captures are to be decoded again.

    `opens`: the first of its generation; it removes everything live in each of `tables` before its own rows.
    `tables`: every table that the lake has had up to here.
    """

    batch: int
    generation: int
    opens: bool
    tables: tuple[str, ...]
    stages: tuple[Stage, ...]
    returned: tuple[Stage, ...] = ()
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def touched(self) -> frozenset[str]:
        """The tables in which this batch makes a commit."""
        return frozenset(self.tables if self.opens else (table for stage in self.stages for table in stage.adds))

    @property
    def written(self) -> frozenset[str]:
        """Those of which it has rows: a table that is opened empty may never have been made."""
        return frozenset(self.schemas).union(*(stage.adds for stage in self.stages))

    def to_json(self) -> bytes:
        """Self-contained; schemas are kept once for all stages that agree."""
        body = {
            "format": FORMAT,
            "batch": self.batch,
            "generation": self.generation,
            "opens": self.opens,
            "tables": self.tables,
            "schemas": self.schemas,
            "stages": [stage.to_dict() for stage in self.stages],
            "returned": [replace(stage, adds={}, schemas={}).to_dict() for stage in self.returned],
        }
        for stage in body["stages"]:  # type: ignore[attr-defined]
            stage["schemas"] = {t: s for t, s in stage["schemas"].items() if s != self.schemas.get(t)}
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        raw = json.loads(data)
        shared: dict[str, Json] = raw["schemas"]

        def stages(items: Iterable[dict[str, Any]]) -> tuple[Stage, ...]:
            return tuple(
                Stage.from_dict({**one, "schemas": {t: one["schemas"].get(t, shared.get(t)) for t in one["adds"]}})
                for one in items
            )

        return cls(
            batch=raw["batch"],
            generation=raw["generation"],
            opens=raw["opens"],
            tables=tuple(raw["tables"]),
            stages=stages(raw["stages"]),
            returned=stages(raw["returned"]),
            schemas=shared,
        )
