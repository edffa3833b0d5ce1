"""The options of `spark.read.format("pcap")`: their names, defaults and limits.

Spark passes all options as text, with names in any case.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pcaplake.lake.records import SIGHTINGS
from pcaplake.parser import Profile
from pcaplake.parser.schemas import TABLES
from pcaplake.worker.config.settings import parse_seconds, parse_size

PERMISSIVE, DROPMALFORMED, FAILFAST = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
STORAGE = "storage."
PARTITION_BYTES = 32 << 20
_WORDS = (
    "path paths table columns profile raw mode pathGlobFilter ignoreMissingFiles partitionBytes pushdown "
    "maxFilesPerTrigger maxBytesPerTrigger forgetAfter"
)
READABLE = tuple(name for name in TABLES if name != SIGHTINGS)  # what a capture itself does not tell
_NAMES = {word.lower(): word for word in _WORDS.split()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PcapOptions:
    """The parsed options. Sizes in bytes, times in seconds; None: no limit.

    `columns` None: all columns of the table. `storage`: options of the object store, as obstore names them.
    """

    paths: tuple[str, ...]
    table: str = "packets"
    columns: tuple[str, ...] | None = None
    profile: Profile
    raw: bool = False
    mode: str = PERMISSIVE
    name_filter: str = "*"
    ignore_missing: bool = False
    partition_bytes: int = PARTITION_BYTES
    pushdown: bool = True
    max_files: int | None = None
    max_bytes: int | None = None
    forget_after: float | None = None
    storage: Mapping[str, str]

    @classmethod
    def from_spark_options(cls, spark_options: Mapping[str, str]) -> PcapOptions:
        """Parse options. The texts of ValueError and ProfileError say what to write instead."""
        known, storage = dict[str, str](), dict[str, str]()
        for key, value in spark_options.items():
            name = key.lower()
            if name.startswith(STORAGE):
                storage[name.removeprefix(STORAGE)] = value
            elif name in _NAMES:
                known[_NAMES[name]] = value
            else:
                raise ValueError(f"pcap has no option {key!r}; {_suggest_option(name)}")
        table = known.get("table", "packets")
        if table not in READABLE:
            raise ValueError(f"option table: no table {table!r}; choose from {', '.join(READABLE)}")
        mode = known.get("mode", PERMISSIVE).upper()
        if mode not in (PERMISSIVE, DROPMALFORMED, FAILFAST):
            raise ValueError(f"option mode is {mode!r}; write {PERMISSIVE}, {DROPMALFORMED} or {FAILFAST}")
        columns = known.get("columns")
        return cls(
            paths=_parse_paths(known),
            table=table,
            columns=None if columns is None else tuple(part.strip() for part in columns.split(",")),
            profile=resolve_profile(known.get("profile")),
            raw=_parse_boolean(known, "raw", default=False),
            mode=mode,
            name_filter=known.get("pathGlobFilter", "*"),
            ignore_missing=_parse_boolean(known, "ignoreMissingFiles", default=False),
            partition_bytes=_parse_positive_integer(known, "partitionBytes") or PARTITION_BYTES,
            pushdown=_parse_boolean(known, "pushdown", default=True),
            max_files=_parse_positive_integer(known, "maxFilesPerTrigger"),
            max_bytes=_parse_positive_integer(known, "maxBytesPerTrigger"),
            forget_after=parse_seconds(known.get("forgetAfter")),
            storage=storage,
        )


def resolve_profile(profile: Profile | str | None) -> Profile:
    """A profile from an object, a path, or YAML text (text with a line break or `: `). Raises ProfileError."""
    if isinstance(profile, Profile):
        return profile
    if not profile:
        return Profile.default()
    return Profile.parse(profile) if "\n" in profile or ": " in profile else Profile.load(Path(profile))


def _parse_paths(known: Mapping[str, str]) -> tuple[str, ...]:
    """Spark passes one path as `path`, several as the JSON list `paths`."""
    listed = json.loads(known["paths"]) if "paths" in known else []
    paths = (*([known["path"]] if known.get("path") else []), *listed)
    return tuple(_strip_file_scheme(path) for path in paths)


def _strip_file_scheme(path: str) -> str:
    """Hadoop writes file:/a for file:///a."""
    return path.removeprefix("file:") if path.startswith("file:/") and not path.startswith("file://") else path


def _parse_boolean(known: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = known.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise ValueError(f"option {name} is {value!r}; write true or false")
    return value == "true"


def _parse_positive_integer(known: Mapping[str, str], name: str) -> int | None:
    """A count, or a size such as 64MB."""
    if name not in known:
        return None
    number = int(parse_size(known[name]))
    if number < 1:
        raise ValueError(f"option {name} is {number}; write 1 or more")
    return number


def _suggest_option(word: str) -> str:
    close = difflib.get_close_matches(word, _NAMES, 1)
    names = ", ".join([*_NAMES.values(), f"{STORAGE}NAME"])
    return f"did you mean {_NAMES[close[0]]!r}?" if close else f"write one of: {names}"
