"""Every rule of the kernels and every claim of the declarations is broken on purpose, and a small corpus must tell.

Mutants of the kernels (kernel_mutants.py) run interpreted and checked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from pcaplake.parser import Profile
from pcaplake.parser.capture import reader as capture
from tests.parser import captures, frames, nested
from tests.parser.captures import T0, Section
from tests.parser.checked import checked_kernels, in_place
from tests.parser.compare import read
from tests.parser.declaration_mutants import CLAIMS
from tests.parser.kernel_mutants import MUTANTS
from tests.parser.nested import USER0, box, entry, inner, leaf

pytestmark = pytest.mark.slow

GOLDEN = yaml.safe_load((Path(__file__).parent / "protocols" / "golden.yaml").read_text(encoding="utf-8"))
END_OF_TIME = 7_258_118_400
Made = list[tuple[dict[str, Any], Any]]


# -- the corpus -------------------------------------------------------------------------------------------------------
def golden() -> Iterator[bytes]:
    by_link_type: dict[int, list[bytes]] = {}
    for case in (*GOLDEN["good"], *GOLDEN["faulty"]):
        by_link_type.setdefault(case["link_type"], []).append(bytes.fromhex(case["frame"]))
    for link_type, found in by_link_type.items():
        yield captures.pcap(found, link_type)


def generated() -> Iterator[bytes]:
    r = Random(4)
    for link_type in (1, 227, 212, 210, 113, 229):
        made = (frames.MAKERS[link_type](r) for _ in range(12))
        yield captures.pcap(
            [frames.spoil(r, f) if r.random() < 0.6 else f for f in made], link_type, order=">", magic="ns"
        )


def tecmp(*entries: bytes) -> bytes:
    return bytes(12) + b"\x99\xfe" + struct.pack(">HHBBHHH", 1, 1, 3, 3, 4, 0, 0) + b"".join(entries)


def lin(ident: int, data: bytes, length: int | None = None) -> bytes:
    size = len(data) + 3 if length is None else length
    return struct.pack(">IQHHBB", 7, 1, size, 0, ident, len(data)) + data + b"\x55"


def cornered() -> bytes:
    """Ethernet: what random frames seldom hit. FCS bits in the link type; of two frames they were not captured."""
    segment = struct.pack(">IIHHBBBB", 1, 100, 0, 0, 1, 1, 0x20, 0)  # a TP segment of which the TP header is missing
    six = [struct.pack(">IHBB", 6 << 28, 0, 59, 64) + bytes([high] * 8 + [9] * 8) + bytes(16) for high in (1, 2, 3)]
    udp = [
        struct.pack(">HHHH", 1, 30501, 8 + len(body), 0) + body
        for body in (segment + b"\0", segment, someip_of(9), someip_of(1))
    ]
    four = [struct.pack(">BBHHHBBH8s", 0x45, 0, 20 + len(u), 0, 0, 1, 17, 0, bytes(8)) + u for u in udp]
    made = [bytes(12) + b"\x08\x00" + ip for ip in four] + [bytes(12) + b"\x86\xdd" + ip for ip in six]
    made.append(tecmp(lin(1, b"ab"), lin(2, b"", 0)[:16], lin(3, b"c")))  # an entry of no length ends the chain
    made.append(tecmp(lin(1, b"ab"), lin(2, b"cd")[:-1]))
    made.append(tecmp(lin(1, b"ab")) + bytes(15))
    made.append(b"\1\2")  # shorter than its FCS
    records = [captures.pcap_record(f + b"\xfc\xfc\xfc\xfc", T0 + i) for i, f in enumerate(made)]
    records += [
        captures.pcap_record(made[2], T0, original=len(made[2]) + 4),
        captures.pcap_record(made[2] + b"\xfc", original=len(made[2]) + 4),
    ]
    records += [captures.pcap_record(made[2][:n] + b"\xfc") for n in (0, 2)]
    return captures.pcap_header(1 | 1 << 26 | 4 << 28) + b"".join(records)


def someip_of(size: int) -> bytes:
    return struct.pack(">IIHHBBBB", 1, size + 8, 0, 0, 1, 1, 0, 0) + bytes(range(1, size + 1))


def sections() -> bytes:
    s, b = Section("<"), Section(">")
    can0 = struct.pack(">I4B", 5, 8, 0, 0, 0) + b"12345678"
    seconds = s.interface(227, resolution=0, name="s")
    return b"".join(
        (
            s.header(),
            s.interface(227, name="can0"),
            s.enhanced(can0, flags=2, more=s.option(1, b"hello")),
            s.enhanced(can0, flags=1),
            s.enhanced(can0, captured=20),
            s.enhanced(can0, flags=4 << 5),
            s.enhanced(struct.pack(">I4B", 5, 7, 0, 0, 0) + b"1234567", flags=1),
            s.enhanced(can0, interface=1),
            s.interface(1, resolution=9, fcs=4, snaplen=10),
            s.enhanced(bytes(14) + b"\1\2\3\4\5\6", T0 * 10**9 + 1, interface=1),
            s.enhanced(bytes(14) + b"\1\2\3\4\5\6", T0 * 10**9 + 1, interface=1, flags=2 << 5),
            s.block(6, b"\0" * 8),
            seconds,
            *(s.enhanced(can0, t, interface=2) for t in (0, END_OF_TIME - 1, END_OF_TIME)),
            s.interface(227, resolution=0, offset=-5),
            *(s.enhanced(can0, t, interface=3) for t in (4, 5, 6)),
            s.interface(227, resolution=12),
            s.enhanced(can0, T0 * 10**12 + 999, interface=4),
            s.interface(227, resolution=0x80 | 20),
            s.enhanced(can0, (T0 << 20) + 7, interface=5),
            s.interface(227, resolution=0x80 | 40),
            s.enhanced(can0, (1 << 60) + (1 << 39), interface=6),
            s.block(5, b"1234", echo=20),
            s.enhanced(can0),
            struct.pack("<II2sI", 5, 14, b"ab", 14),  # no multiple of four
            s.enhanced(can0),
            b"garbage!" * 3 + struct.pack("<II24sI", 6, 36, bytes(24), 32) + struct.pack("<III", 0x77, 12, 12),
            s.enhanced(can0),
            b.header(),
            b.interface(227, snaplen=12),
            b.simple(can0),
            b.enhanced(can0, flags=1, more=b.option(4, bytes(8))),
            b.obsolete(can0, flags=2),
            b"garbage!" * 2,
            b.enhanced(can0),
        )
    )


def nests() -> bytes:
    def deep(layers: int) -> bytes:
        body = leaf(1)
        for i in range(layers):
            body = inner(i, 1 if i else 2, body)
        return entry(1, body)

    made = [
        entry(1, inner(7, 2, leaf(5))) + entry(2, leaf(6) + b"x") + entry(1, inner(8, 2, leaf(7))),
        entry(2, leaf(9)),
    ]
    made += [entry(2, leaf(1)) + b"abcd", entry(3, box(6, 2, leaf(3) + b"zz")), entry(3, box(3, 2, leaf(3) + b"zz"))]
    return captures.pcap([*made, deep(30) + entry(2, leaf(2)), deep(31), deep(32)], USER0)


SMALL = [cornered(), *generated()]  # read in batches as small as they can be
CORPUS = [*golden(), sections(), *SMALL]


def look(data: bytes) -> tuple[dict[str, Any], Any]:
    return read(data, batch_rows=1 if data in SMALL else 1000)


def told_apart(expected: Made) -> Iterator[bool]:
    """Whether each capture of the corpus gives what it should."""
    for data, want in zip(CORPUS, expected[:-1], strict=True):
        yield look(data) != want
    with pytest.MonkeyPatch.context() as patch:
        nested.use(patch)
        yield read(nests()) != expected[-1]


@pytest.fixture(scope="module")
def expected() -> Made:
    made = [look(data) for data in CORPUS]
    with pytest.MonkeyPatch.context() as patch:
        nested.use(patch)
        made.append(read(nests()))
    return made


# -- mutants of the kernels -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_told_apart(name: str, expected: Made) -> None:
    with in_place(checked_kernels(MUTANTS[name], steps=3_000_000)):
        try:
            killed = any(told_apart(expected))
        except (AttributeError, NameError, SyntaxError, TypeError):
            raise  # the mutant does not run
        except Exception:  # noqa: BLE001 - whatever it does wrong, it is seen
            killed = True
    assert killed, f"nothing in the corpus tells the mutant from the original: {MUTANTS[name]}"


def test_the_original_is_not_told_apart(expected: Made) -> None:
    """The interpreted and checked kernels give what the compiled ones give: what kills a mutant is the mutation."""
    original: ModuleType = checked_kernels(steps=3_000_000)
    with in_place(original):
        assert not any(told_apart(expected))


# -- mutants of the declarations --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_matters(name: str, expected: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, value, layer = CLAIMS[name]
    original = capture.compiled_program

    def changed(profile: Profile, tables: Any, **options: Any) -> Any:
        program = original(profile, tables, **options)
        lut = program.lut.copy()
        lut[program.base[keys] + value] = -1 if layer is None else program.number[layer]
        assert not np.array_equal(lut, program.lut)
        mutant = type(program).__new__(type(program))
        mutant.__dict__.update(program.__dict__, lut=lut)
        return mutant

    monkeypatch.setattr(capture, "compiled_program", changed)
    assert any(look(data) != want for data, want in zip(CORPUS, expected[:-1], strict=True))
