"""Arrow schemas and Delta's: nothing is lost between them, and a table only ever grows."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from hypothesis import given, settings
from hypothesis import strategies as st

from pcaplake.lake.delta.errors import SchemaConflict
from pcaplake.lake.delta.schema import evolve_schema, find_incompatibility, to_arrow_schema, to_delta_struct
from pcaplake.parser.schemas import TABLES

LEAVES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.timestamp("us", tz="UTC"), pa.decimal128(20, 3),
]  # fmt: skip
NAMES = st.text(st.characters(whitelist_categories=["Ll", "Nd"]), min_size=1, max_size=8)


def fields(types: st.SearchStrategy[pa.DataType], least: int = 1) -> st.SearchStrategy[list[pa.Field]]:
    each = st.tuples(NAMES, types).map(lambda pair: pa.field(*pair))
    return st.lists(each, min_size=least, max_size=5, unique_by=lambda field: field.name.lower())


TYPES = st.recursive(
    st.sampled_from(LEAVES),
    lambda inner: st.one_of(
        inner.map(lambda kind: pa.list_(pa.field("element", kind))),
        st.tuples(st.sampled_from(LEAVES), inner).map(lambda pair: pa.map_(*pair)),
        fields(inner).map(pa.struct),
    ),
    max_leaves=5,
)
SCHEMA = fields(TYPES).map(pa.schema)


@pytest.mark.slow
@given(schema=SCHEMA)
def test_a_schema_comes_back_as_it_was(schema: pa.Schema) -> None:
    assert to_arrow_schema(to_delta_struct(schema)) == schema
    assert find_incompatibility(to_delta_struct(schema), to_delta_struct(schema)) is None
    assert evolve_schema("t", to_delta_struct(schema), to_delta_struct(schema)) is None


@settings(max_examples=50, deadline=None)
@given(schema=SCHEMA)
def test_deltalake_reads_our_schema_as_its_own(schema: pa.Schema) -> None:
    theirs = Schema.from_json(json.dumps(to_delta_struct(schema)))
    assert pa.schema(theirs).equals(schema)
    assert json.loads(theirs.to_json()) == to_delta_struct(schema)


@pytest.mark.slow
@given(have=SCHEMA, more=fields(TYPES, least=0))
def test_what_is_new_is_added_at_the_end_and_nullable(have: pa.Schema, more: list[pa.Field]) -> None:
    known = {field.name.lower() for field in have}
    new = [field.with_nullable(False) for field in more if field.name.lower() not in known]
    wanted = to_delta_struct(pa.schema([*new, *have]))
    grown = evolve_schema("t", to_delta_struct(have), wanted)
    if not new:
        assert grown is None
        return
    assert grown is not None
    assert to_arrow_schema(grown) == pa.schema([*have, *(field.with_nullable(True) for field in new)])
    assert evolve_schema("t", grown, wanted) is None, "once is enough"
    assert evolve_schema("t", grown, to_delta_struct(have)) is None, "files of an older decoder still fit"
    assert find_incompatibility(to_delta_struct(have), grown) is None, "who wrote the old one may go on"
    assert "was dropped" in (find_incompatibility(grown, to_delta_struct(have)) or "")


@pytest.mark.slow
@given(schema=SCHEMA, data=st.data())
def test_another_type_is_refused_by_name(schema: pa.Schema, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(schema) - 1))
    other = data.draw(st.sampled_from([kind for kind in LEAVES if kind != schema.field(at).type]))
    changed = schema.set(at, pa.field(schema.field(at).name, other))
    with pytest.raises(SchemaConflict) as caught:
        evolve_schema("trips", to_delta_struct(schema), to_delta_struct(changed))
    assert f"trips: column {schema.field(at).name} is " in str(caught.value)
    assert find_incompatibility(to_delta_struct(schema), to_delta_struct(changed)) is not None


def test_a_struct_grows_within_lists_and_maps() -> None:
    def schema(*names: str) -> pa.Schema:
        inner = pa.struct([(name, pa.int32()) for name in names])
        listed = pa.list_(pa.field("element", inner))
        return pa.schema([("s", inner), ("l", listed), ("m", pa.map_(pa.string(), inner))])

    assert to_arrow_schema(
        evolve_schema("t", to_delta_struct(schema("a")), to_delta_struct(schema("b", "a"))) or {}
    ) == schema("a", "b")


def test_names_that_engines_take_for_one_are_refused() -> None:
    with pytest.raises(SchemaConflict, match="column Bus appears twice, also as bus"):
        to_delta_struct(pa.schema([("bus", pa.int8()), ("Bus", pa.int8())]))
    with pytest.raises(SchemaConflict, match="column bus of the table is called Bus in the rows"):
        evolve_schema(
            "t", to_delta_struct(pa.schema([("bus", pa.int8())])), to_delta_struct(pa.schema([("Bus", pa.int8())]))
        )


def test_not_null_columns_of_others() -> None:
    have = to_delta_struct(pa.schema([("a", pa.int8()), ("b", pa.int8())]))
    have["fields"][0]["nullable"] = False
    with pytest.raises(SchemaConflict, match="a is NOT NULL in the table and missing in the rows"):
        evolve_schema("t", have, to_delta_struct(pa.schema([("b", pa.int8())])))
    with pytest.raises(SchemaConflict, match=r"a is NOT NULL in the table and may be null.*DROP NOT NULL"):
        evolve_schema("t", have, to_delta_struct(pa.schema([("a", pa.int8())])))
    promised = to_delta_struct(pa.schema([("a", pa.int8())]))
    promised["fields"][0]["nullable"] = False
    assert evolve_schema("t", have, promised) is None


@pytest.mark.parametrize("kind", [pa.uint8(), pa.timestamp("ns"), pa.timestamp("us"), pa.time64("us"), pa.float16()])
def test_a_type_that_delta_lacks_is_named(kind: pa.DataType) -> None:
    with pytest.raises(SchemaConflict, match=r"t: column s\.x is .*cannot hold"):
        to_delta_struct(pa.schema([("s", pa.struct([("x", kind)]))]), "t")


def test_encodings_of_arrow_are_no_types_of_delta() -> None:
    dictionary = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema([("d", dictionary), ("l", pa.large_string()), ("f", pa.binary(8)), ("v", pa.string_view())])
    assert [field["type"] for field in to_delta_struct(schema)["fields"]] == ["string", "string", "binary", "string"]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_of_ours_can_be_held(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    struct = to_delta_struct(TABLES[name].schema, name)
    folder = tmp_path_factory.mktemp("t")
    table = DeltaTable.create(folder, schema=to_arrow_schema(struct))
    assert (table.protocol().min_reader_version, table.protocol().min_writer_version) == (1, 2)
