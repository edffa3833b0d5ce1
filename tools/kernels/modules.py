"""The modules of `pcaplake.core`, and the kernels in each."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pcaplake.parser import Profile
from pcaplake.parser.capture.programs import compiled_program
from pcaplake.parser.capture.reader import DECODED
from pcaplake.parser.engine import specialize
from pcaplake.parser.engine.kernel import Kernel, digest_sources, module_name
from pcaplake.parser.engine.kernels import layers, walk

from .entries import write_module
from .types import Source

PACKAGES = ("pcaplake.parser.engine.kernels", "pcaplake.signals.someip.kernels", "pcaplake.lake.parquet.kernels")


def write_modules(folder: Path) -> list[Path]:
    """Write the .pyx files; a file whose text stays the same is left alone, so that nothing compiles it again."""
    written = []
    for name, text in _texts().items():
        path = folder / f"{name}.pyx"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _texts() -> Mapping[str, str]:
    texts = {
        module_name(package): write_module(kernels_of(package), SOURCES=digest_sources(package)) for package in PACKAGES
    }
    program = compiled_program(Profile(), DECODED)
    texts[specialize.MODULE] = write_module(
        (),
        ("walk_records", _specialized_walk(program), walk.walk_records),
        SOURCES=digest_sources(walk.__package__),
        PROGRAM=specialize.digest_program(program),
    )
    return texts


def kernels_of(package: str) -> Iterator[Kernel[..., Any]]:
    for found in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            if isinstance(value, Kernel) and value.__module__ == module.__name__:
                yield value


def _specialized_walk(program: Any) -> Source:
    made = specialize.specialize_walk(specialize.walk_source(), specialize.program_tables(program), program.frequent)
    trees = ast.parse("\n".join(ast.unparse(ast.fix_missing_locations(tree)) for tree in made)).body
    names: dict[str, Any] = {**vars(np), **vars(layers), **vars(walk)}
    for tree in trees:
        assert isinstance(tree, ast.FunctionDef)
        names[tree.name] = Source(tree, names)
    found: Source = names["walk_records"]
    return found
