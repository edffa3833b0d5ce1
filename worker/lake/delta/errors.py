"""Why one table cannot be written while the others can."""

from __future__ import annotations

from worker.errors import Retryable


class TableBlocked(Retryable):
    """Somebody made this table one that we may not write. It works again after what the message says was done."""


class SchemaConflict(Retryable):
    """These rows do not fit this table; the message names table, column and both types."""
