"""The databases beside a drive: what its messages mean, and on which buses."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from . import doors, motion, vehicle_service

NAMES: Final = ("databases.yaml", "doors.ldf", "someip", "vehicle.dbc")
_BUSES: Final = """# What the signals of these captures mean (pcaplake docs signals).
databases:
  vehicle: vehicle.dbc
  doors: doors.ldf
  services: someip/        # tables of Wireshark's SOME/IP dissector
buses:
  powertrain: vehicle
  chassis: vehicle
  doors: doors
"""


def write_databases(folder: Path) -> None:
    """Write `NAMES`: an index, and a DBC file, an LDF file and a folder of tables."""
    (folder / "databases.yaml").write_text(_BUSES, encoding="utf-8")
    (folder / "vehicle.dbc").write_text(motion.DBC, encoding="utf-8")
    (folder / "doors.ldf").write_text(doors.LDF, encoding="utf-8")
    (folder / "someip").mkdir(exist_ok=True)
    for name, text in vehicle_service.TABLES.items():
        (folder / "someip" / name).write_text(text, encoding="utf-8")
