"""A small drive that many tests read, and what an undisturbed ingest makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pcaplake.worker import sample
from tests.aws_clients import share_what_clients_read
from tests.worker import lakes


@pytest.fixture(scope="session", autouse=True)
def _clients_are_quick() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        share_what_clients_read(patch)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """Eight captures in `folder`, and the profile to read them with; `rows` by table. `lake` is for copies."""

    folder: Path
    profile: Path
    captures: list[Path]
    packets: int
    rows: dict[str, int]
    lake: Path


@pytest.fixture(scope="session")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Drive:
    """Made once; nobody may change it. Every table gets rows."""
    return _ingested(tmp_path_factory.mktemp("drive"), "drive", 0.4, vehicles=2)


@pytest.fixture(scope="session")
def bus_drive(tmp_path_factory: pytest.TempPathFactory) -> Drive:
    """CAN, LIN and SOME/IP: six tables get rows, so an ingest takes a third of the time. One capture of each vehicle."""
    return _ingested(tmp_path_factory.mktemp("bus-drive"), "c", 0.02, vehicles=8)


def _ingested(root: Path, mix: str, seconds: float, *, vehicles: int) -> Drive:
    *captures, profile = sample.write_sample_captures(root / "drive", mix, seconds, vehicles=vehicles, seed=5)
    profile = profile.rename(root / "profile.yaml")
    code, result = lakes.ingest([root / "drive"], root / "lake", root / "log", profile=str(profile))
    assert code == 0, (root / "log").read_text()
    assert result["captures"] == len(captures)
    return Drive(
        folder=root / "drive",
        profile=profile,
        captures=captures,
        packets=result["packets"],
        rows=result["rows"],
        lake=root / "lake",
    )
