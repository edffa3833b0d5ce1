"""Messages that have a table of their own."""

from __future__ import annotations

from collections.abc import Collection

from .database import Databases
from .errors import DatabaseError
from .frames import messages_named
from .tables import wide_table_name


def require_wide_messages(databases: Databases, names: Collection[str]) -> None:
    """Raise `DatabaseError` if one of these messages cannot have a table of its own."""
    for name in names:
        messages = messages_named(databases, name)
        if not messages:
            raise DatabaseError(f"no database has a message {name!r}: remove it from --wide")
        if len(kinds := {message.kind for message in messages}) > 1:
            raise DatabaseError(
                f"{name!r} is a message of {' and of '.join(sorted(kinds))}, which cannot share a table: remove it from --wide"
            )
    if len({wide_table_name(name).lower() for name in names}) < len(names):  # file systems and engines may ignore case
        raise DatabaseError("two of the wide messages would have the same table: remove one of them")
