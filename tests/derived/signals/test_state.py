"""Which generation of a lake `pcaplake signals` reads."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench import mixes
from pcaplake.derived.signals.state import read_generation
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store
from tests.worker import lakes


@pytest.mark.slow
async def test_a_table_that_no_batch_has_reached_has_no_generation(tmp_path: Path) -> None:
    *_, profile = mixes.write_captures(tmp_path / "drive", "c", 0.02)
    lake, log = tmp_path / "lake", tmp_path / "log"
    store = Store.open(str(lake))
    for mode, generation in (("append", 0), ("overwrite", 1)):
        code, _ = lakes.ingest([tmp_path / "drive"], lake, log, profile=str(profile), mode=mode)
        assert code == 0, log.read_text()
        assert await read_generation(store, LogStore(store)) == generation
    shutil.rmtree(lake / "flexray_frames")
    assert await read_generation(store, LogStore(store)) == 1
