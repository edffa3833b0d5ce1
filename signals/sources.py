"""The tables that signals are decoded from: frames of buses, and SOME/IP messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from .database import Databases
from .model import Kind
from .someip.decoder import INPUT as SOMEIP_INPUT
from .tables import INPUT, SOURCES

Source: TypeAlias = Kind | Literal["someip"]
TABLES: Final[Mapping[Source, str]] = dict([*SOURCES.items(), ("someip", "someip_messages")])
COLUMNS: Final[Mapping[Source, tuple[str, ...]]] = dict([*INPUT.items(), ("someip", SOMEIP_INPUT)])
"""The columns that are read."""


def described_sources(databases: Databases) -> frozenset[Source]:
    """The sources of which the databases describe any message."""
    someip: set[Source] = {"someip"} if databases.services.messages else set()
    return databases.kinds | someip
