"""Which files are rewritten together, and how often bytes are rewritten in a year of hourly runs."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from pcaplake.lake.compaction.plan import GROWTH, QUIET_MS, Bin, plan_bins
from pcaplake.lake.delta.live_files import LiveFile
from tests.lake.compaction.compaction_mutants import MUTANTS, OF_PLANS

MB = 1 << 20
HOUR_MS = 3_600_000
TARGET = 128 * MB
NOW = 10 * QUIET_MS
SHRINK = 0.78  # docs/benchmarks.md: what order saves when a file is sorted for the first time
Arrivals = Iterator[list[tuple[int | None, int]]]


def live(sizes: dict[str, int], *, modified: int = NOW, day: str = "1") -> dict[str, LiveFile]:
    return {
        name: LiveFile(uri=name, size=size, rows=1, partition_values={"date": day}, modified=modified)
        for name, size in sizes.items()
    }


def plan(files: dict[str, LiveFile], *sorted_paths: str, target: int = 100) -> list[list[str]]:
    bins = plan_bins(files, ["date"], sorted_paths, target=target, now_ms=NOW)
    return sorted(sorted(one.files) for one in bins)


OURS = "0" * 32 + "-0.zstd.parquet"


def test_fresh_files_that_fit_into_one_are_rewritten_together() -> None:
    assert plan(live({"a": 30, "b": 40, "c": 49, "d": 49, "e": 10})) == [["a", "b"], ["c", "d"], ["e"]]
    assert plan({}) == []


def test_a_small_file_that_is_alone_waits_for_others() -> None:
    assert plan(live({"a": 2})) == []
    assert plan(live({"a": 4})) == [["a"]]
    assert plan({**live({"a": 2}), **live({"b": 2}, day="2")}) == []
    assert plan(live({"a": 2, "b": 1})) == [["a", "b"]]


def test_large_files_are_rewritten_once_and_those_of_others_never() -> None:
    assert plan(live({OURS: 90, "theirs": 90})) == [[OURS]]
    assert plan(live({OURS: 900})) == [[OURS]]
    assert plan(live({OURS: 90}), OURS) == []
    assert plan(live({OURS: 50, "b": 50}), OURS, "b") == []


def test_sorted_files_are_merged_when_they_grow_enough() -> None:
    assert plan(live(dict.fromkeys("abc", 1)), *"abc") == []
    many = [f"{number}" for number in range(GROWTH)]
    assert plan(live(dict.fromkeys(many, 1)), *many, target=10_000) == [sorted(many)]
    assert plan(live(dict.fromkeys(many[:-1], 1)), *many[:-1], target=10_000) == []
    assert plan(live({**dict.fromkeys(many, 1), "big": 10}), *many, "big", target=10_000) == [sorted(many)], (
        "big would grow little"
    )
    assert plan(live({"a": 25, "b": 30}), "a", "b") == [["a", "b"]], "they become a large one"
    assert plan(live({"a": 30, "b": 25, "fresh": 25}), "a", "b") == [["a", "b", "fresh"]], "with what came"


def test_partitions_to_which_nothing_comes_become_few_files() -> None:
    old = NOW - QUIET_MS - 1
    assert plan(live(dict.fromkeys("abc", 1), modified=old), *"abc") == [["a", "b", "c"]]
    assert plan(live({"a": 1, "b": 9}, modified=old), "a", "b") == []


FINDS: dict[str, Callable[[], None]] = {
    "large files are rewritten": test_large_files_are_rewritten_once_and_those_of_others_never,
    "merged too often": test_sorted_files_are_merged_when_they_grow_enough,
}


@pytest.mark.parametrize("name", OF_PLANS)
def test_a_rule_that_is_left_out_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    with pytest.raises(AssertionError):
        FINDS[name]()


# -- a year -----------------------------------------------------------------------------------------------------------
def hourly(size: int, files: int = 1) -> Arrivals:
    """Each hour the same into the partition of the day."""
    for hour in range(24 * 365):
        yield [(hour // 24, size // files)] * files


def one_partition(size: int) -> Arrivals:
    for _ in range(24 * 365):
        yield [(None, size)]


def late(size: int, share: float) -> Arrivals:
    """A part comes at random within 30 days, in uploads of a hundredth of a day."""
    rng = random.Random(1)
    waiting = list[tuple[int, int]]()
    for hour in range(24 * 365):
        day = hour // 24
        if hour % 24 == 0:
            waiting += [(hour + rng.randrange(24 * 30), day) for _ in range(round(100 * share))]
        due = [one for one in waiting if one[0] <= hour]
        waiting = [one for one in waiting if one[0] > hour]
        yield [(day, round(size * (1 - share))), *((day, size * 24 // 100) for _, day in due)]


def bursts(size: int) -> Arrivals:
    """Some days much, some hours nothing."""
    rng = random.Random(2)
    for hour in range(24 * 365):
        yield [(hour // 24, int(size * rng.paretovariate(1.2))) for _ in range(rng.choice([0, 0, 1, 5]))]


def simulate(arrivals: Arrivals) -> tuple[float, Counter[int | None]]:
    """(Bytes that are rewritten per byte that came, small files by partition at the end.)"""
    names = itertools.count()
    partitions: dict[int | None, dict[str, LiveFile]] = {}
    in_order = set[str]()
    came = rewritten = 0

    def put(day: int | None, size: int, now: int) -> str:
        name = f"{next(names):032x}-0.zstd.parquet"
        file = LiveFile(uri=name, size=max(1, size), rows=1, partition_values={"date": str(day)}, modified=now)
        partitions.setdefault(day, {})[name] = file
        return name

    for hour, files in enumerate(arrivals):
        now = hour * HOUR_MS
        for day, size in files:
            put(day, size, now)
            came += size
        touched = {day for day, _ in files} | {day for day in partitions if day is not None and hour % 24 == 0}
        for day in touched:
            # partitions that did not change are planned as before
            for one in plan_bins(partitions[day], ["date"], in_order, target=TARGET, now_ms=now):
                rewritten += one.size
                in_order.add(put(day, written(one), now))
                for path in one.files:
                    del partitions[day][path]
    small = {day: [file for file in files.values() if file.size < TARGET // 2] for day, files in partitions.items()}
    return rewritten / came, Counter({day: len(files) for day, files in small.items()})


def written(one: Bin) -> int:
    fresh = sum(file.size for file in one.fresh.values())
    return round(SHRINK * fresh) + one.size - fresh


@pytest.mark.parametrize(
    "arrivals",
    [
        *(pytest.param(hourly(size), id=f"hourly {size:,}") for size in (10_000, MB, 9 * MB, 40 * MB, 300 * MB)),
        pytest.param(hourly(20 * MB, 50), id="many small files"),
        *(pytest.param(one_partition(size), id=f"one partition {size:,}") for size in (10_000, MB, 9 * MB)),
        *(pytest.param(late(2 * MB, share), id=f"late {share}") for share in (0.1, 0.5, 0.9)),
        pytest.param(bursts(MB), id="bursts"),
    ],
)
@pytest.mark.slow
def test_fewer_than_three_bytes_are_rewritten_per_byte_that_comes(arrivals: Arrivals) -> None:
    ratio, small = simulate(arrivals)
    assert 0.9 < ratio < 3
    most = max(count for day, count in small.items() if day is None or day < 300)
    assert most <= 3 * GROWTH, "small files of a partition stay few"
