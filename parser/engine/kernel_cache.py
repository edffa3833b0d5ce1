"""Where the machine code of compiled kernels is kept.

In the first of these folders that this process can write: NUMBA_CACHE_DIR, `__pycache__` beside the source, numba's folder in
the home folder, a folder of the user in the folder for temporary files. If it can write none, it compiles them
into memory.
Machine code in `__pycache__` is read even if only another user may write there, such as the one who installed pcaplake.
"""

from __future__ import annotations

import functools
import logging
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba.core import caching

log = logging.getLogger(__name__)
ADVICE = "set NUMBA_CACHE_DIR to a folder that this user can write"


@functools.cache
def warn(text: str) -> None:
    """Log a warning, once in each process. Without a configured logger, it is one line on stderr."""
    log.warning(text)


class _HomeLocator(caching.UserWideCacheLocator):
    """Without a home folder, numba would make one with the name `~` in the working directory."""

    def ensure_cache_path(self) -> None:
        if not os.path.isabs(self.get_cache_path()):
            raise FileNotFoundError("the user has no home folder")
        super().ensure_cache_path()


class TemporaryLocator(caching.InTreeCacheLocator):
    """A folder that no other user can write to, because what is found there is executed."""

    def get_cache_path(self) -> str:
        return os.path.join(self.folder(), self.get_suitable_cache_subpath(self._py_file))

    @staticmethod
    def folder() -> str:
        return os.path.join(tempfile.gettempdir(), f"pcaplake-kernels-{_user()}")

    def ensure_cache_path(self) -> None:
        folder = self.folder()
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != _user() or found.st_mode & 0o022:
            raise PermissionError(f"{folder} is not a folder of this user alone")
        super().ensure_cache_path()


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0  # on Windows, each user has a temporary folder


class _NoFolder(caching.InTreeCacheLocator):
    """Last fallback: keeps compiled kernels only in memory."""

    @classmethod
    def from_function(cls, py_func: Callable[..., Any], py_file: str) -> _NoFolder:
        return cls(py_func, py_file)

    def get_cache_path(self) -> str:
        return os.devnull

    def get_source_stamp(self) -> str:
        return ""  # `KernelCache` has its own

    def ensure_cache_path(self) -> None:
        raise FileNotFoundError


class _Files(caching.CompileResultCacheImpl):
    _locator_classes = (
        caching.UserProvidedCacheLocator,
        caching.InTreeCacheLocator,
        _HomeLocator,
        TemporaryLocator,
        caching.ZipCacheLocator,
        _NoFolder,
    )


class KernelCache(caching.FunctionCache):
    """The cache of one kernel. `stamp` changes with everything that its machine code depends on."""

    _impl_class = _Files

    def __init__(self, function: Callable[..., Any], stamp: str) -> None:
        super().__init__(function)
        self._cache_file._source_stamp = stamp
        beside = Path(function.__code__.co_filename).with_name("__pycache__")
        self._installed = caching.IndexDataCacheFile(str(beside), self._impl.filename_base, stamp)

    def _index_key(self, sig: object, codegen: Any) -> tuple[object, ...]:
        """Without numba's hash of the bytecode: the stamp covers it, and a specialized kernel is found before it is made."""
        return sig, codegen.magic_tuple()

    def load_overload(self, sig: object, target_context: Any) -> Any:
        target_context.refresh()
        key = self._index_key(sig, target_context.codegen())
        for file in (self._cache_file, self._installed):
            with suppress(OSError):  # not even readable
                if (data := file.load(key)) is not None:
                    return self._impl.rebuild(target_context, data)
        return None

    def save_overload(self, sig: object, data: object) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:  # no folder, or a full disk
            reason = f": {error.strerror}" if error.strerror else ", because no folder can be written"
            warn(f"each process compiles kernels again, which takes about 200 seconds of CPU time{reason}; {ADVICE}")
        else:
            if isinstance(self._impl.locator, TemporaryLocator):
                warn(f"compiled kernels are kept in a temporary folder, {TemporaryLocator.folder()}; {ADVICE}")

    def signatures(self, target_context: Any) -> list[object]:
        """The signatures that are on disk for this processor."""
        here = target_context.codegen().magic_tuple()
        found = []
        for file in (self._cache_file, self._installed):
            with suppress(OSError):
                found += [key[0] for key in file._load_index() if key[1] == here]
        return found
