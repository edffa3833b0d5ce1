"""Adapters in memory, of equal rank with the real ones, and the places where a fault can be put.

`MemoryStore` and `MemoryLedger` pass the suites of their ports. Every operation of theirs goes through a `Faults`: one
can make it fail, lose its answer, or let its process die before or after it. `crash_at` kills a real process at a step.
Nothing here reads the environment, and nothing outside the tests needs it.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Literal, TypeVar

from .errors import Fatal, OutcomeUnknown, Retryable
from .lake.ledger import COMMITTED, STAGED, CaptureItem, Lease, LedgerLost, StageItem, taken
from .lake.manifest import Capture, Manifest, Stage
from .lake.store import Buffer, Listing, ObjectMeta, Store, Upload, checked

T = TypeVar("T")
Kind = Literal["error", "lost", "dead before", "dead after"]


class Killed(BaseException):
    """The process is dead here; no `except Exception` may live on."""


class Faults:
    """Named points: `store.get a/b`, `ledger.stage s1`; patterns are the shell's. Without rules nothing ever fails."""

    def __init__(self) -> None:
        self.waiting: list[tuple[str, Kind]] = []
        self.seen: list[str] = []

    def at(self, pattern: str, kind: Kind, times: int = 1) -> None:
        """The next `times` points that match: `error` nothing happens, `lost` it happens and the answer is lost."""
        self.waiting += [(pattern, kind)] * times

    async def around(self, point: str, effect: Callable[[], T]) -> T:
        """Carry out `effect`, which never awaits, as one step that others see whole or not at all."""
        self.seen.append(point)
        rule = next((rule for rule in self.waiting if fnmatchcase(point, rule[0])), None)
        if rule is not None:
            self.waiting.remove(rule)
        return fail(point, rule and rule[1], effect)


def fail(point: str, kind: Kind | None, effect: Callable[[], T]) -> T:
    """One operation with a fault of this kind, or with none."""
    if kind == "error":
        raise Retryable(f"injected: {point} did not happen")
    if kind == "dead before":
        raise Killed(point)
    answer = effect()
    if kind == "lost":
        raise OutcomeUnknown(f"injected: the answer to {point} is lost")
    if kind == "dead after":
        raise Killed(point)
    return answer


def crash_at(where: str) -> Callable[[str], None]:
    """A `step` for `Lake` that kills this process (SIGKILL) at a step, as `before commit.3a` or `after stage.5`.

    `where` may end in ` #3`: the third time. A step with a subject, as `after commit.4 packets`, is also met by its
    name alone. ValueError when it does not begin with `before` or `after`.
    """
    name, _, times = where.partition(" #")
    if name.split(" ")[0] not in ("before", "after"):
        raise ValueError(f"{where!r}: write `before <step>` or `after <step>`")
    left = int(times or 1)

    def step(here: str) -> None:
        nonlocal left
        if here == name or here.startswith(f"{name} "):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return step


class MemoryStore(Store):
    """A `Store` in a dict; `clock` gives the store's time, epoch seconds, and may be moved by a test."""

    def __init__(self, faults: Faults | None = None, clock: Callable[[], float] = lambda: 0.0) -> None:
        self.uri = "memory:///test"
        self.options = {}
        self.objects: dict[str, tuple[bytes, ObjectMeta]] = {}
        self._faults = faults or Faults()
        self._clock = clock
        self._writes = 0

    def as_process(self, faults: Faults) -> MemoryStore:
        """The same objects, seen by a process that has faults of its own."""
        other = MemoryStore(faults, self._clock)
        other.objects = self.objects
        return other

    def write(self, path: str, data: bytes) -> ObjectMeta:
        """Put at once, past all faults."""
        before = self.objects.get(checked(path))
        version = 0 if before is None else int(before[1].etag or 0) + 1
        modified = datetime.fromtimestamp(self._clock(), UTC)
        meta = ObjectMeta(path=path, size=len(data), etag=str(version), last_modified=modified)
        self.objects[path] = (bytes(data), meta)
        return meta

    async def put_if_absent(self, path: str, data: bytes) -> bool:
        def effect() -> bool:
            if path in self.objects:
                return False
            self.write(path, data)
            return True

        return await self._faults.around(f"store.put_if_absent {checked(path)}", effect)

    async def put(self, path: str, data: bytes) -> None:
        await self._faults.around(f"store.put {path}", lambda: self.write(path, data))

    async def replace(self, path: str, data: bytes, etag: str) -> bool:
        def effect() -> bool:
            if path not in self.objects or self.objects[path][1].etag != etag:
                return False
            self.write(path, data)
            return True

        return await self._faults.around(f"store.replace {checked(path)}", effect)

    async def get(self, path: str) -> tuple[bytes, ObjectMeta] | None:
        return await self._faults.around(f"store.get {checked(path)}", lambda: self.objects.get(path))

    async def get_range(self, path: str, start: int, length: int) -> bytes:
        found = await self.get(path)
        if found is None:
            raise FileNotFoundError(path)
        return found[0][start : start + length]

    async def head(self, path: str) -> ObjectMeta | None:
        def effect() -> ObjectMeta | None:
            found = self.objects.get(checked(path))
            return None if found is None else found[1]

        return await self._faults.around(f"store.head {path}", effect)

    async def list(self, prefix: str, start_after: str | None = None) -> Listing:
        folder = prefix.rstrip("/") + "/" if prefix.rstrip("/") else ""

        def effect() -> Listing:
            names = sorted(path for path in self.objects if path.startswith(folder) and path > (start_after or ""))
            return [self.objects[path][1] for path in names]

        return await self._faults.around(f"store.list {prefix}", effect)

    async def folders(self) -> tuple[str, ...]:
        return tuple(sorted({path.partition("/")[0] for path in self.objects if "/" in path}))

    async def delete(self, path: str) -> None:
        await self._faults.around(f"store.delete {checked(path)}", lambda: self.objects.pop(path, None))

    def upload(self, path: str) -> Upload:
        return _MemoryUpload(self, checked(path))


class _MemoryUpload:
    def __init__(self, store: MemoryStore, path: str) -> None:
        self._store, self._path, self._data = store, path, bytearray()

    def write(self, data: Buffer) -> None:
        self._data += data

    def finish(self) -> ObjectMeta:
        if self._path in self._store.objects:
            raise Fatal(f"{self._path} exists already; a file is written once, under a name of its own")
        return self._store.write(self._path, bytes(self._data))

    def abort(self) -> None:
        self._data.clear()


@dataclass(slots=True)
class _Ledger:
    """What all processes see."""

    identity: str = "memory"
    lake_id: str | None = None
    captures: dict[tuple[int, str], CaptureItem] = field(default_factory=dict)
    stages: dict[tuple[int, str], StageItem] = field(default_factory=dict)
    pending: dict[tuple[int, str], None] = field(default_factory=dict)  # in the order of staging
    held: dict[tuple[int, str], str] = field(default_factory=dict)
    head: int = -1
    marked: int = -1
    lease: Lease = field(default_factory=Lease)


class MemoryLedger:
    """The ledger in dicts. `as_process` gives another process its own view, with its own faults."""

    kind = "memory"
    name = "memory"

    def __init__(self, faults: Faults | None = None, shared: _Ledger | None = None) -> None:
        self._faults = faults or Faults()
        self.shared = shared or _Ledger()

    def as_process(self, faults: Faults) -> MemoryLedger:
        return MemoryLedger(faults, self.shared)

    async def _do(self, point: str, effect: Callable[[], T]) -> T:
        return await self._faults.around(f"ledger.{point}", effect)

    async def identity(self) -> str:
        return await self._do("identity", lambda: self.shared.identity)

    async def bind(self, lake_id: str) -> str:
        def effect() -> str:
            self.shared.lake_id = self.shared.lake_id or lake_id
            return self.shared.lake_id

        return await self._do("bind", effect)

    async def captures(self, generation: int, capture_ids: Collection[str]) -> dict[str, CaptureItem]:
        def effect() -> dict[str, CaptureItem]:
            found = {one: self.shared.captures.get((generation, one)) for one in capture_ids}
            return {one: item for one, item in found.items() if item is not None}

        return await self._do("captures", effect)

    def _holders(self, stage: Stage) -> dict[str, str]:
        found = {c.capture_id: self.shared.captures.get((stage.generation, c.capture_id)) for c in stage.captures}
        return {one: item.stage_id for one, item in found.items() if item is not None}

    async def stage(self, stage: Stage) -> dict[str, str]:
        key = (stage.generation, stage.stage_id)

        def effect() -> dict[str, str]:
            known, holders = key in self.shared.stages, self._holders(stage)
            others = taken(stage, holders, known=known)
            if not known and not holders:  # its own captures are there when the item of the stage has expired
                self.shared.stages[key] = StageItem(stage=stage)
                self.shared.pending[key] = None
                self._put_captures(stage, stage.captures)
            return others

        return await self._do(f"stage {stage.stage_id}", effect)

    def _put_captures(self, stage: Stage, captures: Collection[Capture]) -> None:
        for capture in captures:
            item = CaptureItem(capture=capture, stage_id=stage.stage_id, state=STAGED)
            self.shared.captures[stage.generation, capture.capture_id] = item

    async def pending(self, generation: int, limit: int) -> list[str]:
        return await self._do("pending", lambda: [one for g, one in self.shared.pending if g == generation][:limit])

    async def stages(self, generation: int, stage_ids: Collection[str]) -> dict[str, StageItem]:
        def effect() -> dict[str, StageItem]:
            found = {one: self.shared.stages.get((generation, one)) for one in stage_ids}
            return {one: item for one, item in found.items() if item is not None}

        return await self._do("stages", effect)

    def _unpend(self, generation: int, stage_ids: Collection[str]) -> None:
        for one in stage_ids:
            self.shared.pending.pop((generation, one), None)

    async def unpend(self, generation: int, stage_ids: Collection[str]) -> None:
        await self._do("unpend", lambda: self._unpend(generation, stage_ids))

    async def hold(self, generation: int, stage_id: str, reason: str) -> bool:
        def effect() -> bool:
            item = self.shared.stages.get((generation, stage_id))
            if item is None or item.batch is not None:
                return False
            self._unpend(generation, [stage_id])
            self.shared.held[generation, stage_id] = reason
            return True

        return await self._do(f"hold {stage_id}", effect)

    async def held(self, generation: int) -> dict[str, str]:
        return await self._do(
            "held", lambda: {one: why for (g, one), why in self.shared.held.items() if g == generation}
        )

    async def release(self, generation: int) -> None:
        def effect() -> None:
            for key in [key for key in self.shared.held if key[0] == generation]:
                del self.shared.held[key]
                self.shared.pending.setdefault(key)

        await self._do("release", effect)

    async def mark(self, manifest: Manifest, *, rebuild: bool = False) -> None:
        def effect() -> None:
            live = rebuild or manifest.batch > self.shared.head
            stages = (*manifest.stages, *manifest.returned)
            known = [stage for stage in stages if (stage.generation, stage.stage_id) in self.shared.stages]
            if live and not rebuild and len(known) < len(stages):
                raise LedgerLost(manifest.batch, next(stage.stage_id for stage in stages if stage not in known))
            for stage in stages if rebuild else known:
                key = (stage.generation, stage.stage_id)
                self.shared.stages[key] = replace(
                    self.shared.stages.get(key, StageItem(stage=stage)), batch=manifest.batch
                )
            for stage in manifest.stages if live else ():
                self._reclaim(stage)
            self.shared.marked = max(manifest.batch, self.shared.marked)

        await self._do(f"mark {manifest.batch}", effect)

    def _reclaim(self, stage: Stage) -> None:
        holders = self._holders(stage)
        foreign = [c for c in stage.captures if holders.get(c.capture_id) != stage.stage_id]
        for capture in foreign:
            other = (stage.generation, holders.get(capture.capture_id, ""))
            if other in self.shared.stages:
                self.shared.stages[other] = replace(self.shared.stages[other], displaced=True)
        self._put_captures(stage, foreign)

    async def marked(self) -> int:
        return await self._do("marked", lambda: self.shared.marked)

    async def unstage(self, manifest: Manifest) -> list[Capture]:
        def effect() -> list[Capture]:
            free: list[Capture] = []
            for stage in manifest.returned:
                for one, holder in self._holders(stage).items():
                    if holder == stage.stage_id:
                        del self.shared.captures[stage.generation, one]
                holders = self._holders(stage)
                free += [c for c in stage.captures if c.capture_id not in holders]
            return free

        return await self._do(f"unstage {manifest.batch}", effect)

    async def flag(self, manifest: Manifest) -> None:
        def effect() -> None:
            for stage in manifest.stages:
                for capture in stage.captures:
                    key = (stage.generation, capture.capture_id)
                    item = self.shared.captures.get(key)
                    if item is not None and item.stage_id == stage.stage_id:
                        self.shared.captures[key] = replace(item, state=COMMITTED, batch=manifest.batch)
            for stage in (*manifest.stages, *manifest.returned):
                self._unpend(stage.generation, [stage.stage_id])
                if (key := (stage.generation, stage.stage_id)) in self.shared.stages:
                    self.shared.stages[key] = replace(self.shared.stages[key], stage=None)

        await self._do(f"flag {manifest.batch}", effect)

    async def head(self) -> int:
        return await self._do("head", lambda: self.shared.head)

    async def advance(self, batch: int) -> bool:
        def effect() -> bool:
            moved = self.shared.head == batch - 1
            self.shared.head = batch if moved else self.shared.head
            return moved

        return await self._do(f"advance {batch}", effect)

    async def lease(self) -> Lease:
        return await self._do("lease", lambda: self.shared.lease)

    async def take(self, seen: Lease, owner: str) -> bool:
        def effect() -> bool:
            if self.shared.lease != seen:
                return False
            self.shared.lease = Lease(owner=owner, beat=seen.beat + 1)
            return True

        return await self._do("take", effect)

    async def close(self) -> None:
        """Nothing to close."""


def counted(points: list[str]) -> Counter[str]:
    """How often each kind of operation was carried out: the first word of its point."""
    return Counter(point.split(" ")[0] for point in points)
