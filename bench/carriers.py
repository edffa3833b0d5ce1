"""What a CAN frame costs to decode by what carries it: SocketCAN, and each capture module.

    python -m bench.carriers [--frames 200000] [--runs 7]

The same frames, one in each packet and ten in each packet where the module can hold several, are decoded with all columns of all
tables: a row of `can_frames` for each frame, and one of `packets` for each packet. CPU time of one thread, in turn, the least of
n runs. The limit is 1.5 times the cost of a frame of SocketCAN.
"""

from __future__ import annotations

import argparse
import io
import platform
import statistics
import struct
import time
from collections.abc import Mapping
from random import Random

from pcaplake.parser import open_capture
from tests.parser import can_carriers, captures

LIMIT = 1.5
TOGETHER = 10


def make_captures(count: int) -> Mapping[str, bytes]:
    r = Random(1)
    frames = [(r.choice((0x100 + r.randrange(60), 1 << 31 | r.randrange(60))), r.randbytes(8)) for _ in range(count)]
    made = {"SocketCAN": captures.pcap((struct.pack(">IB3x", w, len(d)) + d for w, d in frames), 227)}
    for name, carry in can_carriers.CARRIERS.items():
        made[name] = captures.pcap(carry(word, data, 1, "") for word, data in frames)
    groups = [frames[i : i + TOGETHER] for i in range(0, count, TOGETHER)]
    entry, message = can_carriers.tecmp_entry, can_carriers.cmp_message
    made[f"TECMP, {TOGETHER} in a packet"] = captures.pcap(
        can_carriers.tecmp_entries(2, *(entry(struct.pack(">IB", w, len(d)) + d, 1) for w, d in group))
        for group in groups
    )
    made[f"ASAM CMP, {TOGETHER} in a packet"] = captures.pcap(
        can_carriers.MAC
        + b"\x99\xfe"
        + can_carriers.cmp_packet(*(message(1, can_carriers.cmp_can(w, d), 1) for w, d in group))
        for group in groups
    )
    return made


def measure(data: bytes) -> tuple[int, float]:
    """Rows of `can_frames`, and seconds of CPU."""
    start, frames = time.thread_time(), 0
    for table, batch in open_capture(io.BytesIO(data)).batches():
        frames += batch.num_rows if table == "can_frames" else 0
    return frames, time.thread_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=200_000, help="frames of CAN in each capture")
    parser.add_argument("--runs", type=int, default=7, help="n")
    arguments = parser.parse_args()
    made = make_captures(arguments.frames)
    runs: dict[str, list[tuple[int, float]]] = {name: [measure(data)] for name, data in made.items()}
    for _ in range(arguments.runs):
        for name, data in made.items():
            runs[name].append(measure(data))
    print(
        f"{platform.machine()}, Python {platform.python_version()}, n = {arguments.runs}, {arguments.frames:,} frames of CAN"
    )
    print(f"{'':28} ns per frame, least (median)   times SocketCAN (limit {LIMIT})")
    base = 0.0
    for name, (_, *measured) in runs.items():
        assert {frames for frames, _ in measured} == {arguments.frames}, f"{name}: frames are missing"
        costs = [seconds / frames * 1e9 for frames, seconds in measured]
        base = base or min(costs)
        print(f"{name:28} {min(costs):10.0f} ({statistics.median(costs):.0f}) {min(costs) / base:25.2f}")


if __name__ == "__main__":
    main()
