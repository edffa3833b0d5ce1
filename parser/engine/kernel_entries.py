"""The entries of kernels: functions of CPython's C interface (METH_FASTCALL), written in LLVM's language.

An entry compares the arguments with the types for which numba compiled the kernel, returns NotImplemented if they differ,
unpacks them, and runs the kernel without the GIL. It reads arrays as numpy's C interface declares them (ndarraytypes.h), and
calls kernels as numba does (core/callconv.py and core/datamodel of numba).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types
from numba.core.types import containers

CONTIGUOUS, ALIGNED, WRITEABLE = 0x0001, 0x0100, 0x0400  # flags of PyArrayObject
_LARGEST_RESULT = 8  # integers

CHECKS = """
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyNumber_Index(ptr)
declare ptr @PyBool_FromLong(i64)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_SetString(ptr, ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
@PyLong_Type = external global i8
@PyExc_RuntimeError = external global ptr
@_Py_NoneStruct = external global i8
@_Py_NotImplementedStruct = external global i8
@_Py_TrueStruct = external global i8
@_Py_FalseStruct = external global i8
@pcaplake_ndarray = external global i8
@pcaplake_int64 = external global i8
@pcaplake_true = external global i8
@pcaplake_false = external global i8

; whether an object is a numpy array (no subclass) with these dimensions, flags, byte order and number of its type
define i1 @is_array(ptr %object, i32 %dimensions, i32 %flags, i8 %order, i32 %number) {
  %type_at = getelementptr i8, ptr %object, i64 8
  %type = load ptr, ptr %type_at
  %array = icmp eq ptr %type, @pcaplake_ndarray
  br i1 %array, label %compare, label %no
compare:
  %dimensions_at = getelementptr i8, ptr %object, i64 24
  %has_dimensions = load i32, ptr %dimensions_at
  %same_dimensions = icmp eq i32 %has_dimensions, %dimensions
  %flags_at = getelementptr i8, ptr %object, i64 64
  %has_flags = load i32, ptr %flags_at
  %set_flags = and i32 %has_flags, %flags
  %same_flags = icmp eq i32 %set_flags, %flags
  %dtype_at = getelementptr i8, ptr %object, i64 56
  %dtype = load ptr, ptr %dtype_at
  %order_at = getelementptr i8, ptr %dtype, i64 26
  %has_order = load i8, ptr %order_at
  %same_order = icmp eq i8 %has_order, %order
  %number_at = getelementptr i8, ptr %dtype, i64 28
  %has_number = load i32, ptr %number_at
  %same_number = icmp eq i32 %has_number, %number
  %x = and i1 %same_dimensions, %same_flags
  %y = and i1 %same_order, %same_number
  %same = and i1 %x, %y
  ret i1 %same
no:
  ret i1 false
}

; reads an int or a numpy.int64. 0: it is neither; 1: read; 2: an exception is set, because it does not fit
define i32 @read_integer(ptr %object, ptr %value_at) {
  %type_at = getelementptr i8, ptr %object, i64 8
  %type = load ptr, ptr %type_at
  %python = icmp eq ptr %type, @PyLong_Type
  %numpy = icmp eq ptr %type, @pcaplake_int64
  %either = or i1 %python, %numpy
  br i1 %either, label %read, label %neither
read:
  %index = call ptr @PyNumber_Index(ptr %object)
  %value = call i64 @PyLong_AsLongLong(ptr %index)
  call void @Py_DecRef(ptr %index)
  store i64 %value, ptr %value_at
  %error = call ptr @PyErr_Occurred()
  %none = icmp eq ptr %error, null
  %result = select i1 %none, i32 1, i32 2
  ret i32 %result
neither:
  ret i32 0
}

; reads a bool of Python or numpy. 0: false; 1: true; 2: it is neither
define i32 @read_boolean(ptr %object) {
  %python_true = icmp eq ptr %object, @_Py_TrueStruct
  %numpy_true = icmp eq ptr %object, @pcaplake_true
  %true = or i1 %python_true, %numpy_true
  %python_false = icmp eq ptr %object, @_Py_FalseStruct
  %numpy_false = icmp eq ptr %object, @pcaplake_false
  %false = or i1 %python_false, %numpy_false
  %other = select i1 %false, i32 0, i32 2
  %result = select i1 %true, i32 1, i32 %other
  ret i32 %result
}
"""


class CannotLink(Exception):
    """The image cannot contain this kernel, or none of the package."""


def write_entry(symbol: str, kernel: str, compiled: Any) -> str:
    """LLVM code of the entry of one compiled function of the kernel of this name."""
    arguments, lines = compiled.signature.args, []
    call: list[str] = []
    for i, kind in enumerate(arguments):
        lines += [f"  %slot{i} = getelementptr ptr, ptr %args, i64 {i}", f"  %a{i} = load ptr, ptr %slot{i}"]
        if isinstance(kind, types.Array):
            lines += _read_array(i, kind, call)
        elif kind == types.int64:
            lines += [
                f"  %read{i} = call i32 @read_integer(ptr %a{i}, ptr %integer)",
                f"  switch i32 %read{i}, label %mismatch [ i32 1, label %fits{i} i32 2, label %raised ]",
                f"fits{i}:",
                f"  %v{i} = load i64, ptr %integer",
            ]
            call.append(f"i64 %v{i}")
        elif kind == types.boolean:
            lines += [
                f"  %read{i} = call i32 @read_boolean(ptr %a{i})",
                f"  %is{i} = icmp ne i32 %read{i}, 2",
                f"  br i1 %is{i}, label %next{i}, label %mismatch",
                f"next{i}:",
                f"  %v{i} = trunc i32 %read{i} to i1",
            ]
            call.append(f"i1 %v{i}")
        else:
            raise CannotLink(f"an argument is {kind}")
    name = f'"{compiled.fndesc.llvm_func_name}"'
    types_of_call = ", ".join(["ptr", "ptr", *(argument.split(" ")[0] for argument in call)])
    message = f"the kernel {kernel} failed".encode()
    body = "\n".join(lines)
    return f"""
declare i32 @{name}({types_of_call})
@{symbol}_message = private constant [{len(message) + 1} x i8] c"{message.decode("ascii")}\\00"
define ptr @{symbol}(ptr %self, ptr %args, i64 %count) {{
  %result = alloca [{_LARGEST_RESULT} x i64]
  %failure = alloca ptr
  %integer = alloca i64
  store i64 0, ptr %result
  %right_count = icmp eq i64 %count, {len(arguments)}
  br i1 %right_count, label %start, label %mismatch
start:
{body}
  %thread = call ptr @PyEval_SaveThread()
  %status = call i32 @{name}({", ".join(["ptr %result", "ptr %failure", *call])})
  call void @PyEval_RestoreThread(ptr %thread)
  %good = icmp eq i32 %status, 0
  br i1 %good, label %done, label %failed
done:
{_write_result(compiled.signature.return_type)}
failed:
  %kind = load ptr, ptr @PyExc_RuntimeError
  call void @PyErr_SetString(ptr %kind, ptr @{symbol}_message)
  br label %raised
raised:
  ret ptr null
mismatch:
  call void @Py_IncRef(ptr @_Py_NotImplementedStruct)
  ret ptr @_Py_NotImplementedStruct
}}
"""


def _read_array(i: int, kind: Any, call: list[str]) -> list[str]:
    if kind.layout != "C" or not kind.aligned or not isinstance(kind.dtype, types.Integer):
        raise CannotLink(f"an argument is {kind}")
    dtype = np.dtype(str(kind.dtype))
    flags = CONTIGUOUS | ALIGNED | (WRITEABLE if kind.mutable else 0)
    wanted = f"i32 {kind.ndim}, i32 {flags}, i8 {ord(dtype.byteorder)}, i32 {dtype.num}"
    lines = [
        f"  %is{i} = call i1 @is_array(ptr %a{i}, {wanted})",
        f"  br i1 %is{i}, label %array{i}, label %mismatch",
        f"array{i}:",
    ]
    for name, offset in (("data", 16), ("dims", 32), ("strides", 40)):
        lines += [
            f"  %{name}_at{i} = getelementptr i8, ptr %a{i}, i64 {offset}",
            f"  %{name}{i} = load ptr, ptr %{name}_at{i}",
        ]
    items = "1"
    for d in range(kind.ndim):
        lines += [
            f"  %dim_at{i}_{d} = getelementptr i64, ptr %dims{i}, i64 {d}",
            f"  %dim{i}_{d} = load i64, ptr %dim_at{i}_{d}",
            f"  %stride_at{i}_{d} = getelementptr i64, ptr %strides{i}, i64 {d}",
            f"  %stride{i}_{d} = load i64, ptr %stride_at{i}_{d}",
            f"  %items{i}_{d} = mul i64 {items}, %dim{i}_{d}",
        ]
        items = f"%items{i}_{d}"
    # numba's model of an array: meminfo, parent, nitems, itemsize, data, shape, strides
    call += ["ptr null", "ptr null", f"i64 {items}", f"i64 {dtype.itemsize}", f"ptr %data{i}"]
    call += [f"i64 %{what}{i}_{d}" for what in ("dim", "stride") for d in range(kind.ndim)]
    return lines


def _write_result(kind: Any) -> str:
    if kind == types.none:
        return "  call void @Py_IncRef(ptr @_Py_NoneStruct)\n  ret ptr @_Py_NoneStruct"
    if kind == types.boolean:
        return (
            "  %byte = load i8, ptr %result\n  %wide = zext i8 %byte to i64\n"
            "  %made = call ptr @PyBool_FromLong(i64 %wide)\n  ret ptr %made"
        )
    if kind == types.int64:
        return "  %value = load i64, ptr %result\n  %made = call ptr @PyLong_FromLongLong(i64 %value)\n  ret ptr %made"
    if isinstance(kind, containers.UniTuple) and kind.dtype == types.int64 and kind.count <= _LARGEST_RESULT:
        lines = [f"  %made = call ptr @PyTuple_New(i64 {kind.count})"]
        for i in range(kind.count):
            lines += [
                f"  %rat{i} = getelementptr i64, ptr %result, i64 {i}",
                f"  %rv{i} = load i64, ptr %rat{i}",
                f"  %ro{i} = call ptr @PyLong_FromLongLong(i64 %rv{i})",
                f"  %rs{i} = call i32 @PyTuple_SetItem(ptr %made, i64 {i}, ptr %ro{i})",
            ]
        return "\n".join([*lines, "  ret ptr %made"])
    raise CannotLink(f"a result is {kind}")
