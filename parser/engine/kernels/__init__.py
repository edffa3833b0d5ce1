"""The functions that are compiled. They know bytes and tables of integers, and no protocol.

`encoding` names the columns of these tables, `raw_memory` reads and writes buffers. Every bound is checked in one place,
when `walk.walk_records` enters a layer; every buffer has `raw_memory.SLACK` bytes behind its end.
"""

from __future__ import annotations

from pcaplake.parser.engine.kernel import helper, kernel

__all__ = ["helper", "kernel"]
