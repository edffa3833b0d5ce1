"""The options of `spark.read.format("pcap")`: their names, defaults and limits.

Knows how Spark hands options over (all are texts, names in any case). Must not know what is done with them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from parser import Profile
from parser.tables import TABLES
from worker.settings import seconds, size

PERMISSIVE, DROPMALFORMED, FAILFAST = "PERMISSIVE", "DROPMALFORMED", "FAILFAST"
STORAGE = "storage."
PARTITION_BYTES = 32 << 20
_WORDS = (
    "path paths table columns profile raw mode pathGlobFilter ignoreMissingFiles partitionBytes pushdown "
    "maxFilesPerTrigger maxBytesPerTrigger forgetAfter"
)
_NAMES = {word.lower(): word for word in _WORDS.split()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user wrote. Sizes in bytes, times in seconds; None: without a limit.

    `columns` None: all of the table. `storage`: options of the object store, as obstore's.
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
    def read(cls, given: Mapping[str, str]) -> Options:
        """ValueError and ProfileError say what to write instead."""
        known, storage = dict[str, str](), dict[str, str]()
        for key, value in given.items():
            name = key.lower()
            if name.startswith(STORAGE):
                storage[name.removeprefix(STORAGE)] = value
            elif name in _NAMES:
                known[_NAMES[name]] = value
            else:
                raise ValueError(f"pcap has no option {key!r}; {_suggest(name)}")
        table = known.get("table", "packets")
        if table not in TABLES:
            raise ValueError(f"option table: there is no table {table!r}; choose from {', '.join(TABLES)}")
        mode = known.get("mode", PERMISSIVE).upper()
        if mode not in (PERMISSIVE, DROPMALFORMED, FAILFAST):
            raise ValueError(f"option mode is {mode!r}; write {PERMISSIVE}, {DROPMALFORMED} or {FAILFAST}")
        columns = known.get("columns")
        return cls(
            paths=_paths(known),
            table=table,
            columns=None if columns is None else tuple(part.strip() for part in columns.split(",")),
            profile=read_profile(known.get("profile")),
            raw=_flag(known, "raw", default=False),
            mode=mode,
            name_filter=known.get("pathGlobFilter", "*"),
            ignore_missing=_flag(known, "ignoreMissingFiles", default=False),
            partition_bytes=_number(known, "partitionBytes") or PARTITION_BYTES,
            pushdown=_flag(known, "pushdown", default=True),
            max_files=_number(known, "maxFilesPerTrigger"),
            max_bytes=_number(known, "maxBytesPerTrigger"),
            forget_after=_time(known, "forgetAfter"),
            storage=storage,
        )


def read_profile(given: Profile | str | None) -> Profile:
    """A profile, the path of one, or its YAML: a text with a line break or with `: ` in it. ProfileError."""
    if isinstance(given, Profile):
        return given
    if not given:
        return Profile.default()
    return Profile.parse(given) if "\n" in given or ": " in given else Profile.load(Path(given))


def _paths(known: Mapping[str, str]) -> tuple[str, ...]:
    """Spark gives one path as `path`, several as a JSON list `paths`."""
    listed = json.loads(known["paths"]) if "paths" in known else []
    paths = (*([known["path"]] if known.get("path") else []), *listed)
    return tuple(_local(path) for path in paths)


def _local(path: str) -> str:
    """Hadoop writes file:/a for file:///a."""
    return path.removeprefix("file:") if path.startswith("file:/") and not path.startswith("file://") else path


def _flag(known: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = known.get(name, str(default)).lower()
    if value not in ("true", "false"):
        raise ValueError(f"option {name} is {value!r}; write true or false")
    return value == "true"


def _number(known: Mapping[str, str], name: str) -> int | None:
    """A count, or a size such as 64MB."""
    if name not in known:
        return None
    number = int(size(known[name]))
    if number < 1:
        raise ValueError(f"option {name} is {number}; write 1 or more")
    return number


def _time(known: Mapping[str, str], name: str) -> float | None:
    return float(seconds(known[name])) if name in known else None


def _suggest(word: str) -> str:
    close = difflib.get_close_matches(word, _NAMES, 1)
    names = ", ".join([*_NAMES.values(), f"{STORAGE}NAME"])
    return f"did you mean {_NAMES[close[0]]!r}?" if close else f"write one of: {names}"
