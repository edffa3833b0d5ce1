"""Chooses the partitions to compact, from the sizes in the table's log and the budget of the run. Needs no Spark."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from pcaplake.common.errors import Fatal
from pcaplake.lake.config import LakeConfig
from pcaplake.spark_jobs.common.maintenance import TABLE_NAMES, TableSnapshot
from pcaplake.spark_jobs.common.sql import text_literal
from pcaplake.worker.config.settings import WrongSetting

Value = str | int | bool | datetime.date | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactOptions:
    """Sizes in bytes, times in seconds.

    `tables`: empty means all. `partitions`: only partitions with one of these values of a column, as text ("" is null).
    `zorder`: columns by table. A partition is due when it has at least `min_files` files smaller than `small_file`
    (None: half of `target_file_size`). Budget: `max_files` and `max_bytes` to rewrite, `max_seconds` after which no
    partition is started; None: no limit.
    """

    tables: tuple[str, ...] = ()
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    zorder: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    min_files: int = 10
    target_file_size: int = LakeConfig().target_file_size
    small_file: int | None = None
    max_files: int | None = None
    max_bytes: int | None = None
    max_seconds: float | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        """WrongSetting for values that cannot work."""
        if self.min_files < 2:
            raise WrongSetting("--min-files: must be at least 2, because one file cannot be combined")
        if self.target_file_size < 1 << 16:
            raise WrongSetting("--target-file-size: must be at least 64KB")
        if not 0 < self.small_file_limit <= self.target_file_size:
            raise WrongSetting(
                "--small-file: must not be above --target-file-size, or compacted files are compacted again"
            )

    @property
    def small_file_limit(self) -> int:
        return self.target_file_size // 2 if self.small_file is None else self.small_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition, from the table's log. `newest`: modification time of its latest file, epoch ms."""

    table: str
    values: tuple[tuple[str, Value], ...]
    files: int
    bytes: int
    small_files: int
    small_bytes: int
    newest: int

    @property
    def partition_path(self) -> str:
        return "/".join(f"{column}={'' if value is None else value}" for column, value in self.values)

    @property
    def partition_date(self) -> str:
        return next((str(value) for _, value in self.values if isinstance(value, datetime.date)), "")

    def rewrite_cost(self, zorder: bool) -> tuple[int, int]:
        """Files and bytes to rewrite: all of them for a Z-order, which sorts every row, else the small ones."""
        return (self.files, self.bytes) if zorder else (self.small_files, self.small_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """`chosen`: in the order of work; `left`: due, for a later run; `never`: larger than the whole budget."""

    chosen: tuple[Partition, ...]
    left: tuple[Partition, ...] = ()
    never: tuple[Partition, ...] = ()


def summarize_partitions(table: TableSnapshot, small: int) -> list[Partition]:
    """Files and bytes of each partition of a table; files smaller than `small` bytes are also counted separately."""
    if not table.file_count:
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


def choose_partitions(candidates: Iterable[Partition], options: CompactOptions) -> CompactionPlan:
    """Choose the partitions that are due, newest first, until the budget is used up.

    A partition that does not fit is skipped, and smaller ones after it may still be chosen.
    """
    due = [
        partition
        for partition in candidates
        if partition.small_files >= options.min_files and _is_selected(partition, options.partitions)
    ]
    due.sort(key=lambda partition: (partition.partition_date, partition.newest), reverse=True)
    most = [options.max_files, options.max_bytes]
    spent = [0, 0]
    chosen, left, never = [], [], []
    for partition in due:
        cost = partition.rewrite_cost(partition.table in options.zorder)
        if not _is_within_budget(cost, most):
            never.append(partition)
        elif _is_within_budget([before + now for before, now in zip(spent, cost, strict=True)], most):
            spent = [before + now for before, now in zip(spent, cost, strict=True)]
            chosen.append(partition)
        else:
            left.append(partition)
    return CompactionPlan(chosen=tuple(chosen), left=tuple(left), never=tuple(never))


def check_options(options: CompactOptions, tables: Mapping[str, TableSnapshot]) -> CompactOptions:
    """Check the options against the tables. Partition columns are dropped from `zorder`: Delta cannot order by them.

    WrongSetting for a table or a column that does not exist, and for an order of a table that is not compacted. A table of
    the lake that does not exist yet is accepted.
    """
    orders = {}
    for name, columns in options.zorder.items():
        table = tables.get(name)
        if options.tables and name not in options.tables:
            raise WrongSetting(
                f"--zorder: {name} is not compacted in this run; --table names {', '.join(options.tables)}; add "
                f"--table {name}"
            )
        if table is None:
            if name not in TABLE_NAMES:
                raise WrongSetting(f"--zorder: table {name} does not exist; the tables are {', '.join(tables)}")
            continue
        table_columns = {column.lower() for column in table.columns}
        for column in columns:
            if column.lower() not in table_columns:
                raise WrongSetting(f"--zorder: {name} has no column {column}; it has {', '.join(table.columns)}")
        parts = {column.lower() for column in table.partition_columns}
        if order_columns := tuple(column for column in columns if column.lower() not in parts):
            orders[name] = order_columns
    known_columns = dict.fromkeys(column for table in tables.values() for column in table.partition_columns)
    for column in options.partitions:
        if column not in known_columns:
            raise WrongSetting(
                f"--partition: no table is partitioned by {column}; partition columns: {', '.join(known_columns) or 'none'}"
            )
    return replace(options, zorder=orders)


def _is_within_budget(cost: Sequence[int], most: Sequence[int | None]) -> bool:
    return all(limit is None or amount <= limit for amount, limit in zip(cost, most, strict=True))


def _is_selected(partition: Partition, selected_values: Mapping[str, tuple[str, ...]]) -> bool:
    values = {column: "" if value is None else str(value) for column, value in partition.values}
    return all(values.get(column) in texts for column, texts in selected_values.items())


def partition_predicate(values: Iterable[tuple[str, Value]]) -> str | None:
    """The SQL condition for one partition; None: the table has no partitions. Raises Fatal for a type without a literal here."""
    return " AND ".join(_equality_condition(column, value) for column, value in values) or None


def _equality_condition(column: str, value: Value) -> str:
    name = "`" + column.replace("`", "``") + "`"
    match value:
        case None:
            return f"{name} IS NULL"
        case bool() | int():
            return f"{name} = {str(value).upper()}"
        case datetime.date() if not isinstance(value, datetime.datetime):
            return f"{name} = DATE '{value.isoformat()}'"
        case str():
            return f"{name} = {text_literal(value)}"
    raise Fatal(
        f"column {column}: cannot write a {type(value).__name__} partition value in SQL; exclude this table with --table"
    )
