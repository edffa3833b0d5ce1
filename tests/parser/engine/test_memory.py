"""No kernel touches a byte that is not its own: on guarded pages (compiled), and with every access checked (interpreted)."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from pcaplake.parser.engine.kernels.walk import enter_layer
from tests.mutants import Mutant, Operation, Through
from tests.parser import captures, frames
from tests.parser.checked import OutOfBounds, checked_kernels, in_place
from tests.parser.compare import difference, read

ROOT = Path(__file__).parents[3]


def guarded(what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.parser.guarded", what]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_kernels_stay_within_guarded_pages() -> None:
    done = guarded("decode")
    assert (done.returncode, done.stdout.strip()) == (0, "unharmed"), done.stderr[-2000:]


@pytest.mark.slow
def test_the_guard_works() -> None:
    assert guarded("beyond").returncode == -signal.SIGSEGV


@pytest.mark.slow
@pytest.mark.parametrize("link_type", frames.MAKERS)
def test_checked_kernels_touch_nothing_else(link_type: int) -> None:
    """And they find what the compiled ones find."""
    r = Random(300 + link_type)
    made = [frames.spoil(r, frames.MAKERS[link_type](r)) for _ in range(60)]
    files = [captures.pcap(made, link_type), *(captures.pcap([frame], link_type) for frame in made[:15])]
    for data in files:
        options = {"tight": True, "batch_rows": r.choice((1, 8, 1000))}
        compiled, _ = read(data, **options)
        with in_place(checked_kernels()):
            checked, _ = read(data, **options)
        assert (unlike := difference(compiled, checked)) is None, unlike


@pytest.mark.slow
def test_checked_kernels_on_blocks() -> None:
    r = Random(8)
    s, b = captures.Section("<"), captures.Section(">")
    for _ in range(40):
        parts = [s.header(), s.interface(1, fcs=4), b.header(), b.interface(227, resolution=0x94)]
        for _ in range(6):
            order = r.choice((s, b))
            parts.append(order.enhanced(frames.spoil(r, frames.ethernet(r)), r.getrandbits(64), flags=r.getrandbits(9)))
            parts.append(
                r.choice(
                    (b"garbage", order.simple(b"xyz"), order.block(6, bytes(9)), order.block(6, bytes(40), echo=5))
                )
            )
        data = b"".join(parts)
        data = frames.spoil(r, data) if r.random() < 0.5 else data[: r.randrange(40, len(data))]
        if data[:4] != b"\n\r\r\n" or len(data) < 12:
            continue
        compiled, _ = read(data)
        with in_place(checked_kernels()):
            checked, _ = read(data)
        assert (unlike := difference(compiled, checked)) is None, unlike


@pytest.mark.slow
@pytest.mark.parametrize(
    "reach",
    [
        Mutant(
            enter_layer,
            "all bytes of the declared header are there",
            Operation(lambda there, need: there < need - 40, ast.Lt),
        ),
        Mutant(
            enter_layer,
            "the body of an overrun is clipped to the span",
            Through(lambda body: (body[1] + 40, body[1] + 50)),
        ),
    ],
)
def test_the_check_works(reach: Mutant) -> None:
    """A bound that is forgotten is out of bounds at once."""
    r = Random(1)
    made = [frames.bus_frame(r) if i % 2 else frames.ipv4(r) for i in range(80)]
    cut = [(captures.pcap([f[: r.randrange(len(f) + 1)]], 227 if i % 2 else 228)) for i, f in enumerate(made)]

    def all_of_them() -> None:
        for data in cut:
            read(data, tight=True)

    with in_place(checked_kernels(reach)), pytest.raises((OutOfBounds, OverflowError)):
        all_of_them()
