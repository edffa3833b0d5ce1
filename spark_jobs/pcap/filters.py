"""Evaluates Spark's pushed filters on the decoder's batches, so that excluded rows are never sent to Spark.

Follows SQL semantics, including nulls; a filter that cannot be evaluated exactly is left to Spark. The decoder always reads
the whole capture, so a filter saves only the work after decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from .types import expected_arrow_schema, table_spark_schema

_ORDERED: Mapping[type[Filter], Callable[[Any, Any], Any]] = {
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}
_TEXTS: Mapping[type[Filter], Callable[..., Any]] = {
    StringStartsWith: pc.starts_with,
    StringEndsWith: pc.ends_with,
    StringContains: pc.match_substring,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A filter on one column; its values have the column's type."""

    column: str
    filter: Filter
    negated: bool
    values: tuple[Any, ...]
    type: pa.DataType

    def evaluate_mask(self, array: Any) -> Any:
        """True, false or null for each value, as in SQL."""
        mask = self._evaluate_unnegated(array)
        return pc.invert(mask) if self.negated else mask

    def _evaluate_unnegated(self, array: Any) -> Any:
        kind = type(self.filter)
        if kind is IsNull:
            return pc.is_null(array)
        if kind is IsNotNull:
            return pc.is_valid(array)
        if pa.types.is_dictionary(array.type):
            mask = self._compare_values(array.dictionary).take(array.indices)
        else:
            mask = self._compare_values(array)
        return pc.fill_null(mask, False) if kind is EqualNullSafe else mask

    def _compare_values(self, array: Any) -> Any:
        kind = type(self.filter)
        if kind in _TEXTS:
            return _TEXTS[kind](array, self.values[0])
        if kind in _ORDERED:
            return _ORDERED[kind](array, pa.scalar(self.values[0], self.type))
        if kind in (EqualTo, EqualNullSafe):
            return pc.equal(array, pa.scalar(self.values[0], self.type))
        inside = pc.is_in(array, pa.array(self.values, self.type))
        return pc.if_else(pc.is_valid(array), inside, pa.scalar(None, pa.bool_()))


def split_pushed_filters(
    filters: Sequence[Filter], table: str, names: Collection[str]
) -> tuple[tuple[Predicate, ...], list[Filter]]:
    """The predicates to evaluate here, and the filters left to Spark."""
    types = {
        field.name: field.type for field in expected_arrow_schema(table_spark_schema(table)) if field.name in names
    }
    predicates, left_to_spark = [], []
    for pushed_filter in filters:
        predicate = _convert_filter(pushed_filter, types)
        if predicate is None:
            left_to_spark.append(pushed_filter)
        else:
            predicates.append(predicate)
    return tuple(predicates), left_to_spark


def _convert_filter(pushed_filter: Filter, types: Mapping[str, pa.DataType]) -> Predicate | None:
    negated = isinstance(pushed_filter, Not)
    inner = pushed_filter.child if isinstance(pushed_filter, Not) else pushed_filter
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in types or isinstance(inner, Not):
        return None
    kind = types[path[0]]
    values = _comparison_values(inner, kind)
    if values is None:
        return None
    return Predicate(column=path[0], filter=inner, negated=negated, values=values, type=kind)


def _comparison_values(inner: Filter, kind: pa.DataType) -> tuple[Any, ...] | None:
    """The values to compare with; None: the filter is left to Spark."""
    if isinstance(inner, (IsNull, IsNotNull)):
        return ()
    if pa.types.is_nested(kind):
        return None
    if isinstance(inner, In):
        values = tuple(inner.value)
    elif type(inner) in _ORDERED or type(inner) in _TEXTS or isinstance(inner, (EqualTo, EqualNullSafe)):
        values = (inner.value,)  # type: ignore[attr-defined]
    else:
        return None
    if type(inner) in _TEXTS and not pa.types.is_string(kind):
        return None
    try:
        if any(value is None or pa.scalar(value, kind).as_py() != value for value in values):
            return None
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None  # a value outside the column's type
    return values


def filter_batch(batch: pa.RecordBatch, predicates: Sequence[Predicate]) -> pa.RecordBatch:
    """The rows that satisfy all predicates."""
    mask = None
    for predicate in predicates:
        predicate_mask = predicate.evaluate_mask(batch.column(predicate.column))
        mask = predicate_mask if mask is None else pc.and_kleene(mask, predicate_mask)
    return batch if mask is None else batch.filter(mask)


def may_match(facts: Mapping[str, str | None], predicates: Sequence[Predicate]) -> bool:
    """Whether a capture may have matching rows. `facts`: columns that have one value in all of its rows."""
    for predicate in predicates:
        if (
            predicate.column in facts
            and not predicate.evaluate_mask(pa.array([facts[predicate.column]], pa.string()))[0].as_py()
        ):
            return False
    return True
