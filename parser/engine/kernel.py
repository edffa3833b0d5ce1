"""Kernels: Python functions of which `pcaplake.core` has compiled copies, made when pcaplake was built.

The tests run the Python functions themselves, interpreted, with every access checked and with mutants. What such a function may
contain, and how it is compiled, is in tools/kernels.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from types import ModuleType
from typing import Any, Generic, ParamSpec, TypeVar

from pcaplake.parser.errors import KernelsNotBuilt

P = ParamSpec("P")
R = TypeVar("R")
# what kernels of all packages use: their arguments, and what reads memory
_SHARED = [files(__package__) / name for name in ("kernel_types.py", "kernel_arguments.py", "kernels/raw_memory.py")]


class Intrinsic:
    """A name of `raw_memory`: a function of tools/kernels/raw_memory.h in a compiled kernel."""

    def __init__(self, name: str) -> None:
        self.name = name


class Helper(Generic[P, R]):
    """A function that kernels call, compiled as a part of each of them. Like a kernel, it cannot allocate."""

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self.py_func = function
        self.name = function.__name__


class Kernel(Helper[P, R]):
    """A compiled function, which runs without the GIL. Its annotations are types of `kernel_types`."""

    def __call__(self, *arguments: P.args, **no_keywords: P.kwargs) -> R:
        """Call the compiled function. Raises TypeError for an array of another type, and KernelsNotBuilt."""
        return self.compiled(*arguments, **no_keywords)

    @functools.cached_property
    def compiled(self) -> Callable[P, R]:
        package = self.__module__.rpartition(".")[0]
        found: Callable[P, R] = getattr(compiled_module(module_name(package), package), self.name)
        return found


def module_name(package: str) -> str:
    """The module of `pcaplake.core` that has the kernels of a package: "parquet" for "...parquet.kernels"."""
    return package.split(".")[-2]


@functools.cache
def compiled_module(name: str, package: str) -> ModuleType:
    """A module of `pcaplake.core`, which was compiled from the sources in `package`.

    Raises KernelsNotBuilt if it is missing, or was compiled from other sources: another result than that of the source would
    be wrong, and nobody would notice.
    """
    try:
        module = import_module(f"pcaplake.core.{name}")
    except ImportError as error:
        raise KernelsNotBuilt(f"the compiled module pcaplake.core.{name} cannot be loaded ({error})") from error
    if digest_sources(package) != module.SOURCES:
        raise KernelsNotBuilt(f"pcaplake.core.{name} was compiled from other sources than those in {package}")
    return module


@functools.cache
def digest_sources(package: str) -> str:
    """Changes with every source file of a package of kernels. Also if it is in a zip archive."""
    sources = [file for file in files(package).iterdir() if file.name.endswith(".py")]
    digest = hashlib.blake2b(digest_size=16)
    for file in (*_SHARED, *sorted(sources, key=lambda file: file.name)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def helper(function: Callable[..., Any]) -> Any:
    """Make `function` one that kernels call."""
    return Helper(function)


def kernel(function: Callable[P, R]) -> Kernel[P, R]:
    """Make `function` a kernel."""
    return Kernel(function)
