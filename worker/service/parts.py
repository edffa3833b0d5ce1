"""What a service is made of. run.py opens the parts; tests build them over adapters in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pcaplake.ingest.captures.range_reader import Budget
from pcaplake.ingest.captures.source import Sources
from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.lake import Lake
from pcaplake.worker.config.routes import Routes

from .queue import Queue


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceParts:
    """All of it open.

    lakes      by URI
    readers    by the name of the route
    budget     bytes of objects in memory
    """

    queue: Queue
    routes: Routes
    lakes: Mapping[str, Lake]
    readers: Mapping[str, Reader]
    sources: Sources
    budget: Budget
