"""Compiled programs, and the working memory that they keep for the next capture."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

from pcaplake.parser import protocols
from pcaplake.parser.engine.layer import Rows
from pcaplake.parser.engine.program import Program
from pcaplake.parser.errors import CannotCompile
from pcaplake.parser.profile import Profile
from pcaplake.parser.schemas import TABLES

from .claims import profile_claims

MAX_PROGRAMS = 64  # compiled programs to keep
WARM_PROGRAMS = 4  # of those that were used last, which keep their working memory

_PROGRAMS: OrderedDict[Any, Program] = OrderedDict()  # the one that was used last is the last
_PROGRAMS_LOCK = threading.Lock()


def require_tables(rows: Iterable[Rows]) -> None:
    """Raises CannotCompile if one of the rows is of a table that has no schema: it would not be decoded."""
    if unknown := sorted({each.table for each in rows} - TABLES.keys()):
        raise CannotCompile(f"no schema for rows of {', '.join(unknown)}: add the table to TABLES in parser/schemas.py")


require_tables(protocols.ROWS)


def compiled_program(profile: Profile, tables: Sequence[str]) -> Program:
    """The compiled program for the keys that a profile claims and a choice of tables; cached."""
    tables = [table for table in tables if table != "faults"]  # every program finds faults
    ports = tuple(sorted(profile.udp_ports.items())), tuple(sorted(profile.tcp_ports.items()))
    key = (*ports, profile.can_identifiers, profile.can_protocols, profile.isotp, tuple(tables))
    with _PROGRAMS_LOCK:
        program = _PROGRAMS.get(key)
        if program is None:
            program = _PROGRAMS[key] = _compile_program(profile, tables)
        _PROGRAMS.move_to_end(key)
        if len(_PROGRAMS) > MAX_PROGRAMS:
            _PROGRAMS.popitem(last=False)
        for unused in [*_PROGRAMS.values()][:-WARM_PROGRAMS]:
            unused.kept.clear()
    return program


def _compile_program(profile: Profile, tables: Sequence[str]) -> Program:
    claims, partners = profile_claims(profile)
    # what rows teach is learned whether or not they are read
    rows = [rows for rows in protocols.ROWS if rows.table in tables or rows.learned is not None]
    program = Program(
        protocols.LAYERS,
        rows,
        claims=claims,
        reassemblies=protocols.REASSEMBLIES,
        partners=partners,
    )
    if len(rows) == len(protocols.ROWS):  # the program of all tables, for which a walk is compiled
        program.frequent = tuple(number for layer, number in program.number.items() if layer.name in protocols.FREQUENT)
    return program


def release_memory() -> None:
    """Free the working memory that is kept for the next capture. The next one allocates it again."""
    with _PROGRAMS_LOCK:
        for program in _PROGRAMS.values():
            program.kept.clear()
