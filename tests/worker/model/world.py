"""What the processes of the model share, and everything that happens to it while they work.

Messages come twice, late or never, processes die, freeze or are stopped, others optimize, vacuum, clean up, block and
change tables, the lake is overwritten, captures vanish, days pass, the ledger is restored from an old copy.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any

from tests.worker.model.captures import BAD, NAMES, NUMBERS, ODD, Captures, Promises, upload
from tests.worker.model.processes import LoopClock, Processes, identity
from tests.worker.model.schedules import Schedule
from tests.worker.model.tables import DAY, Lakes, Tables
from worker.lake.identity import LAKE_JSON
from worker.lake.lake import rebuild
from worker.lake.ledger import Lease
from worker.lake.manifest import Manifest, manifest_path
from worker.testing import MemoryLedger
from worker.testing_arbiter import MemoryArbiter
from worker.testing_queue import MemoryQueue

EPOCH = 1_800_000_000.0
TENDER = (
    *(f"ledger.{name}" for name in ("stage ", "captures", "mark", "unstage", "flag", "advance")),
    *(f"store.put_if_absent {name}/" for name in ("_pcaplake/batches", *(f"{t}/_delta_log" for t in NUMBERS))),
    *(f"store.get {LAKE_JSON}", "queue.delete", "queue.send", "bucket.read", "thread", "arbiter.put"),
)  # requests between which a fault can hurt; the others are mostly looks
LAYOUTS = (["all", "all", "committer"], ["worker", "worker", "committer", "committer", "committer"])


class World:
    """`strict` names what the model does not look away from: see STRICT in test_fleet_model.py."""

    def __init__(self, seed: int, strict: Collection[str] = ()) -> None:
        self.rng = rng = random.Random(seed)
        random.seed(seed)  # back-off and heartbeats
        self.schedule = Schedule(
            rng,
            tender=TENDER,
            event=self._event,
            on_death=lambda number: self.processes.died(number),
            fault_rate=rng.choice([0.0, 0.03, 0.1, 0.3]),
            event_rate=rng.choice([0.0, 0.005, 0.015]),
            landing_rate=rng.choice([0.1, 0.01, 0.001]),
        )
        self.loop, self.strict = self.schedule.loop, strict
        self.store, self.ledger = Lakes(self.now), MemoryLedger()
        self.arbiter = MemoryArbiter(clock=self.now) if rng.random() < 0.5 else None
        self.tables = Tables(list(NUMBERS), self.store, self.arbiter, rng, self.now)
        self.redrives = rng.random() < 0.5
        self.queue = MemoryQueue(
            LoopClock(self.loop),
            visibility_timeout=rng.choice([1.0, 4.0, 15.0]),
            max_receives=4 if self.redrives else None,
        )
        self.captures = Captures()
        self.promises = Promises(
            self.captures, self.queue, lambda: self.generation, self._wrong, strict="generation" in strict
        )
        self.processes = Processes(
            self.schedule,
            roles=rng.choice(LAYOUTS),
            store=self.store,
            ledger=self.ledger,
            arbiter=self.arbiter,
            queue=self.queue,
            bucket=self.captures.bucket,
            promises=self.promises,
            now=self.now,
        )
        self.restored = False
        self.retypes = rng.random() < 0.3  # a batch that fits only a changed column would wait for ever: not both
        self._process = 0
        self._forgets = rng.random() < 0.5
        self._copy = copied(self.ledger.shared)
        self._events = self._kinds(rng.random() < 0.3)
        self._leases = random.Random(f"leases of {seed}")  # of its own: what is drawn here moves nothing else
        self._many_leaders = seed % 10 == 3 and self._leases.random() < 0.9

    def now(self) -> float:
        return EPOCH + self.loop.now

    @property
    def generation(self) -> int:
        return identity(self.store).generation

    def _wrong(self, what: str) -> None:
        self.schedule.broken.append(AssertionError(what))

    def manifests(self, first: int, last: int | None = None) -> list[Manifest]:
        """Those from `first` on that there are, up to `last`."""
        found: list[Manifest] = []
        while last is None or first + len(found) <= last:
            raw = self.store.objects.get(manifest_path(first + len(found)))
            if raw is None:
                break
            found.append(Manifest.from_json(raw[0]))
        return found

    # -- events ---------------------------------------------------------------------------------------------------
    def _kinds(self, long_life: bool) -> list[Callable[[], None]]:
        """Each as often as it is to happen."""
        tables = self.tables
        often = [self.freeze, self.kill, self.stop, self.repeat, self.expose, self.upload]
        seldom = [
            self.redrive, self.reconcile, self.overwrite, self.overwrite, self.vanish, self.save, self.restore,
            tables.optimize, tables.block, tables.mend, tables.clean_up, *([tables.retype] if self.retypes else []),
        ]  # fmt: skip
        java = [tables.read, tables.append, tables.step, tables.step] if self.arbiter is not None else []
        ages = [self.days_pass, self.days_pass, self.days_pass, self.lose_files] if long_life else []
        return often * 3 + seldom * 2 + java * 3 + ages * 3

    def _event(self, process: int) -> None:
        """Something happens, just before a request of this process or of nobody's (0)."""
        kind = self.rng.choice(self._events)
        self._process = process if process in self.processes.alive else self.processes.some()
        self.schedule.tell(kind.__name__, kind.__name__)
        kind()
        self.forget()
        if self._many_leaders and self._leases.random() < 0.4:
            self.schedule.tell("lose_lease", "lose_lease")
            self.lose_lease()

    def lose_lease(self) -> None:
        """Nobody holds it any more: who leads goes on until it hears of that, and the next one begins."""
        self.ledger.shared.lease = Lease(beat=self.ledger.shared.lease.beat + 1)

    def freeze(self) -> None:
        if self._process:
            self.schedule.freeze(self._process, self.rng.choice([20, 100, 500]))

    def kill(self) -> None:
        if self._process:
            self.processes.kill(self._process)

    def stop(self) -> None:
        """SIGTERM."""
        if self._process:
            self.processes.alive[self._process][1].stop()

    def upload(self) -> None:
        odd = [ODD] if self.rng.random() < 0.2 and not self.retypes else []
        upload(self.rng, self.captures, self.queue, [*NAMES, BAD, *odd])

    def repeat(self) -> None:
        """An old notification comes again."""
        if self.captures.bodies:
            self.queue.put(self.rng.choice(list(self.captures.bodies.values())), self.rng.choice([0.0, 2.0]))

    def expose(self) -> None:
        """A message that somebody works on is delivered to somebody else, too."""
        messages = list(self.queue._messages.values())
        if messages:
            self.rng.choice(messages).visible_at = self.loop.now

    def redrive(self) -> None:
        self.queue.redrive()

    def reconcile(self) -> None:
        """Everything that is in the bucket and not in the ledger is announced (again)."""
        known = {one for generation, one in self.ledger.shared.captures if generation == self.generation}
        for one in self.captures.there:
            if one not in known:
                self.promises.forget(one)
                self.queue.put(self.captures.bodies[one])

    def vanish(self) -> None:
        if there := self.captures.there:
            self.captures.vanish(self.rng.choice(there))

    def overwrite(self) -> None:
        if self.generation < 2:
            self.store.write(LAKE_JSON, replace(identity(self.store), generation=self.generation + 1).to_json())

    def days_pass(self) -> None:
        self._end_commits()
        self.loop.now += self.rng.choice([0.5, 1.5, 3.0, 6.0]) * DAY
        self.tables.expire()
        self.tables.vacuum(7.0, 1.0)

    def lose_files(self) -> None:
        """A VACUUM of less than 7 days."""
        self._end_commits()
        self.tables.vacuum(1.01, 0.5)

    def _end_commits(self) -> None:
        """Whoever is between looking at old files and its commit dies: that window is known to be open."""
        self.processes.kill(*[number for number, count in self.processes.in_commit.items() if count])
        self.schedule.late = [(point, effect) for point, effect in self.schedule.late if "_delta_log" not in point]

    def forget(self) -> None:
        """Items of stages that are in every table expire, as soon as they may or never."""
        for manifest in self.manifests(0, self.ledger.shared.head) if self._forgets else ():
            for stage in manifest.stages:
                self.ledger.shared.stages.pop((stage.generation, stage.stage_id), None)

    def save(self) -> None:
        """Somebody copies the ledger."""
        self._copy = copied(self.ledger.shared)

    def restore(self) -> None:
        """The copy is put in place of the ledger; `rebuild` follows.

        Whoever only stages may live on meanwhile, and somebody may be so impatient as to announce everything again.
        """
        self.processes.kill(*[number for number, (role, _) in self.processes.alive.items() if role != "worker"])
        self.schedule.land()
        for name, value in vars_of(copied(self._copy)).items():
            if name not in ("identity", "lake_id"):
                setattr(self.ledger.shared, name, value)
        self.restored = True
        for body in self.captures.bodies.values() if self.rng.random() < 0.8 else ():
            self.queue.put(body)

    async def rebuild(self) -> None:
        """What the manifests know is put into the ledger, and what nobody knows is announced again."""
        await rebuild(self.store, self.ledger)
        self.restored = False
        self.reconcile()

    def put_back(self) -> None:
        """Files whose captures are gone, too: without them the tables would wait for ever."""
        for manifest in self.manifests(self.ledger.shared.head + 1):
            for stage in manifest.stages:
                ids = [each.capture_id for each in stage.captures]
                for table, adds in stage.adds.items() if self.captures.uncertain.intersection(ids) else ():
                    rows = [(one, number) for one in ids for number in sorted(self.captures.numbers(one, table))]
                    for add in adds:
                        if f"{table}/{add.path}" not in self.store.objects:
                            self.store.write(f"{table}/{add.path}", json.dumps(rows).encode())


def vars_of(shared: Any) -> dict[str, Any]:
    return {field.name: getattr(shared, field.name) for field in fields(shared)}


def copied(shared: Any) -> Any:
    """A ledger's content, of which nothing changes any more."""
    return type(shared)(
        **{n: dict(value) if isinstance(value, dict) else value for n, value in vars_of(shared).items()}
    )
