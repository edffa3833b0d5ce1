"""Messages that have a table of their own: of frames, or of SOME/IP."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from .database import Databases
from .errors import DatabaseError
from .frames import messages_named
from .someip.wide import WidePayloads, payloads_named
from .sources import Source
from .tables import wide_schema, wide_table_name


def source_of_message(databases: Databases, name: str) -> Source:
    """Where the frames of a message are. The databases have it, as `require_wide_messages` says."""
    messages = messages_named(databases, name)
    return messages[0].wide_carrier if messages else "someip"


def wide_schema_named(databases: Databases, name: str) -> pa.Schema:
    """The columns of its table."""
    messages = messages_named(databases, name)
    return wide_schema(messages) if messages else WidePayloads(payloads_named(databases.services, name)).schema


def require_wide_messages(databases: Databases, names: Collection[str]) -> None:
    """Raise `DatabaseError` if one of these messages cannot have a table of its own."""
    for name in names:
        payloads = payloads_named(databases.services, name)
        kinds = {message.wide_carrier for message in messages_named(databases, name)} | (
            {"SOME/IP"} if payloads else set()
        )
        if not kinds:
            raise DatabaseError(f"no database has a message {name!r}: remove it from --wide")
        if len(kinds) > 1:
            raise DatabaseError(
                f"{name!r} is a message of {' and of '.join(sorted(kinds))}, which cannot share a table: remove it from --wide"
            )
        if len({message.message_type for message in payloads}) > 1:
            typed = " or ".join(sorted({message.typed_name for message in payloads}))
            raise DatabaseError(f"{name!r} has several types of messages, and each has a table: write {typed}")
        if payloads:
            WidePayloads(payloads)
    if len({wide_table_name(name).lower() for name in names}) < len(names):  # file systems and engines may ignore case
        raise DatabaseError("two of the wide messages would have the same table: remove one of them")
