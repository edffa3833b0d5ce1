"""Retries that hardly wait, for tests of what comes after them."""

from __future__ import annotations

import pytest

from pcaplake.common import retry


def hardly_wait(patch: pytest.MonkeyPatch) -> None:
    """A millisecond before each attempt: an event loop still serves others in it."""
    patch.setattr(retry, "backoff", lambda failures, **limits: 0.001)
