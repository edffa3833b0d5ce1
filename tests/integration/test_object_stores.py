"""Lakes in the object stores of several makers: every promise of docs/exactly-once.md holds there too.

`make test-stores` runs all of it, also on MinIO, which takes minutes to build. CI runs a short form on Azurite, and what only S3
can show on the S3 of the AWS engine, where test_fault_matrix.py kills workers.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest

from bench import mixes
from pcaplake.lake.store.store import Store
from pcaplake.worker import sample
from tests.aws import ROOT
from tests.drives import Drive
from tests.integration.object_stores import ObjectStoreServer, rows_by_capture, serve
from tests.lake.store.store_suite import StoreSuite
from tests.worker import lakes
from tools.local.engines import LOOPBACK

STEPS = ("after stage.4 packets #3", "after stage.5 #2", "after commit.3a", "before commit.4 packets", "after commit.4")
STEPS_OF_OVERWRITES = ("after stage.5", "before overwrite", "after overwrite", "before commit.4 packets")
KILLS_OF_A_LAKE = 6
MINIO, S3, AZURITE = (pytest.param(kind, marks=pytest.mark.torture) for kind in ("minio", "s3", "azurite"))
CLOSED_PORT = f"http://{LOOPBACK}:9"


@pytest.fixture(scope="module", params=["azurite", MINIO, "s3"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStoreServer]:
    aws = request.getfixturevalue("aws") if request.param == "s3" else None
    with serve(request.param, tmp_path_factory.mktemp(request.param), aws) as server:
        yield server


@pytest.fixture
def store(server: ObjectStoreServer) -> Store:
    return Store.open(server.new_lake(), server.reader)


class TestStore(StoreSuite):
    """Conditional writes and listings of every maker."""


def given(server: ObjectStoreServer, drive: Drive, ledger: Path, **more: Any) -> dict[str, Any]:
    options = {"storage_option": dict(server.options), "ledger": str(ledger)}
    return {"profile": str(drive.profile), "threads": 2, "max_records": 1, **options, **more}


def kill_after(seconds: float, names: list[Path], lake: str, log: Path, options: dict[str, Any]) -> bool:
    """Kill an ingest at this moment. Returns whether it had not ended before."""
    process = lakes.start(names, lake, log, **options)
    process.join(seconds)
    if process.exitcode is None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    return bool(process.exitcode == -signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.torture
def test_killed_at_random_moments(server: ObjectStoreServer, bus_drive: Drive, tmp_path: Path, moments: int) -> None:
    """Each ingest goes on where the one before was killed, a few times in each lake: half of a lake's time would be spent on
    its tables, so a lake for each moment would take five times as long. The seed is printed when it fails.
    """
    seed = random.SystemRandom().getrandbits(32)
    rng, longest, killed, number = random.Random(seed), 1.0, 0, 0
    captures = bus_drive.captures[:4]
    rows = _rows_of(bus_drive, *captures)
    while killed < moments:
        number += 1
        assert number <= moments, f"seed {seed}: {killed} of {moments} were killed"
        lake, log = server.new_lake(), tmp_path / f"log-{number}"
        options = given(server, bus_drive, tmp_path / f"ledger-{number}")
        begin = time.monotonic()
        for _ in range(KILLS_OF_A_LAKE):
            if not kill_after(rng.uniform(0, 2 * longest / KILLS_OF_A_LAKE), captures, lake, log, options):
                break
            killed += 1
        code, _ = lakes.ingest(captures, lake, log, **options)
        longest = max(1.0, time.monotonic() - begin)
        assert code == 0, f"seed {seed}, lake {number}: {log.read_text()}"
        assert +Counter(server.rows_once(lake)) == rows, f"seed {seed}, lake {number}"


@pytest.mark.slow
@pytest.mark.torture
def test_killed_at_steps_of_ingests_and_overwrites(server: ObjectStoreServer, bus_drive: Drive, tmp_path: Path) -> None:
    """One lake. After an overwrite that was killed and repeated, it has all new rows, and no old ones."""
    lake, log = server.new_lake(), tmp_path / "log"
    options = given(server, bus_drive, tmp_path / "ledger")
    for where in STEPS:
        code, _ = lakes.ingest([bus_drive.folder], lake, log, kill=where, **options)
        assert code == -signal.SIGKILL, log.read_text()
    assert lakes.ingest([bus_drive.folder], lake, log, **options)[0] == 0, log.read_text()
    assert server.rows_once(lake) == bus_drive.rows
    for number, where in enumerate(STEPS_OF_OVERWRITES):
        new = bus_drive.captures[number : number + 2]
        code, _ = lakes.ingest(new, lake, log, kill=where, mode="overwrite", **options)
        assert code == -signal.SIGKILL, (where, log.read_text())
        assert lakes.ingest(new, lake, log, mode="overwrite", **options)[0] == 0, (where, log.read_text())
        assert +Counter(server.rows_once(lake)) == _rows_of(bus_drive, *new), where


def _rows_of(drive: Drive, *captures: Path) -> Counter[str]:
    rows = rows_by_capture(drive.lake)
    return sum((rows[capture] for capture in captures), Counter())


@pytest.mark.slow
@pytest.mark.parametrize("server", ["azurite", MINIO, S3], indirect=True)
def test_the_life_of_a_lake(server: ObjectStoreServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An ingest that is killed, checkpoints, a capture that changed, signals, maintenance, a copy that is adopted, an overwrite.

    The doctor finds no problems. A local lake has the rows of each capture that are right.
    """
    first, second, third, _, profile = sample.write_sample_captures(
        tmp_path / "drive", "drive", 0.05, vehicles=1, seed=5
    )
    captures = [first, second, third]
    databases, log, local = tmp_path / "drive" / "databases.yaml", tmp_path / "log", tmp_path / "local"
    assert lakes.ingest(captures, local, log, profile=str(profile))[0] == 0, log.read_text()
    assert lakes.run(capsys, "signals", "--lake", local, "--databases", databases)[0] == 0
    rows, decoded = rows_by_capture(local), rows_by_capture(local, ("signals",))
    lake, ledger, seed = server.new_lake(), tmp_path / "ledger", random.SystemRandom().getrandbits(32)
    options = {"storage_option": dict(server.options), "ledger": str(ledger), "profile": str(profile), "max_records": 1}

    def ingest(*names: Path, **more: Any) -> None:
        assert lakes.ingest(list(names), lake, log, **options, **more)[0] == 0, f"seed {seed}: {log.read_text()}"

    def check(*right: Path, lake: str = lake) -> None:
        assert +Counter(server.rows_once(lake)) == sum((rows[capture] for capture in right), Counter())

    def run(command: str, *arguments: object, lake: str = lake) -> str:
        code, out, err = lakes.run(capsys, command, "--lake", lake, *server.arguments(), *arguments)
        assert code == 0, out + err
        return out

    objects = server.connect(lake)
    rng = random.Random(seed)
    kill_after(rng.uniform(0, 1), captures, lake, log, options)
    lakes.ingest(captures, lake, log, kill=rng.choice(STEPS), **options)
    ingest(*captures, checkpoint_interval=1)
    assert json.loads(bytes(obstore.get(objects, "_pcaplake/lake.json").bytes()))["proven"] == lake
    assert obstore.head(objects, "packets/_delta_log/_last_checkpoint")
    shutil.copy(second, first)
    ingest(first, replace_changed=True)
    right = (second, second, third)
    check(*right)

    run("signals", "--databases", databases)
    found = server.table(lake, "signals").to_pyarrow_table(columns=["capture_id"]).num_rows
    assert found == sum(decoded[capture]["signals"] for capture in right) > 0
    maintained = json.loads(run("maintain", "--ledger", ledger, "--json"))
    assert sum(table["compacted"] for table in maintained.values()) > 0

    copied, its_ledger = f"{lake}-copy", tmp_path / "its-ledger"
    server.copy(lake, copied)
    out = run("ingest", *captures, "--profile", profile, "--ledger", its_ledger, "--adopt", "--json", lake=copied)
    assert json.loads(out.splitlines()[-1])["captures"] == 0
    check(*right, lake=copied)
    ingest(third, mode="overwrite")
    check(third)
    for place, of_place in ((lake, ledger), (copied, its_ledger)):
        assert "no problems" in run("doctor", "--ledger", of_place, lake=place)


@pytest.mark.slow
@pytest.mark.parametrize("server", [AZURITE, MINIO, "s3"], indirect=True)
def test_the_examples_of_the_documentation_print_no_warnings(server: ObjectStoreServer, tmp_path: Path) -> None:
    """Commands that read through deltalake: it would look for a region in the metadata service of AWS's machines."""
    lake, (capture, profile) = server.new_lake(), mixes.write_captures(tmp_path, "c", 0.02, vehicles=1, seed=5)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "AZUR", "PCAPLAKE_"))}
    metadata = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": CLOSED_PORT}  # nothing leaves this machine
    environment = {**kept, **metadata, **server.environment}
    for command in (
        ("ingest", capture, "--lake", lake, "--profile", profile, "--ledger", tmp_path),
        ("tables", "--lake", lake),
    ):
        arguments = [sys.executable, "-m", "pcaplake.worker", *map(str, command)]
        done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "WARN" not in done.stderr
        assert "imds" not in done.stderr
