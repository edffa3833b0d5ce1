"""Plots a signal of a lake in the terminal:    python docs/examples/plot_signal.py LAKE SIGNAL [VEHICLE [DAY]]"""

import sys
from datetime import date

import pyarrow.compute as pc
from deltalake import DeltaTable

WIDTH, HEIGHT = 72, 12
BLOCKS = " ▁▂▃▄▅▆▇█"


def main(lake: str, signal: str, vehicle: str = "vehicle-001", day: str = "") -> None:
    """Print the mean of each of WIDTH equal times as a bar. Without a day, all days are read."""
    wanted = (pc.field("signal") == signal) & (pc.field("vehicle_id") == vehicle) & pc.field("valid")
    files = [
        ("signal", "=", signal),
        ("vehicle_id", "=", vehicle),
    ]  # of which files the rows are; `wanted` selects them
    if day:
        files.append(("date", "=", day))
        wanted &= pc.field("date") == date.fromisoformat(day)
    dataset = DeltaTable(f"{lake}/signals").to_pyarrow_dataset(file_pruning_predicate=files)
    rows = dataset.to_table(["ts", "ts_ns", "value", "unit"], filter=wanted)
    if not rows.num_rows:
        sys.exit(f"{lake} has no valid values of {signal} of {vehicle}")
    first, last = pc.min(rows["ts_ns"]).as_py(), pc.max(rows["ts_ns"]).as_py()
    sums, counts = [0.0] * WIDTH, [0] * WIDTH
    for time_ns, value in zip(rows["ts_ns"].to_pylist(), rows["value"].to_pylist(), strict=True):
        place = (time_ns - first) * WIDTH // (last - first + 1)
        sums[place] += value
        counts[place] += 1
    means = [total / count if count else None for total, count in zip(sums, counts, strict=True)]
    low, high = min(0.0, pc.min(rows["value"]).as_py()), pc.max(rows["value"]).as_py()
    unit = rows["unit"][0].as_py() or ""
    print(f"\n{signal} of {vehicle} ({unit}), {rows.num_rows:,} values")
    for line in reversed(range(HEIGHT)):
        label = high if line == HEIGHT - 1 else low if line == 0 else None
        eighths = [
            0 if mean is None else round((mean - low) / (high - low or 1) * HEIGHT * 8) - line * 8 for mean in means
        ]
        bars = "".join(BLOCKS[max(0, min(8, number))] for number in eighths)
        print(f"{'' if label is None else f'{label:.0f}':>6} |{bars}".rstrip())
    begin, end = (f"{time.as_py():%H:%M:%S}" for time in (pc.min(rows["ts"]), pc.max(rows["ts"])))
    print(f"{'':>6} +{'-' * WIDTH}\n{'':>8}{begin}{end:>{WIDTH - len(begin)}} UTC")


if __name__ == "__main__":
    main(*sys.argv[1:])
