"""Imported once, before processes are copied: what the commands of histories import and compile. Starts no thread."""

from __future__ import annotations

import pcaplake.worker.cli.ingest
import pcaplake.worker.cli.maintain
import pcaplake.worker.cli.signals  # noqa: F401
from pcaplake.parser import Profile
from pcaplake.parser.capture.programs import compiled_program
from pcaplake.parser.capture.reader import DECODED
from tests.worker import warmed  # noqa: F401

from .contents import TEXTS

for text in TEXTS.values():
    compiled_program(Profile.parse(text), DECODED)
