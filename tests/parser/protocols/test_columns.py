"""Each column of a bus frame, declared a bit beside the truth: a frame written by hand must tell."""

from __future__ import annotations

import pytest

from pcaplake.parser import protocols
from pcaplake.parser.capture import reader as capture
from pcaplake.parser.engine.layer import Rows
from pcaplake.parser.engine.program import Program
from tests.parser.declaration_mutants import BUS_ROWS, column_mutants
from tests.parser.protocols.golden import GOLDEN, check_rows, read_golden


@pytest.mark.slow
@pytest.mark.parametrize("rows", BUS_ROWS, ids=lambda rows: f"{rows.table} from {rows.layer.name}")
def test_golden_bytes_tell_every_case_of_a_column(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        g
        for g in GOLDEN["good"] + GOLDEN["faulty"]
        if rows.table in g.get("rows", {}) and "profile" not in g  # which is another program
    ]

    def survives(mutant: Rows) -> bool:
        given = [mutant if one is rows else one for one in protocols.ROWS]
        program = Program(protocols.LAYERS, given, reassemblies=protocols.REASSEMBLIES)
        monkeypatch.setattr(capture, "compiled_program", lambda *_, **__: program)
        try:
            for golden in cases:
                check_rows(golden, read_golden(golden)[0])
        except AssertionError:
            return False
        return True

    assert survives(rows)
    assert not " ".join(f"{name};" for name, mutant in column_mutants(rows) if survives(mutant))
