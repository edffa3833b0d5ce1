"""Compiles all kernels once, and stores the machine code beside their source.

`python -m pcaplake.worker.warm` is the last step of an installation. It reads and writes a short drive, so that every
kernel is compiled for the types that it gets later.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType

from pcaplake.parser import Profile, open_capture
from pcaplake.parser.capture.programs import compiled_program
from pcaplake.parser.capture.reader import DECODED
from pcaplake.parser.engine import kernels as decode_kernels
from pcaplake.parser.engine.decoder import choose_walk
from pcaplake.parser.engine.kernel import COMPILING_SECONDS, NOTICE, Kernel
from pcaplake.signals.someip import kernels as payload_kernels
from pcaplake.worker.lake.parquet import kernels as parquet_kernels

OF_CAPTURES = (decode_kernels, parquet_kernels)
"""Packages of the kernels that read captures and write tables."""
PACKAGES = (*OF_CAPTURES, payload_kernels)


def kernels(packages: Iterable[ModuleType] = PACKAGES, profile: Profile | None = None) -> Iterator[Kernel]:
    """The kernels of these packages that are kept on disk, or would be.

    profile: what the caller reads captures with. Its program is compiled, which the next capture then need not do; kernels are
    the same for all profiles.
    """
    for package in packages:
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, Kernel) and value.__module__ == module.name:
                    yield value
    yield choose_walk(compiled_program(profile or Profile(), DECODED))


def is_warm() -> bool:
    """Whether all kernels are in memory, or on disk for this source and this processor, so that nothing is compiled."""
    return all(kernel.is_compiled for kernel in kernels())


def compile_missing(
    say: Callable[[str], None],
    bar: Callable[[str], AbstractContextManager[Callable[[float], None]]],
    profile: Profile | None = None,
) -> None:
    """Compile the missing kernels that captures need. profile: as in `kernels`.

    That takes minutes, so it calls `say` before, and shows a bar like `console.share`.
    """
    if not all(kernel.is_compiled for kernel in kernels(OF_CAPTURES, profile)):
        say(NOTICE)
        with bar("compiling") as progress, follow_cpu_time(progress, COMPILING_SECONDS):
            save_images()


@contextmanager
def follow_cpu_time(progress: Callable[[float], None], expected: float) -> Iterator[None]:
    """During the block, call `progress` with the share of these CPU seconds that the process has used; at the end, with 1.

    One kernel takes three quarters of the time, so a count of compiled kernels would stand still.
    """
    start, ended = time.process_time(), threading.Event()

    def follow() -> None:
        while not ended.wait(0.2):
            progress(min((time.process_time() - start) / expected, 0.99))

    thread = threading.Thread(target=follow, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    progress(1.0)


def save_images() -> None:
    """Compile the kernels that are not on disk, and write the images from which later processes load them without numba."""
    from pcaplake.parser.engine.kernel_linker import save_image

    by_package = defaultdict(list)
    for kernel in kernels():
        kernel.use_numba()
        by_package[kernel.package].append(kernel)
    warm()
    for package, compiled in by_package.items():
        save_image(package, compiled)


def warm() -> None:
    """Read and write a short drive, and columns of every kind. This calls all kernels."""
    from pcaplake.parser.schemas import TABLES
    from pcaplake.signals.someip.warm import compile_payload_kernels
    from pcaplake.worker import sample
    from pcaplake.worker.ingest.pipeline import Reader
    from pcaplake.worker.lake.config import LakeConfig
    from pcaplake.worker.lake.parquet.warm import compile_parquet_kernels as warm_writer
    from pcaplake.worker.lake.records import Capture
    from pcaplake.worker.lake.staging.window import Window
    from pcaplake.worker.lake.store.local_store import LocalStore

    warm_writer()
    compile_payload_kernels()
    schemas = {name: spec.schema for name, spec in TABLES.items()}
    with tempfile.TemporaryDirectory(prefix="pcaplake-") as folder:
        captures = [path for path in sample.write_sample_captures(folder, "drive", 0.5) if path.suffix != ".yaml"]
        store = LocalStore(Path(folder, "lake"))  # any folder that TMPDIR names
        reader = Reader(profile=Profile.load(Path(folder, "profile.yaml")), decoder_version="warm", now=lambda: 0.0)
        rare = Path(folder, "rare.pcapng")
        rare.write_bytes(_rare())
        window = Window(store, schemas, lake_config=LakeConfig(), generation=0)
        for number, path in enumerate([*captures, rare]):
            with path.open("rb", buffering=0) as file:
                capture = Capture(capture_id=f"{number:032x}", uri=str(path), etag="", size=path.stat().st_size)
                reader.read(file, capture, window)
        window.close()
        with open_capture(rare, "packets") as chosen:  # a choice of tables has the walk that is not specialized
            chosen.read()


def _rare() -> bytes:
    """A pcapng file with cases that a short drive lacks: many addresses, and garbage between two packets."""
    from pcaplake.worker.sample import files, frames
    from pcaplake.worker.sample.files import Packet
    from pcaplake.worker.sample.sources import BACKBONE, INTERFACES

    packets = [
        Packet(n, BACKBONE, frames.build_ethernet_frame(bytes(6), n.to_bytes(6, "big"), 0x88B5, bytes(46)), 0, None)
        for n in range(5000)
    ]
    blocks = list(files.generate_pcapng_blocks(packets, INTERFACES, "warm"))
    middle = len(blocks) // 2
    return b"".join([*blocks[:middle], bytes(range(255)), *blocks[middle:]])


def main() -> None:
    """Compile, unless all kernels are on disk, and write the images if they are missing."""
    if all(kernel.entries for kernel in kernels()):
        return
    missing = not is_warm()
    if missing:
        print(NOTICE, file=sys.stderr, flush=True)
    start = time.monotonic()
    save_images()
    if missing:
        print(f"compiled in {time.monotonic() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
