"""How the Cython modules are compiled: for CPython 3.11 and later (abi3), and for all processors of an architecture."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
from Cython.Build import cythonize
from setuptools import Extension

MACROS = [
    ("Py_LIMITED_API", "0x030B0000"),
    ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
    ("NPY_TARGET_VERSION", "NPY_2_0_API_VERSION"),
]
# AddressSanitizer and UndefinedBehaviorSanitizer, and counters by which libFuzzer sees what ran: options of clang, which is in
# ziglang. What is undefined ends the process at once, because only the first has a library (that of atheris).
SANITIZERS = ["-fsanitize=address", "-fsanitize=undefined", "-fsanitize-trap=undefined"]
SANITIZERS += ["-fsanitize-coverage=inline-8bit-counters,pc-table"]


def extensions(sources: Iterable[Path], package: str) -> Any:
    """What setuptools compiles: one module of `package` for each .pyx file."""
    use_a_compiler_that_is_there()
    checks = os.environ.get("KERNELS_SANITIZE") == "1"  # for tests: every access is checked
    made = [
        Extension(
            f"{package}.{path.stem}",
            [str(path)],
            include_dirs=[str(Path(__file__).parent), numpy.get_include()],
            depends=[str(Path(__file__).parent / "raw_memory.h")],
            define_macros=MACROS,
            extra_compile_args=compiler_flags(checks),
            extra_link_args=SANITIZERS if checks else ["-s"],
            py_limited_api=True,
        )
        for path in sources
    ]
    return cythonize(made, language_level=3, quiet=True, nthreads=2)


def use_a_compiler_that_is_there() -> None:
    """Name that of ziglang, which pip installs, where Python's own compiler is missing."""
    if needs_a_compiler():
        os.environ["CC"] = f"{sys.executable} -m ziglang cc"


def needs_a_compiler() -> bool:
    """Whether neither `CC` nor Python names a compiler that this machine has."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(compiler.split()[0]) is None


def target_platform() -> str | None:
    """The platform that the wheel is for, such as manylinux_2_28_aarch64; None for that of this machine."""
    return os.environ.get("KERNELS_PLATFORM")


def compiler_flags(checks: bool = False) -> list[str]:
    # -O3: with gcc's -O2, loops over rows take up to four times as long. Numbers wrap, as those of numpy do. Each kernel has its
    # own copy of the helpers that it calls.
    flags = ["-O3", "-fwrapv", "-fno-strict-aliasing", "-DCYTHON_INLINE=inline __attribute__((always_inline))"]
    compiler = os.environ.get("CC", "")
    # x86-64-v2 is what processors since 2009 have; v3 gains 1 %
    if (target_platform() or platform.machine()).endswith("x86_64"):
        flags.append("-mcpu=x86_64_v2" if "zig" in compiler else "-march=x86-64-v2")  # zig has names of its own
    if checks:
        flags += ["-g", "-O1", *SANITIZERS]
    return flags
