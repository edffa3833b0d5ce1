"""The Spark SQL that makes a blocked table writable again.

lake/delta/write_support.py decides what blocks a table. `FEATURES` says what removes each feature; a test runs each
advice with Spark 4.2 and Delta 4.4, and compares the table with Delta's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pcaplake.lake.delta.actions import Metadata, Protocol
from pcaplake.lake.delta.log_state import (
    LogState,
    delta_log_path,
    json_versions,
    newest_complete_checkpoint,
    version_file_path,
)
from pcaplake.lake.delta.properties import CONSTRAINT, TXN_RETENTION
from pcaplake.lake.delta.write_support import (
    READER,
    WRITER,
    list_unsupported_features,
)
from pcaplake.lake.store.store import Store

_DOWNGRADE = "spark.databricks.delta.restore.protocolDowngradeAllowed"
_PROTECTION = "checkpointProtection"  # Delta adds it when it drops a feature of readers


class Removal(Enum):
    """What removes a feature from a table."""

    AT_ONCE = "DROP FEATURE"
    IN_A_DAY = "DROP FEATURE, and a day later DROP FEATURE checkpointProtection TRUNCATE HISTORY"
    RESTORE = "RESTORE"
    NOT_TRIED = "not tried"


FEATURES: Mapping[str, Removal] = {
    "rowTracking": Removal.AT_ONCE,  # before domainMetadata, on which it depends
    "checkConstraints": Removal.AT_ONCE,
    "inCommitTimestamp": Removal.AT_ONCE,
    "materializePartitionColumns": Removal.AT_ONCE,
    "domainMetadata": Removal.AT_ONCE,
    "columnMapping": Removal.IN_A_DAY,
    "deletionVectors": Removal.IN_A_DAY,
    "typeWidening": Removal.IN_A_DAY,
    "typeWidening-preview": Removal.IN_A_DAY,
    "v2Checkpoint": Removal.IN_A_DAY,
    "vacuumProtocolCheck": Removal.IN_A_DAY,
    _PROTECTION: Removal.IN_A_DAY,
    "allowColumnDefaults": Removal.RESTORE,
    "changeDataFeed": Removal.RESTORE,
    "clustering": Removal.RESTORE,
    "generatedColumns": Removal.RESTORE,
    "icebergCompatV1": Removal.RESTORE,
    "icebergCompatV2": Removal.RESTORE,
    "icebergCompatV3": Removal.RESTORE,
    "identityColumns": Removal.RESTORE,
    "timestampNtz": Removal.RESTORE,
    "variantShredding": Removal.RESTORE,
    "variantShredding-preview": Removal.RESTORE,
    "variantType": Removal.RESTORE,
    "variantType-preview": Removal.RESTORE,
    "adaptiveMetadata-preview": Removal.NOT_TRIED,
    "catalogManaged": Removal.NOT_TRIED,
    "coordinatedCommits-preview": Removal.NOT_TRIED,
    "geospatial": Removal.NOT_TRIED,
}
"""Feature -> what removes it, in the order in which features can be dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to unblock a table: the statements of today, and those of a day later. `says`: a comment before them."""

    says: str
    today: Sequence[str]
    a_day_later: Sequence[str] = ()


def build_unblock_ways(
    location: str, metadata: Metadata, protocol: Protocol, wanted: Mapping[str, Any], last_writable: int | None
) -> list[Way]:
    """The ways, the best one first. `wanted`: the struct of our rows; `last_writable`: the last version before the block
    that can be restored, None if there is none.
    """
    table, features = f"delta.`{location}`", list_unsupported_features(protocol)
    raised = protocol.reader > READER or protocol.writer > WRITER
    removals = {name: FEATURES.get(name, Removal.NOT_TRIED) for name in features}
    stay = [name for name, removal in removals.items() if removal is Removal.RESTORE]
    unknown = [name for name, removal in removals.items() if removal is Removal.NOT_TRIED]
    alter = [*_metadata_changes(metadata), *_column_changes(metadata.schema, wanted)]
    ways = []
    if not stay and not unknown and (alter or features):
        at_once = [name for name, removal in FEATURES.items() if name in features and removal is Removal.AT_ONCE]
        in_a_day = [name for name in FEATURES if name in features and FEATURES[name] is Removal.IN_A_DAY]
        drops = [f"DROP FEATURE {_quote_feature_name(name)}" for name in (*at_once, *in_a_day) if name != _PROTECTION]
        later = [f"DROP FEATURE {_PROTECTION} TRUNCATE HISTORY"] if in_a_day else []
        ways.append(
            Way(
                says="",
                today=[f"ALTER TABLE {table} {change};" for change in (*alter, *drops)],
                a_day_later=[f"ALTER TABLE {table} {change};" for change in later],
            )
        )
    if last_writable is not None and (raised or not ways):
        says = "Or at once. " if ways else ""
        says += f"Delta cannot drop {', '.join(stay)}. " if stay else ""
        says += f"Whether Delta can drop {', '.join(unknown)} was not tried. " if unknown else ""
        restore = f"RESTORE TABLE {table} TO VERSION AS OF {last_writable};"
        ways.append(
            Way(
                says=f"{says}This loses what other programs have written since version {last_writable}; pcaplake has written "
                "nothing since:",
                today=[*([f"SET {_DOWNGRADE} = true;"] if raised else []), restore],
            )
        )
    return ways


def format_ways(ways: Sequence[Way]) -> str:
    """The statements, and comments between them."""
    lines = [line for way in ways for line in _list_lines(way)]
    return "\n".join(lines) or (
        "no statement of Spark unblocks it, and no version before that can be restored: move the table's folder away, then "
        "--repair --accept-loss, and read the captures again"
    )


def _list_lines(way: Way) -> Iterator[str]:
    if way.says:
        yield f"-- {way.says}"
    yield from way.today
    if way.a_day_later:
        yield (
            "-- a day later, because Delta deletes the versions that use the feature, and keeps those of the last 24 hours; "
            "until then the table stays blocked:"
        )
    yield from way.a_day_later


async def find_last_writable_version(
    store: Store, table: str, find_reason: Callable[[LogState], str | None]
) -> int | None:
    """The last version before another program blocked the table; None if it is not in the log any more.

    `find_reason`: why pcaplake cannot write a table with this state. What the log does not say any more was writable:
    pcaplake has created the table, or has written to it.
    """
    listing = await store.list(delta_log_path(table))
    state, writable, blocked = LogState(protocol=Protocol(reader=READER, writer=WRITER)), None, False
    async for version, data in _read_versions(store, table, json_versions(listing)):
        state.apply_version(version, data)
        if find_reason(state) is None:
            writable = version
        else:
            blocked = True
    if not blocked or writable is None:
        return None
    begins = 0 in json_versions(listing) or newest_complete_checkpoint(table, listing, at_most=writable) is not None
    return writable if begins else None


async def _read_versions(store: Store, table: str, versions: Sequence[int]) -> AsyncIterator[tuple[int, bytes]]:
    for version in versions:
        version_object = await store.get(version_file_path(table, version))
        if version_object is not None:
            yield version, version_object[0]


def _metadata_changes(metadata: Metadata) -> Iterator[str]:
    for key in metadata.configuration:
        if key.startswith(CONSTRAINT):
            yield f"DROP CONSTRAINT {key.removeprefix(CONSTRAINT)}"
    if TXN_RETENTION in metadata.configuration:
        yield f"UNSET TBLPROPERTIES ('{TXN_RETENTION}')"


def _column_changes(have: Mapping[str, Any], want: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Changes of columns that are NOT NULL in the table and nullable in our rows, including nested ones."""
    nullable = {field["name"]: field for field in want["fields"] if field["nullable"]}
    for field in have["fields"]:
        name = field["name"]
        if name not in nullable:
            continue
        if not field["nullable"]:
            yield f"ALTER COLUMN {prefix}`{name}` DROP NOT NULL"
        inner, ours = field["type"], nullable[name]["type"]
        if isinstance(inner, Mapping) and isinstance(ours, Mapping) and inner["type"] == ours["type"] == "struct":
            yield from _column_changes(inner, ours, f"{prefix}`{name}`.")


def _quote_feature_name(name: str) -> str:
    return f"`{name}`" if "-" in name else name
