"""Every column has one description: on the page docs/tables.md, and as comment of the column in Delta and Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pcaplake.lake.lake import Lake
from pcaplake.lake.records import Capture
from pcaplake.parser import descriptions
from pcaplake.parser.schemas import TABLES
from pcaplake.signals import descriptions as signal_descriptions
from pcaplake.signals.tables import CATALOG_SCHEMA, SIGNALS_SCHEMA
from pcaplake.spark_jobs.common.lake_tables import to_spark_schema
from tools import data_dictionary

ROOT = Path(__file__).parents[2]


def test_the_page_is_generated() -> None:
    assert (ROOT / "docs/tables.md").read_text() == data_dictionary.render_markdown(), "make docs"


def test_the_page_shows_the_comments_that_delta_gets() -> None:
    """`bus` has one meaning in a row of `signals` and another in one of `signal_catalog`."""
    sections = dict(part.split("\n", 1) for part in data_dictionary.render_markdown().split("\n## ")[1:])
    for name, schema in (("signals", SIGNALS_SCHEMA), ("signal_catalog", CATALOG_SCHEMA)):
        assert f"| `bus` | string | {schema.field('bus').metadata[b'comment'].decode()} |" in sections[name]


def test_no_description_is_of_a_column_that_is_not_there() -> None:
    for table, columns in descriptions.COLUMNS.items():
        assert set(columns) <= set(TABLES[table].columns), table
    shared = {
        column for name, spec in TABLES.items() for column in spec.columns if column not in descriptions.COLUMNS[name]
    }
    assert shared == set(descriptions.KEYS)
    assert descriptions.TABLES.keys() == TABLES.keys()
    assert set(signal_descriptions.COLUMNS) <= {*SIGNALS_SCHEMA.names, *CATALOG_SCHEMA.names}


@pytest.mark.parametrize("schema", [SIGNALS_SCHEMA, CATALOG_SCHEMA, TABLES["can_frames"].schema])
def test_spark_gets_the_comments(schema: pa.Schema) -> None:
    assert all(field.metadata["comment"] for field in to_spark_schema(schema).fields)


async def test_delta_tables_have_them_and_stages_do_not(tmp_path: Path) -> None:
    async with await Lake.open(str(tmp_path / "lake")) as lake:
        window = lake.window()
        window.begin(Capture(capture_id="c", uri="file:///c", etag="e", size=1))
        schema = TABLES["faults"].schema
        row = {"capture_id": "c", "packet_no": 1, "sub_no": 0, "layer": "ip", "reason": "overrun"}
        window.write("faults", pa.RecordBatch.from_pylist([row], schema))
        window.end("ok")
        stage = window.close()
        assert stage is not None
        assert not any(field["metadata"] for field in stage.schemas["faults"]["fields"])
        await lake.stage(stage)
        await lake.drain()
    table = DeltaTable(tmp_path / "lake" / "faults")
    assert table.version() == 1
    comments = {field.name: field.metadata.get("comment") for field in table.schema().fields}
    assert comments == {name: descriptions.describe_column("faults", name) for name in schema.names}
