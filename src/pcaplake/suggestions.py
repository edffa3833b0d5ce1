"""What to write instead of a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def suggest_name(word: str, names: Collection[str]) -> str:
    """What to write instead of a word that is none of these names."""
    close = difflib.get_close_matches(word, sorted(names), 1)
    return f"did you mean {close[0]!r}?" if close else f"write one of: {', '.join(sorted(names))}"
