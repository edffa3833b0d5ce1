"""Each column of a bus frame, declared a bit beside the truth: a frame written by hand must tell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from pcaplake.parser import protocols
from pcaplake.parser.capture import reader as capture
from pcaplake.parser.capture.claims import profile_claims
from pcaplake.parser.engine.layer import Rows
from pcaplake.parser.engine.program import Program
from tests.parser.compare import PROFILE
from tests.parser.declaration_mutants import BUS_ROWS, column_mutants
from tests.parser.protocols.golden import GOLDEN, check_rows, read_golden

CLAIMS, _ = profile_claims(PROFILE)
Golden = dict[str, Any]


def failing(declared: Sequence[Rows], cases: Sequence[Golden], monkeypatch: pytest.MonkeyPatch) -> Iterator[Golden]:
    """The golden frames whose rows are wrong when the product declares these rows."""
    program = Program(protocols.LAYERS, declared, claims=CLAIMS, reassemblies=protocols.REASSEMBLIES)
    monkeypatch.setattr(capture, "compiled_program", lambda *_, **__: program)
    try:
        for golden in cases:
            try:
                check_rows(golden, read_golden(golden)[0])
            except AssertionError:
                yield golden
    finally:
        program.kept.clear()  # 80 MB, until cycles are collected


@pytest.mark.slow
@pytest.mark.parametrize("rows", BUS_ROWS, ids=lambda rows: f"{rows.table} from {rows.layer.name}")
def test_golden_bytes_tell_every_case_of_a_column(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        g
        for g in GOLDEN["good"] + GOLDEN["faulty"]
        if rows.table in g.get("rows", {}) and "profile" not in g  # which is another program
    ]
    assert not list(failing(protocols.ROWS, cases, monkeypatch))
    cases = list(
        failing([one for one in protocols.ROWS if one is not rows], cases, monkeypatch)
    )  # those with such a row

    def survives(mutant: Rows) -> bool:
        changed = [mutant if one is rows else one for one in protocols.ROWS]
        return next(failing(changed, cases, monkeypatch), None) is None

    assert not [name for name, mutant in column_mutants(rows) if survives(mutant)]
