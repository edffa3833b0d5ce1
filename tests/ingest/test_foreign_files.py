"""Each command on a lake whose files other programs have rewritten: every row as if nobody had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worker.foreign_files import REWRITES, Story


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [[*REWRITES], *(pytest.param([name], marks=pytest.mark.torture) for name in REWRITES)], ids=" ".join
)
def test_every_command(names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both lakes name the same captures, so their rows are equal."""
    alone = Story(tmp_path, tmp_path / "alone", capsys).run()
    found = Story(tmp_path, tmp_path / "lake", capsys, [REWRITES[name] for name in names]).run()
    for number, (rows, expected) in enumerate(zip(found, alone, strict=True)):
        for name in expected:
            assert rows[name] == expected[name], (number, name)
