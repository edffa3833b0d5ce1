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
from tests.parser.protocols.golden import GOLDEN, plain, read_golden

CLAIMS, _ = profile_claims(PROFILE)
Golden = dict[str, Any]


def wrong_columns(
    declared: Sequence[Rows], cases: Sequence[Golden], table: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Golden, set[str]]]:
    """The golden frames whose rows of the table are wrong when the product declares these rows, and in which columns.

    A wrong number of rows is wrong in the column "".
    """
    program = Program(protocols.LAYERS, declared, claims=CLAIMS, reassemblies=protocols.REASSEMBLIES)
    monkeypatch.setattr(capture, "compiled_program", lambda *_, **__: program)
    try:
        for golden in cases:
            found, wanted = read_golden(golden)[0].get(table, []), golden["rows"][table]
            pairs = [
                (row[column], want[column], column) for want, row in zip(wanted, found, strict=False) for column in want
            ]
            wrong = {column for value, want, column in pairs if plain(value) != want}
            if len(found) != len(wanted):
                wrong.add("")
            if wrong:
                yield golden, wrong
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
    declared = [one for one in protocols.ROWS if one.table == rows.table]  # nobody looks at other tables
    assert not list(wrong_columns(declared, cases, rows.table, monkeypatch))
    others = [one for one in declared if one is not rows]
    cases = [golden for golden, _ in wrong_columns(others, cases, rows.table, monkeypatch)]  # those with such a row
    survivors = []
    for names, mutant in column_mutants(rows):
        changed = [mutant if one is rows else one for one in declared]
        untold = dict(names)
        for _, wrong in wrong_columns(changed, cases, rows.table, monkeypatch):
            untold = {column: name for column, name in untold.items() if column not in wrong}
            if not untold:
                break
        survivors += untold.values()
    assert not survivors
