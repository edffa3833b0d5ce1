"""The records of captures, stages and batches, and their JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from pcaplake.lake.delta.actions import AddFile, Json, StagedFile

from .formats import check_format, read_fields, unknown_fields, written_fields

FORMAT = 1  # of manifests
STAGE_FORMAT = 1  # of stages; a stage without a format has this one
FOLDER = "_pcaplake/batches"
SIGHTINGS = "sightings"  # a table (sightings.py)
SEEN = "seen"  # the outcome of a sighting
_LISTED = 5  # captures that a text names


def manifest_path(batch: int) -> str:
    """The path of a batch's manifest, below the lake's root."""
    return f"{FOLDER}/{batch:020d}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """A capture: one content of one object. `rows`: in all tables; `outcome`: `ok` or `quarantined`.

    `version_id`: the object version with this content, if known. It is not part of the identity, which is `uri` and `etag`.
    `modified`: when the object got the content, by its store, epoch ms; `sequencer`: of the event that said so. A sighting
    (sightings.py) is staged as a capture, too.
    """

    capture_id: str
    uri: str
    etag: str
    size: int
    rows: int = 0
    outcome: str = "ok"
    version_id: str | None = None
    modified: int | None = None
    sequencer: str | None = None
    unknown: Mapping[str, Any] = unknown_fields()

    @property
    def is_sighting(self) -> bool:
        return self.outcome == SEEN

    @property
    def content_id(self) -> str:
        """The id of the capture, or of the capture that a sighting has seen."""
        return compute_capture_id(self.uri, self.etag) if self.is_sighting else self.capture_id

    def to_dict(self) -> dict[str, Any]:
        """The fields that are not None."""
        return written_fields(self, nulls=False)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        return cls(**read_fields(cls, raw))


def compute_capture_id(uri: str, etag: str) -> str:
    """The id of a capture: 32 hex digits of BLAKE2b (16 bytes) over uri, NUL, eTag without quotes."""
    return hashlib.blake2b(f"{uri}\0{etag.strip(chr(34))}".encode(errors="surrogateescape"), digest_size=16).hexdigest()


def list_uris(captures: Sequence[Capture]) -> str:
    """The URIs of the first of these captures, for a text."""
    return ", ".join(capture.uri for capture in captures[:_LISTED]) + (", ..." if len(captures) > _LISTED else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Parquet files with the rows of some captures, for all tables. `written_at`: the store's time, epoch ms.

    `schemas`: Delta struct of each table in `adds`. Paths in `adds` are relative to their table. `profiles`: with which each of
    `captures` was read, as `captures.profile` has it; one for all of them, or none in stages of older versions.
    """

    stage_id: str
    generation: int
    decoder_version: str
    captures: tuple[Capture, ...]
    schemas: Mapping[str, Mapping[str, Any]]
    adds: Mapping[str, tuple[AddFile, ...]]
    written_at: int
    profiles: tuple[str, ...] = ()
    unknown: Mapping[str, Any] = unknown_fields()

    def profile_of(self, number: int) -> str | None:
        """The profile with which the capture at this index was read; None if it is not known."""
        if not self.profiles:
            return None
        return self.profiles[number if len(self.profiles) > 1 else 0]

    @property
    def file_paths(self) -> list[str]:
        """The paths of all its files, below the lake's root."""
        return [f"{table}/{add.path}" for table, adds in self.adds.items() for add in adds]

    @property
    def add_count(self) -> int:
        return sum(len(adds) for adds in self.adds.values())

    @property
    def byte_count(self) -> int:
        """Bytes of all its files."""
        return sum(add.size for adds in self.adds.values() for add in adds)

    def to_dict(self) -> dict[str, Any]:
        written = {
            **written_fields(self),
            "captures": [capture.to_dict() for capture in self.captures],
            "adds": {table: [written_fields(add) for add in adds] for table, adds in self.adds.items()},
            "profiles": list(self.profiles),
        }
        if not self.profiles:  # a stage of an older version stays as it is
            del written["profiles"]
        return written

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Raises Fatal for a stage of a newer major format."""
        check_format(f"the stage {raw.get('stage_id')}", raw.get("format", STAGE_FORMAT), STAGE_FORMAT)
        return cls(
            **{
                **read_fields(cls, raw),
                "captures": tuple(map(Capture.from_dict, raw["captures"])),
                "profiles": tuple(raw.get("profiles", ())),
                "adds": {
                    table: tuple(StagedFile(**read_fields(StagedFile, add)) for add in adds)
                    for table, adds in raw["adds"].items()
                },
            }
        )

    def to_json(self) -> bytes:
        return json.dumps(self.to_dict(), separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        return cls.from_dict(json.loads(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One batch: the stages that are committed together, and the stages whose captures are decoded again (`returned`).

    `opens`: it is the first of its generation and removes all live files of each of `tables`.
    `tables`: all tables that the lake has had up to this batch. `last_batches`: table -> its last batch up to this one
    (see `history`); None in manifests of older versions. `shows`: the generation whose rows the tables have after it, when
    that is not its own: the batch only returns stages of a generation that no batch has opened yet. `head`: the ledger's
    head when the batch was composed, or a lower one; None in manifests of older versions.
    """

    batch: int
    generation: int
    opens: bool
    tables: tuple[str, ...]
    stages: tuple[Stage, ...]
    returned: tuple[Stage, ...] = ()
    schemas: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    last_batches: Mapping[str, int] | None = None
    shows: int | None = None
    head: int | None = None

    @property
    def shown_generation(self) -> int:
        """The generation whose rows the tables have after this batch."""
        return self.generation if self.shows is None else self.shows

    @property
    def touched_tables(self) -> frozenset[str]:
        """The tables in which this batch makes a commit."""
        return frozenset(self.tables if self.opens else (table for stage in self.stages for table in stage.adds))

    @property
    def written_tables(self) -> frozenset[str]:
        """The tables for which it has rows. A table that it only empties may not exist."""
        return frozenset(self.schemas).union(*(stage.adds for stage in self.stages))

    def to_json(self) -> bytes:
        """The manifest as JSON; schemas that stages share are written once."""
        body = {
            "format": FORMAT,
            "batch": self.batch,
            "generation": self.generation,
            "opens": self.opens,
            "tables": self.tables,
            **({} if self.last_batches is None else {"last_batches": self.last_batches}),
            "schemas": self.schemas,
            "stages": [stage.to_dict() for stage in self.stages],
            "returned": [replace(stage, adds={}, schemas={}).to_dict() for stage in self.returned],
        }
        if self.shows is not None:
            body["shows"] = self.shows
        if self.head is not None:
            body["head"] = self.head
        for stage in body["stages"]:  # type: ignore[attr-defined]
            stage["schemas"] = {t: s for t, s in stage["schemas"].items() if s != self.schemas.get(t)}
        return json.dumps(body, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        """Ignores unknown fields of newer versions: a manifest is never rewritten. Raises Fatal for a newer major format."""
        raw = json.loads(data)
        check_format(f"the manifest of batch {raw.get('batch')}", raw.get("format"), FORMAT)
        shared: dict[str, Json] = raw["schemas"]

        def parse_stages(items: Iterable[dict[str, Any]]) -> tuple[Stage, ...]:
            return tuple(
                Stage.from_dict(
                    {**raw_stage, "schemas": {t: raw_stage["schemas"].get(t, shared.get(t)) for t in raw_stage["adds"]}}
                )
                for raw_stage in items
            )

        return cls(
            batch=raw["batch"],
            generation=raw["generation"],
            opens=raw["opens"],
            tables=tuple(raw["tables"]),
            stages=parse_stages(raw["stages"]),
            returned=parse_stages(raw["returned"]),
            schemas=shared,
            last_batches=raw.get("last_batches"),
            shows=raw.get("shows"),
            head=raw.get("head"),
        )
