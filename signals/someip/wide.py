"""The wide table of a SOME/IP message: a row for each message, a column for each member.

A member of an array has a column for each index if these are at most LONGEST_INDEXED, otherwise one column with lists, in
which an element that the message does not have is null.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pcaplake.parser.table_spec import STRING
from pcaplake.signals.compiled_signal import Ints
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.tables import FLOAT64, KEYS, ColumnNames, wide_schema_of
from pcaplake.signals.wide_arrays import nest_in_lists, spread_over_frames, to_label_array, to_value_array

from .description import PayloadMessage, Services
from .members import ValueMember, list_members
from .payloads import DecodedPayloads
from .program import LONGEST_INDEXED

MOST_COLUMNS: Final = 4096
_IDS: Final = ("service_id", "method_id")


def payloads_named(services: Services, name: str) -> list[PayloadMessage]:
    """The messages `Service.method`, or those of one type: `Service.method.response`.

    Of several types, those without members are left out, as the request of a getter.
    """
    found = [message for message in services if name in (message.name, message.typed_name)]
    if len({message.message_type for message in found}) > 1:
        found = [message for message in found if message.parameters.members or message.e2e is not None]
    return found


class WidePayloads:
    """The wide table of messages with one name. Raises `DatabaseError` if it would have too many columns."""

    def __init__(self, messages: Sequence[PayloadMessage]) -> None:
        self.definitions = frozenset(message.definition_hash for message in messages)
        self._members = {message.definition_hash: list_members(message) for message in messages}
        names = ColumnNames([*KEYS, *_IDS])
        self.columns: dict[tuple[str, pa.DataType], str] = {}
        labels: dict[str, pa.DataType] = {}
        for message in messages:
            for member in self._members[message.definition_hash]:
                for text in _list_texts(member):
                    key = text, _value_type(member)
                    column = self.columns[key] = self.columns.get(key) or names.choose(_column_text(text))
                    if member.has_labels:
                        labels[column] = _nest_type(STRING, member)
                if len(self.columns) > MOST_COLUMNS:
                    raise DatabaseError(
                        f"{message.name} has more than {MOST_COLUMNS:,} members, too many for columns: remove it from --wide"
                    )
        fields = []
        for (_, type_), column in self.columns.items():
            fields.append(pa.field(column, type_))
            if column in labels:
                fields.append(pa.field(f"{column}_label", labels[column]))
        self.schema = wide_schema_of(_IDS, fields)

    def build_rows(
        self, frames: pa.RecordBatch, message: PayloadMessage, rows: Ints, decoded: Sequence[DecodedPayloads]
    ) -> pa.Table:
        """A row for each of `rows` of the input, which have this message."""
        names = [name for name in KEYS if name in frames.schema.names]
        arrays: dict[str, pa.Array] = dict(zip(names, frames.select(names).take(pa.array(rows)).columns, strict=True))
        for name in _IDS:
            arrays[name] = pa.repeat(pa.scalar(getattr(message, name), self.schema.field(name).type), len(rows))
        parts: dict[str, list[DecodedPayloads]] = defaultdict(list)
        for part in decoded:
            parts[part.values.path].append(part)
        for member in self._members[message.definition_hash]:
            for text, value, label in _build_columns(member, parts[member.path], len(rows)):
                column = self.columns[text, _value_type(member)]
                arrays[column] = value
                if member.has_labels:
                    arrays[f"{column}_label"] = label
        columns = [arrays.get(field.name, pa.nulls(len(rows), field.type)) for field in self.schema]
        return pa.Table.from_arrays(columns, schema=self.schema)


def _build_columns(
    member: ValueMember, parts: Sequence[DecodedPayloads], count: int
) -> Iterator[tuple[str, pa.Array, pa.Array]]:
    """Text, values and labels of each column of a member that has values."""
    if not parts:
        return
    if not _has_column_per_index(member):
        values = pa.concat_arrays([_to_values(part) for part in parts])
        labels = pa.concat_arrays([to_label_array(part.values.decoded) for part in parts])
        place = np.concatenate([part.rows for part in parts]), np.concatenate([_indices_of(part) for part in parts])
        (text,) = _list_texts(member)
        yield text, nest_in_lists(values, *place, count), nest_in_lists(labels, *place, count)
        return
    for part in parts:
        values, labels = _to_values(part), to_label_array(part.values.decoded)
        for number, path in enumerate(part.paths):
            chosen = np.arange(len(part.rows)) if part.path_of is None else np.flatnonzero(part.path_of == number)
            value, label = (array.take(pa.array(chosen)) for array in (values, labels))
            rows = part.rows[chosen]
            yield path, spread_over_frames(value, rows, count), spread_over_frames(label, rows, count)


def _to_values(part: DecodedPayloads) -> pa.Array:
    if part.values.lists is None:
        return to_value_array(part.values.decoded)
    offsets, numbers = part.values.lists
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers))


def _indices_of(part: DecodedPayloads) -> NDArray[np.int64]:
    """The indices of each value: int64 of shape (values, depth)."""
    distinct: NDArray[Any] = np.array(part.indices, np.int64).reshape(len(part.indices), -1)
    return distinct[np.zeros(len(part.rows), np.int64) if part.path_of is None else part.path_of]


# -- columns ----------------------------------------------------------------------------------------------------------
def _has_column_per_index(member: ValueMember) -> bool:
    return member.combinations is not None and member.combinations <= LONGEST_INDEXED


def _list_texts(member: ValueMember) -> list[str]:
    """What the columns of a member are: its path with each index, or without."""
    if not _has_column_per_index(member):
        return [member.path.replace("[{}]", "").format()]
    return [member.path.format(*indices) for indices in np.ndindex(*(size or 0 for size in member.sizes))]


def _column_text(text: str) -> str:
    """`wheels[0].speed` -> `wheels_0.speed`"""
    return text.replace("[", "_").replace("]", "")


def _value_type(member: ValueMember) -> pa.DataType:
    return _nest_type(pa.list_(FLOAT64) if member.is_list else FLOAT64, member)


def _nest_type(type_: pa.DataType, member: ValueMember) -> pa.DataType:
    for _ in member.sizes if not _has_column_per_index(member) else ():
        type_ = pa.list_(type_)
    return type_
