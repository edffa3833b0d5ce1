"""What the examples of docs/recipes.md must print, computed by loops over the captures of several drives.

Three drives of two vehicles, whose buses, identifiers and clocks are the same: in the evening, around midnight and around the
next midnight. One capture was ingested before it was complete, and has a copy with another name.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from pcaplake.parser import open_capture
from pcaplake.worker import sample
from pcaplake.worker.cli import app as cli

HOUR = 3_600 * 10**9
MIDNIGHT_NS = sample.MIDNIGHT_NS
AT = {
    -5 * HOUR: 1.0,
    0: 4.0,
    24 * HOUR: 1.0,
}  # 0.6 of a drive is before this time, from the samples' midnight on: its seconds
VEHICLES = ("vehicle-001", "vehicle-002")
ONE = VEHICLES[0]
PROFILE = Path("drive-0/profile.yaml")
Row = dict[str, Any]


def make_lake() -> None:
    """In the folder `lake`, of captures in the folders `drive-0` to `drive-2`; each drive is ingested by itself."""
    with pytest.MonkeyPatch.context() as patch:
        for number, (at, seconds) in enumerate(AT.items()):
            patch.setattr(sample, "MIDNIGHT_NS", MIDNIGHT_NS + at)
            sample.write_sample_captures(f"drive-{number}", "drive", seconds, seed=number + 1)
    grown = next(Path(f"drive-1/{ONE}").glob("*-2.pcapng"))
    content = grown.read_bytes()
    grown.write_bytes(content[: len(content) // 2])
    ingest("drive-1")
    grown.write_bytes(content)
    shutil.copy(grown, grown.with_name("copy.pcapng"))
    for number in range(len(AT)):
        ingest(f"drive-{number}")
    assert cli.run_command_line(["signals", "--lake", "lake", "--databases", "drive-0/databases.yaml"]) == 0


def ingest(folder: str) -> None:
    assert cli.run_command_line(["ingest", folder, "--lake", "lake", "--profile", str(PROFILE)]) in (0, 1)


def show_ns(time_ns: int) -> str:
    """As DuckDB prints a TIMESTAMP."""
    whole, micros = divmod(time_ns // 1000, 10**6)
    text = f"{datetime.fromtimestamp(whole, UTC):%Y-%m-%d %H:%M:%S}"
    return f"{text}.{micros:06d}".rstrip("0") if micros else text


def day(row: Row) -> str:
    return show_ns(row["ts_ns"])[:10]


@dataclass(frozen=True)
class Drives:
    """The captures, by vehicle and drive, and their rows."""

    def captures(self, vehicle: str, number: int) -> list[Path]:
        """Those that count."""
        return sorted(path for path in Path(f"drive-{number}/{vehicle}").iterdir() if path.stem != "copy")

    def rows(self, table: str) -> Iterator[Row]:
        """Of all drives of a vehicle, each with its capture and the `drive` that it belongs to."""
        for number in range(len(AT)):
            for path in self.captures(ONE, number):
                with open_capture(path, table, profile=PROFILE) as capture:
                    for row in capture.read().to_pylist():
                        yield {**row, "drive": self.starts[ONE, number], "capture": path}

    @cached_property
    def can_frames(self) -> list[Row]:
        return list(self.rows("can_frames"))

    def times(self, path: Path) -> list[int]:
        with open_capture(path, "packets", columns=["ts_ns"]) as capture:
            return [time for time in capture.read()["ts_ns"].to_pylist() if time is not None]

    @cached_property
    def packets(self) -> dict[tuple[str, int], list[int]]:
        """Vehicle, drive -> the times of its packets."""
        keys = [(vehicle, number) for vehicle in VEHICLES for number in range(len(AT))]
        return {key: [time for path in self.captures(*key) for time in self.times(path)] for key in keys}

    @cached_property
    def starts(self) -> dict[tuple[str, int], str]:
        return {key: show_ns(min(times)) for key, times in self.packets.items()}

    def the_drives_of_a_vehicle(self) -> list[Any]:
        return [
            (
                vehicle,
                self.starts[vehicle, number],
                len(self.captures(vehicle, number)),
                len(times),
                show_ns(max(times)),
            )
            for (vehicle, number), times in self.packets.items()
        ]

    def the_newest_data_of_each_vehicle(self) -> list[Any]:
        captures = {vehicle: 4 * len(AT) for vehicle in VEHICLES}
        captures[ONE] += 2  # the old content, and the copy
        last = {vehicle: max(max(self.packets[vehicle, number]) for number in range(len(AT))) for vehicle in VEHICLES}
        return [(vehicle, show_ns(last[vehicle]), captures[vehicle]) for vehicle in VEHICLES]

    def a_signal_over_time(self) -> list[Any]:
        values = defaultdict(list)
        for row in self.can_frames:
            if (row["bus"], row["can_id"], row["extended"], row["error"]) == ("powertrain", 203, False, False):
                value = int.from_bytes(row["payload"][:2], "little") * 0.25
                if day(row) == "2026-09-22" and value <= 8000:
                    values[show_ns(row["ts_ns"] // 10**9 * 10**9)].append(value)
        return [(f"{second}+00", round(sum(some) / len(some), 1), "rpm") for second, some in sorted(values.items())]

    def an_ecu_that_went_silent(self) -> list[Any]:
        times, ends = defaultdict(list), defaultdict(int)
        for row in self.can_frames:
            if day(row) == "2026-09-21" and not row["error"]:
                bus = (row["drive"], row["bus"])
                times[(*bus, row["extended"], row["can_id"])].append(row["ts_ns"])
                ends[bus] = max(ends[bus], row["ts_ns"])
        found = []
        for (drive, bus, _, can_id), some in times.items():
            some.sort()
            silences = [after - before for before, after in zip(some, [*some[1:], ends[drive, bus]], strict=True)]
            if len(some) > 20:
                period, longest = median(silences), max(silences)
                found.append(
                    (-longest / period, drive, bus, f"0x{can_id:x}", round(period / 1e6, 1), round(longest / 1e6, 1))
                )
        return [shown for _, *shown in sorted(found)[:3]]

    def bus_load(self) -> list[Any]:
        bits, frames, times = defaultdict(int), defaultdict(int), defaultdict(list)
        for row in self.can_frames:
            if (
                day(row) == "2026-09-21"
                and row["source"] == "socketcan"
                and not (row["fd"] or row["xl"] or row["error"])
            ):
                bus = (row["drive"], row["bus"])
                bits[bus] += (67 if row["extended"] else 47) + (0 if row["rtr"] else 8 * row["data_len"])
                frames[bus] += 1
                times[row["drive"]].append(row["ts_ns"])
        seconds = {drive: (max(some) - min(some)) / 1e9 for drive, some in times.items()}
        return [(*bus, frames[bus], round(100 * bits[bus] / (seconds[bus[0]] * 500e3), 1)) for bus in sorted(bits)]

    def latency_of_some_ip_methods(self) -> list[Any]:
        open_calls: dict[Any, list[int]] = defaultdict(list)
        latencies = defaultdict(list)
        for row in sorted(self.rows("someip_messages"), key=lambda row: row["ts_ns"]):
            method = (row["service_id"], row["method_id"])
            call = (row["drive"], *method, row["client_id"], row["session_id"])
            if day(row) > "2026-09-22":
                continue
            if row["message_type"] == 0:
                open_calls[*call, row["ip_src"], row["src_port"]].append(row["ts_ns"])
            elif row["message_type"] == 128:
                begun = open_calls.pop((*call, row["ip_dst"], row["dst_port"]), [])
                latencies[method] += [row["ts_ns"] - at for at in begun if row["ts_ns"] - at < 10**9]
        return [
            (f"0x{service:04x}", method, len(some), round(median(some) / 1e6, 2), round(max(some) / 1e6, 2))
            for (service, method), some in sorted(latencies.items())
        ]

    def offset_of_a_clock_from_ptp_time(self) -> list[Any]:
        rows = list(self.rows("gptp_messages"))
        packets = {(row["capture"], row["packet_no"]): row for row in rows}
        offsets = defaultdict(list)
        for row in rows:
            sync = packets.get((row["capture"], row["request_packet_no"]))
            if row["message_type"] == 8 and sync is not None and day(row) == "2026-09-22":
                correction = sync["correction_ns"] + row["correction_ns"]
                offsets[row["clock_identity"], row["domain"]].append(sync["ts_ns"] - row["origin_ts_ns"] - correction)
        return [
            (f"0x{clock:016x}", domain, len(some), median(some)) for (clock, domain), some in sorted(offsets.items())
        ]

    def frames_whose_payload_has_certain_bytes(self) -> list[Any]:
        counts: dict[Any, int] = defaultdict(int)
        for row in self.can_frames:
            if day(row) == "2026-09-21" and b"\x22\x02" in (row["payload"] or b""):
                counts[row["bus"], row["extended"], row["can_id"]] += 1
        found = sorted((-count, bus, f"0x{can_id:x}") for (bus, _, can_id), count in counts.items())
        return [(bus, can_id, -count) for count, bus, can_id in found[:3]]

    def frames_424(self) -> list[Row]:
        wanted = ("powertrain", 424, False, "2026-09-21")
        rows = self.can_frames
        found = [row for row in rows if (row["bus"], row["can_id"], row["extended"], day(row)) == wanted]
        return sorted(found, key=lambda row: row["ts_ns"])

    def export_to_csv(self) -> list[Any]:
        lines = [
            f"{row['ts_ns']},{row['bus']},{row['can_id']},{row['payload'].hex().upper()}" for row in self.frames_424()
        ]
        return ["ts_ns,bus,can_id,payload", *lines[:2]]

    def from_a_row_back_to_wireshark(self) -> list[Any]:
        row = next(row for row in self.frames_424() if row["capture"].suffix == ".pcapng")
        return [f"editcap -r {row['capture'].name} one.pcapng {row['packet_no']}"]

    def of(self, heading: str) -> str:
        """What the example below this heading prints."""
        name = "".join(letter if letter.isalnum() else "_" for letter in heading.lower())
        loop: Callable[[], list[Any]] = getattr(self, name)
        return "".join(f"{tuple(line) if isinstance(line, list) else line}\n" for line in loop())
