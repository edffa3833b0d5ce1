"""The traffic of the benchmarks: mixes of one family of protocols each. The same arguments give the same bytes.

    python -m bench.mixes OUT --mix c --seconds 10

OUT/profile.yaml                                   the ports to read them with
OUT/vehicle-001/2026-09-21-b.pcap                  a mix (a, b or c)
OUT/vehicle-001/2026-09-21-noise-b.pcap            noise: a capture in the shape of each mix
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from pcaplake.worker import sample
from pcaplake.worker.sample.sources import SECOND, SOMEIP_PORT

from . import cyclic, noise

MIXES = (*cyclic.MIXES, "noise")
PROFILE = f"ports:\n  udp:\n    {SOMEIP_PORT}: someip\nvehicle_id: '/(?P<vehicle_id>vehicle-[0-9]+)/[^/]+$'\n"


def write_captures(out: Path, mix: str, seconds: float, vehicles: int | None = None, seed: int = 1) -> list[Path]:
    """Write the captures of one of `MIXES`, or a sample of `pcaplake sample`, into `out`; return their paths, profile.yaml last.

    `seconds` of traffic for each of `vehicles` (by default one for a mix).
    """
    if mix not in MIXES:
        return sample.write_sample_captures(out, mix, seconds, vehicles, seed)
    paths = list[Path]()
    for number in range(1, (vehicles or 1) + 1):
        folder = out / f"vehicle-{number:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        for shape in noise.NOISE_MIXES if mix == "noise" else [mix]:
            paths.append(_write_capture(folder, mix, shape, seconds, f"{seed}/{folder.name}"))
    (out / "profile.yaml").write_text(PROFILE, encoding="utf-8")
    return [*paths, out / "profile.yaml"]


def _write_capture(folder: Path, mix: str, shape: str, seconds: float, seed: str) -> Path:
    generate = noise.generate_noise_blocks if mix == "noise" else cyclic.generate_mix_blocks
    name = shape if mix == shape else f"{mix}-{shape}"
    date = datetime.fromtimestamp(sample.MIX_START_NS // SECOND, UTC)
    path = folder / f"{date:%Y-%m-%d}-{name}.{cyclic.MIXES[shape].suffix}"
    with path.open("wb") as file:
        for block in generate(shape, seconds=seconds, seed=seed, start_ns=sample.MIX_START_NS):
            file.write(block)
    return path
