"""A lake partitioned by vehicle ids that are no plain words, and what readers see of it."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path

import polars as pl
import pyarrow as pa
from deltalake import DeltaTable

from tests.signals.bus_captures import can_frame, capture
from tests.worker.lakes import connect

VEHICLES = (
    *("A 1", "A:1", "A=1", "A_1", "50%", "a%41b", "a%2541b", "a+b", "a&b,c", "a'b", 'a"b', "#1", "why?", "a*b", "[x]", "{y}"),
    *("a|b", "a\\b", "^", "$@!", "~", "~a;b", "<b>", "a\tb", ".x", "x.", " ", "Größe", "e\u0301", "漢" * 28, "漢" * 66),
    "v" * 200,
)  # fmt: skip
TOO_LONG = "漢" * 80  # for a folder, with the name of the column
FRAMES = 3  # in each capture
TABLES = ("captures", "can_frames", "packets")
SPEED = 'VERSION ""\nBU_: E\nBO_ 256 Speed: 8 E\n SG_ Speed : 0|8@1+ (1,0) [0|255] "" E\n'


def write_captures(folder: Path, number: int, vehicles: tuple[str, ...] = VEHICLES, value: int = 1) -> Path:
    """One capture of each vehicle, in a folder of its own -> the folder of all."""
    for vehicle in vehicles:
        place = folder / f"{number}" / vehicle
        place.mkdir(parents=True, exist_ok=True)
        frames = [(number + step / 10, "1", can_frame(256, bytes([value] * 8))) for step in range(FRAMES)]
        (place / "c.pcapng").write_bytes(capture(frames))
    return folder / f"{number}"


def write_descriptions(folder: Path) -> tuple[Path, Path]:
    """The profile and the databases of these captures."""
    profile, databases = folder / "profile.yaml", folder / "databases.yaml"
    profile.write_text("vehicle_id: '/(?P<vehicle_id>[^/]+)/[^/]+$'\nbuses:\n  interfaces:\n    '1': one\n")
    (folder / "speed.dbc").write_text(SPEED)
    databases.write_text("databases:\n  speed: speed.dbc\nbuses:\n  one: speed\n")
    return profile, databases


def rows_by_vehicle(table: Path) -> dict[str, Counter[str | None]]:
    """reader -> rows of each vehicle."""
    with contextlib.closing(connect()) as connection:
        by_duckdb = connection.execute(
            f"SELECT vehicle_id, count(*) FROM delta_scan('{quote_path(table)}') GROUP BY ALL"
        ).fetchall()
    by_polars = pl.scan_delta(str(table)).group_by("vehicle_id").len().collect().rows()
    return {
        "deltalake": count_vehicles(DeltaTable(table).to_pyarrow_table(columns=["vehicle_id"])),
        "duckdb": Counter(dict(by_duckdb)),
        "polars": Counter(dict(by_polars)),
    }


def quote_path(table: Path) -> str:
    return str(table).replace("'", "''")


def count_vehicles(rows: pa.Table) -> Counter[str | None]:
    return Counter(rows["vehicle_id"].to_pylist())


def find_rows(table: Path, vehicle: str) -> dict[str, int]:
    """reader -> rows that a filter by the vehicle finds."""
    with contextlib.closing(connect()) as connection:
        query = f"SELECT count(*) FROM delta_scan('{quote_path(table)}') WHERE vehicle_id = ?"
        by_duckdb = connection.execute(query, [vehicle]).fetchall()[0][0]
    return {
        "deltalake": DeltaTable(table).to_pyarrow_table(filters=[("vehicle_id", "=", vehicle)]).num_rows,
        "duckdb": by_duckdb,
        "polars": pl.scan_delta(table).filter(pl.col("vehicle_id") == vehicle).collect().height,
    }


def folders_in_log(table: Path) -> dict[str | None, set[str]]:
    """vehicle -> the folders of its files, as the log spells them."""
    found: dict[str | None, set[str]] = {}
    for version in sorted((table / "_delta_log").glob("*.json")):
        for line in version.read_text().splitlines():
            if add := json.loads(line).get("add"):
                folder = add["path"].split("/")[0]
                found.setdefault(add["partitionValues"]["vehicle_id"], set()).add(folder)
    return found
