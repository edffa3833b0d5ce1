"""Actions are what the Delta protocol says, and come back as they were."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.lake.delta.actions import (
    Action,
    AddFile,
    CommitInfo,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
    decode_path,
    encode_path,
    parse_json_lines,
    parse_table_action,
    serialize_actions,
)
from tests.lake.delta.deltas import parse_add

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
whole = st.integers(-(2**63), 2**63 - 1)
values = st.dictionaries(text, st.none() | text, max_size=3)
pairs = st.dictionaries(text, text, max_size=3)

columns = st.fixed_dictionaries({"name": text, "type": st.sampled_from(["long", "string"]), "nullable": st.booleans()})
structs = st.fixed_dictionaries({"type": st.just("struct"), "fields": st.lists(columns, max_size=3)})

actions: st.SearchStrategy[Action] = st.one_of(
    st.builds(
        AddFile, path=text, size=whole, partition_values=values, modification_time=whole, stats=text,
        data_change=st.booleans(),
    ),
    st.builds(
        RemoveFile, uri=text, deletion_timestamp=whole, partition_values=values, size=st.none() | whole,
        data_change=st.booleans(),
    ),
    st.builds(Txn, app_id=text, version=whole),
    st.builds(Protocol, reader=whole, writer=whole),
    st.builds(
        Metadata, id=text, schema=structs, partition_columns=st.lists(text, max_size=2).map(tuple), configuration=pairs,
        created_time=st.none() | whole, name=st.none() | text, description=st.none() | text,
    ),
    st.builds(
        CommitInfo, txn_id=text, timestamp=whole, operation=text, engine_info=text, parameters=pairs, metrics=pairs,
        blind_append=st.booleans(),
    ),
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(actions, max_size=5))
def test_actions_come_back_as_they_were(many: list[Action]) -> None:
    data = serialize_actions(many)
    lines = parse_json_lines(data)
    for action, line in zip(many, lines, strict=True):
        if isinstance(action, AddFile):
            assert parse_add(line["add"]) == action
        assert parse_table_action(line) == (action if isinstance(action, (Txn, Protocol, Metadata)) else None)
    assert data.count(b"\n") == len(lines) == len(many)


@given(text)
def test_a_path_in_the_log_is_an_ascii_uri_of_the_file_name(path: str) -> None:
    uri = encode_path(path)
    assert decode_path(uri) == path
    assert uri.isascii()
    assert not set(uri) & set(' "#<>?[]\\^`{|}:')


def test_paths_are_encoded_as_the_protocol_says() -> None:
    assert encode_path("date=2026-11-21/a-0.zstd.parquet") == "date=2026-11-21/a-0.zstd.parquet"
    # a partition value that is escaped in the file's name is escaped once more in the log
    assert encode_path("bus=a%20b/ü 1.parquet") == "bus=a%2520b/%C3%BC%201.parquet"


def test_lines_are_what_the_protocol_says() -> None:
    add = AddFile(path="date=2026-11-21/a b", size=3, partition_values={"date": None}, modification_time=5, stats="{}")
    info = CommitInfo(txn_id="t", timestamp=1, operation="WRITE", engine_info="e", metrics={"numFiles": "1"})
    lines = [json.loads(line) for line in serialize_actions([info, Txn(app_id="a", version=7), add]).splitlines()]
    assert lines[0]["commitInfo"] == {
        "timestamp": 1, "operation": "WRITE", "operationParameters": {}, "isBlindAppend": False,
        "operationMetrics": {"numFiles": "1"}, "engineInfo": "e", "txnId": "t",
    }  # fmt: skip
    assert lines[1] == {"txn": {"appId": "a", "version": 7}}
    assert lines[2]["add"] == {
        "path": "date=2026-11-21/a%20b", "partitionValues": {"date": None}, "size": 3, "modificationTime": 5,
        "dataChange": True, "stats": "{}",
    }  # fmt: skip


@pytest.mark.parametrize(("stats", "rows"), [('{"numRecords":12,"minValues":{}}', 12), ('{"numRecords": 0}', 0)])
def test_rows_of_an_add_are_in_its_stats(stats: str, rows: int) -> None:
    one = AddFile(path="a", size=1, partition_values={}, modification_time=0, stats=stats)
    assert one.num_records == rows
    assert parse_add({**one.to_json(), "stats": None}).num_records is None
