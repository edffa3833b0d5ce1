"""The types of the arguments of kernels. The build reads them from the annotations, and mypy checks the callers with them.

All arrays are contiguous, in C order. mypy knows the type of the items, `Dimensions` is for the build.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import numpy as np


@dataclass(frozen=True)
class Dimensions:
    """The number of dimensions of an array."""

    count: int


Bytes = Annotated[np.ndarray[Any, np.dtype[np.uint8]], Dimensions(1)]
Int16s = Annotated[np.ndarray[Any, np.dtype[np.int16]], Dimensions(1)]
Int32s = Annotated[np.ndarray[Any, np.dtype[np.int32]], Dimensions(1)]
Int64s = Annotated[np.ndarray[Any, np.dtype[np.int64]], Dimensions(1)]
Uint32s = Annotated[np.ndarray[Any, np.dtype[np.uint32]], Dimensions(1)]
Uint64s = Annotated[np.ndarray[Any, np.dtype[np.uint64]], Dimensions(1)]
ByteMatrix = Annotated[np.ndarray[Any, np.dtype[np.uint8]], Dimensions(2)]
Int32Matrix = Annotated[np.ndarray[Any, np.dtype[np.int32]], Dimensions(2)]
Int64Matrix = Annotated[np.ndarray[Any, np.dtype[np.int64]], Dimensions(2)]
Int32Cube = Annotated[np.ndarray[Any, np.dtype[np.int32]], Dimensions(3)]

Values = TypeVar("Values", Int32s, Int64s)
"""A kernel with a type variable is compiled for each of its types."""
SmallValues = TypeVar("SmallValues", Int16s, Int32s, Int64s)
Codes = TypeVar("Codes", Int32s, Bytes)
