"""Which messages of a capture the signal databases describe, how often they are sent, and which frames no database describes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pcaplake.signals.compiled_signal import Ints
from pcaplake.signals.containers import ContainerCounts, find_contained
from pcaplake.signals.database import UNKNOWN_CHANNEL, Databases
from pcaplake.signals.frames import Payloads, group_by_id
from pcaplake.signals.model import CAN_CARRIERS, FLEXRAY_CYCLES, Kind, Message
from pcaplake.signals.someip.decoder import SERVICE_DISCOVERY_ID, group_by_message
from pcaplake.signals.someip.description import PayloadMessage
from pcaplake.signals.sources import TABLES, Source, described_sources

KINDS: Final[Mapping[str, Source]] = {table: kind for kind, table in TABLES.items()}
_NS_PER_MS = 1_000_000


class _Id(NamedTuple):
    """Of FlexRay, `number` is the slot; of SOME/IP, service id * 65,536 + method id. `definition`: "" if it is in no database.
    `container`: of a PDU in a container, the message that has the container; its id is that of the frame."""

    kind: Source
    bus: str | None
    extended: bool
    number: int
    definition: str
    container: str | None = None


@dataclass(slots=True)
class _Sent:
    """The frames of one id on one bus, or PDUs in containers. Times in ns; the frames of a bus are in the order of time."""

    message: Message | PayloadMessage | None
    frames: int = 0
    timed: int = 0
    first: int | None = None
    last: int | None = None
    longest_gap: int = 0

    def add(self, count: int, times: NDArray[np.int64]) -> None:
        self.frames += count
        self.timed += len(times)
        if not len(times):
            return
        if self.last is not None:
            times = np.concatenate([[self.last], times])
        elif self.first is None:
            self.first = int(times[0])
        self.last = int(times[-1])
        self.longest_gap = max(self.longest_gap, int(np.diff(times).max(initial=0)))


class KnownMessages:
    """Counts frames and messages of the kinds that the databases describe, but not remote frames, which have no signals."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._kinds = described_sources(databases)
        self._sent: dict[_Id, _Sent] = {}

    def add(self, kind: Source, frames: pa.RecordBatch) -> None:
        """Count a batch of a table of KINDS."""
        if kind not in self._kinds:
            return
        column = frames.column("ts_ns")
        times = column.fill_null(0).to_numpy(zero_copy_only=False)
        timed = column.is_valid().to_numpy(zero_copy_only=False)
        found: dict[_Id, list[Ints]] = defaultdict(list)
        for key, message, rows in (
            self._group_payloads(frames) if kind == "someip" else self._group_frames(kind, frames)
        ):
            self._sent.setdefault(key, _Sent(message))
            found[key].append(rows)
        for key, parts in found.items():
            rows = np.concatenate(parts)
            frames_once = np.unique(rows)  # a frame may have several PDUs of one kind, which were sent at one time
            self._sent[key].add(len(rows), times[frames_once[timed[frames_once]]])

    def _group_frames(self, kind: Kind, frames: pa.RecordBatch) -> Iterator[tuple[_Id, Message | None, Ints]]:
        payloads: Payloads | None = None
        for bus, extended, number, rows in group_by_id(kind, frames):
            network = self._databases.network_of_bus(bus)
            message = None if network is None else network.find_message(kind, number, extended)
            shown = number % UNKNOWN_CHANNEL // FLEXRAY_CYCLES if kind == "flexray" else number
            known = "" if message is None else message.definition_hash
            key = _Id(kind, bus, extended and kind in CAN_CARRIERS, shown, known)
            yield key, message, rows
            if message is not None and message.containers:
                payloads = payloads or Payloads(frames.column("payload"))
                for part, its_rows in _find_parts(message, payloads, rows):
                    yield key._replace(definition=part.definition_hash, container=message.name), part, its_rows

    def _group_payloads(self, frames: pa.RecordBatch) -> Iterator[tuple[_Id, PayloadMessage | None, Ints]]:
        for found, rows in group_by_message(frames):
            service, method, *_ = found
            message = self._databases.services.find_message(*found)
            if message is not None or service != SERVICE_DISCOVERY_ID:
                known = "" if message is None else message.definition_hash
                yield _Id("someip", None, False, service << 16 | method, known), message, rows

    def describe(self) -> dict[str, Any]:
        """As `--json` prints it: known messages, unknown ids, messages that were not sent, and what is not read."""
        messages, unknown = [], []
        for key, sent in self._sent.items():
            where = {
                "kind": key.kind,
                "bus": key.bus,
                "id": key.number,
                "extended": key.extended,
                "frames": sent.frames,
            }
            if sent.message is None:
                unknown.append(where)
            else:
                container = {"container": key.container}
                messages.append({"message": sent.message.name, **where, **container, **_cycle(sent, sent.message)})
        declared = {part.name for _, message in self._databases for part in message.parts}
        declared |= {one.name for one in self._databases.services}
        return {
            "known_frames": sum(one["frames"] for one in messages if one["container"] is None),
            "unknown_frames": sum(one["frames"] for one in unknown),
            "messages": sorted(messages, key=lambda one: (one["bus"] or "", one["kind"], one["id"], one["message"])),
            "unknown_ids": sorted(unknown, key=lambda one: -one["frames"]),
            "not_sent": sorted(declared - {one["message"] for one in messages}),
            "unreadable": self._databases.unreadable_declarations,
        }


def _find_parts(message: Message, payloads: Payloads, rows: Ints) -> Iterator[tuple[Message, Ints]]:
    """The PDUs in the containers of a message, and the rows that have them; a row may have several of one kind."""
    for container in message.containers:
        parts = dict(container.contained)
        found = find_contained(
            container, payloads.data, payloads.offsets[rows], payloads.lengths[rows], ContainerCounts()
        )
        for header_id, pdus in found:
            if header_id in parts:
                yield parts[header_id], rows[pdus.rows]


def _cycle(sent: _Sent, message: Message | PayloadMessage) -> dict[str, float | None]:
    """`cycle_ms`: the mean time between two frames; `longest_gap_ms`: the longest; `database_cycle_ms`."""
    several = sent.timed > 1
    span = (sent.last or 0) - (sent.first or 0)
    return {
        "cycle_ms": round(span / (sent.timed - 1) / _NS_PER_MS, 3) if several else None,
        "longest_gap_ms": round(sent.longest_gap / _NS_PER_MS, 3) if several else None,
        "database_cycle_ms": message.cycle_ms if isinstance(message, Message) else None,
    }
