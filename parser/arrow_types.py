"""Converts Arrow arrays to the types of a schema, whatever types another writer or engine chose for the same values.

deltalake writes `string_view` and `binary_view` where rows are deleted or updated, Spark hands over `large_string` and another
time zone if it is told to, Parquet files of other programs have dictionaries, decimals, other units of time and other kinds of
lists. Every reader of tables converts what it reads here, because most functions of Arrow accept one of these types alone.
"""

from __future__ import annotations

import pyarrow as pa

FEW = 64  # rows for which Python takes less time than the import of pyarrow.compute, which most methods of arrays need


def convert_array(array: pa.Array, kind: pa.DataType, *, keep_dictionaries: bool = False) -> pa.Array:
    """The same values as `kind`. `keep_dictionaries`: a dictionary of that type, without a null in it, may stay one.

    Times are cut off to the unit of `kind`. Raises `pa.ArrowInvalid` (a `ValueError`) for other values that would change, and
    `pa.ArrowNotImplementedError` for types without a conversion.
    """
    if array.type == kind:
        return array
    if pa.types.is_dictionary(array.type):
        if keep_dictionaries and array.type == pa.dictionary(pa.int32(), kind) and not array.dictionary.null_count:
            return array
        if len(array) <= FEW and array.type.value_type == kind and pa.types.is_string(kind):
            return pa.array(array.to_pylist(), kind)
        return convert_array(array.dictionary, kind).take(array.indices)
    if pa.types.is_decimal(array.type) and not pa.types.is_decimal(kind):  # Arrow misjudges the range of short decimals
        wide = (
            pa.decimal256(76, array.type.scale) if array.type.bit_width > 128 else pa.decimal128(38, array.type.scale)
        )
        return array.cast(wide).cast(kind)
    if _has_list_view(array.type):
        return _convert_list_views(array, kind)
    if pa.types.is_timestamp(kind):
        import pyarrow.compute as pc  # takes longer to import than a small capture to decode

        return array.cast(options=pc.CastOptions(kind, allow_time_truncate=True))
    return array.cast(kind)


def _convert_list_views(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Lists that are views, also in structs: Arrow 26 loses the elements of those behind a null when it casts them."""
    import pyarrow.compute as pc

    if pa.types.is_struct(array.type) and pa.types.is_struct(kind):
        parts = {array.type.field(number).name: part for number, part in enumerate(array.flatten())}
        arrays = [convert_array(parts[field.name], field.type) for field in kind]
        return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=array.is_null())
    if not _is_list_view(array.type) or not pa.types.is_list(kind):
        raise pa.ArrowNotImplementedError(f"no conversion from {array.type} to {kind}")
    ends = pc.cumulative_sum(pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32()))
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    return pa.ListArray.from_arrays(
        offsets, convert_array(array.flatten(), kind.value_type), kind, mask=array.is_null()
    )


def convert_batch(batch: pa.RecordBatch, schema: pa.Schema, *, keep_dictionaries: bool = False) -> pa.RecordBatch:
    """The columns of `schema`; one that the batch lacks is null, others are left out.

    Raises `pa.ArrowInvalid`, which names the column, for values that the schema cannot hold. `keep_dictionaries`: as in
    `convert_array`; the batch then has a schema of its own.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    arrays = []
    for field in schema:
        array = columns.get(field.name)
        if array is None:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        try:
            arrays.append(convert_array(array, field.type, keep_dictionaries=keep_dictionaries))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise pa.ArrowInvalid(
                f"column {field.name} is {array.type}, and not every value is a {field.type}: {error}"
            ) from error
    if keep_dictionaries:
        return pa.RecordBatch.from_arrays(arrays, names=schema.names)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the same values with 32-bit offsets, without views and dictionaries, at any depth."""
    if pa.types.is_dictionary(kind):
        return to_plain_type(kind.value_type)
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([_to_plain_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_to_plain_field(kind.key_field), _to_plain_field(kind.item_field))
    if _is_list(kind):
        return pa.list_(_to_plain_field(kind.value_field))
    return kind


def _to_plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(to_plain_type(field.type))


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) or _is_list_view(kind)


def _is_list_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind))


def _has_list_view(kind: pa.DataType) -> bool:
    return _is_list_view(kind) or (pa.types.is_struct(kind) and any(_has_list_view(field.type) for field in kind))
