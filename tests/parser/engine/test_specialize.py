"""The specialized walk does what the interpreter does, and asks the tables of its program nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import pcaplake.parser.engine.decoder
from pcaplake.parser import Profile, protocols
from pcaplake.parser.capture.programs import compiled_program
from pcaplake.parser.capture.reader import DECODED
from pcaplake.parser.engine.decoder import choose_walk
from pcaplake.parser.engine.kernels import encoding, walk
from pcaplake.parser.engine.program import Program
from pcaplake.parser.engine.specialize import REPEATED, program_tables, specialize_walk, specialized_walk, walk_source
from pcaplake.parser.protocols import isotp
from tests.parser import captures, frames
from tests.parser.compare import PROFILE, difference, read

ROOT = Path(__file__).parents[3]


def spoilt_captures() -> Iterator[bytes]:
    r = Random(11)
    for link_type, maker in frames.MAKERS.items():
        made = (maker(r) for _ in range(40))
        spoilt = [frames.spoil(r, frame) if r.random() < 0.5 else frame for frame in made]
        for order, magic in (("<", "us"), (">", "ns")):
            yield captures.pcap(spoilt, link_type, order=order, magic=magic)


@pytest.mark.slow
def test_both_find_the_same_rows_and_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = specialized_walk(compiled_program(Profile(), DECODED))
    used = set()

    def choose(program: Program) -> Any:
        used.add(choose_walk(program))
        return choose_walk(program)

    monkeypatch.setattr(pcaplake.parser.engine.decoder, "choose_walk", choose)
    for data in spoilt_captures():
        specialized, _ = read(data)
        assert used == {kernel}
        with monkeypatch.context() as patch:
            patch.setattr(pcaplake.parser.engine.decoder, "choose_walk", lambda program: walk.walk_records)
            interpreted, _ = read(data)
        assert (unlike := difference(specialized, interpreted)) is None, unlike


def by_number(first: int, names: Iterable[str]) -> str:
    return ", ".join(f"{number}: {name}" for number, name in enumerate(names, first))


# each name of a protocol that a profile can give to a port, an identifier or a channel
CHANNELS = [f"{{request: {number}, addressing: {name}}}" for number, name in enumerate(isotp.ADDRESSING, 0x700)]
NAMED = {
    "UDP": f"ports: {{udp: {{{by_number(9000, protocols.UDP_PROTOCOLS)}}}}}",
    "TCP": f"ports: {{tcp: {{{by_number(9000, protocols.TCP_PROTOCOLS)}}}}}",
    "CAN": f"can: {{protocols: {{{by_number(0x510, protocols.CAN_PROTOCOLS)}}}}}",
    "ISO-TP": f"can: {{isotp: [{', '.join(CHANNELS)}]}}",
    **{order: f"can: {{identifiers: {order}}}" for order in protocols.CAN_IDENTIFIERS},
}


@pytest.mark.parametrize("profile", [PROFILE, *map(Profile.parse, NAMED.values())], ids=["several", *NAMED])
def test_a_profile_changes_no_code(profile: Profile) -> None:
    """Ports and identifiers of a profile are data, so its program has the kernel that is already compiled."""
    program, default = (compiled_program(one, DECODED) for one in (profile, Profile()))
    assert choose_walk(program) is choose_walk(default)


@pytest.mark.slow
def test_what_the_program_determines_is_not_asked() -> None:
    program = compiled_program(Profile(), DECODED)
    *copies, walk_records = specialize_walk(walk_source(), program_tables(program), program.frequent)
    assert {function.name.rpartition("_")[0] for function in copies} == set(REPEATED)
    for function in copies:
        asked = [
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and node.id in ("layers", "uses", "layer")
        ]
        assert asked == [], ast.unparse(function)
    called = {ast.unparse(node.func) for node in ast.walk(walk_records) if isinstance(node, ast.Call)}
    assert {function.name for function in copies} <= called
    ast.fix_missing_locations(walk_records)
    branches = {
        ast.unparse(node.test): ast.unparse(ast.Module(node.body, []))
        for node in ast.walk(walk_records)
        if isinstance(node, ast.If)
    }
    for number in program.frequent:
        body = branches[f"layer == {number}"]
        assert not re.search(r"\b(flags|layer_row|slots)\b|\bget\((layers|uses|owner|first_slots), \d", body), body


def test_all_frequent_layers_are_declared() -> None:
    assert frozenset({layer.name for layer in protocols.LAYERS}) >= protocols.FREQUENT
    assert len(compiled_program(Profile(), DECODED).frequent) == len(protocols.FREQUENT)


@pytest.mark.slow
def test_another_program_has_another_kernel() -> None:
    program = compiled_program(Profile(), DECODED)
    other = compiled_program(Profile(), ["can_frames"])
    assert choose_walk(other) is walk.walk_records
    assert specialized_walk(other) is None
    assert choose_walk(program) is specialized_walk(program)


def test_a_loop_that_the_program_does_not_bound_is_refused() -> None:
    source = walk_source().replace("range(get(layers, layer_row + N_KEYS))", "range(limit)")
    tables = {name: np.zeros((1, encoding.WIDTH), np.int64) for name in ("layers", "uses", "owner", "first_slots")}
    with pytest.raises(AssertionError, match="the program does not determine limit"):
        specialize_walk(source, tables, [0])
