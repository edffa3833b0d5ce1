"""Which files of a table are rewritten together.

    fresh       a file that is not sorted: as ingested, or by another program. It is rewritten once, with others of its kind
    sorted      small sorted files grow: they are merged when the result is GROWTH times as large as the largest of them, or
                large, or when nothing new comes to the partition
    large       sorted and at least half of the target: stays as it is

So a byte is rewritten once when it comes, and then once each time its file grows by that factor: fewer than three times in a year
of hourly runs (tests/lake/compaction/test_plan.py). A large file of another program stays too: somebody may have chosen
its order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pcaplake.lake.delta.live_files import LiveFile

GROWTH: Final = 32
QUIET_GROWTH: Final = 3  # of partitions that got no file for a day
QUIET_MS: Final = 24 * 3_600_000
LARGE: Final = 2  # target / LARGE
MARGIN: Final = 110  # percent of what becomes large: fresh files shrink, and sorted ones may
LONE: Final = 32  # target / LONE: a fresh file that is alone is rewritten from this size on
MOST_SORTED: Final = 64  # sorted files in a bin: each is open while they are merged
MOST_FRESH: Final = 5_000
_OURS = re.compile(r"(?:^|/)[0-9a-f]{32}-[^/]*\.parquet$")

Partition = tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Files of one partition that are rewritten into one, by their paths below the table's folder."""

    fresh: Mapping[str, LiveFile]
    sorted: Mapping[str, LiveFile]

    @property
    def files(self) -> dict[str, LiveFile]:
        return {**self.fresh, **self.sorted}

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    def without(self, path: str) -> Bin:
        """The other files."""
        return Bin(
            fresh={name: file for name, file in self.fresh.items() if name != path},
            sorted={name: file for name, file in self.sorted.items() if name != path},
        )


def plan_bins(
    live: Mapping[str, LiveFile],
    partition_columns: Sequence[str],
    sorted_paths: Collection[str],
    *,
    target: int,
    now_ms: int,
) -> list[Bin]:
    """The bins of a table. `sorted_paths`: of the live files with the wanted order. `now_ms`: since 1970, as in the log."""
    partitions = defaultdict[Partition, dict[str, LiveFile]](dict)
    for path, file in live.items():
        partitions[tuple(file.partition_values.get(name) or None for name in partition_columns)][path] = file
    return [
        one
        for files in partitions.values()
        for one in _plan_partition(files, sorted_paths, target=target, now_ms=now_ms)
    ]


def _plan_partition(
    files: Mapping[str, LiveFile], sorted_paths: Collection[str], *, target: int, now_ms: int
) -> list[Bin]:
    large = target // LARGE
    fresh = [
        path
        for path, file in files.items()
        if path not in sorted_paths and (file.size < large or _OURS.search(path) is not None)
    ]
    small = [
        path
        for path, file in files.items()
        if path in sorted_paths
        # rule: a large file that is sorted is not rewritten
        and file.size < large
    ]
    quiet = max((file.modified for file in files.values()), default=0) < now_ms - QUIET_MS
    growth = QUIET_GROWTH if quiet else GROWTH
    packed = _pack(fresh, files, target)
    bins = [Bin(fresh=some, sorted={}) for some in packed]
    # the last files that came are merged at once with the sorted ones, if these are due
    items = [Bin(fresh={}, sorted={path: files[path]}) for path in small]
    items += [bins.pop()] if bins and bins[-1].size < target else []
    items.sort(key=lambda item: item.size)
    while count := _count_due(items, growth, large, target):
        bins.append(_join(items[:count]))
        del items[:count]
    bins += [item for item in items if item.fresh]
    return [one for one in bins if len(one.files) > 1 or one.size >= target // LONE]


def _count_due(items: Sequence[Bin], growth: int, large: int, target: int) -> int:
    """How many of the smallest bins are merged; 0: none. `items`: by size."""
    due = total = known = 0
    for number, item in enumerate(items[:MOST_SORTED], 1):
        total += item.size
        known += sum(file.size for file in item.sorted.values())
        if total > target:
            break
        # rule: sorted files are merged only when they grow by a factor, or become large
        if number > 1 and (total >= growth * item.size or known >= MARGIN * large // 100):
            due = number
    return due


def _join(bins: Iterable[Bin]) -> Bin:
    fresh, known = dict[str, LiveFile](), dict[str, LiveFile]()
    for one in bins:
        fresh |= one.fresh
        known |= one.sorted
    return Bin(fresh=fresh, sorted=known)


def _pack(paths: Iterable[str], files: Mapping[str, LiveFile], target: int) -> list[dict[str, LiveFile]]:
    """Neighbors in the log that are at most `target` together; a file that is larger is alone."""
    packed, size = list[dict[str, LiveFile]](), 0
    for path in paths:
        if not packed or size + files[path].size > target or len(packed[-1]) >= MOST_FRESH:
            packed.append({})
            size = 0
        packed[-1][path] = files[path]
        size += files[path].size
    return packed
