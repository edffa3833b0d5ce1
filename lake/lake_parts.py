"""The parts of a lake as one process opened them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.store.store import Store

from .identity import CurrentIdentity
from .ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeParts:
    """The object store, the Delta logs in it, the ledger, and the identity (lake.json) as this process last read it.

    `leaving`: captures that could not be removed from every table yet, with the reason; the ledger has them still.
    """

    store: Store
    log_store: LogStore
    ledger: Ledger
    current: CurrentIdentity
    leaving: Mapping[str, str] = field(default_factory=dict)
