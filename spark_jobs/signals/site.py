"""What the job `signals` needs on an executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pcaplake.derived.signals.parts import Tools
from pcaplake.lake.store.store import Store
from pcaplake.signals.database import Databases


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """The lake, options of its store, and the databases."""

    lake: str
    storage: Mapping[str, str]
    databases: Databases

    def __call__(self) -> Tools:
        return Tools(store=Store.open(self.lake, self.storage), databases=self.databases)
