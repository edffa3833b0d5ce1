"""Names of the folders of partitions, as other Delta writers make them."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.lake.staging.partitions import folder_name, partition_path


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (None, "__HIVE_DEFAULT_PARTITION__"),
        ("2026-11-21", "2026-11-21"),
        ("v_1.x", "v_1.x"),
        ("A 1:=/%", "A%201%3A%3D%2F%25"),
        ("~\x00;\x7f", "%7E%00%3B%7F"),
        ("Größe 漢", "Größe%20漢"),
    ],
)
def test_the_name_is_the_value_percent_encoded(value: str | None, name: str) -> None:
    assert folder_name(value) == name


@given(st.text(min_size=1, max_size=66))
def test_a_reader_decodes_the_value(value: str) -> None:
    name = folder_name(value)
    assert "/" not in name
    assert len(name.encode()) <= 200
    assert unquote(name) == value or name.startswith("=")


def test_a_value_that_is_too_long_has_a_name_that_no_value_has() -> None:
    first, second = folder_name("漢" * 67), folder_name("漢" * 68)
    assert first != second
    assert len(first) == len(second) == 33
    assert first[0] == "=" != folder_name("=")[0]


def test_a_value_called_as_the_folder_of_null_is_not_null() -> None:
    assert folder_name("__HIVE_DEFAULT_PARTITION__")[0] == "="


def test_the_folders_of_several_columns() -> None:
    assert partition_path({"vehicle_id": "v 1", "date": None}) == "vehicle_id=v%201/date=__HIVE_DEFAULT_PARTITION__/"
    assert partition_path({}) == ""
