"""What other programs do to a table of a lake, with deltalake."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from deltalake import DeltaTable, write_deltalake

SIGNALS: Final = ("signals", "signals_Speed", "signals_Vehicle_Changed")
FRAMES: Final = ("can_frames", "j1939_messages", "someip_messages")


def delete(table: DeltaTable) -> None:
    table.delete("packet_no = 1")


def update(table: DeltaTable) -> None:
    names = table.schema().to_arrow().names
    changed = {"bus": "'body'"} if "bus" in names else {"vehicle_id": "'x'"}
    table.update(updates=changed, predicate="packet_no = 2")


def merge(table: DeltaTable) -> None:
    """Removes rows of half of the frames, and changes others."""
    rows = table.to_pyarrow_table(columns=["capture_id", "packet_no", "sub_no"])
    source = rows.group_by(rows.column_names).aggregate([]).sort_by([(name, "ascending") for name in rows.column_names])
    if not len(source):
        return
    wanted = "t.capture_id = s.capture_id AND t.packet_no = s.packet_no AND t.sub_no = s.sub_no"
    merger = table.merge(source.slice(len(source) // 2), wanted, source_alias="s", target_alias="t")
    merger = merger.when_matched_delete("t.packet_no = 1").when_matched_update({"vehicle_id": "'y'"})
    merger.execute()


def append(table: DeltaTable) -> None:
    """Rows that are there already, once more."""
    write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")


def truncate(table: DeltaTable) -> None:
    table.delete()


def overwrite(table: DeltaTable) -> None:
    """By the same rows."""
    write_deltalake(table, table.to_pyarrow_table(), mode="overwrite")


def compact(table: DeltaTable) -> None:
    table.optimize.compact()


def zorder(table: DeltaTable) -> None:
    table.optimize.z_order(["packet_no"])


def tidy(table: DeltaTable) -> None:
    """As a VACUUM that keeps nothing for older versions, but not for stages that are not committed."""
    folder = Path(table.table_uri.removeprefix("file://"))
    removed = set[str]()
    for path in (folder / "_delta_log").glob("*.json"):
        for line in path.read_text().splitlines():
            removed |= {unquote(remove["path"]) for name, remove in json.loads(line).items() if name == "remove"}
    for name in removed - {
        str(Path(unquote(uri).removeprefix("file://")).relative_to(folder)) for uri in table.file_uris()
    }:
        (folder / name).unlink(missing_ok=True)


STATEMENTS: Final[Mapping[str, Callable[[DeltaTable], None]]] = {
    one.__name__: one for one in (delete, update, merge, append, truncate, overwrite, compact, zorder, tidy)
}
HARMLESS: Final = ("compact", "zorder", "overwrite", "tidy")


def open_table(lake: Path, name: str) -> DeltaTable | None:
    return DeltaTable(str(lake / name)) if any((lake / name / "_delta_log").glob("*.json")) else None


def drop(lake: Path, name: str) -> None:
    shutil.rmtree(lake / name, ignore_errors=True)


def written_by_pcaplake(lake: Path, name: str, since: int) -> bool:
    """Has pcaplake written a version above this one?"""
    for path in (lake / name / "_delta_log").glob("*.json"):
        if int(path.stem) > since:
            for line in path.read_text().splitlines():
                if json.loads(line).get("txn", {}).get("appId", "").startswith("pcaplake"):
                    return True
    return False
