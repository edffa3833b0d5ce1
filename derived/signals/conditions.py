"""Conditions on frames, and on rows of `signals`. Each is true or false for every row, never null."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import Final

import pyarrow.compute as pc

from pcaplake.signals.database import OTHERS, Databases
from pcaplake.signals.definitions import DefinitionChanges, group_by_service
from pcaplake.signals.frames import messages_named
from pcaplake.signals.j1939 import masked_group, masked_identifier
from pcaplake.signals.model import BUSLESS, CAN_CARRIERS, Kind, Message
from pcaplake.signals.someip.wide import payloads_named
from pcaplake.signals.sources import Source
from pcaplake.signals.tables import FRAME_IDS, ROW_IDS

ROW_COLUMNS: Final = tuple(dict.fromkeys(("bus", "service_id", "method_id", "tp_packets", *ROW_IDS.values())))
"""The columns of `signals` that conditions may have."""


def of_changed_frames(changes: DefinitionChanges, kind: Source) -> pc.Expression | None:
    """The frames of a source whose definitions changed; None: no definition changed."""
    return _of_methods(changes.methods_by_service()) if kind == "someip" else _of_ids(changes, kind, FRAME_IDS[kind])


def of_changed_rows(changes: DefinitionChanges, kind: Source) -> pc.Expression | None:
    """The rows of `signals` that those frames have."""
    if kind == "someip":
        return _of_methods(changes.methods_by_service())
    rows = _of_ids(changes, kind, ROW_IDS[kind])
    # rows of frames and of messages of several frames are replaced apart, because they share `can_id`
    return rows if rows is None or kind not in CAN_CARRIERS else rows & _of_carrier(kind)


def of_source(kind: Source) -> pc.Expression:
    """The rows of `signals` that come from a source."""
    if kind == "someip":
        return pc.field("service_id").is_valid()
    if kind == "j1939":
        return pc.field("tp_packets").is_valid()
    rows = pc.field(ROW_IDS[kind]).is_valid()
    return rows & _of_carrier(kind) if kind in CAN_CARRIERS else rows


def of_wide_table(databases: Databases, name: str) -> pc.Expression | None:
    """The frames that a message with a table of its own may have; None: there is no such message."""
    if payloads := payloads_named(databases.services, name):
        return _of_methods(group_by_service((message.service_id, message.method_id) for message in payloads))
    return _any([_of_message(message) for message in messages_named(databases, name)])


def _of_carrier(kind: Kind) -> pc.Expression:
    # not `is_null`: deltalake leaves out files that are older than the column then
    of_frames = pc.coalesce(pc.field("tp_packets").cast("int64"), -1).isin([-1])
    return ~of_frames if kind == "j1939" else of_frames


def _of_message(message: Message) -> pc.Expression:
    if message.j1939:
        key = message.keys[0][1]
        if message.wide_carrier == "j1939":
            return _masked("pgn", *masked_group(key))
        return _masked("can_id", *masked_identifier(key))
    return pc.field(FRAME_IDS[message.kind]).isin([message.id])


def _masked(column: str, mask: int, *bits: int) -> pc.Expression:
    return pc.bit_wise_and(pc.field(column).cast("int64"), mask).isin(list(bits))


def _of_methods(methods: Mapping[int, list[int]]) -> pc.Expression | None:
    return _any(
        [pc.field("service_id").isin([service]) & pc.field("method_id").isin(ids) for service, ids in methods.items()]
    )


def _of_ids(changes: DefinitionChanges, kind: Kind, column: str) -> pc.Expression | None:
    parts = [(bus, pc.field(column).isin(numbers)) for bus, numbers in changes.numbers_by_bus(kind).items()]
    for bus, groups in changes.groups_by_bus(column).items() if kind in CAN_CARRIERS else ():
        parts += [(bus, _masked(column, mask, *bits)) for mask, bits in groups.items()]
    return _any([part if kind in BUSLESS else _on_bus(changes, bus, part) for bus, part in parts])


def _on_bus(changes: DefinitionChanges, bus: str, part: pc.Expression) -> pc.Expression:
    if bus != OTHERS:
        return part & pc.field("bus").isin([bus])
    return part & ~pc.field("bus").isin(list(changes.named)) if changes.named else part


def _any(parts: list[pc.Expression]) -> pc.Expression | None:
    return reduce(or_, parts) if parts else None
