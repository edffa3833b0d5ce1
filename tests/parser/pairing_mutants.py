"""Mutants of the pairing of responses with requests (tests/mutants.py); tests/parser/protocols/test_diagnostics.py kills them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import numpy as np

from pcaplake.parser.engine.open_requests import OpenRequests
from tests.mutants import ALWAYS, NEVER, Argument, Becomes, Mutant, Operation, Through


def _everywhere(left: Any, right: Any) -> Any:
    return left == left


MUTANTS: Mapping[str, Mutant] = {
    "a response of another interface has a request": Mutant(
        OpenRequests.match,
        "messages of two interfaces, or of two buses, have nothing in common",
        Through(lambda common: common[1:] * 2),
    ),
    "a request to a group has one receiver": Mutant(
        OpenRequests.match,
        "a request to a group has no receiver",
        Argument(lambda keys: [(*key, "nobody") for key in keys]),
    ),
    "a response goes the way of its request": Mutant(
        OpenRequests.match,
        "a response goes the way of its request back",
        Argument(np.zeros_like),
    ),
    "a pending response closes the request": Mutant(
        OpenRequests.match, "a pending response keeps the request open", NEVER
    ),
    "every response keeps the request open": Mutant(
        OpenRequests.match, "a pending response keeps the request open", ALWAYS
    ),
    "a group responds once": Mutant(OpenRequests.match, "a group may respond more than once", ALWAYS),
    "a latency may be negative": Mutant(
        OpenRequests.match, "a clock may go backwards", Operation(_everywhere, ast.GtE)
    ),
    "requests are open without end": Mutant(OpenRequests._add, "open requests are bounded", Becomes(())),
    "a late response has a request": Mutant(OpenRequests._find, "a late response belongs to no request", NEVER),
}
