"""The Delta properties that a new table of pcaplake may have.

Spark refuses a property that it does not know or whose value has another type; an action in the log is not checked by
anybody. `KINDS` has those of Delta 4.4 (DeltaConfigs.scala), and three of Databricks and delta-rs.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from datetime import timedelta

PROPERTIES: Mapping[str, str] = {  # of the tables that a log store creates
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 7 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",
    "delta.enableExpiredLogCleanup": "false",  # for other writers: only pcaplake cleans the log
}

_INTERVAL = re.compile(
    r"(?:interval\s+)?(\d+)\s+(week|day|hour|minute|second|millisecond|microsecond)s?", re.IGNORECASE
)
# After this time Delta drops an application's last transaction, and a batch that is repeated would be committed twice.
TXN_RETENTION = "delta.setTransactionRetentionDuration"
_NAME = r"(?:[A-Za-z_]\w*|`[^`]+`)"
_COLUMNS = re.compile(rf"\s*{_NAME}(?:\.{_NAME})*\s*(?:,\s*{_NAME}(?:\.{_NAME})*\s*)*", re.ASCII)
_FIRST_NAME = re.compile(rf"({_NAME})(?:\.{_NAME})*", re.ASCII)  # of a column inside others, the outermost
CONSTRAINT = "delta.constraints."
_FEATURE = "delta.feature."

KINDS: Mapping[str, str | tuple[str, ...]] = {
    **dict.fromkeys(
        (
            "delta.appendOnly",
            "delta.autoOptimize",
            "delta.autoOptimize.optimizeWrite",
            "delta.castIcebergTimeType",
            "delta.checkpoint.writeStatsAsJson",
            "delta.checkpoint.writeStatsAsStruct",
            "delta.compatibility.symlinkFormatManifest.enabled",
            "delta.enableExpiredLogCleanup",
            "delta.enableFullRetentionRollback",
            "delta.ignoreIcebergBucketPartition",
            "delta.randomizeFilePrefixes",
            "delta.tuneFileSizesForRewrites",
        ),
        "boolean",
    ),
    **dict.fromkeys(
        (
            "delta.checkpointRetentionDuration",
            "delta.deletedFileRetentionDuration",
            "delta.dropFeatureTruncateHistory.retentionDuration",
            "delta.logRetentionDuration",
            "delta.sampleRetentionDuration",
        ),
        "interval",
    ),
    "delta.autoOptimize.autoCompact": ("true", "false", "auto", "legacy"),
    "delta.checkpointInterval": "number from 1",
    "delta.checkpointPolicy": ("classic",),
    "delta.columnMapping.mode": ("none",),
    "delta.dataSkippingNumIndexedCols": "number from -1",
    "delta.dataSkippingStatsColumns": "columns",
    "delta.dataSkippingStringPrefixLength": "number from 0",
    "delta.isolationLevel": ("Serializable",),
    "delta.parquet.compression.codec": "text",
    "delta.parquet.format.version": ("1.0.0", "2.12.0"),
    "delta.randomPrefixLength": "number from 1",
    "delta.targetFileSize": "text",
}
"""Property -> what its value is."""

_MAY_BE_OFF = (
    "delta.enableChangeDataCapture",
    "delta.enableChangeDataFeed",
    "delta.enableDeletionVectors",
    "delta.enableIcebergCompatV1",
    "delta.enableIcebergCompatV2",
    "delta.enableIcebergCompatV3",
    "delta.enableInCommitTimestamps",
    "delta.enableMaterializePartitionColumnsFeature",
    "delta.enableRowTracking",
    "delta.enableTypeWidening",
    "delta.enableVariantShredding",
    "delta.rowTrackingSuspended",
    "delta.writePartitionColumnsToParquet",
)
"""Properties that turn on a feature which pcaplake does not write."""
_NEVER = (
    "delta.columnMapping.maxColumnId",
    "delta.coordinatedCommits.",
    "delta.ignoreProtocolDefaults",
    "delta.inCommitTimestampEnablement",
    "delta.minReaderVersion",
    "delta.minWriterVersion",
    "delta.redirect",
    "delta.requireCheckpointProtectionBeforeVersion",
    "delta.rowTracking.",
    "delta.universalFormat.",
)
"""Beginnings of properties that belong to such features, or that Delta sets itself."""


def parse_interval(text: str) -> timedelta | None:
    """A duration as in table properties, `interval 7 days`; None when it cannot be parsed."""
    match = _INTERVAL.fullmatch(text.strip())
    try:
        return timedelta(**{f"{match[2].lower()}s": int(match[1])}) if match else None
    except OverflowError:
        return None  # longer than there are dates


def find_property_problem(properties: Mapping[str, str], columns: Collection[str] | None = None) -> str | None:
    """Why a table of pcaplake cannot have one of these properties, and what to write instead; None: it can have them.

    Properties without `delta.` belong to the user and may have any value, unless they are named as those of Delta are, as
    then the user expects an effect that they would not have. `columns`: of all tables, if they are known.
    """
    for key, value in properties.items():
        is_of_delta = key.lower().startswith("delta.")
        if problem := _find_problem(key, value, columns) if is_of_delta else _find_missing_prefix(key):
            return f"{key}={value}: {problem}"
    return None


def _find_missing_prefix(key: str) -> str | None:
    meant = _find_close_name(f"delta.{key}", 0.92)
    return f"without `delta.` it changes nothing; did you mean {meant}?" if meant else None


def _find_close_name(key: str, least_alike: float = 0.6) -> str | None:
    lowered = {name.lower(): name for name in (*KINDS, *_MAY_BE_OFF)}
    close = difflib.get_close_matches(key.lower(), lowered, 1, least_alike)
    return lowered[close[0]] if close else None


def _find_problem(key: str, value: str, columns: Collection[str] | None) -> str | None:
    known = (*KINDS, *_MAY_BE_OFF)
    if key == TXN_RETENTION:
        return "a table would forget which rows it has, and get them again. Leave it out"
    if key.startswith((CONSTRAINT, _FEATURE, *_NEVER)):
        return "tables of pcaplake have reader version 1 and writer version 2, without this feature. Leave it out"
    if key not in known:
        meant = _find_close_name(key)
        hint = f"did you mean {meant}?" if meant else "a property of your own has another beginning"
        return f"Delta has no such property; {hint}"
    if key in _MAY_BE_OFF:
        off = value.lower() == "false"
        return None if off else "pcaplake does not write tables with this feature. Leave it out, or write false"
    kind = KINDS[key]
    if isinstance(kind, tuple):
        return None if value in kind else f"write {' or '.join(kind)}"
    if kind == "boolean":
        return None if value.lower() in ("true", "false") else "write true or false"
    if kind == "interval":
        return None if parse_interval(value) is not None else "write a time such as interval 7 days"
    if kind.startswith("number"):
        least = int(kind.rpartition(" ")[2])
        fits = re.fullmatch(r"-?[0-9]{1,10}", value) and least <= int(value) < 1 << 31
        return None if fits else f"write a number from {least} on"
    if kind == "columns":
        if not _COLUMNS.fullmatch(value):
            return "write names of columns, separated by commas"
        lowered = None if columns is None else {name.lower() for name in columns}  # Spark ignores the case, too
        names = (name.strip("`") for name in _FIRST_NAME.findall(value))
        unknown = next((name for name in names if lowered is not None and name.lower() not in lowered), None)
        return None if unknown is None else f"no table of pcaplake has a column {unknown!r}"
    return None if value else "it has no value"
