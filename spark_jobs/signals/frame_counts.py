"""Counts the frames of a lake, for a run that decoded no signal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from pcaplake.signals.database import UNKNOWN_CHANNEL
from pcaplake.signals.model import BUSLESS, FLEXRAY_CYCLES, Kind
from pcaplake.signals.tables import SOURCES
from pcaplake.spark_jobs.common.lake_tables import read_table, table_exists
from pcaplake.worker.signals.unmatched import FrameCount

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_EXPRESSIONS: Final[Mapping[Kind, tuple[str, str, str]]] = {
    "can": ("can_id IS NOT NULL AND NOT coalesce(rtr, false)", "can_id", "extended"),
    "lin": ("lin_id IS NOT NULL", "lin_id", "false"),
    "flexray": (
        "frame_id IS NOT NULL AND cycle IS NOT NULL AND NOT coalesce(null_frame, false)",
        f"frame_id * {FLEXRAY_CYCLES} + cycle + IF(channel IS NULL, {UNKNOWN_CHANNEL}, 0)",
        "channel = 'B'",
    ),
    "pdu": ("pdu_id IS NOT NULL", "pdu_id", "false"),
    "j1939": (
        f"tp_packets IS NOT NULL AND pgn < {1 << 18}",
        "shiftleft(priority, 26) + source_address"
        f" + shiftleft(IF((pgn & {0xFF00}) >= {240 << 8}, pgn, pgn & {0x3FF00} | destination_address), 8)",
        "true",
    ),
}
"""Of each kind, in SQL: the frames that can have signals, their id, and whether it is extended."""


def count_frames(spark: SparkSession, lake: str) -> Iterator[FrameCount]:
    """The frames of the lake that can have signals, by bus and id as `group_by_id` gives them."""
    from pyspark.sql import functions as f

    for kind, table in SOURCES.items():
        if not table_exists(spark, lake, table):
            continue
        which, number, extended = _EXPRESSIONS[kind]
        bus = "CAST(NULL AS STRING)" if kind in BUSLESS else "bus"
        columns = (f"{bus} AS bus", f"{number} AS id", f"coalesce({extended}, false) AS extended")
        groups = read_table(spark, lake, table).where(which).groupBy(*map(f.expr, columns))
        for bus_name, frame_id, is_extended, count in groups.count().toLocalIterator():
            yield FrameCount(kind=kind, bus=bus_name, id=frame_id, extended=is_extended, frames=count)
