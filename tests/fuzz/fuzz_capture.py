"""Coverage-guided fuzzing of the whole way from bytes to Arrow, where every access of the kernels is checked.

    python -m tests.fuzz [--interpreted] [--seconds N] [--planted] [libFuzzer options] [corpus folder]

The kernels are compiled with sanitizers (sanitized.py) or, slower by far but with the bounds of every part of an array,
interpreted.
Without a folder it starts from some small captures in a temporary one. What fails is written to build/fuzz. `--planted`
breaks a bound of the kernels, to show that the fuzzer would find it.
"""

from __future__ import annotations

import argparse
import ast
import os
import resource
import sys
import tempfile
from pathlib import Path
from random import Random
from types import FunctionType, ModuleType

import atheris
import numpy as np

from tests.fuzz import sanitized

if folder := os.environ.get(sanitized.FOLDER):
    sanitized.use(folder)
with atheris.instrument_imports(include=["pcaplake.parser"]):
    import pcaplake.parser.capture.reader  # noqa: F401 - what is imported later is not instrumented

from pcaplake.parser.engine.kernels.payloads import sum_payload_lengths
from pcaplake.parser.engine.kernels.walk import enter_layer
from tests.mutants import Mutant, Operation
from tests.parser import frames
from tests.parser.captures import pcap
from tests.parser.checked import checked_kernels, in_place, own_rooms
from tests.parser.conversations import cuts, ipv4, someip, tcp, udp
from tests.parser.laws import obey
from tests.strategies import sample

FOUND = Path("build/fuzz")
PLANTED = Mutant(
    enter_layer, "all bytes of the declared header are there", Operation(lambda there, need: there < need - 30, ast.Lt)
)


def short_capture(seed: int) -> bytes:
    """A capture of one frame that ends anywhere: few mutations lead there, because the record must end there, too."""
    r = Random(seed)
    link_type = r.choice(tuple(frames.MAKERS))
    frame = frames.MAKERS[link_type](r)
    return pcap([frame[: r.randrange(len(frame) + 1)]], link_type)


def pieces_in_order(seed: int) -> bytes:
    """A capture of fragments and TCP segments of which none is lost."""
    r, made = Random(seed), list[bytes]()
    for number in range(1, 4):
        datagram = udp(someip(r.randbytes(200)))
        for start, end in cuts(r, len(datagram), 64, 8):
            more = 0x2000 if end < len(datagram) else 0
            made.append(ipv4(datagram[start:end], ident=number, fragment=more | start // 8))
    data = b"".join(someip(r.randbytes(r.randrange(80))) for _ in range(10))
    return pcap([*made, *(ipv4(tcp(1 + start, data[start:end]), 6) for start, end in cuts(r, len(data), 300, 1))])


def interpreted(planted: bool) -> ModuleType:
    """The kernels as Python that shows the fuzzer where it has been."""
    kernels = checked_kernels(PLANTED if planted else None)
    for name, function in vars(kernels).items():
        if isinstance(function, FunctionType) and function.__module__ == kernels.__name__:
            setattr(kernels, name, atheris.instrument_func(function))
    return kernels


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--interpreted", action="store_true")
    options.add_argument("--seconds", type=int, default=600)
    options.add_argument("--planted", action="store_true")
    chosen, more = options.parse_known_args()
    if not chosen.interpreted and sanitized.FOLDER not in os.environ:
        environment = sanitized.build(Path("build", "sanitized"))
        os.execve(sys.executable, [sys.executable, "-m", "tests.fuzz", *sys.argv[1:]], environment)

    def one(data: bytes) -> None:
        obey(data, tight=True, batch_rows=100)
        if chosen.planted and not chosen.interpreted and len(data) > 4:
            sum_payload_lengths(np.zeros((4, 8), np.int32), len(data))  # of 4 rows

    kernels = in_place(interpreted(chosen.planted)) if chosen.interpreted else own_rooms()
    with tempfile.TemporaryDirectory() as folder, kernels:
        if not any(Path(argument).is_dir() for argument in more):
            for seed in range(200):
                if len(data := sample(seed)) < 500:
                    (Path(folder) / str(seed)).write_bytes(data)
                (Path(folder) / f"short{seed}").write_bytes(short_capture(seed))
            for seed in range(10):
                (Path(folder) / f"pieces{seed}").write_bytes(pieces_in_order(seed))
            more.append(folder)
        obey(sample(0))  # what the first capture compiles counts for no input
        FOUND.mkdir(parents=True, exist_ok=True)
        fixed = [f"-max_total_time={chosen.seconds}", f"-artifact_prefix={FOUND}/", "-max_len=4096", "-timeout=30"]
        # libFuzzer measures the peak, which a process inherits from the one that started it
        inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        atheris.Setup([sys.argv[0], *fixed, f"-rss_limit_mb={4096 + inherited}", *more], one)
        atheris.Fuzz()
