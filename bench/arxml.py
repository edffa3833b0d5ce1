"""ARXML files of several sizes: CPU time and peak memory of the first load, of the next one from the cache, and of cantools.

`python -m bench.arxml --megabytes 7 100` prints the section. `arxml_file.py` writes the files. Each load is a process of its own,
whose figures contain its start.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .arxml_file import WrittenFile, write_description

_LOAD: Final = (
    "import sys; from pcaplake.signals import load_database; loaded = load_database(sys.argv[1]); "
    "print(len(loaded.messages) + len(list(loaded.services)), sum(len(one.signals) for one in loaded.messages))"
)
_CANTOOLS: Final = (
    "import logging, sys, cantools; logging.disable(); "  # it logs messages that share an id
    "print(len(cantools.database.load_file(sys.argv[1], strict=False).messages))"
)
_MOST_FOR_CANTOOLS: Final = 150
"""Megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`cpu`: seconds of all threads; `peak`: bytes of resident memory; `output`: what the process printed."""

    cpu: float
    peak: int
    output: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """`cantools`: None for files that are too large for it."""

    file: WrittenFile
    first: Load
    cached: Load
    cantools: Load | None


def section(sizes: Sequence[float]) -> str:
    """The section in Markdown."""
    lines = [
        f"one run of each size; load {os.getloadavg()[0]:.1f} before the first one",
        "",
        "| file | read | clusters | messages, signals | first load | from the cache | cantools, CAN alone |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for each in measure_loads(sizes):
        file = each.file
        messages, signals = map(int, each.first.output.split())
        lines.append(
            f"| {file.size / 1e6:,.0f} MB | {file.read / file.size:.0%} | {file.can + file.flexray + file.ethernet:,} | "
            f"{messages:,}, {signals:,} | {_cell(each.first)} | {_cell(each.cached)} | {_cell(each.cantools)} |"
        )
    return "\n".join(lines)


def _cell(load: Load | None) -> str:
    return f"{load.cpu:.1f} s, {load.peak / 1e6:,.0f} MB" if load is not None else ""


def measure_loads(sizes: Sequence[float]) -> Iterator[Loads]:
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="pcaplake-bench-") as name:
            folder = Path(name)
            path = folder / "vehicle.arxml"
            file = write_description(path, size)
            first, cached = (_load(_LOAD, path, folder) for _ in range(2))
            if first.output != cached.output:
                raise SystemExit(f"the cache has {cached.output}, and the file {first.output}")
            cantools = _load(_CANTOOLS, path, folder) if size <= _MOST_FOR_CANTOOLS else None
            yield Loads(file=file, first=first, cached=cached, cantools=cantools)


def _load(program: str, path: Path, home: Path) -> Load:
    """Run a Python program with a file; the cache is in the folder `home`."""
    with (home / "output").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=out, env={**os.environ, "HOME": str(home)}
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{program} ended with {process.returncode}")
    return Load(
        cpu=used.ru_utime + used.ru_stime,
        peak=used.ru_maxrss << 10,
        output=(home / "output").read_text(encoding="utf-8").strip(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[7.0, 100.0], help="sizes of the files")
    print(section(parser.parse_args().megabytes))


if __name__ == "__main__":
    main()
