"""Kernels, and what they call. Importing and calling them imports numba only if something must be compiled.

A kernel is called through the entries of its package's image (`kernel_image`), which has the machine code of all its
kernels. A kernel that is not in the image, or not for these types of arguments, is called through numba, which keeps what
it compiles (`kernel_cache`).
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from typing import Any, ClassVar

from . import kernel_image

log = logging.getLogger(__name__)
COMPILING_SECONDS = 200
"""CPU seconds that compiling all kernels takes on a server of 2024, on one core."""
NOTICE = "compiling the decode kernels, once: about 200 seconds of CPU time, and 2 GB of memory"


@functools.cache
def announce_compiling() -> None:
    """Log that kernels are compiled, once in each process. Without a configured logger, it is one line on stderr."""
    log.warning(NOTICE)


@functools.cache
def _ignore_settings_of_the_working_directory() -> None:
    """numba reads `.numba_config.yaml` there, which can name a folder with compiled code, and others may have written both."""
    from numba.core import config

    config._config_fname = os.devnull
    config.reload_config()


class Intrinsic:
    """A name of `intrinsics`, which numba replaces with instructions. That module is imported when something is compiled."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def _numba_type_(self) -> Any:
        """Makes a kernel that uses this name use the intrinsic: numba asks each global value for its type."""
        from numba.core.registry import cpu_target

        from . import intrinsics

        cpu_target.typing_context.refresh()
        return cpu_target.typing_context.resolve_value_type(getattr(intrinsics, self._name))


class Helper:
    """A function that kernels call, compiled as a part of each of them. Like a kernel, it cannot allocate.

    Kernels and helpers do not count references to arrays (`_nrt`): numba would count each array that a row passes to a
    helper, with atomic operations on counters that all threads share. Therefore the caller gives them working memory, and
    keeps all arrays alive.
    """

    _options: ClassVar = {"_nrt": False, "forceinline": True}

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher(*arguments)

    @functools.cached_property
    def dispatcher(self) -> Any:
        """What numba calls the function through."""
        return self._make_dispatcher()

    def _make_dispatcher(self) -> Any:
        from numba import njit

        _ignore_settings_of_the_working_directory()
        return njit(**self._options)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_


class Kernel(Helper):
    """A compiled function, which runs without the GIL.

    numba compiles again when the file of the function changes. A kernel also has constants and helpers of its neighbors
    in it, so here a change of any file in its package counts. digest: changes with what else it is made from.
    """

    _options: ClassVar = {"_nrt": False, "nogil": True}

    def __init__(self, function: Callable[..., Any], digest: str = "") -> None:
        super().__init__(function)
        self.package, _, module = function.__module__.rpartition(".")
        self.name = f"{module}.{function.__name__}{digest and '-'}{digest}"
        self._digest = digest
        self._entries: tuple[Callable[..., Any], ...] = (self._find_entries,)
        self._announced = False  # whether the caller knows if numba compiles

    def __call__(self, *arguments: Any) -> Any:
        """Call the compiled function. Raises RuntimeError where the function would raise an exception."""
        for entry in self._entries:
            result = entry(*arguments)
            if result is not NotImplemented:  # else the entry is for other types
                return result
        if not self._announced:
            self._announced = True
            if not self.is_compiled:
                announce_compiling()
        return self.dispatcher(*arguments)

    def _make_dispatcher(self) -> Any:
        from .kernel_cache import KernelCache

        made = super()._make_dispatcher()
        made._cache = KernelCache(self.py_func, kernel_image.digest_sources(self.package) + self._digest)
        return made

    @property
    def entries(self) -> tuple[Callable[..., Any], ...]:
        """The entries in the image of the package: one for each combination of types."""
        return kernel_image.load(self.package).get(self.name, ())

    @property
    def is_compiled(self) -> bool:
        """Whether the kernel is in memory, or on disk for this source and this processor, so that nothing is compiled."""
        return bool(self.entries or self.dispatcher.signatures or self._signatures_on_disk(self.dispatcher))

    @staticmethod
    def _signatures_on_disk(dispatcher: Any) -> list[object]:
        found: list[object] = dispatcher._cache.signatures(dispatcher.targetctx)
        return found

    def use_numba(self) -> None:
        """From now on, call the kernel through numba, which compiles it for all types that it gets, and says nothing."""
        self._entries, self._announced = (), True

    def _find_entries(self, *arguments: Any) -> Any:
        """The entry before the image is loaded."""
        self._entries = self.entries
        return self(*arguments)
