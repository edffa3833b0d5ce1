"""Imported once, before processes are copied: what the commands of histories import and compile. Starts no thread."""

from __future__ import annotations

import pcaplake.worker.cli.ingest
import pcaplake.worker.cli.maintain
import pcaplake.worker.cli.signals  # noqa: F401
from pcaplake.parser import Profile
from pcaplake.worker import warm
from tests.worker import warmed  # noqa: F401

from .contents import TEXTS

for text in TEXTS.values():
    assert all(kernel.is_compiled for kernel in warm.kernels(warm.OF_CAPTURES, Profile.parse(text)))
