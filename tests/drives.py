"""Small drives that many tests read, and what an undisturbed ingest makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench import mixes
from tests.worker import lakes


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """Eight captures in `folder`, and the profile to read them with; `rows` by table. `lake` is for copies."""

    folder: Path
    profile: Path
    captures: list[Path]
    packets: int
    rows: dict[str, int]
    lake: Path


def ingested(root: Path, mix: str, seconds: float, *, vehicles: int) -> Drive:
    """A sample of this mix, and a lake of it."""
    *captures, profile = mixes.write_captures(root / "drive", mix, seconds, vehicles=vehicles, seed=5)
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
