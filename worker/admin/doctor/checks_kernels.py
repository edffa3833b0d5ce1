"""Whether the compiled kernels of this installation are those of its protocols."""

from __future__ import annotations

from collections.abc import Sequence

from pcaplake.parser import Profile
from pcaplake.parser.capture.programs import compiled_program
from pcaplake.parser.capture.reader import DECODED
from pcaplake.parser.engine.specialize import specialized_walk
from pcaplake.parser.errors import KernelsNotBuilt
from pcaplake.worker.admin.case import Case

from .findings import Finding, error, ok, warning

_BUILD = "in a checkout run `make setup`, else install pcaplake from a wheel again"


async def check_kernels(case: Case) -> Sequence[Finding]:
    """Whether the compiled kernels can run. The finding is the same for all lakes: an installation has one set of kernels."""
    try:
        walk = specialized_walk(compiled_program(Profile(), DECODED))
    except KernelsNotBuilt as reason:
        return [error(str(reason), _BUILD)]
    if walk is None:
        what = "the protocols have changed since the kernels were compiled: captures are read with slower code, to the same rows"
        return [warning(what, _BUILD)]
    return [ok("the compiled kernels are those of the protocols")]
