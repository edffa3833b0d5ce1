"""Which partitions are compacted: what the log says of their files, and what this run may spend.

Knows sizes and partition values. Must not know Spark: a plan is made from the log alone, without a JVM.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from worker.errors import Fatal
from worker.lake.knobs import Knobs
from worker.settings import WrongSetting

from .upkeep import TABLE_NAMES, Live

Value = str | int | bool | datetime.date | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Sizes in bytes, times in seconds.

    `tables`: none named: all. `partitions`: only those with one of these values of a column, as text ("" is null).
    `zorder`: columns by table. A partition is due when it has at least `min_files` files smaller than `small_file`
    (None: half of `target_file_size`). The budget: `max_files` and `max_bytes` that are read and written again,
    `max_seconds` after which no further partition is begun; None: no end.
    """

    tables: tuple[str, ...] = ()
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    zorder: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    min_files: int = 10
    target_file_size: int = Knobs().target_file_size
    small_file: int | None = None
    max_files: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        """ValueError for what can do no good."""
        if self.min_files < 2:
            raise ValueError("min_files: 2 is the least, one file cannot be put together")
        if self.target_file_size < 1 << 16:
            raise ValueError("target_file_size: 64KB is the least")
        if not 0 < self.small <= self.target_file_size:
            raise ValueError("small_file: at most the target_file_size, else what was compacted is compacted again")

    @property
    def small(self) -> int:
        return self.target_file_size // 2 if self.small_file is None else self.small_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition of a table as its log has it. `newest`: when its latest file was made, epoch ms."""

    table: str
    values: tuple[tuple[str, Value], ...]
    files: int
    bytes: int
    small_files: int
    small_bytes: int
    newest: int

    @property
    def name(self) -> str:
        return "/".join(f"{column}={'' if value is None else value}" for column, value in self.values)

    @property
    def date(self) -> str:
        return next((str(value) for _, value in self.values if isinstance(value, datetime.date)), "")

    def cost(self, zorder: bool) -> tuple[int, int]:
        """Files and bytes that are read and written again: a Z-order sorts all rows anew."""
        return (self.files, self.bytes) if zorder else (self.small_files, self.small_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`chosen`: in the order they are done; `left`: due, for another run; `never`: above the whole budget alone."""

    chosen: tuple[Partition, ...]
    left: tuple[Partition, ...] = ()
    never: tuple[Partition, ...] = ()


def partitions(table: Live, small: int) -> list[Partition]:
    """Files and bytes of each partition of a table; `small`: files below this size are counted apart."""
    if not table.files:
        return []
    keys = [f"partition.{column}" for column in table.partition_columns]
    size = table.adds["size_bytes"]
    is_small = pc.less(size, small)
    grouped = pa.table(
        {
            **{key: table.adds[key] for key in keys},
            "size": size,
            "small": pc.cast(is_small, pa.int64()),
            "small_size": pc.if_else(is_small, size, 0),
            "newest": pc.cast(pc.cast(table.adds["modification_time"], pa.timestamp("ms")), pa.int64()),
        }
    )
    sums = [("size", "count"), ("size", "sum"), ("small", "sum"), ("small_size", "sum"), ("newest", "max")]
    return [
        Partition(
            table=table.name,
            values=tuple((column, row[key]) for column, key in zip(table.partition_columns, keys, strict=True)),
            files=row["size_count"],
            bytes=row["size_sum"],
            small_files=row["small_sum"],
            small_bytes=row["small_size_sum"],
            newest=row["newest_max"],
        )
        for row in grouped.group_by(keys, use_threads=False).aggregate(sums).to_pylist()
    ]


def plan(found: Iterable[Partition], options: Options) -> Plan:
    """Which of the partitions are done in this run: those that are due, newest first, as far as the budget goes.

    One that does not fit any more does not keep smaller ones behind it from being done.
    """
    due = [one for one in found if one.small_files >= options.min_files and _named(one, options.partitions)]
    due.sort(key=lambda one: (one.date, one.newest), reverse=True)
    most = [options.max_files, options.max_bytes]
    spent = [0, 0]
    chosen, left, never = [], [], []
    for one in due:
        cost = one.cost(one.table in options.zorder)
        if not _within(cost, most):
            never.append(one)
        elif _within([before + now for before, now in zip(spent, cost, strict=True)], most):
            spent = [before + now for before, now in zip(spent, cost, strict=True)]
            chosen.append(one)
        else:
            left.append(one)
    return Plan(chosen=tuple(chosen), left=tuple(left), never=tuple(never))


def checked(options: Options, tables: Mapping[str, Live]) -> Options:
    """The options as these tables can take them: Delta orders no rows by a column of the partitions, so it is left out.

    WrongSetting for a table or a column that is not there, and for an order of a table that is not among those named.
    A known table that has not come yet is no mistake.
    """
    orders = {}
    for name, columns in options.zorder.items():
        table = tables.get(name)
        if options.tables and name not in options.tables:
            raise WrongSetting(
                f"--zorder: {name} is not compacted in this run, which is for {', '.join(options.tables)}; name it with "
                "--table, too"
            )
        if table is None:
            if name not in TABLE_NAMES:
                raise WrongSetting(f"--zorder: there is no table {name}; there are {', '.join(tables)}")
            continue
        there = {column.lower() for column in table.columns}
        for column in columns:
            if column.lower() not in there:
                raise WrongSetting(f"--zorder: {name} has no column {column}; it has {', '.join(table.columns)}")
        parts = {column.lower() for column in table.partition_columns}
        if left := tuple(column for column in columns if column.lower() not in parts):
            orders[name] = left
    known = dict.fromkeys(column for table in tables.values() for column in table.partition_columns)
    for column in options.partitions:
        if column not in known:
            raise WrongSetting(
                f"--partition: no table has partitions by {column}; there are {', '.join(known) or 'none'}"
            )
    return replace(options, zorder=orders)


def _within(cost: Sequence[int], most: Sequence[int | None]) -> bool:
    return all(limit is None or amount <= limit for amount, limit in zip(cost, most, strict=True))


def _named(one: Partition, wanted: Mapping[str, tuple[str, ...]]) -> bool:
    values = {column: "" if value is None else str(value) for column, value in one.values}
    return all(values.get(column) in texts for column, texts in wanted.items())


def predicate(values: Iterable[tuple[str, Value]]) -> str | None:
    """The WHERE of one partition in Spark SQL; None: the table has none. Fatal for a type that has no literal here."""
    return " AND ".join(_equals(column, value) for column, value in values) or None


def _equals(column: str, value: Value) -> str:
    name = "`" + column.replace("`", "``") + "`"
    match value:
        case None:
            return f"{name} IS NULL"
        case bool() | int():
            return f"{name} = {str(value).upper()}"
        case datetime.date() if not isinstance(value, datetime.datetime):
            return f"{name} = DATE '{value.isoformat()}'"
        case str():
            # `${x}` would be taken for a variable, whatever stands around it
            text = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
            return f"{name} = '{text}'"
    raise Fatal(
        f"column {column}: partitions by {type(value).__name__} cannot be named in SQL here; leave the table out"
    )
