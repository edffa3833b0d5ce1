"""The tables of signals in a lake, and which program decodes them.

_pcaplake/spark/signals/<generation>/state.json     format 1: the Spark job; format 2: `pcaplake signals`
"""

from __future__ import annotations

import json
from typing import Final

from pcaplake.signals.tables import CATALOG, SIGNALS
from pcaplake.worker.lake.store.store import Store

FOLDER: Final = "_pcaplake/spark/signals"
SPARK, LOCAL = 1, 2  # formats of state.json


async def list_signal_tables(store: Store) -> list[str]:
    """The tables of signals that a lake may have, also those of single messages."""
    folders = await store.list_folders()
    return [name for name in folders if name in (SIGNALS, CATALOG) or name.startswith(f"{SIGNALS}_")]


def state_folder(generation: int) -> str:
    """The folder with the state of a generation of a lake."""
    return f"{FOLDER}/{generation}"


def read_format(data: bytes) -> int:
    """The format of a state.json. Raises `ValueError` if it is none."""
    content = json.loads(data)
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise ValueError("it has no format")
    return int(content["format"])


async def is_served_by_spark(store: Store, generation: int) -> bool:
    """Whether the Spark job decodes the signals of a lake, or may do so: its state cannot be read."""
    stored = await store.get(f"{state_folder(generation)}/state.json")
    try:
        return bool(await store.list(state_folder(generation))) if stored is None else read_format(stored[0]) != LOCAL
    except ValueError:
        return True
