"""Writes a small file with every kind of column, so that each kernel is compiled for all of its argument types."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from .sink import ParquetSink

ROWS = 4096


def compile_parquet_kernels() -> None:
    """Write the file and discard it. Compiling takes half a minute on one core; loading from disk takes a moment."""
    rng = np.random.default_rng(0)
    missing = rng.random(ROWS) < 0.2
    shapes = {
        "few": rng.integers(0, 5, ROWS),
        "far": rng.choice([-(2**14), 0, 2**14], ROWS),
        "rising": np.arange(ROWS),
        "steps": np.arange(ROWS) // 100,
        "noise": rng.integers(0, 2**15, ROWS),
    }
    arrays: dict[str, pa.Array] = {}
    for kind, shift in ((pa.int16(), 0), (pa.int32(), 0), (pa.int32(), 14), (pa.int64(), 0), (pa.int64(), 14)):
        for shape, values in shapes.items():
            for mask in (None, missing):  # values far apart get their codes by hash
                arrays[f"{kind}{shape}{shift}{mask is None}"] = pa.array(values << shift, mask=mask).cast(kind)
    for mask in (None, missing):
        words = pa.array(rng.integers(0, 3, ROWS).astype(np.int32), mask=mask)
        arrays[f"word{mask is None}"] = pa.DictionaryArray.from_arrays(words, pa.array(["a", "b", "c", "never"]))
        arrays[f"flag{mask is None}"] = pa.array(rng.random(ROWS) < 0.5, mask=mask)
        skewed = rng.choice(9, 16 * ROWS, p=[0.6, *[0.05] * 8]).astype(np.uint8).tobytes()
        cells = [skewed[16 * i : 16 * i + 16] for i in range(ROWS)]
        arrays[f"payload{mask is None}"] = pa.array(cells, mask=mask)
        arrays[f"repeated{mask is None}"] = pa.array(cells[: ROWS // 8] * 8, mask=mask)
        arrays[f"list{mask is None}"] = pa.array(
            [[i % 7] * (i % 3) for i in range(ROWS)], pa.list_(pa.int32()), mask=mask
        )
    kinds = {name: a.type.value_type if pa.types.is_dictionary(a.type) else a.type for name, a in arrays.items()}
    sink = ParquetSink(pa.schema(list(kinds.items())), lambda data: None)
    sink.write_batch(pa.RecordBatch.from_pydict(arrays))
    sink.close()
