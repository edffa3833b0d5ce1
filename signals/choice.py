"""Some of the signals of some messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

Choice: TypeAlias = Mapping[str, frozenset[int]]
"""`Message.definition_hash` -> the indices of the chosen signals of the message."""
