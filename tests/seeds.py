"""Numbers for tests that draw what they test: few of them in `make unit`, all in `make test`."""

from __future__ import annotations

from typing import Any

import pytest


def some_seeds(count: int) -> list[Any]:
    """0 to `count` - 1, of which `make unit` takes the first third."""
    return [pytest.param(seed, marks=[] if 3 * seed < count else pytest.mark.slow) for seed in range(count)]
