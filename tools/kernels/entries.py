"""Writes the text of a Cython module: the functions of its kernels, and for each kernel an entry that Python calls.

An entry takes arrays through numpy's C interface: a typed memoryview takes 130 ns for each argument, this takes 5. It refuses an
array of another type, layout or number of dimensions with TypeError, and releases the GIL.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np

from pcaplake.parser.engine.kernel import Kernel
from pcaplake.parser.engine.kernel_types import Dimensions

from .functions import Function, Functions
from .types import INT, Array, Source, Type

HEAD = '''# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False, binding=False
"""Compiled kernels, written by tools/kernels from the Python functions of the same names."""
cimport numpy as cnp
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memset

cdef extern from "raw_memory.h" nogil:
    void begin_divisions()
    int has_divided_by_zero()
    const int64_t LEAST_INT64
    int64_t load(const uint8_t*, int64_t)
    int64_t swap(int64_t)
    int64_t are_zero(const uint8_t*, int64_t, int64_t)
    void copy(uint8_t*, int64_t, const uint8_t*, int64_t, int64_t)
    void store8(uint8_t*, int64_t, int64_t)
    void store16(uint8_t*, int64_t, int64_t)
    void store32(uint8_t*, int64_t, int64_t)
    void store64(uint8_t*, int64_t, int64_t)
    int64_t minimum(int64_t, int64_t)
    int64_t maximum(int64_t, int64_t)
    int64_t divide_int(int64_t, int64_t)
    int64_t remainder_of_int(int64_t, int64_t)
    uint64_t divide_uint(uint64_t, uint64_t)
    uint64_t remainder_of_uint(uint64_t, uint64_t)

cdef extern from "Python.h":
    long long PyLong_AsLongLong(object) except? -1  # Cython's own conversion would take 1.5 and "1", too

cdef inline int check(cnp.ndarray array, str name, int kind, int dimensions, int flags) except -1:
    if cnp.PyArray_TYPE(array) != kind or cnp.PyArray_NDIM(array) != dimensions or cnp.PyArray_FLAGS(array) & flags != flags:
        raise TypeError(f"{name}: a kernel needs a contiguous array of another type, not {array.dtype}[{array.ndim} dimensions]")
    return 0

cdef inline int check_group(object group, str name, int size) except -1:
    if not isinstance(group, tuple) or len(<tuple>group) != size:
        raise TypeError(f"{name}: a kernel needs a tuple of {size} arrays, not {type(group).__name__}")
    return 0

'''
READABLE = "cnp.NPY_ARRAY_C_CONTIGUOUS | cnp.NPY_ARRAY_ALIGNED"


def write_module(
    kernels: Iterable[Kernel[..., Any]], walk: tuple[str, Source, Kernel[..., Any]] | None = None, **constants: str
) -> str:
    """The text of a module with these kernels, and with constants of these names.

    walk: the name of one more kernel, its source, and the kernel whose types of arguments it has.
    """
    functions = Functions()
    wanted = [(kernel.name, functions.source(kernel.py_func), kernel) for kernel in kernels]
    entries, called_once = [], set()
    for name, source, kernel in [*wanted, *([walk] if walk else [])]:
        signatures, groups = signatures_of(kernel), groups_of(kernel)
        spread = source.spread(groups) if groups else source
        made = [functions.translate(spread, signature) for signature in signatures]
        called_once |= set(made)
        names = [name] if len(made) == 1 else [f"{name}_{n}" for n in range(len(made))]
        returns = get_type_hints(kernel.py_func)["return"]
        entries += [_entry(function, each, groups, returns is bool) for function, each in zip(made, names, strict=True)]
        if len(made) > 1:
            entries.append(_choice(name, names, made))
    texts = [function.text(inline=function not in called_once) for function in functions.made.values()]
    return "\n".join([HEAD, *texts, *entries, *(f"{name} = {value!r}" for name, value in constants.items()), ""])


def signatures_of(kernel: Kernel[..., Any]) -> list[list[Type]]:
    """The types of the arguments of a kernel: one list for each choice of what its type variables stand for."""
    hints = get_type_hints(kernel.py_func, include_extras=True)
    groups = groups_of(kernel)
    kinds = list[Any]()
    for name in inspect.signature(kernel.py_func).parameters:
        fields = get_type_hints(hints[name], include_extras=True) if name in groups else {}
        kinds += fields.values() or [hints[name]]
    variables = [kind for kind in dict.fromkeys(kinds) if isinstance(kind, TypeVar)]
    return [
        [_type(dict(zip(variables, choice, strict=True)).get(kind, kind)) for kind in kinds]
        for choice in itertools.product(*(variable.__constraints__ for variable in variables))
    ]


def groups_of(kernel: Kernel[..., Any]) -> dict[str, tuple[str, ...]]:
    """The arguments of a kernel that are NamedTuples of arrays, with the names of their fields."""
    hints = get_type_hints(kernel.py_func)
    return {name: hint._fields for name, hint in hints.items() if name != "return" and hasattr(hint, "_fields")}


def _type(hint: Any) -> Type:
    """The C type of `int`, `bool`, or of an array as `pcaplake.parser.engine.kernel` names them."""
    if hint in (int, bool):
        return INT
    array, dimensions = get_args(hint)
    assert isinstance(dimensions, Dimensions), hint
    (item,) = get_args(get_args(array)[1])
    return Array(f"{np.dtype(item)}_t", dimensions.count)


def _entry(function: Function, name: str, groups: Mapping[str, Sequence[str]], is_bool: bool) -> str:
    parameters, passed, checks = list[str](), list[str](), list[str]()
    group_of = {f"{group}_{each}": (group, i) for group, fields in groups.items() for i, each in enumerate(fields)}
    for parameter, kind in zip(function.source.parameters, function.types, strict=True):
        if isinstance(kind, Array):
            flags = READABLE + (" | cnp.NPY_ARRAY_WRITEABLE" if parameter in function.written else "")
            if parameter in group_of:
                group, place = group_of[parameter]
                if group not in parameters:
                    parameters.append(group)
                    checks.append(f"    check_group({group}, {group!r}, {len(groups[group])})")
                checks.append(f"    cdef cnp.ndarray {parameter} = <cnp.ndarray?>(<tuple>{group})[{place}]")
            else:
                parameters.append(f"cnp.ndarray {parameter} not None")
            checks.append(f"    check({parameter}, {parameter!r}, {_numpy_type(kind)}, {kind.dimensions}, {flags})")
            passed.append(f"<{kind.item}*>cnp.PyArray_DATA({parameter})")
            passed += [f"cnp.PyArray_DIMS({parameter})[{i}]" for i in range(kind.dimensions)]
        else:
            parameters.append(parameter)
            checks.append(f"    cdef {INT} {parameter}_value = PyLong_AsLongLong({parameter})")
            passed.append(f"{parameter}_value")
    lines = [f"def {name}({', '.join(parameters)}):", *checks]
    call = f"{function.name}({', '.join(passed)})"
    if function.result is not None:
        lines.append(f"    cdef {function.result_type} result_")
        call = f"result_ = {call}"
    lines += ["    begin_divisions()"] if function.divides else []
    lines += ["    with nogil:", f"        {call}"]
    if function.divides:
        lines += ["    if has_divided_by_zero():", "        raise ZeroDivisionError"]
    if function.result is not None:
        lines.append("    return result_ != 0" if is_bool else "    return result_")
    return "\n".join([*lines, ""])


def _choice(name: str, names: Sequence[str], made: Sequence[Function]) -> str:
    """The entry of a kernel with several choices of types: it looks at one array that has another type in each."""
    source = made[0].source
    which = next(
        i
        for i, kinds in enumerate(zip(*(function.types for function in made), strict=True))
        if len(set(kinds)) == len(made)
    )
    array = source.parameters[which]
    parameters = ", ".join(source.parameters)
    lines = [f"def {name}({', '.join(source.parameters[:which])}{', ' if which else ''}cnp.ndarray {array} not None"]
    lines[0] += "".join(f", {each}" for each in source.parameters[which + 1 :]) + "):"
    for each, function in zip(names, made, strict=True):
        kind = function.types[which]
        assert isinstance(kind, Array)
        lines += [f"    if cnp.PyArray_TYPE({array}) == {_numpy_type(kind)}:", f"        return {each}({parameters})"]
    return "\n".join([*lines, f'    raise TypeError(f"{array}: no kernel for {{{array}.dtype}}")', ""])


def _numpy_type(kind: Array) -> str:
    return f"cnp.NPY_{kind.item.removesuffix('_t').upper()}"
