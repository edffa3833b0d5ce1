"""Vehicle network captures to Arrow and to Delta tables.

from pcaplake import open_capture
with open_capture("drive.pcapng", "can_frames") as capture:
    table = capture.read()

`open_capture`, `Profile` and `ReadOptions` read captures, and `read_signals` their signals, without a lake. `connect` queries
a lake with SQL. `Lake` opens a lake to stage rows in. `Store`, `LogStore`, `AddFile`, `Txn` and `delta_statistics` commit
Parquet files to any Delta table. Names are imported on first use, so that reading captures loads nothing of a lake.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy_names import import_on_use

if TYPE_CHECKING:
    from .lake.delta import AddFile as AddFile
    from .lake.delta import LogStore as LogStore
    from .lake.delta import Txn as Txn
    from .lake.lake import Lake as Lake
    from .lake.parquet import delta_statistics as delta_statistics
    from .lake.store.store import Store as Store
    from .parser import Profile as Profile
    from .parser import ReadOptions as ReadOptions
    from .parser import open_capture as open_capture
    from .signals import read_signals as read_signals
    from .worker.query.connection import connect as connect

    __version__: str

_MODULES = {
    "__version__": "common:VERSION",
    "AddFile": "lake.delta",
    "Lake": "lake.lake",
    "LogStore": "lake.delta",
    "Profile": "parser",
    "ReadOptions": "parser",
    "Store": "lake.store.store",
    "Txn": "lake.delta",
    "connect": "worker.query.connection",
    "delta_statistics": "lake.parquet",
    "open_capture": "parser",
    "read_signals": "signals",
}
__all__ = [
    "AddFile",
    "Lake",
    "LogStore",
    "Profile",
    "ReadOptions",
    "Store",
    "Txn",
    "connect",
    "delta_statistics",
    "open_capture",
    "read_signals",
]

__getattr__ = import_on_use(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
