"""Which TCP ports are those of servers: the ones to which connections are opened (SYN), or from which that is accepted."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .packet_bytes import numbers

MOST_PORTS = 4096  # that are kept
_SYN, _ACK = 0x02, 0x10


class Listeners:
    """The ports of servers so far."""

    def __init__(self) -> None:
        self.ports: set[int] = set()

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of `packets`."""
        tcp_flags = np.maximum(numbers(batch, "tcp_flags"), 0)  # null without TCP
        opens = np.flatnonzero(tcp_flags & _SYN)
        accepted = tcp_flags[opens] & _ACK != 0
        ports = np.where(accepted, numbers(batch, "src_port")[opens], numbers(batch, "dst_port")[opens])
        self.merge(np.unique(ports[ports >= 0]).tolist())

    def merge(self, ports: list[int]) -> None:
        self.ports.update(ports[: MOST_PORTS - len(self.ports)])
