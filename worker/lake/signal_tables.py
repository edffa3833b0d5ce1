"""The tables of signals in a lake."""

from __future__ import annotations

from pcaplake.signals.tables import CATALOG, SIGNALS
from pcaplake.worker.lake.store.store import Store


async def list_signal_tables(store: Store) -> list[str]:
    """The tables of signals that a lake may have, also those of single messages."""
    folders = await store.list_folders()
    return [name for name in folders if name in (SIGNALS, CATALOG) or name.startswith(f"{SIGNALS}_")]
