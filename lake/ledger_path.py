"""Finds the SQLite file in a folder that is the ledger of a lake, by its name and the id in it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pcaplake.lake.ledger.sqlite import read_ledger_id_of_file
from pcaplake.lake.store.store import Store

from .identity import Identity


def ledger_file_path(folder: Path, store: Store, lake: Identity | None) -> Path:
    """The path of a lake's ledger in this folder; the file may not exist yet. `lake`: its lake.json; None without one.

    - A file with the name in lake.json, if it has the lake's `ledger_id`: so a moved lake finds its ledger. Also if the
      file cannot be read; `open` then reports the damage.
    - For a copy that is being adopted (its `ledger_id` is empty), a file named by its new lake id.
    - Otherwise a file named by a hash of the lake's URI.
    """
    if lake is not None and not lake.ledger_id:
        return folder / f"ledger-{lake.lake_id}.sqlite"
    if lake is not None:
        recorded = folder / Path(lake.ledger_name).name
        if read_ledger_id_of_file(recorded) in (lake.ledger_id, None):
            return recorded
    return folder / f"ledger-{hashlib.blake2b(store.uri.encode(), digest_size=8).hexdigest()}.sqlite"
