"""What one capture shows about its profile: offers of service discovery, buses, and ports and ids that look like a protocol."""

from __future__ import annotations

from collections import Counter, defaultdict

import pyarrow as pa

from .can_candidates import CanCandidates
from .likely_ports import LikelyPorts
from .likely_streams import LikelyStreams

OFFER, ENDPOINT = "OfferService", "endpoint"
BUS_TABLES = ("can_frames", "lin_frames", "flexray_frames")
BUS_SOURCES = ("tecmp", "cmp", "acf")  # the column `source` of frames whose bus has an id instead of an interface
MOST_KEYS = 4096  # ports and buses of a capture that are kept


class Evidence:
    """What is collected while a capture is read.

    offers      (transport, port) -> ids of the services that are offered there
    buses       (source, bus id) -> frames
    ports       what the datagrams that nothing decodes look like; set at the end of the capture
    streams     the same of TCP segments
    """

    def __init__(self) -> None:
        self.offers: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.buses: Counter[tuple[str, str]] = Counter()
        self.ports, self.streams, self.can = LikelyPorts(), LikelyStreams(), CanCandidates()

    def add(self, table: str, batch: pa.RecordBatch) -> None:
        """Rows of a table, read with a profile that names no bus."""
        if table == "someip_sd_entries":
            self._add_offers(batch)
        if table in BUS_TABLES:
            self._add_buses(batch)
        if table == "can_frames":
            self.can.add(batch)

    def _add_offers(self, batch: pa.RecordBatch) -> None:
        rows = pa.table({name: batch.column(name) for name in ("entry_type", "service_id", "endpoints")})
        for row in rows.to_pylist():
            if row["entry_type"] != OFFER:
                continue
            for endpoint in row["endpoints"] or ():
                key = endpoint["transport"], endpoint["port"]
                if endpoint["kind"] == ENDPOINT and (key in self.offers or len(self.offers) < MOST_KEYS):
                    self.offers[key].add(row["service_id"])

    def _add_buses(self, batch: pa.RecordBatch) -> None:
        counts = pa.table({name: batch.column(name) for name in ("source", "bus")}).group_by(["source", "bus"])
        for row in counts.aggregate([([], "count_all")]).to_pylist():
            key = row["source"], row["bus"]
            if key[0] in BUS_SOURCES and (key in self.buses or len(self.buses) < MOST_KEYS):
                self.buses[key] += row["count_all"]
