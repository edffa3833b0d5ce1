"""Names and texts as Spark SQL spells them."""

from __future__ import annotations


def delta_table(path: str) -> str:
    """A Delta table as Spark SQL names it by its path."""
    return "delta.`" + path.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """A string literal. `$` is escaped because Spark substitutes `${x}` by a variable, also within quotation marks."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"
