"""A rollout and a rollback: the version before and this one, one after the other on one lake, lose and double nothing."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
import tarfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake import versions
from tools import ROOMS

FIRST = "37f78c1"
"""Of before formats had versions: it refuses what it does not know. This version goes on with all that it wrote."""
BASELINE_FILE = "worker/lake/formats.py"
"""The oldest version to which a rollback works is the one that adds this file: it keeps what a newer version added."""
NAMED = {"swaps": "1bcc7d8", "signals": "c9c2c67"}
"""Versions after it, by what they added to the formats: notes of swaps and comments of columns; the state of signals."""
ROOT = Path(__file__).parents[2]
DBC = """
VERSION ""
BU_: A
BO_ 256 Speed: 8 A
 SG_ Little : 0|16@1+ ({factor},0) [0|100] "km/h" A
"""
THIS = ROOT / "src"


def sources(version: str, folder: Path) -> Path:
    folders = git("ls-tree", "--name-only", version, "--", *ROOMS, "src").decode().split()
    with tarfile.open(fileobj=io.BytesIO(git("archive", version, *folders))) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src" if "src" in folders else folder


def git(*arguments: str) -> bytes:
    found = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, check=False)
    if found.returncode or not found.stdout:
        pytest.fail(
            "this test runs older versions, which are not in this clone: fetch the whole history "
            f"(git fetch --unshallow). git {' '.join(arguments)} says: {found.stderr.decode()}"
        )
    return found.stdout


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sources(FIRST, tmp_path_factory.mktemp("first"))


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    added = git("log", "--diff-filter=A", "--format=%H", "--", BASELINE_FILE).decode().split()
    return sources(added[-1], tmp_path_factory.mktemp("baseline"))


def tags() -> list[str]:
    """Released versions, the newest first."""
    found = subprocess.run(["git", "tag", "--sort=-creatordate"], cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.split()


@pytest.fixture
def later(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return sources(NAMED.get(request.param, request.param), tmp_path / "later")


# the newest format and the newest release in CI, all of them in `make torture`
LATER = [pytest.param(name, marks=[] if name == "signals" else pytest.mark.torture) for name in NAMED]
LATER += [pytest.param(tag, marks=pytest.mark.torture if number else []) for number, tag in enumerate(tags())]


def python(tree: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(tree)},
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def act(tree: Path, lake: Path, action: str, *names: str) -> None:
    done = python(tree, versions.__file__, lake, action, *names)
    assert done.returncode == 0, done.stderr


def left(tree: Path, lake: Path, *names: str) -> None:
    """A capture in the tables, one in a batch that is in none, and one that is staged."""
    act(tree, lake, "drain", names[0])
    act(tree, lake, "compose", names[1])
    act(tree, lake, "stage", names[2])


def counts(lake: Path, table: str = "faults") -> Counter[str]:
    return Counter(DeltaTable(str(lake / table)).to_pyarrow_table(columns=["capture_id"])["capture_id"].to_pylist())


@pytest.mark.slow
def test_it_runs_the_sources_it_says(baseline: Path) -> None:
    done = python(baseline, "-c", "from pcaplake import worker, parser; print(worker.__file__, parser.__file__)")
    assert all(one.startswith(str(baseline)) for one in done.stdout.split()), done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("version", ["first", "baseline"])
def test_this_version_goes_on_with_what_an_older_one_left(
    version: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    left(request.getfixturevalue(version), tmp_path, "a", "b", "c")
    assert counts(tmp_path) == Counter(a=2)
    act(THIS, tmp_path, "drain", "d", "a")
    assert counts(tmp_path) == Counter(a=2, b=2, c=2, d=2)


@pytest.mark.slow
def test_an_older_version_goes_on_with_what_this_one_left(baseline: Path, tmp_path: Path) -> None:
    left(THIS, tmp_path, "a", "b", "c")
    act(baseline, tmp_path, "drain", "d", "a")
    assert counts(tmp_path) == Counter(a=2, b=2, c=2, d=2)
    act(THIS, tmp_path, "drain", "e")
    assert counts(tmp_path) == Counter(a=2, b=2, c=2, d=2, e=2)


@pytest.mark.slow
@pytest.mark.parametrize("later", LATER, indirect=True)
def test_a_lake_with_partitions_and_signals_is_rolled_back_and_forth(
    later: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, database, has_signals = tmp_path / "lake", tmp_path / "car.dbc", (later / "pcaplake" / "signals").exists()
    monkeypatch.setenv("PARTITION_BY", "vehicle_id,date")
    expected: Counter[str] = Counter()

    def go_on(tree: Path, factor: float, *names: str) -> None:
        act(tree, lake, "drain", *names)
        expected.update(dict.fromkeys(names, 2))
        assert counts(lake) == counts(lake, "can_frames") == expected
        if not has_signals:
            return
        database.write_text(DBC.format(factor=factor))
        act(tree, lake, "signals", str(database))
        assert counts(lake, "signals") == counts(lake, "signals_Speed") == expected
        for table, column in (("signals", "value"), ("signals_Speed", "Little")):
            assert {*DeltaTable(lake / table).to_pyarrow_table()[column].to_pylist()} == {256 * factor}, table

    go_on(later, 1.0, "a")
    act(later, lake, "compose", "b")
    expected["b"] = 2
    go_on(THIS, 1.0, "c")  # the definitions of the older version still stand
    act(THIS, lake, "compose", "d")
    expected["d"] = 2
    go_on(later, 0.5, "e")
    go_on(THIS, 0.25, "f")
    assert DeltaTable(lake / "can_frames").metadata().partition_columns == ["vehicle_id", "date"]


@pytest.mark.slow
def test_a_rollback_keeps_what_a_newer_version_added(baseline: Path, tmp_path: Path) -> None:
    """As if this version were a newer one, with a field more in each record and a column more in each table."""
    left(THIS, tmp_path, "a", "b", "c")
    lake_json = tmp_path / "_pcaplake" / "lake.json"
    lake_json.write_text(json.dumps({**json.loads(lake_json.read_text()), "colour": "green"}))
    for path in (tmp_path / "_pcaplake" / "batches").glob("*.json"):
        path.write_text(json.dumps(_grown(json.loads(path.read_text()))))
    with sqlite3.connect(tmp_path / "_pcaplake" / "ledger.sqlite") as ledger:
        for rowid, body in ledger.execute("SELECT rowid, body FROM stages WHERE body IS NOT NULL").fetchall():
            grown = json.dumps(_grown(json.loads(zlib.decompress(body)))).encode()
            ledger.execute("UPDATE stages SET body = ? WHERE rowid = ?", (zlib.compress(grown), rowid))
        for table in ("facts", "captures", "stages", "pending", "held"):
            ledger.execute(f"ALTER TABLE {table} ADD COLUMN colour TEXT")
    ledger.close()
    act(baseline, tmp_path, "drain", "d")
    assert counts(tmp_path) == Counter(a=2, b=2, c=2, d=2)
    reserve = (
        "import asyncio, sys; from pcaplake.worker.lake.commit.overwrite import reserve_generation; "
        "from pcaplake.worker.lake.store.store import Store; "
    )
    done = python(baseline, "-c", reserve + "print(asyncio.run(reserve_generation(Store.open(sys.argv[1]))))", tmp_path)
    assert done.stdout == "1\n", done.stderr
    assert json.loads(lake_json.read_text())["colour"] == "green"
    manifests = [json.loads(path.read_text()) for path in sorted((tmp_path / "_pcaplake" / "batches").glob("*.json"))]
    (committed,) = (stage for one in manifests for stage in one["stages"] if stage["captures"][0]["capture_id"] == "c")
    assert committed["colour"] == committed["captures"][0]["colour"] == "green"
    assert committed["adds"]["faults"][0]["colour"] == "green"


def _grown(raw: dict[str, Any]) -> dict[str, Any]:
    """A stage or a manifest with a field more in itself, in each stage, capture and file."""
    for stage in raw.get("stages", [raw]):
        for part in (*stage["captures"], *(add for adds in stage["adds"].values() for add in adds)):
            part["colour"] = "green"
        stage["colour"] = "green"
    return {**raw, "colour": "green"}


@pytest.mark.slow
def test_the_version_before_formats_had_versions_reads_manifests_and_refuses_lake_json(
    first: Path, tmp_path: Path
) -> None:
    """That cannot be mended there. It changes nothing."""
    left(THIS, tmp_path, "a", "b", "c")
    read = (
        "import sys, sqlite3, zlib; from pathlib import Path; from worker.lake.manifest import Manifest, Stage; "
        "lake = Path(sys.argv[1]) / '_pcaplake'; "
        "print(*(Manifest.from_json(one.read_bytes()).batch for one in sorted((lake / 'batches').glob('*')))); "
        "bodies = sqlite3.connect(lake / 'ledger.sqlite').execute('SELECT body FROM stages WHERE body IS NOT NULL'); "
        "print(*sorted(Stage.from_json(zlib.decompress(one)).captures[0].capture_id for one, in bodies))"
    )
    done = python(first, "-c", read, tmp_path)
    assert done.stdout == "0 1\nb c\n", done.stderr
    done = python(first, versions.__file__, tmp_path, "drain")
    assert done.returncode != 0
    assert "lake.json cannot be read" in done.stderr
    assert counts(tmp_path) == Counter(a=2)
    act(THIS, tmp_path, "drain")
    assert counts(tmp_path) == Counter(a=2, b=2, c=2)
