"""Names of lakes: every program opens the same tables there, or the name is refused before anything is written."""

from __future__ import annotations

import unicodedata
from contextlib import closing
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import WrongChoice
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store
from tests.lake.delta.deltas import SCHEMA, txn, write
from tests.worker.lakes import connect, run

NFC, NFD = (unicodedata.normalize(form, "Größe") for form in ("NFC", "NFD"))
PLAIN = ("lake", "a b", " a", "a ", "k#x", "k?x=1", "a+b", "a&b", "a=b", "a;b", "a:b", "a@b", "a'b", 'a"b', "a`b")
ODD = (
    "a[b]",
    "a{b}",
    "a<b>",
    "a|b",
    "a^b",
    "a*b",
    "a$b",
    "a!b",
    "a,b",
    "a(b)",
    "a~",
    "...",
    "-",
    NFC,
    NFD,
    "日本",
    "🚗",
)
REFUSED = ("a%20b", "a%2Fb", "a%", "100%", "%zz", "a\\b", "a\tb", "a\nb", "a\x01b", "a\x7fb")


def read_by_all(location: str) -> set[int]:
    """Rows, as deltalake, its dataset, DuckDB and Polars count them."""
    table = DeltaTable(location)
    quoted = location.replace("'", "''")
    with closing(connect()) as connection:
        row = connection.sql(f"SELECT count(*) FROM delta_scan('{quoted}')").fetchone()
    assert row is not None
    polars = pl.scan_delta(location, use_pyarrow=True).collect().height
    return {table.to_pyarrow_dataset().count_rows(), pa.table(table.to_pyarrow_table()).num_rows, row[0], polars}


@pytest.mark.slow
async def test_every_reader_opens_the_lake_that_we_wrote(tmp_path: Path) -> None:
    for number, name in enumerate((*PLAIN, *ODD)):
        folder = tmp_path / name  # beside each other, so that a second spelling would be found in another lake
        log = LogStore(store := Store.open(folder))
        await log.create("t", SCHEMA, partition_columns=["date"])
        await log.commit("t", [write(folder / "t", "x", list(range(number + 1)))], txn=txn(0))
        location = store.external_location("t")
        assert read_by_all(location) == {number + 1}, name
        DeltaTable(location).create_checkpoint()
        assert (folder / "t/_delta_log" / f"{1:020d}.checkpoint.parquet").exists(), name
        assert read_by_all(location) == {number + 1}, name
    assert len(list(tmp_path.iterdir())) == len({*PLAIN, *ODD}), "no other folder was made"


@pytest.mark.parametrize("name", REFUSED)
def test_a_folder_that_others_read_as_another_is_refused(name: str, tmp_path: Path) -> None:
    for uri in (tmp_path / name, f"{tmp_path}/{name}", f"file://{tmp_path}/{name}", tmp_path / name / "below"):
        with pytest.raises(WrongChoice, match="rename that folder"):
            Store.open(uri)
    with pytest.raises(WrongChoice):
        Store.open(tmp_path).external_location(name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spelling", ["lake/", "lake//", "./lake", "x/../lake", ".//lake/."])
def test_a_folder_has_one_spelling(spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Store.open(spelling).uri == Store.open(tmp_path / "lake").uri == f"file://{tmp_path}/lake"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("s3://bucket/k#x", "has '#'"),
        ("s3://bucket/k?x", "has '[?]'"),
        ("s3://bucket/a%20b", "write the plain name"),
        ("gs://bucket/a%", "has '%'"),
        ("az://container/a\\b", "use a path without it"),
        ("s3://bucket/a[b]", r"has '\['"),
        ("s3://bucket/a|b", "use a path without it"),
        ("s3://bucket/a^b", "use a path without it"),
        ("s3://bucket/a\tb", "use a path without it"),
        ("s3://bucket/\u00a0a", "use a path without it"),
        ("s3://bucket/a ", "begins or ends with a space"),
        ("s3://bucket/ a/b", "begins or ends with a space"),
        ("s3a://bucket//a", "write s3a://bucket/a$"),
        ("gs://bucket/a//b/", "write gs://bucket/a/b$"),
        ("s3://bucket/./a", "write s3://bucket/a$"),
        ("s3://bucket/a/../b", "is empty, '.' or '..'"),
        ("s3://key:secret@bucket/a", "is not a bucket"),
        ("s3:/bucket/a", "write s3://bucket/a$"),
        ("gs:bucket/a", "write gs://bucket/a$"),
        ("file:/lakes/a", "write file:///lakes/a$"),
        ("~/lake", "write the folder in full"),
        ("~", "write the folder in full"),
    ],
)
def test_a_uri_that_not_everybody_shares_is_refused(uri: str, message: str) -> None:
    with pytest.raises(WrongChoice, match=message):
        Store.open(uri, {"aws_region": "x"} if uri.startswith("s3") else {})


def test_a_place_that_an_older_version_recorded_can_still_be_looked_at(tmp_path: Path) -> None:
    """To tell whether a lake that was renamed is a copy."""
    assert Store.open(tmp_path).open_other_store(f"file://{tmp_path}/L%20x").local == tmp_path / "L%20x"


@pytest.mark.parametrize("command", ["ingest", "doctor", "maintain", "tables", "status"])
@pytest.mark.parametrize("name", ["L%20x", "s3://bucket/k#x"])
def test_commands_say_what_to_rename(
    command: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    captures = [tmp_path] if command == "ingest" else []
    code, out, err = run(capsys, command, *captures, "--lake", name)
    assert (code, out) == (2, ""), err
    assert ("L%20x" in err) == (name == "L%20x")
    assert "rename that folder" in err or "use a path without it" in err
    assert list(tmp_path.iterdir()) == []
