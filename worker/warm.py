"""Compiling ahead: the kernels that read and write are compiled once, and kept beside their source.

`python -m worker.warm` is the last step of a set-up: it reads a short drive and writes it, so that every kernel is met
with the types it is met with later. Knows which modules hold kernels.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from numba.core.dispatcher import Dispatcher

import parser
import worker.lake.parquet
from parser import Profile
from parser.tables import TABLES

from . import sample
from .lake.knobs import Knobs
from .lake.manifest import Capture
from .lake.parquet.warm import warm as warm_writer
from .lake.stage import Window
from .lake.store import Store
from .pipeline import Reader
from .sample import files, frames
from .sample.files import Packet
from .sample.sources import BACKBONE, INTERFACES

PACKAGES = (parser, worker.lake.parquet)
NOTICE = "compiling the decode kernels, once, about a minute"


def kernels() -> Iterator[Any]:
    """Every compiled function that is kept on disk."""
    seen = set()
    for package in PACKAGES:
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for one in vars(importlib.import_module(info.name)).values():
                if isinstance(one, Dispatcher) and hasattr(cast(Any, one)._cache, "_cache_file") and one not in seen:
                    seen.add(one)
                    yield one


def is_warm() -> bool:
    """Whether every kernel is on disk, of this source and for this processor: the next start compiles nothing."""
    for kernel in kernels():
        # numba has no public question for it; the index is {} when it is absent or of another source
        index = kernel._cache._cache_file._load_index() if kernel._cache._cache_file else {}
        here = kernel.targetctx.codegen().magic_tuple()
        if not any(key[1] == here for key in index):
            return False
    return True


def warm() -> None:
    """Read and write a short drive, and columns of every shape; what is not compiled yet is compiled on the way."""
    warm_writer()
    worker.lake.parquet.warm()
    schemas = {name: spec.schema for name, spec in TABLES.items()}
    with tempfile.TemporaryDirectory(prefix="pcaplake-") as folder:
        captures = [path for path in sample.make(folder, "drive", 0.5) if path.suffix != ".yaml"]
        store = Store.open(Path(folder, "lake"))
        reader = Reader(profile=Profile.load(Path(folder, "profile.yaml")), decoder_version="warm", now=lambda: 0.0)
        rare = Path(folder, "rare.pcapng")
        rare.write_bytes(_rare())
        window = Window(store, schemas, knobs=Knobs(), generation=0, decoder_version="warm")
        for number, path in enumerate([*captures, rare]):
            with path.open("rb", buffering=0) as file:
                capture = Capture(capture_id=f"{number:032x}", uri=str(path), etag="", size=path.stat().st_size)
                reader.read(file, capture, window)
        window.close()


def _rare() -> bytes:
    """A pcapng of what a short drive has not: many addresses, and a region of garbage between two packets."""
    packets = [
        Packet(n, BACKBONE, frames.ethernet(bytes(6), n.to_bytes(6, "big"), 0x88B5, bytes(46)), 0, None)
        for n in range(5000)
    ]
    blocks = list(files.pcapng(packets, INTERFACES, "warm"))
    middle = len(blocks) // 2
    return b"".join([*blocks[:middle], bytes(range(255)), *blocks[middle:]])


def main() -> None:
    """What the set-up calls."""
    if is_warm():
        return
    print(NOTICE, file=sys.stderr, flush=True)
    start = time.monotonic()
    warm()
    print(f"compiled in {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
