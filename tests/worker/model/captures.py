"""Captures of the model: a bucket of lines of text, how they are read, and what was promised about them.

A line is `name number tables...`: the version of an object, and the tables in which it leaves rows. A promise is a
message that was deleted: from then on nobody announces its captures again, so they must be safe. Also watched is what a
process does before: nothing is fetched that the ledger was not asked about, and nothing twice at once.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any, BinaryIO

import pyarrow as pa

from pcaplake.ingest.captures.objects import Content
from pcaplake.ingest.captures.reference import capture_from_reference
from pcaplake.ingest.pipeline import Reader
from pcaplake.lake.delta.schema import to_delta_struct
from pcaplake.lake.records import Capture
from pcaplake.lake.staging.window import Window
from pcaplake.parser import CaptureError, Summary
from pcaplake.worker.service.notification import BadNotification, parse_notification
from tests.worker.adapters.queue import MemoryBucket, MemoryQueue
from tests.worker.model.schedules import PROCESS
from tests.worker.model.tables import SCHEMA

NUMBERS = {"captures": (0,), "packets": (1, 2, 3), "frames": (4, 5)}  # table -> numbers of a capture's rows
SCHEMAS = dict.fromkeys(NUMBERS, SCHEMA)
RETYPED = to_delta_struct(pa.schema([("capture_id", pa.string()), ("date", pa.date32()), ("packet_no", pa.string())]))
LARGE = 200  # bytes
NAMES = {"a": "captures packets frames", "b": "captures packets", "c": "captures frames", "d": "captures packets " * 12}
BAD = "bad"  # is no capture: quarantined
ODD = "odd"  # its rows have a type that the tables have not: held
SUMMARY = Summary(
    format="text", compression=None, sections=1, interfaces=(), link_types=(), packets=0, bytes=0, first_ts_ns=None,
    last_ts_ns=None, truncated=False, faults={}, rows={}, regions=(),
)  # fmt: skip


def tables_of(line: bytes) -> set[str]:
    return set(line.decode().split()[2:])


def captures_of(body: str) -> list[str]:
    """The ids of what a message announces."""
    try:
        return [capture_from_reference(ref).capture_id for ref in parse_notification(body).objects]
    except BadNotification:
        return []


def owed(body: str) -> set[str]:
    """The ids of what a message says that a lake has lost."""
    try:
        return {
            capture_from_reference(ref).capture_id
            for ref in parse_notification(body).objects
            if ref.owed_to is not None
        }
    except BadNotification:
        return set()


@cache
def rows(capture_id: str, table: str) -> pa.RecordBatch:
    numbers = NUMBERS[table]
    columns = [[capture_id] * len(numbers), [date(2026, 1, 1)] * len(numbers), numbers]
    return pa.RecordBatch.from_arrays([pa.array(each) for each in columns], names=SCHEMA.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class LineReader(Reader):
    """Reads a line, and writes the rows of its tables."""

    def read(
        self, file: BinaryIO, capture: Capture, window: Window, on_batch: Callable[[int], None] = lambda rows: None
    ) -> Summary | CaptureError:
        window.begin(capture)
        line = file.read()
        assert len(line) == capture.size
        on_batch(0)
        for table in sorted(tables_of(line) & set(self.tables)):
            window.write(table, rows(capture.capture_id, table))
        bad = line.decode().startswith(BAD)
        window.end("quarantined" if bad else "ok", str(self.profile))
        return CaptureError("unknown_format", "it is bad") if bad else SUMMARY


class Captures:
    """What was uploaded, by capture_id. `uncertain`: the object is gone, the capture may come into the tables or not."""

    def __init__(self) -> None:
        self.bucket = MemoryBucket("raw")
        self.bodies: dict[str, str] = {}
        self.lines: dict[str, bytes] = {}
        self.uncertain: set[str] = set()
        self._deleted: dict[str, list[tuple[Content, bytes]]] = {}  # key -> versions
        self.odd: set[str] = set()

    def key(self, capture_id: str) -> str:
        return self.lines[capture_id].decode().split()[0]

    @property
    def there(self) -> list[str]:
        return sorted(self.bodies.keys() - self.uncertain)

    def put(self, name: str) -> str:
        """A new version of an object -> the message that S3 sends. Versions of before stay, for who asks for them."""
        before = sum(self.key(one) == name for one in self.lines)
        line = f"{name} {before} {NAMES.get(name, 'captures')}".encode()
        body = self.bucket.put_object(name, line)
        (one,) = captures_of(body)
        self.bodies[one], self.lines[one] = body, line
        if name == ODD:
            self.odd.add(one)
        return body

    def vanish(self, capture_id: str) -> None:
        """The object is deleted, with all its versions."""
        key = self.key(capture_id)
        self.uncertain.update(one for one in self.lines if self.key(one) == key)
        self._deleted[key] = [*self._deleted.get(key, []), *self.bucket.versions.get(key, [])]
        self.bucket.delete_object(key)

    def bring_back(self, capture_id: str) -> None:
        """Somebody puts the object back from a backup, with all the versions that it had."""
        key = self.key(capture_id)
        self.bucket.versions[key] = [*self._deleted.pop(key, []), *self.bucket.versions.get(key, [])]

    def numbers(self, capture_id: str, table: str) -> set[int]:
        """The rows that a table must have of it."""
        return set(NUMBERS[table]) if table in tables_of(self.lines[capture_id]) else set()


class Promises:
    """`kept`: capture_id -> the generation of the lake in which it is safe. `wrong` is told what nobody may do.

    Deleting a message promises each of its captures, in the generation in which the last of them was known to be safe:
    whoever deletes it reads the generation again after that. `generation`: the lake's, as it truly is.
    `strict` False: in the generation in which the process asked about it, for as long as it does not read it again.
    """

    def __init__(
        self,
        captures: Captures,
        queue: MemoryQueue,
        generation: Callable[[], int],
        wrong: Callable[[str], None],
        *,
        strict: bool,
    ) -> None:
        self.kept: dict[str, int] = {}
        self._captures, self._queue, self._generation, self._wrong = captures, queue, generation, wrong
        self._strict = strict
        self._safe: dict[tuple[int, str], int] = {}  # process and capture -> when it was told that somebody has it
        self._nobody: defaultdict[int, set[str]] = defaultdict(set)  # process -> what it was told that nobody has
        self._reading: set[tuple[int, str]] = set()

    def forget(self, capture_id: str) -> None:
        """It is announced again."""
        self.kept.pop(capture_id, None)

    def found(self, generation: int, asked: Collection[str], found: Collection[str]) -> None:
        """The ledger answered a question."""
        self._tell(found, generation)
        self._nobody[PROCESS.get()].update(set(asked) - set(found))

    def handing_over(self, capture_ids: Collection[str]) -> None:
        """Whoever wants to read them again must ask before."""
        self._nobody[PROCESS.get()].difference_update(capture_ids)

    def staged(self, generation: int, capture_ids: Collection[str], taken: Collection[str]) -> None:
        """The ledger answered a stage; some captures were taken by others."""
        self._tell(capture_ids, generation if taken else self._generation())

    def _tell(self, capture_ids: Collection[str], asked: int) -> None:
        for one in capture_ids:
            self._safe[PROCESS.get(), one] = self._generation() if self._strict else asked

    def begin(self, capture_id: str) -> None:
        key = PROCESS.get(), capture_id
        if key in self._reading:
            self._wrong(f"process {key[0]} reads {self._captures.key(capture_id)} twice at once")
        self._reading.add(key)

    def end(self, capture_id: str) -> None:
        self._reading.discard((PROCESS.get(), capture_id))

    def around(self, point: str, effect: Callable[[], Any]) -> Callable[[], Any]:
        """What a service asks of queue and bucket."""
        process, (operation, _, subject) = PROCESS.get(), point.partition(" ")
        if operation == "queue.delete":
            return lambda: self._deleting(process, subject, effect)
        key = subject.partition(" ")[0]
        if operation == "bucket.read" and not any(self._captures.key(one) == key for one in self._nobody[process]):
            self._wrong(f"process {process} fetches {key}, and did not ask the ledger")
        return effect

    def _deleting(self, process: int, message_id: str, effect: Callable[[], Any]) -> Any:
        messages = self._queue._messages
        before = messages.get(message_id)
        answer = effect()
        if before is not None and message_id not in messages:
            ids = captures_of(before.body)
            safe = {one: self._safe.get((process, one), self._generation()) for one in ids}
            for one in ids:
                generation = max(safe.values()) if self._strict else safe[one]
                self.kept[one] = max(self.kept.get(one, generation), generation)
        return answer


def upload(rng: random.Random, captures: Captures, queue: MemoryQueue, names: list[str]) -> None:
    """One or two captures, new or of known names, and their notification: once, twice, late, never, with an old one."""
    bodies = [captures.put(name) for name in rng.sample(names, rng.choice([1, 1, 2]))]
    if rng.random() < 0.2:
        return
    if rng.random() < 0.2:
        bodies.append(rng.choice(list(captures.bodies.values())))
    body = json.dumps({"Records": [record for each in bodies for record in json.loads(each)["Records"]]})
    for _ in range(rng.choice([1, 2])):
        queue.put_message(body, rng.choice([0.0, 0.0, 1.0]))
