"""Steps of an ingest or a worker at which tests kill it, and those of them that `make torture` alone tries."""

from __future__ import annotations

from collections.abc import Iterable

LIKE_ANOTHER = {
    "after commit.1": "before commit.1",
    "before commit.2": "before commit.1",
    "before commit.3a": "after commit.2",
    "before commit.3b": "after commit.3a",
    "before commit.4": "after commit.3b",
    "before commit.5": "after commit.4",
    "before commit.6": "after commit.5",
}
"""moment -> the moment that leaves the same files and the same ledger, because nothing is written between the two."""


def choose_moments(moments: Iterable[str]) -> list[str]:
    """Those that leave something that no other leaves."""
    all_moments = list(moments)
    return [moment for moment in all_moments if LIKE_ANOTHER.get(moment) not in all_moments]
