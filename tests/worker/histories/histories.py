"""Runs histories, and finds the shortest part of one that still fails."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from .commands import be_quick
from .steps import Draw
from .story import Story

LONGEST = 10


def length_of(seed: int) -> int:
    return 3 + seed * 7 % (LONGEST - 3)


def history(seed: int, longest: int = LONGEST, **given: bool) -> list[str]:
    return Draw(seed, **given).history(min(longest, length_of(seed)))


def failure(steps: Sequence[str], folder: Path) -> str:
    """Run a history in a folder that does not exist -> why it fails, "" if it does not."""
    undo, at = be_quick(), "before the first step"
    story = Story(folder)
    try:
        for number, at in enumerate(steps, 1):
            at = f"step {number} ({at})"
            story.run(at.partition("(")[2][:-1])
        at = "the end"
        story.finish()
    except AssertionError as error:
        return f"{at}: {error}\n{story.last_output()}"
    except Exception as error:  # noqa: BLE001 whatever it is, it is what the history shows
        return f"{at}: unexpected {type(error).__name__}: {error}\n{traceback.format_exc()}"
    finally:
        undo()
    return ""


def shortest(steps: Sequence[str], fails: Callable[[Sequence[str]], bool]) -> list[str]:
    """Without each step that is not needed for the failure."""
    left = list(steps)
    size = max(1, len(left) // 2)
    while size:
        start = 0
        while start < len(left):
            shorter = left[:start] + left[start + size :]
            if shorter and fails(shorter):
                left = shorter
            else:
                start += size
        size //= 2
    return left


def clean(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder
