"""The error of this package."""

from __future__ import annotations


class DatabaseError(ValueError):
    """A signal database, or the file that assigns databases to buses, cannot be used. The message says what to do."""
