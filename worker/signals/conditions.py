"""Conditions on frames, and on rows of `signals`. Each is true or false for every row, never null."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from operator import or_

import pyarrow.compute as pc

from pcaplake.signals.database import OTHERS
from pcaplake.signals.definitions import DefinitionChanges
from pcaplake.signals.j1939 import masked_identifier
from pcaplake.signals.model import BUSLESS, Kind, Message
from pcaplake.signals.sources import Source
from pcaplake.signals.tables import FRAME_IDS, ROW_IDS


def of_changed_frames(changes: DefinitionChanges, kind: Source) -> pc.Expression | None:
    """The frames of a source whose definitions changed; None: no definition changed."""
    return _of_methods(changes) if kind == "someip" else _of_ids(changes, kind, FRAME_IDS[kind])


def of_changed_rows(changes: DefinitionChanges, kind: Source) -> pc.Expression | None:
    """The rows of `signals` that those frames have."""
    return _of_methods(changes) if kind == "someip" else _of_ids(changes, kind, ROW_IDS[kind])


def of_messages(messages: Iterable[Message]) -> pc.Expression | None:
    """The frames that these messages of one kind may have; None: there are no messages."""
    return _any([_of_message(message) for message in messages])


def _of_message(message: Message) -> pc.Expression:
    if message.j1939:
        mask, bits = masked_identifier(message.keys[0][1])
        return pc.bit_wise_and(pc.field("can_id"), mask).isin([bits])
    return pc.field(FRAME_IDS[message.kind]).isin([message.id])


def _of_methods(changes: DefinitionChanges) -> pc.Expression | None:
    changed = changes.methods_by_service().items()
    return _any([pc.field("service_id").isin([service]) & pc.field("method_id").isin(ids) for service, ids in changed])


def _of_ids(changes: DefinitionChanges, kind: Kind, column: str) -> pc.Expression | None:
    parts = [(bus, pc.field(column).isin(numbers)) for bus, numbers in changes.numbers_by_bus(kind).items()]
    for bus, groups in changes.groups_by_bus().items() if kind == "can" else ():
        parts += [(bus, pc.bit_wise_and(pc.field(column), mask).isin(bits)) for mask, bits in groups.items()]
    return _any([part if kind in BUSLESS else _on_bus(changes, bus, part) for bus, part in parts])


def _on_bus(changes: DefinitionChanges, bus: str, part: pc.Expression) -> pc.Expression:
    if bus != OTHERS:
        return part & pc.field("bus").isin([bus])
    return part & ~pc.field("bus").isin(list(changes.named)) if changes.named else part


def _any(parts: list[pc.Expression]) -> pc.Expression | None:
    return reduce(or_, parts) if parts else None
