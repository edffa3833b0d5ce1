"""What the tables must hold: the signals of the frames that are there, and all of a lake made from nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from pcaplake.lake.records import SIGHTINGS
from pcaplake.parser.schemas import TABLES
from pcaplake.signals import Databases
from pcaplake.signals.decoder import SignalDecoder
from pcaplake.signals.sources import TABLES as SOURCES
from pcaplake.signals.sources import Source
from pcaplake.signals.tables import CATALOG, SIGNALS, wide_table_name
from pcaplake.signals.wide import source_of_message

VOLATILE = ("ingested_at", "first_seen", "modified_at", "sequencer")  # when it was seen, not what is in it


def read(lake: Path, table: str) -> pa.Table | None:
    """All rows of a table; None if it does not exist or never had any."""
    if not any((lake / table).rglob("*.parquet")) or not any((lake / table / "_delta_log").glob("*.json")):
        return None
    return DeltaTable(str(lake / table)).to_pyarrow_table()


def texts(rows: pa.Table | pa.RecordBatch | None) -> Counter[str]:
    """All columns of all rows; as text, because NaN is not equal to itself."""
    made = [] if rows is None else rows.to_pylist()
    return Counter(repr(sorted((name, value) for name, value in row.items() if name not in VOLATILE)) for row in made)


class SignalOracle:
    """The signals of frames by the decoder alone."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._decoders: dict[tuple[Source, str | None], SignalDecoder] = {}

    def _decode(self, lake: Path, wide: str | None, *, until_captures: bool) -> Iterator[pa.Table]:
        """From the frames that are there now, or from those before the first batch that `captures` lacks."""
        for kind in SOURCES if wide is None else [source_of_message(self._databases, wide)]:
            decoder = self._decoders.get((kind, wide))
            if decoder is None:
                decoder = self._decoders[kind, wide] = SignalDecoder(self._databases, kind, wide)
            rows = (read_until_captures if until_captures else read)(lake, SOURCES[kind])
            for batch in [] if rows is None else rows.to_batches():
                yield decoder.decode(batch)

    def compare(self, lake: Path, wide: Collection[str]) -> list[str]:
        """What is wrong in `signals` and these wide tables, if the frames are right."""
        wrong = []
        for message in (None, *wide):
            table = SIGNALS if message is None else wide_table_name(message)
            found = texts(read(lake, table))
            waiting, now = [
                sum((texts(rows) for rows in self._decode(lake, message, until_captures=one)), Counter[str]())
                for one in (True, False)
            ]
            wrong += describe(table, now, found) if found != waiting else []
        return wrong


def read_until_captures(lake: Path, table: str) -> pa.Table | None:
    """The rows that a table had before the first batch that `captures` lacks, or has now if there is none."""
    rows = read(lake, table)
    if rows is None or read(lake, "captures") is None:
        return rows
    newest, known = DeltaTable(str(lake / table)), DeltaTable(str(lake / "captures")).transaction_version("pcaplake")
    for version in range(newest.version(), -1, -1):
        try:
            one = DeltaTable(str(lake / table), version=version)
            if (one.transaction_version("pcaplake") or -1) <= (-1 if known is None else known):
                return one.to_pyarrow_table()
        except (DeltaError, OSError):
            break  # its versions or files are gone
    return rows


def compare_lakes(lake: Path, right: Path, wide: Collection[str]) -> list[str]:
    """What differs from a lake made from nothing, except that it records losses of whole tables that were accepted."""
    wrong = []
    of_captures = [name for name in TABLES if name != SIGHTINGS]  # which a lake made from nothing has none of
    for name in (*of_captures, SIGNALS, CATALOG, *map(wide_table_name, wide)):
        found = read(lake, name)
        if found is not None and name == "quarantine":
            of_table = pc.match_substring(found["uri"], f"/{lake.parent.name}/lake")
            found = found.filter(pc.invert(pc.and_(of_table, pc.equal(found["error"], "accepted_loss"))))
        wrong += describe(name, texts(read(right, name)), texts(found))
    return wrong


def describe(table: str, expected: Counter[str], found: Counter[str]) -> list[str]:
    lacking, more = expected - found, found - expected
    if not lacking and not more:
        return []
    rows: list[Any] = [*list(lacking)[:1], *list(more)[:1]]
    return [
        f"{table}: {lacking.total()} rows are missing and {more.total()} are too many, of {expected.total()}: "
        + " ... ".join(rows)
    ]
