"""Older contents leave the lake of a fleet: by the leader and by `pcaplake delete`, killed at each step; and they come back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pcaplake.common.runtime import Runtime
from pcaplake.lake.commit.manifests import Manifests
from pcaplake.lake.commit.upkeep import Upkeep
from pcaplake.lake.config import Creation, LakeConfig
from pcaplake.lake.lake import Lake
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.shared_tables import SharedTables
from tests.worker.fleets import can_capture
from tests.worker.lakes import run

from .conftest import Aws
from .examined_fleet import HTTP, Capsys, Fleet

STEPS = ("after removal begins", "after swap record", "after swap can_frames", "after swap captures", "after swap")


class Died(BaseException):
    """The process dies here."""


class Replacing:
    """A fleet whose leader removes older contents, and one object."""

    def __init__(self, aws: Aws, folder: Path, capsys: Capsys) -> None:
        self.fleet, self.capsys = Fleet(aws, folder), capsys
        self.fleet.write(changed_captures="replace")

        async def create() -> None:
            async with self.fleet.lake():
                pass

        asyncio.run(create())

    def upload(self, frames: int) -> None:
        self.fleet.aws.client("s3").put_object(Bucket=self.fleet.raw, Key="a.pcap", Body=can_capture(frames))

    def ingest(self) -> int:
        return run(self.capsys, "ingest", f"s3://{self.fleet.raw}/", "--config", self.fleet.config)[0]

    def upkeep(self, step: Callable[[str], None] = lambda name: None) -> None:
        """What the leader does beside its batches."""

        async def once() -> None:
            async with self.fleet.lake() as lake:
                await upkeep_of(lake, step).run()

        asyncio.run(once())

    def rows(self) -> dict[str, int]:
        tables = ("captures", "packets", "can_frames", "sightings")
        return {table: DeltaTable(f"{self.fleet.uri}/{table}").to_pyarrow_table().num_rows for table in tables}

    def only(self, frames: int, sightings: int = 0) -> bool:
        return self.rows() == {"captures": 1, "packets": frames, "can_frames": frames, "sightings": sightings}


def upkeep_of(lake: Lake, step: Callable[[str], None]) -> Upkeep:
    parts = LakeParts(store=lake.store, log_store=lake.log, ledger=lake.ledger, current=lake._current)
    config = LakeConfig(changed_captures="replace")
    return Upkeep(parts, Manifests(lake.store), lake_config=config, runtime=Runtime(step=step), may_remove=lambda: True)


@pytest.fixture
def replacing(aws: Aws, tmp_path: Path, capsys: Capsys) -> Replacing:
    return Replacing(aws, tmp_path, capsys)


def test_the_leader_removes_older_contents_and_they_come_back(replacing: Replacing) -> None:
    replacing.upload(1)
    assert replacing.ingest() == 0
    replacing.upkeep()
    assert replacing.only(1)
    frames = 1
    for step in STEPS:
        frames = 3 - frames
        replacing.upload(frames)
        assert replacing.ingest() == 0
        assert replacing.rows()["packets"] == 3

        def die(name: str, at: str = step) -> None:
            if name == at:
                raise Died

        with pytest.raises(Died):
            replacing.upkeep(die)
        assert len(replacing.fleet.items("removal")) == 1
        replacing.upkeep()
        assert replacing.only(frames), step
        assert not replacing.fleet.items("removal")
    assert run(replacing.capsys, "doctor", "--config", replacing.fleet.config)[0] == 0
    before = len(replacing.fleet.below("lake/_pcaplake/swaps"))
    replacing.upkeep()
    assert len(replacing.fleet.below("lake/_pcaplake/swaps")) == before, "there is nothing to do"


def test_a_committer_removes_older_contents_beside_its_batches(replacing: Replacing) -> None:
    for frames in (1, 2):
        replacing.upload(frames)
        assert replacing.ingest() == 0
    fleet = replacing.fleet

    async def lead() -> None:
        config = LakeConfig(lease_timeout=1.0, changed_captures="replace", creation=Creation(allowed=False))
        async with (
            await SharedTables.open(fleet.ledger, fleet.locks) as shared_tables,
            await Lake.open(fleet.uri, lake_config=config, ledger=shared_tables, storage_options=HTTP) as lake,
            asyncio.timeout(60),
        ):
            while await lake.ledger.read_followed() is None:  # type: ignore[attr-defined]
                lake.raise_if_stopped()
                await asyncio.sleep(0.1)

    asyncio.run(lead())
    assert replacing.only(2)


def test_a_content_that_is_being_removed_is_read_when_it_is_gone(replacing: Replacing) -> None:
    for frames in (1, 2):
        replacing.upload(frames)
        assert replacing.ingest() == 0

    def come_back(name: str) -> None:
        if name == "after swap record":
            replacing.upload(1)
            raise Died

    with pytest.raises(Died):
        replacing.upkeep(come_back)
    assert replacing.ingest() == 0, "it leads, finishes the removal, and reads the content then"
    replacing.upkeep()
    assert replacing.only(1)


def test_delete_for_a_fleet(replacing: Replacing) -> None:
    for frames in (1, 2):
        replacing.upload(frames)
        assert replacing.ingest() == 0
    options = ("delete", "--older-contents", "--config", replacing.fleet.config)
    code, _, err = run(replacing.capsys, *options)
    assert (code, "1 older content of 1 capture" in err, "--yes" in err) == (2, True, True), err
    assert replacing.rows()["packets"] == 3
    code, _, err = run(replacing.capsys, *options, "s3://elsewhere/", "--yes")
    assert (code, "no capture has an older content" in err) == (0, True), err
    code, out, err = run(replacing.capsys, *options, "--yes", "--json")
    assert (code, json.loads(out)["captures"]) == (0, 1), err
    assert replacing.only(2)
    code, _, err = run(replacing.capsys, "delete", "--older-contents", "--lake", replacing.fleet.uri)
    assert (code, "--config" in err) == (3, True), err


def test_a_rebuilt_ledger_goes_on_with_a_removal(replacing: Replacing) -> None:
    """The doctor rebuilds the ledger while a removal is recorded, and after one was finished."""
    for frames in (1, 2):
        replacing.upload(frames)
        assert replacing.ingest() == 0

    def die(name: str) -> None:
        if name == "after swap record":
            raise Died

    with pytest.raises(Died):
        replacing.upkeep(die)
    for leaving in (1, 0):
        replacing.fleet.delete_items("capture", "stage", "pending", "head", "removal", "lease")
        code, out, _ = run(replacing.capsys, "doctor", "--config", replacing.fleet.config, "--repair", "--yes")
        assert code == leaving, f"it warns of tables that lack the swap: {out}"
        captures = replacing.fleet.items("capture")
        assert (len(captures), sum("leaving" in item for item in captures)) == (1 + leaving, leaving)
        replacing.upkeep()
        assert replacing.only(2)
        assert len(replacing.fleet.items("capture")) == 1
    replacing.upload(1)
    assert replacing.ingest() == 0
    replacing.upkeep()
    assert replacing.only(1)
