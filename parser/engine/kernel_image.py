"""The machine code of all kernels of a package in one file, which is called without numba.

Importing numba, and preparing it for its first function, takes longer than decoding a small capture. So
`kernel_linker.save_image`, which runs when the kernels have been compiled, writes an image: one object file, in which each
kernel has *entries*, functions of CPython's C interface that check and unpack the arguments themselves. llvmlite loads it.

An image is used only if its key is that of this process: the source of the kernels, the processor, the settings of numba, and the
versions of everything that the machine code depends on. Otherwise numba loads or compiles each kernel.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

CACHE_FOLDER, CPU_NAME, CPU_FEATURES = "NUMBA_CACHE_DIR", "NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"
Entries = Mapping[str, tuple[Callable[..., Any], ...]]
_METH_FASTCALL = 0x80
_COMPILED_BY = ("intrinsics.py", "kernel.py")
_LINKED_BY = ("kernel_linker.py", "kernel_entries.py")


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

_keep_alive: list[object] = []  # machine code, and definitions of the functions that run it


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


@functools.cache
def target_processor() -> list[str]:
    """The processor for which numba compiles in this process."""
    from llvmlite import binding

    name, features = os.environ.get(CPU_NAME), os.environ.get(CPU_FEATURES)
    return [
        binding.get_process_triple(),
        binding.get_host_cpu_name() if name is None else name,
        binding.get_host_cpu_features().flatten() if features is None else features,
    ]


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


def pack(package: str, entries: Mapping[str, Sequence[str]], needed: Sequence[str], code: bytes) -> bytes:
    """The content of an image.

    entries: name of the kernel -> symbols in the object file `code`. needed: what the object file uses from this process.
    """
    content = json.dumps([entries, needed]).encode() + b"\n" + code
    return _seal(package, content) + b"\n" + content


def _seal(package: str, content: bytes) -> bytes:
    """The first line of an image: it proves that the rest is whole, and for this process."""
    return hashlib.blake2b(content, key=compute_key(package).encode()).hexdigest().encode()


@functools.cache
def load(package: str) -> Entries:
    """The entries of the package's image by the name of the kernel. Empty if there is no image for this process."""
    name = file_name(package)
    for folder in folders(package):
        with suppress(OSError):  # absent, or not readable
            seal, _, content = (folder / name).read_bytes().partition(b"\n")
            if seal == _seal(package, content):
                header, _, code = content.partition(b"\n")
                entries, needed = json.loads(header)
                return _link(entries, needed, code)
    return {}


def _link(entries: Mapping[str, Sequence[str]], needed: Sequence[str], code: bytes) -> Entries:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    for symbol, value in OBJECTS.items():
        binding.add_symbol(symbol, id(value))
    if not all(symbol in OBJECTS or hasattr(ctypes.pythonapi, symbol) for symbol in needed):
        return {}  # LLVM would end the process
    machine = binding.Target.from_default_triple().create_target_machine(
        reloc="static", codemodel="jitdefault", jit=True
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _keep_alive.append(engine)
    return {
        kernel: tuple(_make_function(kernel, engine.get_function_address(symbol)) for symbol in symbols)
        for kernel, symbols in entries.items()
    }


def _make_function(name: str, address: int) -> Callable[..., Any]:
    definition = _MethodDefinition(name.encode(), address, _METH_FASTCALL, None)
    _keep_alive.append(definition)
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype, create.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    made: Callable[..., Any] = create(ctypes.addressof(definition), None, None)
    return made
