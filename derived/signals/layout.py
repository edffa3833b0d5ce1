"""The tables of signals: the one of all messages, and those of single messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pcaplake.signals.database import Databases
from pcaplake.signals.sources import TABLES, Source
from pcaplake.signals.tables import SIGNALS, SIGNALS_SCHEMA, wide_table_name
from pcaplake.signals.wide import source_of_message, wide_schema_named

from .conditions import of_wide_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """`kinds`: of the frames that have rows. `message`: of a wide table; `only`: the frames that it may have."""

    table: str
    schema: pa.Schema
    kinds: tuple[Source, ...] = tuple(TABLES)
    message: str | None = None
    only: pc.Expression | None = None


LONG: Final = Layout(table=SIGNALS, schema=SIGNALS_SCHEMA)


def wide_layout(databases: Databases, message: str) -> Layout:
    """The table `signals_<message>`. The databases have this message, as `require_wide_messages` says."""
    return Layout(
        table=wide_table_name(message),
        schema=wide_schema_named(databases, message),
        kinds=(source_of_message(databases, message),),
        message=message,
        only=of_wide_table(databases, message),
    )
