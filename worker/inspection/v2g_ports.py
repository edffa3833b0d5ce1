"""Finds TCP ports of V2GTP: those that charging stations announce in responses of SDP (ISO 15118-2, 7.10)."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc

MOST_PORTS = 64  # that are reported


class V2gPorts:
    """Counts the responses that announce each port without TLS."""

    def __init__(self) -> None:
        self.ports: Counter[int] = Counter()

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of `v2g_messages`."""
        plain = pc.and_(
            pc.equal(batch.column("secc_transport").cast(pa.string()), "tcp"), pc.invert(batch.column("tls"))
        )
        announced = batch.column("secc_port").filter(plain)  # null in requests
        self.ports.update(announced.drop_null().to_pylist())

    def find(self) -> dict[int, int]:
        """The responses by port, the most frequent port first."""
        return dict(self.ports.most_common(MOST_PORTS))
