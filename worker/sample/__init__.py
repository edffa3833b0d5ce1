"""Generates captures: a realistic drive, and a car at charging stations. The same arguments give the same bytes.

OUT/profile.yaml                                   the ports and buses to read them with
OUT/databases.yaml                                 what the messages of a drive mean: names the databases of its buses
OUT/vehicle.dbc, OUT/doors.ldf, OUT/someip/        CAN, LIN and SOME/IP
OUT/vehicle-001/2026-09-21-charging.pcapng         a car at charging stations
OUT/vehicle-001/2026-09-21-1.pcapng                a drive: the first recording
OUT/vehicle-001/2026-09-21-2.pcapng                across midnight UTC
OUT/vehicle-001/2026-09-22-3.pcapng.gz (or .zst)   compressed
OUT/vehicle-001/2026-09-22-4.pcapng                cut off at its end (of the first vehicle)
"""

from __future__ import annotations

import gzip
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, groupby, pairwise, takewhile
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from . import charging, damage, databases, diagnosis, drive, files, modules, truck
from .sources import BUSES, EVENT_PORT, INTERFACES, SECOND, SOMEIP_PORT, STREAM_PORT, TECMP_BUSES

MIXES = ("drive", "charging")
MIX_START_NS = 1_790_000_000 * SECOND  # 2026-09-21 14:13:20 UTC
MIDNIGHT_NS = 1_790_035_200 * SECOND  # 2026-09-22 00:00:00 UTC
APPLICATION = "pcaplake sample"
_BUFFER = 1 << 20


def write_sample_captures(
    out: str | Path,
    mix: str,
    seconds: float,
    vehicles: int | None = None,
    seed: int = 1,
    progress: Callable[[float], object] = lambda share: None,
) -> list[Path]:
    """Write the captures of a mix (one of `MIXES`) into the folder `out`; return their paths, profile.yaml last.

    `seconds` of traffic for each of `vehicles` (by default one of charging, two for a drive). `progress` is called with the
    fraction done, 0 to 1. Files of the same name are replaced. Raises `ValueError` for arguments out of range.
    """
    if mix not in MIXES:
        raise ValueError(f"no mix {mix!r}; choose one of {', '.join(MIXES)}")
    number = vehicles if vehicles is not None else 2 if mix == "drive" else 1
    if not (0.001 <= seconds <= 10**7 and 1 <= number <= 999):
        raise ValueError(
            f"cannot make {seconds} s of {number} vehicles; choose 0.001 s to 10**7 s of 1 to 999 vehicles"
        )
    out, paths = Path(out), []
    for index in range(number):
        vehicle = f"vehicle-{index + 1:03d}"
        (out / vehicle).mkdir(parents=True, exist_ok=True)

        def report_progress(share: float, index: int = index) -> None:
            progress((index + share) / number)

        if mix == "drive":
            paths += _write_drive(out / vehicle, seconds, seed, report_progress, first=index == 0)
        else:
            paths.append(_write_charging(out / vehicle, seconds, seed))
            report_progress(1)
    if mix == "drive":
        databases.write_databases(out)
    (out / "profile.yaml").write_text(_profile_text(mix), encoding="utf-8")
    return [*paths, out / "profile.yaml"]


def recording_boundaries(seconds: float) -> list[int]:
    """The start times of the recordings of a drive, and the end of the last (ns since 1970); the second spans midnight."""
    length_ns = round(seconds * SECOND)
    start_ns = MIDNIGHT_NS - round(length_ns * 0.6)
    return [start_ns + round(length_ns * share) for share in (0.0, 0.4, 0.8, 0.9, 1.0)]


def _format_date(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // SECOND, UTC):%Y-%m-%d}"


def _write_charging(folder: Path, seconds: float, seed: int) -> Path:
    path, end_ns = folder / f"{_format_date(MIX_START_NS)}-charging.pcapng", MIX_START_NS + round(seconds * SECOND)
    traffic = charging.generate_charging_packets(folder.name, seed, MIX_START_NS)
    recording = takewhile(lambda packet: packet.time_ns < end_ns, traffic)
    path.write_bytes(b"".join(files.generate_pcapng_blocks(recording, charging.INTERFACES, APPLICATION)))
    return path


def _write_drive(
    folder: Path, seconds: float, seed: int, done: Callable[[float], object], *, first: bool
) -> list[Path]:
    limits = recording_boundaries(seconds)
    start_ns, end_ns = limits[0], limits[-1]
    damaged = chain.from_iterable(damage.damaged_packets(*span) for span in pairwise(limits))
    traffic = drive.generate_drive_packets(folder.name, seed, start_ns, damaged)
    suffixes = ("", "", ".gz" if first else ".zst", "")
    paths = []
    for n, recording in groupby(traffic, key=lambda packet: bisect_right(limits, packet.time_ns)):
        if n == len(limits):
            break
        path = folder / f"{_format_date(limits[n - 1])}-{n}.pcapng{suffixes[n - 1]}"
        power_lost = first and n == len(suffixes)
        blocks = files.generate_pcapng_blocks(recording, INTERFACES, APPLICATION, complete=not power_lost)
        with _open_compressed(path) as file:
            for block in _truncate_last_block(blocks) if power_lost else blocks:
                file.write(block)
        paths.append(path)
        done((limits[n] - start_ns) / (end_ns - start_ns))
    return paths


def _truncate_last_block(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """All blocks, but only half of the last one."""
    held = b""
    for block in blocks:
        yield held
        held = block
    yield held[: len(held) // 2]


@contextmanager
def _open_compressed(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write to. Its suffix selects the compression; the compressed file has no timestamp in it."""
    with path.open("wb", buffering=_BUFFER) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                yield cast(BinaryIO, packed)
        elif path.suffix == ".zst":
            with zstandard.ZstdCompressor(write_checksum=True).stream_writer(file, closefd=False) as packed:
                yield cast(BinaryIO, packed)
        else:
            yield file


def _profile_text(mix: str) -> str:
    lines = ["# How to read these captures."]
    if mix == "drive":
        lines += [
            "ports:",
            "  udp:",
            f"    {SOMEIP_PORT}: someip",
            f"    {EVENT_PORT}: someip",
            f"    {modules.PDU_PORT}: pdu",
            f"    {modules.NM_PORT}: nm",
            f"    {modules.XCP_PORT}: xcp",
            "  tcp:",
            f"    {STREAM_PORT}: someip",
            "buses:",
            "  interfaces:",
        ]
        lines += [f"    {name}: {bus}" for name, bus in BUSES.items()]
        lines += ["  tecmp:", *(f"    {interface}: {bus}" for interface, bus in TECMP_BUSES.items())]
        lines += ["  cmp:", f"    {modules.CMP_INTERFACE}: seats", f"    {modules.LIN_INTERFACE}: climate"]
        lines += ["  acf:", f"    {modules.ACF_BUS}: cameras"]
        lines += ["pdus:", *(f"  {number:#x}: {name}" for number, name in modules.PDU_NAMES.items())]
        request, response, group = diagnosis.CAN_REQUEST, diagnosis.CAN_RESPONSE, diagnosis.CAN_GROUP
        ids = modules.NM_CAN_IDS
        lines += [
            "can:",
            "  protocols:",
            f"    {ids[0]:#x}-{ids[-1]:#x}: nm",
            *(f"    {first:#x}-{last:#x}: j1939" for first, last in truck.J1939_IDS),
            *(f"    {can_id:#x}: canopen" for can_id in truck.CANOPEN_IDS),
            "  isotp:",
            f"    - {{request: {request:#x}, response: {response:#x}}}",
        ]
        lines += [f"    - {{request: {group:#x}}}"]
    return "\n".join([*lines, "vehicle_id: '/(?P<vehicle_id>vehicle-[0-9]+)/[^/]+$'", ""])
