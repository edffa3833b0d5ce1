"""Writes the image of a package: links its compiled kernels and their entries into one object file.

A package with a kernel whose arguments or result `kernel_entries` does not know, or that needs numba while it runs, has no image.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import platform
import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import binding

from . import kernel_image
from .kernel import Kernel
from .kernel_entries import ALIGNED, CHECKS, CONTIGUOUS, WRITEABLE, CannotLink, write_entry
from .object_layout import CannotLayOut, lay_out

log = logging.getLogger(__name__)

TESTED_ON = ("linux", "x86_64")
KNOWN_NUMBA = "0.68."
"""The versions whose calling convention and runtime `kernel_entries` follows. Check both there before you add one."""

ALLOWED = {"memset", "memcpy", "memmove"}
"""The functions of the C library that machine code may call."""


def save_image(package: str, kernels: Iterable[Kernel]) -> Path | None:
    """Write the image of these kernels, all of one package, which numba has compiled or loaded in this process.

    Return the file, or None if the image cannot be made on this system, or no folder can be written.
    """
    try:
        content = _link(package, kernels)
    except CannotLink as reason:
        log.debug("no image of %s: %s", package, reason)
        return None
    for folder in kernel_image.folders(package):
        path = folder / kernel_image.file_name(package)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _replace_file(path, content)
        except OSError as error:
            log.debug("no image in %s: %s", folder, error)
        else:
            return path
    return None


def _replace_file(path: Path, content: bytes) -> None:
    """Write the file as a whole: other processes may read it meanwhile."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.chmod(file.name, 0o644)  # every user may read the kernels of the installation
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise


def _link(package: str, kernels: Iterable[Kernel]) -> bytes:
    _require_layouts()
    text, modules, number = [CHECKS], [], itertools.count()
    entries: dict[str, list[str]] = {}
    codegen: Any = None
    for kernel in kernels:
        codegen = kernel.dispatcher.targetctx.codegen()
        for compiled in kernel.dispatcher.overloads.values():
            symbol = f"pcaplake_entry_{next(number)}"
            text.append(write_entry(symbol, kernel.name, compiled))
            modules.append(compiled.library._get_module_for_linking().as_bitcode())
            entries.setdefault(kernel.name, []).append(symbol)
    if codegen is None:
        raise CannotLink("no kernel is compiled")
    triple, processor, features = codegen.magic_tuple()
    if (triple, processor, features) != _target():
        raise CannotLink("numba compiles for another processor")
    linked = binding.parse_assembly("\n".join(text))
    linked.triple, linked.data_layout = codegen._llvm_module.triple, str(codegen.target_data)
    for module in modules:
        linked.link_in(binding.parse_bitcode(module))
    linked = binding.parse_assembly(_without_jump_tables(str(linked)))
    symbols = {symbol for of_kernel in entries.values() for symbol in of_kernel}
    for function in linked.functions:
        if not function.is_declaration and function.name not in symbols:
            function.linkage = "internal"
    machine = binding.Target.from_triple(triple).create_target_machine(
        cpu=processor, features=features, opt=3, reloc="pic", codemodel="small"
    )
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(0))
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(linked, builder)
    linked.verify()
    _reject_unknown_symbols(linked)
    try:
        return kernel_image.pack(package, entries, lay_out(machine.emit_object(linked)))
    except CannotLayOut as reason:
        raise CannotLink(str(reason)) from reason


def _without_jump_tables(module: str) -> str:
    """The module with comparisons for each `switch`: processors predict them better than one jump to many layers (ADR 21)."""
    return re.sub(r"^attributes #\d+ = \{", r'\g<0> "no-jump-tables"="true"', module, flags=re.MULTILINE)


def _target() -> tuple[str, str, str]:
    """What `kernel_image.target_processor` describes, in LLVM's words."""
    processor, features = kernel_image.chosen_processor()
    return (
        binding.get_process_triple(),
        binding.get_host_cpu_name() if processor is None else processor,
        binding.get_host_cpu_features().flatten() if features is None else features,
    )


def _require_layouts() -> None:
    """Raises CannotLink unless the system and numba are tested, and objects have the layout that entries read."""
    if (sys.platform, platform.machine()) != TESTED_ON:
        raise CannotLink(f"images are not tested on {sys.platform} {platform.machine()}")
    if not numba.__version__.startswith(KNOWN_NUMBA):
        raise CannotLink(f"it is not known how numba {numba.__version__} calls functions")
    array = np.zeros((3, 5), np.int32)
    fields = [ctypes.c_int64.from_address(id(array) + offset).value for offset in (8, 16, 24, 56)]
    flags = ctypes.c_int32.from_address(id(array) + 64).value
    number = ctypes.c_int32.from_address(id(array.dtype) + 28).value
    expected = [id(np.ndarray), array.ctypes.data, 2, id(array.dtype)]
    all_set = CONTIGUOUS | ALIGNED | WRITEABLE
    fields[2] &= 0xFFFFFFFF
    if object.__basicsize__ != 16 or fields != expected or flags & all_set != all_set or number != array.dtype.num:
        raise CannotLink("objects have another layout")


def _reject_unknown_symbols(module: Any) -> None:
    """Raises CannotLink if the module uses what neither Python nor the C library has."""
    declared = {value.name for value in (*module.functions, *module.global_variables) if value.is_declaration}
    needed = {name for name in declared if not name.startswith("llvm.")}
    for name in needed - ALLOWED - kernel_image.OBJECTS.keys():
        if not name.startswith(("Py", "_Py")):
            raise CannotLink(f"{name} is not known")
