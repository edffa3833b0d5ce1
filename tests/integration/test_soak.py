"""A few seconds of `make soak`: whatever it did, everything is there once."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from .conftest import Aws
from .soak import soak

SECONDS = 10


@pytest.mark.slow
def test_a_short_soak(aws: Aws, tmp_path: Path, torture: bool) -> None:
    """`python -m tests.integration.soak --seed` does the same things again."""
    seed = random.SystemRandom().getrandbits(32)
    seconds = 60 * SECONDS if torture else SECONDS  # too few for a rollout, or to put a table back
    result = asyncio.run(soak(aws, tmp_path, seconds=seconds, seed=seed, people=torture))
    assert not result["wrong"], result
    assert result["captures"] == result["in_tables"] - 1, result  # the last one came at the end
    assert result["faults"], result
