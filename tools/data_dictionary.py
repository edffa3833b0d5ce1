"""Generates docs/tables.md: every column of every table, its type and what it contains.

python -m tools.data_dictionary > docs/tables.md      # `make docs`
"""

from __future__ import annotations

import sys

import pyarrow as pa

from pcaplake.lake.delta.schema import to_delta_struct
from pcaplake.parser import descriptions
from pcaplake.parser.schemas import TABLES
from pcaplake.signals import descriptions as signal_descriptions
from pcaplake.signals.tables import CATALOG, CATALOG_SCHEMA, SIGNALS, SIGNALS_SCHEMA

INTRODUCTION = """\
# Tables and columns

A lake has one Delta table for each kind of message. This page is generated from the schemas. The same sentences are the comments
of the columns: `DESCRIBE TABLE` in Spark shows them, and so does the schema in other Delta readers. A column of a table that an
older version created has no comment.

- Types are Delta's. Delta has no unsigned integers, so an unsigned value has the next larger type. An unsigned 64-bit value keeps
  its bits.
- Null means "not in the packet", never 0 or -1. Identifiers are integers: 0x123 is 291.
- `ts_ns` is the time in the capture file, `bus_time_ns` that of the capture module. The two clocks may differ by years.
- (`capture_id`, `packet_no`, `sub_no`) identifies a row in the tables `packets` to `someip_sd_entries`. Join two tables by
  `capture_id` and `packet_no`, because `sub_no` counts the rows of each table separately.
- Rows have no order: `pcaplake maintain` sorts them by vehicle, ten minutes, what identifies them (such as bus and id) and
  time. Sort by `packet_no` and `sub_no` to get the order of a capture.
"""


def render_markdown() -> str:
    """The page."""
    sections = [INTRODUCTION]
    for name, spec in TABLES.items():
        sections.append(_render_table(name, descriptions.TABLES[name], spec.schema))
    for name, schema in ((SIGNALS, SIGNALS_SCHEMA), (CATALOG, CATALOG_SCHEMA)):
        writers = "Written by `pcaplake signals` or the Spark job `signals` ([signals.md](signals.md))."
        sections.append(_render_table(name, f"{signal_descriptions.TABLES[name]} {writers}", schema))
    return "\n".join(sections)


def _render_table(name: str, text: str, schema: pa.Schema) -> str:
    lines = [f"## {name}", text, "", "| column | type | content |", "|---|---|---|"]
    lines += [
        f"| `{field['name']}` | {_type_text(field['type'])} | {field['metadata']['comment']} |"
        for field in to_delta_struct(schema)["fields"]
    ]
    return "\n".join(lines) + "\n"


def _type_text(kind: object) -> str:
    """A Delta type as in SQL."""
    match kind:
        case {"type": "array", "elementType": element}:
            return f"array\\<{_type_text(element)}>"
        case {"type": "map", "keyType": key, "valueType": value}:
            return f"map\\<{_type_text(key)}, {_type_text(value)}>"
        case {"type": "struct", "fields": list(fields)}:
            return f"struct\\<{', '.join(field['name'] + ' ' + _type_text(field['type']) for field in fields)}>"
    return str(kind)


if __name__ == "__main__":
    sys.stdout.write(render_markdown())
