"""Spark's filters on columns of the decoder's batches, so that rows nobody wants are never sent to Spark.

Knows the meaning of each filter in SQL, nulls included. What cannot be said exactly is left to Spark. Must not know
captures: the decoder reads all of a capture whatever is asked, so that a filter saves what comes after it.
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

from .pcap_types import arrow_schema, spark_schema

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
    """A filter on one column that is evaluated here; its values have the column's type."""

    column: str
    filter: Filter
    negated: bool
    values: tuple[Any, ...]
    type: pa.DataType

    def mask(self, array: Any) -> Any:
        """True, false or null for each value, as SQL has it."""
        found = self._plain(array)
        return pc.invert(found) if self.negated else found

    def _plain(self, array: Any) -> Any:
        kind = type(self.filter)
        if kind is IsNull:
            return pc.is_null(array)
        if kind is IsNotNull:
            return pc.is_valid(array)
        if pa.types.is_dictionary(array.type):
            found = self._values(array.dictionary).take(array.indices)
        else:
            found = self._values(array)
        return pc.fill_null(found, False) if kind is EqualNullSafe else found

    def _values(self, array: Any) -> Any:
        kind = type(self.filter)
        if kind in _TEXTS:
            return _TEXTS[kind](array, self.values[0])
        if kind in _ORDERED:
            return _ORDERED[kind](array, pa.scalar(self.values[0], self.type))
        if kind in (EqualTo, EqualNullSafe):
            return pc.equal(array, pa.scalar(self.values[0], self.type))
        inside = pc.is_in(array, pa.array(self.values, self.type))
        return pc.if_else(pc.is_valid(array), inside, pa.scalar(None, pa.bool_()))


def pushed(filters: Sequence[Filter], table: str, names: Collection[str]) -> tuple[tuple[Predicate, ...], list[Filter]]:
    """Predicates for what is evaluated here, and the filters that are left to Spark."""
    types = {field.name: field.type for field in arrow_schema(spark_schema(table)) if field.name in names}
    here, left = [], []
    for each in filters:
        predicate = _predicate(each, types)
        if predicate is None:
            left.append(each)
        else:
            here.append(predicate)
    return tuple(here), left


def _predicate(given: Filter, types: Mapping[str, pa.DataType]) -> Predicate | None:
    negated = isinstance(given, Not)
    inner = given.child if isinstance(given, Not) else given
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    if len(path) != 1 or path[0] not in types or isinstance(inner, Not):
        return None
    kind = types[path[0]]
    values = _values(inner, kind)
    if values is None:
        return None
    return Predicate(column=path[0], filter=inner, negated=negated, values=values, type=kind)


def _values(inner: Filter, kind: pa.DataType) -> tuple[Any, ...] | None:
    """What the column is compared with; None: that is Spark's."""
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
        return None  # a value that the column cannot have
    return values


def selected(batch: pa.RecordBatch, predicates: Sequence[Predicate]) -> pa.RecordBatch:
    """The rows for which all of them are true."""
    mask = None
    for each in predicates:
        found = each.mask(batch.column(each.column))
        mask = found if mask is None else pc.and_kleene(mask, found)
    return batch if mask is None else batch.filter(mask)


def possible(facts: Mapping[str, str | None], predicates: Sequence[Predicate]) -> bool:
    """May a capture have a row that is wanted? `facts`: what columns say in all of its rows."""
    for each in predicates:
        if each.column in facts and not each.mask(pa.array([facts[each.column]], pa.string()))[0].as_py():
            return False
    return True
