"""Captures to try things with: benchmark mixes and a believable drive, the same bytes for the same arguments.

    OUT/profile.yaml                                   the ports and buses to read them with
    OUT/vehicle-001/2026-09-21-b.pcap                  a mix (a, b or c)
    OUT/vehicle-001/2026-09-21-1.pcapng                a drive: the first recording
    OUT/vehicle-001/2026-09-21-2.pcapng                across midnight UTC
    OUT/vehicle-001/2026-09-22-3.pcapng.gz (or .zst)   compressed
    OUT/vehicle-001/2026-09-22-4.pcapng                cut off at its end (of the first vehicle)

Knows folders, names and compression; `drive` and `mixes` know the traffic.
"""

from __future__ import annotations

import gzip
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, groupby, pairwise
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from . import damage, drive, files, mixes
from .sources import BUSES, EVENT_PORT, INTERFACES, SECOND, SOMEIP_PORT, TECMP_BUSES

MIXES = (*mixes.MIXES, "drive")
MIX_START_NS = 1_790_000_000 * SECOND  # 2026-09-21 14:13:20 UTC
MIDNIGHT_NS = 1_790_035_200 * SECOND  # 2026-09-22 00:00:00 UTC
APPLICATION = "pcaplake sample"
_BUFFER = 1 << 20


def make(
    out: str | Path,
    mix: str,
    seconds: float,
    vehicles: int | None = None,
    seed: int = 1,
    progress: Callable[[float], object] = lambda share: None,
) -> list[Path]:
    """Write the captures of a mix (`a`, `b`, `c` or `drive`) into the folder `out`; their paths, and profile.yaml last.

    `seconds` of traffic for each of `vehicles` (one in a mix, two in a drive, when not said). `progress` is told the
    share that is done, from 0 to 1. `ValueError` for arguments that make no sense; files of the same name are replaced.
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

        def done(share: float, index: int = index) -> None:
            progress((index + share) / number)

        if mix == "drive":
            paths += _drive(out / vehicle, seconds, seed, done, first=index == 0)
        else:
            paths.append(_mix(out / vehicle, mix, seconds, seed, done))
    (out / "profile.yaml").write_text(_profile(mix), encoding="utf-8")
    return [*paths, out / "profile.yaml"]


def recordings(seconds: float) -> list[int]:
    """When the recordings of a drive begin (ns), and when the last one ends; midnight is in the second."""
    length_ns = round(seconds * SECOND)
    start_ns = MIDNIGHT_NS - round(length_ns * 0.6)
    return [start_ns + round(length_ns * share) for share in (0.0, 0.4, 0.8, 0.9, 1.0)]


def _date(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // SECOND, UTC):%Y-%m-%d}"


def _mix(folder: Path, mix: str, seconds: float, seed: int, done: Callable[[float], object]) -> Path:
    path = folder / f"{_date(MIX_START_NS)}-{mix}.{mixes.MIXES[mix].suffix}"
    with path.open("wb") as file:
        for share, piece in mixes.stream(mix, seconds=seconds, seed=f"{seed}/{folder.name}", start_ns=MIX_START_NS):
            file.write(piece)
            done(share)
    return path


def _drive(folder: Path, seconds: float, seed: int, done: Callable[[float], object], *, first: bool) -> list[Path]:
    limits = recordings(seconds)
    start_ns, end_ns = limits[0], limits[-1]
    damaged = chain.from_iterable(damage.packets(*span) for span in pairwise(limits))
    traffic = drive.packets(folder.name, seed, start_ns, damaged)
    suffixes = ("", "", ".gz" if first else ".zst", "")
    paths = []
    for n, recording in groupby(traffic, key=lambda packet: bisect_right(limits, packet.time_ns)):
        if n == len(limits):
            break
        path = folder / f"{_date(limits[n - 1])}-{n}.pcapng{suffixes[n - 1]}"
        power_lost = first and n == len(suffixes)
        blocks = files.pcapng(recording, INTERFACES, APPLICATION, complete=not power_lost)
        with _opened(path) as file:
            for block in _power_lost(blocks) if power_lost else blocks:
                file.write(block)
        paths.append(path)
        done((limits[n] - start_ns) / (end_ns - start_ns))
    return paths


def _power_lost(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """All blocks, of the last one only half."""
    held = b""
    for block in blocks:
        yield held
        held = block
    yield held[: len(held) // 2]


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file to write into, compressed as its suffix says; nothing of the clock gets into it."""
    with path.open("wb", buffering=_BUFFER) as file:
        if path.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed:
                yield cast(BinaryIO, packed)
        elif path.suffix == ".zst":
            with zstandard.ZstdCompressor(write_checksum=True).stream_writer(file, closefd=False) as packed:
                yield cast(BinaryIO, packed)
        else:
            yield file


def _profile(mix: str) -> str:
    lines = ["# How to read these captures.", "ports:", "  udp:", f"    {SOMEIP_PORT}: someip"]
    if mix == "drive":
        lines += [f"    {EVENT_PORT}: someip", "buses:", "  interfaces:"]
        lines += [f"    {name}: {bus}" for name, bus in BUSES.items()]
        lines += ["  tecmp:", *(f"    {interface}: {bus}" for interface, bus in TECMP_BUSES.items())]
    return "\n".join([*lines, "vehicle_id: '/(?P<vehicle_id>vehicle-[0-9]+)/[^/]+$'", ""])
