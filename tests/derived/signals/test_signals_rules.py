"""Every row once in each scene (scenes.py), and the rules without which a scene finds wrong rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.derived.signals.scenes import SCENES, Stage
from tests.derived.signals.signals_mutants import FOUND_BY, MUTANTS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("scene", SCENES)
def test_every_row_once(scene: str, tmp_path: Path) -> None:
    SCENES[scene](Stage(tmp_path))


@pytest.mark.parametrize("name", MUTANTS)
def test_a_scene_finds(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        SCENES[FOUND_BY[name]](Stage(tmp_path))
