"""The tables of signals in a lake, and where their state is."""

from __future__ import annotations

from typing import Final

from pcaplake.lake.store.store import Store
from pcaplake.signals.tables import CATALOG, SIGNALS

FOLDER: Final = "_pcaplake/spark/signals"


async def list_signal_tables(store: Store) -> list[str]:
    """The tables of signals that a lake may have, also those of single messages."""
    folders = await store.list_folders()
    return [name for name in folders if name in (SIGNALS, CATALOG) or name.startswith(f"{SIGNALS}_")]


def state_folder(generation: int) -> str:
    """The folder with the state of a generation of a lake."""
    return f"{FOLDER}/{generation}"
