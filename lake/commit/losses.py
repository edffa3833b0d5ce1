"""Records of accepted losses: files of a stage in one table without which the committer continues.

A record is put once and never deleted. It is read only when files are missing and cannot be rebuilt, so files that are
restored in time are still committed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from pcaplake.lake.store.store import Store

FOLDER = "_pcaplake/losses"


def loss_record_path(stage_id: str, table: str) -> str:
    """The path of a record, below the lake's root."""
    return f"{FOLDER}/{stage_id}-{table}.json"


async def accept_file_loss(store: Store, stage_id: str, table: str, files: Sequence[str]) -> None:
    """Record a loss; idempotent. `files`: the names of the lost files, for information."""
    body = {"format": 1, "stage_id": stage_id, "table": table, "files": list(files)}
    await store.put_if_absent(loss_record_path(stage_id, table), json.dumps(body).encode())


async def is_loss_accepted(store: Store, stage_id: str, table: str) -> bool:
    """Whether the loss of files of this stage in this table was accepted."""
    return await store.head(loss_record_path(stage_id, table)) is not None
