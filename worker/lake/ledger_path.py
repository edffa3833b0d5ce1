"""Which file in a folder is the SQLite ledger of a lake. Knows names of files, and no ledger's content but its identity."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pcaplake.worker.lake.ledger.sqlite import read_ledger_id_of_file
from pcaplake.worker.lake.store.store import Store

from .identity import Identity


def ledger_file_path(folder: Path, store: Store, lake: Identity | None) -> Path:
    """The ledger of a lake in this folder, where it may not be yet. `lake`: what lake.json says; None: there is none.

    A lake that was moved finds the file that lake.json names, wherever the folder is now: the ledger with its identity.
    So does one whose file cannot be read, which is damage for `open` to tell of. Any other lake has a file named by its
    URI; a copy that is about to be adopted, which has no ledger yet (`ledger_id` is empty), one named by its new id.
    """
    if lake is not None and not lake.ledger_id:
        return folder / f"ledger-{lake.lake_id}.sqlite"
    if lake is not None:
        recorded = folder / Path(lake.ledger_name).name
        if read_ledger_id_of_file(recorded) in (lake.ledger_id, None):
            return recorded
    return folder / f"ledger-{hashlib.blake2b(store.uri.encode(), digest_size=8).hexdigest()}.sqlite"
