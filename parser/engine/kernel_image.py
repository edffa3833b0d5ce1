"""The machine code of all kernels of a package in one file, which is called without numba.

Importing numba, and preparing it for its first function, takes longer than decoding a small capture. So
`kernel_linker.save_image`, which runs when the kernels have been compiled, writes an image: machine code in which each kernel
has *entries*, functions of CPython's C interface that check and unpack the arguments themselves.

An image is used only if its key is that of this process: the source of the kernels, the processor, the settings of numba, and the
versions of everything that the machine code depends on. Otherwise numba loads or compiles each kernel.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import mmap
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from .object_layout import ADDRESS, Code

CACHE_FOLDER, CPU_NAME, CPU_FEATURES = "NUMBA_CACHE_DIR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"
Entries = Mapping[str, tuple[Callable[..., Any], ...]]
_METH_FASTCALL = 0x80
_COMPILED_BY = ("intrinsics.py", "kernel.py")
_LINKED_BY = ("kernel_image.py", "kernel_linker.py", "kernel_entries.py", "object_layout.py")
_PROCESSORS = Path("/proc/cpuinfo")
_OF_PROCESSOR = ("vendor_id", "cpu family", "model", "stepping", "flags")


class _MethodDefinition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


OBJECTS: Mapping[str, object] = {
    "pcaplake_ndarray": np.ndarray,
    "pcaplake_int64": np.int64,
    "pcaplake_true": np.True_,
    "pcaplake_false": np.False_,
}
"""The objects whose addresses entries use: they compare arguments and their types with them."""

_keep_alive: list[object] = []  # definitions of functions


@functools.cache
def digest_sources(package: str) -> str:
    """Changes with every source file of the package, and with what all kernels are compiled with."""
    own = files(__package__)
    neighbors = sorted(
        (file for file in files(package).iterdir() if file.name.endswith(".py")), key=lambda file: file.name
    )
    digest = hashlib.blake2b(digest_size=16)
    for file in (*(own / name for name in _COMPILED_BY), own / "kernels" / "raw_memory.py", *neighbors):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def folders(package: str) -> list[Path]:
    """Where an image may be, the first choice first: numba's folder if one is set, else beside the source."""
    named = os.environ.get(CACHE_FOLDER)
    return [*([Path(named)] if named else []), Path(str(files(package))) / "__pycache__"]


def file_name(package: str) -> str:
    """The images for several versions of Python and several processors may be in one folder."""
    target = hashlib.blake2b(json.dumps(target_processor()).encode(), digest_size=4).hexdigest()
    return f"{package}.{sys.implementation.cache_tag}-{target}.image"


def chosen_processor() -> tuple[str | None, str | None]:
    """The name and the features that numba is told to compile for, None where it is not told."""
    return os.environ.get(CPU_NAME), os.environ.get(CPU_FEATURES)


@functools.cache
def target_processor() -> list[str]:
    """The processor for which numba compiles in this process: what it is told, and else what Linux says of this one."""
    chosen = chosen_processor()
    if None not in chosen:
        return [str(each) for each in chosen]
    try:
        text = _PROCESSORS.read_text(encoding="utf-8", errors="replace")
    except OSError:  # /proc is not mounted
        from llvmlite import binding

        return [str(each) for each in chosen] + [binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()]
    first = text.partition("\n\n")[0].splitlines()
    return [str(each) for each in chosen] + sorted(line for line in first if line.startswith(_OF_PROCESSOR))


def compute_key(package: str) -> str:
    """Changes with everything that the machine code depends on."""
    import llvmlite

    numba = importlib.util.find_spec("numba")
    assert numba is not None
    assert numba.origin is not None
    settings = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_") and name != CACHE_FOLDER}
    parts = [
        digest_sources(package),
        hashlib.blake2b(Path(numba.origin).with_name("_version.py").read_bytes()).hexdigest(),
        *(hashlib.blake2b((files(__package__) / name).read_bytes()).hexdigest() for name in _LINKED_BY),
        llvmlite.__version__,
        np.__version__,
        sys.version,
        platform.machine(),
        sorted(settings.items()),
        target_processor(),
    ]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def pack(package: str, entries: Mapping[str, Sequence[str]], code: Code) -> bytes:
    """The content of an image. entries: name of the kernel -> symbols of its entries in `code`."""
    places = {kernel: [code.symbols[symbol] for symbol in symbols] for kernel, symbols in entries.items()}
    content = json.dumps([places, code.imports, code.pointers]).encode() + b"\n" + code.content
    return _seal(package, content) + b"\n" + content


def _seal(package: str, content: bytes) -> bytes:
    """The first line of an image: it proves that the rest is whole, and for this process."""
    return hashlib.blake2b(content, key=compute_key(package).encode()).hexdigest().encode()


@functools.cache
def load(package: str) -> Entries:
    """The entries of the package's image by the name of the kernel. Empty if there is no image for this process."""
    if sys.platform != "linux":
        return {}
    name = file_name(package)
    for folder in folders(package):
        with suppress(OSError):  # absent, or not readable
            seal, _, content = (folder / name).read_bytes().partition(b"\n")
            if seal == _seal(package, content):
                header, _, code = content.partition(b"\n")
                places, imports, pointers = json.loads(header)
                start = map_code(imports, pointers, code)
                if start is not None:
                    return {
                        kernel: tuple(_make_function(kernel, start + at) for at in each)
                        for kernel, each in places.items()
                    }
    return {}


def map_code(imports: Sequence[str], pointers: Sequence[int], content: bytes) -> int | None:
    """Put machine code (`object_layout.Code`) into memory for good, with the addresses that it needs; return where it starts.

    None if the process lacks an import, or may not run what it has written, or if this is not Linux.
    """
    if sys.platform != "linux":
        return None
    memory = mmap.mmap(-1, len(content), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, mmap.PROT_READ | mmap.PROT_WRITE)
    memory[:] = content
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for i, name in enumerate(imports):
        address = id(OBJECTS[name]) if name in OBJECTS else _address_of(name)
        if address is None:
            return None
        ADDRESS.pack_into(memory, i * ADDRESS.size, address)
    for at in pointers:
        ADDRESS.pack_into(memory, at, start + ADDRESS.unpack_from(memory, at)[0])
    protect = ctypes.pythonapi.mprotect
    protect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    if protect(start, len(content), mmap.PROT_READ | mmap.PROT_EXEC):
        return None
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(memory))  # threads may run it while the interpreter ends
    return start


def _address_of(name: str) -> int | None:
    """Where a function or an object of CPython or of the C library is; None if the process does not have it."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, name))
    except ValueError:
        return None


def _make_function(name: str, address: int) -> Callable[..., Any]:
    definition = _MethodDefinition(name.encode(), address, _METH_FASTCALL, None)
    _keep_alive.append(definition)
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype, create.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    made: Callable[..., Any] = create(ctypes.addressof(definition), None, None)
    return made
