"""What the processes of the model share, and everything that happens to it while they work.

Messages come twice, late or never, processes die, freeze or are stopped, others optimize, vacuum, clean up, block and
change tables, the lake is overwritten, captures vanish, days pass, the ledger is restored from an old copy, a rollout
replaces all processes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

from pcaplake.common.errors import Fatal
from pcaplake.lake.commit.rebuild_ledger import rebuild_from_manifests
from pcaplake.lake.identity import LAKE_JSON, Identity
from pcaplake.lake.ledger import COMMITTED, Lease
from pcaplake.lake.records import Manifest, manifest_path
from pcaplake.lake.store.store import ObjectMeta
from tests.worker.adapters.lock_table import MemoryLockTable
from tests.worker.adapters.memory_ledger import MemoryLedger
from tests.worker.adapters.queue import MemoryQueue
from tests.worker.model.captures import BAD, NAMES, NUMBERS, ODD, Captures, Promises, owed, upload
from tests.worker.model.copies import Copy
from tests.worker.model.harms import Harms
from tests.worker.model.overwrites import Overwrites
from tests.worker.model.processes import KNOBS, LoopClock, Processes, identity
from tests.worker.model.rollouts import Rollouts
from tests.worker.model.schedules import Schedule
from tests.worker.model.tables import DAY, Lakes, Tables

from .processes import Shared

EPOCH = 1_800_000_000.0
TENDER = (
    *(f"ledger.{name}" for name in ("stage ", "captures", "mark", "unstage", "flag", "advance")),
    *(f"store.put_if_absent {name}/" for name in ("_pcaplake/batches", *(f"{t}/_delta_log" for t in NUMBERS))),
    *(f"store.get {LAKE_JSON}", "queue.delete", "queue.send", "bucket.read", "thread", "lock_table.put"),
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
        self.lock_table = MemoryLockTable(clock=self.now) if rng.random() < 0.5 else None
        self.tables = Tables(list(NUMBERS), self.store, self.lock_table, rng, self.now)
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
            shared=Shared(
                store=self.store,
                ledger=self.ledger,
                lock_table=self.lock_table,
                queue=self.queue,
                bucket=self.captures.bucket,
            ),
            promises=self.promises,
            now=self.now,
            excused=self._excused,
        )
        self.restored = False
        records = seed % 10 in (8, 9)  # overwrites as this version makes them: no file may be lost before they open
        # a batch that fits only a changed column would wait for ever: not both
        self.retypes = rng.random() < 0.3 and not records
        self._process = 0
        self._forgets = rng.random() < 0.5
        self._copy = copied(self.ledger.shared)
        self._events = self._kinds(rng.random() < 0.3 and not records)
        self._leases = random.Random(f"leases of {seed}")  # of its own: what is drawn here moves nothing else
        self._slow = random.Random(f"VACUUM of {seed}")
        self._listed: list[str] = []  # what a VACUUM has yet to delete
        self.owed: set[tuple[int, str]] = set()  # generation and capture: gone, and its rows must come all the same
        self._many_leaders = seed % 10 == 3 and self._leases.random() < 0.9
        self.harms_rng = random.Random(f"harms of {seed}")  # so is this
        self._harms = Harms(self.tables, self.lock_table, self.harms_rng)
        self._are_harmed = seed % 10 in (5, 6, 7)
        self._rows_rng = random.Random(f"rows of {seed}")
        self._lose_rows = seed % 11 == 5
        self.overwrites = Overwrites(self, seed, recorded=records)
        self.rollouts = Rollouts(self, seed, KNOBS) if seed % 10 in (2, 4) else None
        self._older: tuple[bytes, ObjectMeta] | None = None  # lake.json before the last overwrite
        self._newest: tuple[bytes, ObjectMeta] | None = None  # what it is, while an older copy is in its place
        self._was_rolled_back = False
        self._copied: Copy | None = None

    def now(self) -> float:
        return EPOCH + self.loop.now

    @property
    def generation(self) -> int:
        """As it truly is."""
        return (Identity.from_json(self._newest[0]) if self._newest else identity(self.store)).generation

    def _excused(self, error: Exception) -> bool:
        """Whoever reads an older lake.json ends, and says so."""
        return isinstance(error, Fatal) and self._was_rolled_back and "lake.json was restored" in str(error)

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
        java = [tables.read, self.append, tables.step, tables.step] if self.lock_table is not None else []
        ages = [self.days_pass, self.days_pass, self.days_pass, self.lose_files] if long_life else []
        return often * 3 + seldom * 2 + java * 3 + ages * 3

    def _event(self, process: int) -> None:
        """Something happens, just before a request of this process or of nobody's (0)."""
        kind = self.rng.choice(self._events)
        self._process = process if process in self.processes.alive else self.processes.some()
        self.schedule.tell(kind.__name__, kind.__name__)
        kind()
        self.forget()
        if self._listed and self._slow.random() < 0.3:
            self.end_vacuum()
        if self._many_leaders and self._leases.random() < 0.4:
            self.schedule.tell("lose_lease", "lose_lease")
            self.lose_lease()
        self.harm()
        if self.rollouts is not None and self._slow.random() < 0.2:
            self.schedule.tell("roll_out", "roll_out")
            self.rollouts.begin()
            self.processes.release = self.rollouts.release

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
            self.queue.put_message(self.rng.choice(list(self.captures.bodies.values())), self.rng.choice([0.0, 2.0]))

    def expose(self) -> None:
        """A message that somebody works on is delivered to somebody else, too."""
        messages = list(self.queue._messages.values())
        if messages:
            self.rng.choice(messages).visible_at = self.loop.now

    def redrive(self) -> None:
        self.queue.redrive_dead_letters()

    def reconcile(self) -> None:
        """Everything that is in the bucket and not in the ledger is announced (again)."""
        known = {one for generation, one in self.ledger.shared.captures if generation == self.generation}
        for one in self.captures.there:
            if one not in known:
                self.promises.forget(one)
                self.queue.put_message(self.captures.bodies[one])

    def vanish(self) -> None:
        """What is staged then, with all its files, is not lost by that."""
        if there := self.captures.there:
            before = set(self.captures.uncertain)
            self.captures.vanish(self.rng.choice(there))
            if not self.restored:
                self.owed |= {(self.generation, one) for one in self.captures.uncertain - before if self._safe(one)}

    def _safe(self, capture_id: str) -> bool:
        shared, generation = self.ledger.shared, self.generation
        item = shared.captures.get((generation, capture_id))
        stage = None if item is None else shared.stages.get((generation, item.stage_id))
        if item is None or stage is None or stage.stage is None:
            return item is not None and item.state == COMMITTED
        return not stage.displaced and all(path in self.store.objects for path in stage.stage.file_paths)

    def overwrite(self) -> None:
        if self._newest is None:
            self._older = self.overwrites.happen() or self._older

    def days_pass(self) -> None:
        self._end_commits()
        self.loop.now += self.rng.choice([0.5, 1.5, 3.0, 6.0]) * DAY
        self.tables.expire()
        self.end_vacuum()
        if self._slow.random() < 0.5:
            self._listed = self.tables.unneeded(7.0)
        else:
            self._lose(self.tables.vacuum(7.0, 1.0))

    def end_vacuum(self) -> None:
        """It deletes what it has found at its beginning, whatever was committed meanwhile."""
        self._lose(self.tables.delete(self._listed))
        self._listed = []

    def lose_files(self) -> None:
        """A VACUUM of less than 7 days."""
        self._end_commits()
        self._lose(self.tables.vacuum(1.01, 0.5))

    def _lose(self, paths: Collection[str]) -> None:
        """Stages that wait for these files may have nothing else any more."""
        for item in self.ledger.shared.stages.values():
            if item.stage is not None and not {*item.stage.file_paths}.isdisjoint(paths):
                self.owed -= {(item.stage.generation, one.capture_id) for one in item.stage.captures}

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
        self.tables.stop_others()
        if self._newest is not None or any(map(self._is_untold, self.tables.names)):
            return
        all_stop = self.overwrites.recorded
        self.processes.kill(
            *[number for number, (role, _) in self.processes.alive.items() if role != "worker" or all_stop]
        )
        self.processes.kill_overwrites()
        self.schedule.land()
        for name, value in vars_of(copied(self._copy)).items():
            if name not in ("identity", "lake_id"):
                setattr(self.ledger.shared, name, value)
        self.restored = True
        self.owed.clear()
        for body in self.captures.bodies.values() if self.rng.random() < 0.8 else ():
            self.queue.put_message(body)

    def _is_untold(self, table: str) -> bool:
        """Others have put rows into it and no batch of ours is in: a rebuild ends with an error rather than guess."""
        told = any("txn" in action for version in self.tables.log(table) for action in version)
        return bool(self.tables.live(table)) and not told

    def append(self) -> None:
        if not self.restored:
            self.tables.append()

    def harm(self) -> None:
        if self._lose_rows and self._rows_rng.random() < 0.2:
            kind = self._rows_rng.choice([self.tables.lose_rows, self.tables.lose_rows, self.tables.give_rows_back])
            self.schedule.tell(kind.__name__, kind.__name__)
            kind()
        if not self._are_harmed or self.harms_rng.random() < 0.5:
            return
        table = [self.drop_table, self.roll_back_table, self.roll_back_table]
        kind = self.harms_rng.choice([*table, *[self.roll_back_lake_json] * 3, self.copy_lake])
        soon = self.ledger.shared.head < 0 and self.harms_rng.random() < 0.9  # nothing to be lost yet
        if not self.restored and not soon and kind():
            self.schedule.tell(kind.__name__, kind.__name__)

    def drop_table(self) -> bool:
        self._end_commits()
        return self._harms.drop()

    def roll_back_table(self) -> bool:
        self._end_commits()
        last: dict[str, int] = {}
        for manifest in self.manifests(0, self.ledger.shared.head):
            last |= dict.fromkeys({*manifest.written_tables, *(last if manifest.opens else ())}, manifest.batch)
        return self._harms.roll_back(last)

    def roll_back_lake_json(self) -> bool:
        """Its time is another, its eTag is what it was."""
        known = self.ledger.shared.enrolled
        used = any(generation == self.generation for generation, _ in self.ledger.shared.captures)
        seen = known is not None and known.generation == self.generation  # else nobody has seen what is rolled back
        if self._older is None or self._newest is not None or not (used and seen):
            return False
        self._newest, self._was_rolled_back = self.store.objects[LAKE_JSON], True
        self._put_lake_json(self._older)
        return True

    def _put_lake_json(self, found: tuple[bytes, ObjectMeta]) -> None:
        data, meta = found
        self.store.objects[LAKE_JSON] = data, replace(meta, last_modified=datetime.fromtimestamp(self.now(), UTC))

    def put_back_what_was_harmed(self) -> None:
        self._harms.put_back()
        self.tables.give_rows_back()
        if self._newest is not None:
            self._put_lake_json(self._newest)
            self._newest = None

    def copy_lake(self) -> bool:
        """As it is at this moment, to another place."""
        harmed = self._newest is not None or self.tables.set_back or len(self.tables.names) < len(NUMBERS)
        if self._copied is not None or harmed or any(map(self._is_untold, self.tables.names)):
            return False
        self._copied = Copy(self)
        return True

    async def use_copy(self) -> None:
        """Of it is made a lake of its own, and something is ingested there."""
        copy, self._copied = self._copied, None
        if copy is not None:
            await copy.use()

    async def rebuild(self) -> None:
        """What the manifests know is put into the ledger, and what nobody knows is announced again."""
        await rebuild_from_manifests(self.store, self.ledger)
        self.restored = False
        self.reconcile()

    def put_back(self) -> None:
        """Files whose captures are gone, too: without them the tables would wait for ever.

        So would the message of a capture that was given back and is gone: somebody takes it away. A stage that shares a
        capture with a batch is not committed, so the captures that only it has are put back themselves.
        """
        for message_id, message in list(self.queue._messages.items()):
            if owed(message.body) & self.captures.uncertain:
                del self.queue._messages[message_id]
        shared = self.ledger.shared
        items = [shared.stages[key] for key in shared.held if key in shared.stages]
        for item in items:
            for one in item.stage.captures if item.displaced and item.stage is not None else ():
                if one.capture_id in self.captures.uncertain:
                    self.captures.bring_back(one.capture_id)
        held = [item.stage for item in items]
        waiting = [manifest.stages for manifest in self.manifests(shared.head + 1)]
        for stages in (*waiting, [stage for stage in held if stage is not None]):
            for stage in stages:
                ids = [each.capture_id for each in stage.captures]
                for table, adds in stage.adds.items() if self.captures.uncertain.intersection(ids) else ():
                    rows = [(one, number) for one in ids for number in sorted(self.captures.numbers(one, table))]
                    for add in adds:
                        if f"{table}/{add.path}" not in self.store.objects:
                            self.store.put_past_faults(f"{table}/{add.path}", json.dumps(rows).encode())


def vars_of(shared: Any) -> dict[str, Any]:
    return {field.name: getattr(shared, field.name) for field in fields(shared)}


def copied(shared: Any) -> Any:
    """A ledger's content, of which nothing changes any more."""
    return type(shared)(
        **{n: dict(value) if isinstance(value, dict) else value for n, value in vars_of(shared).items()}
    )
