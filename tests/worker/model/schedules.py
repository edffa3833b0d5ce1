"""Random schedules: an event loop with virtual time, on which a seed decides whose request is carried out next.

Every request of a process, and every call in a thread of its own, is a gate: it waits until the seed opens it, and may
then fail, lose its answer, land late, or be the process's last. A process is what a task of its own and all that it
begins do (`PROCESS`); one that is dead or frozen does nothing at all from that moment on, its timers included.
Knows nothing of lakes and queues.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from pcaplake.common.errors import OutcomeUnknown, PcaplakeError, Retryable
from tests.worker.adapters.faults import Faults

T = TypeVar("T")
PROCESS: ContextVar[int] = ContextVar("process", default=0)  # 0: the world itself, which neither fails nor waits
MOST_PICKS = 60_000
KINDS = ("error", "lost", "late", "dead before", "dead after")


class Loop(asyncio.BaseEventLoop):
    """Time is virtual. When nobody can run, `open_one` opens a gate; when it has none, the next timer comes."""

    def __init__(self, open_one: Callable[[], bool]) -> None:
        super().__init__()
        self.now = 0.0
        self.dead: set[int] = set()
        self.frozen: dict[int, int] = {}  # process -> the pick that thaws it
        self._parked: list[asyncio.Handle] = []
        self._open_one = open_one
        self.thread: Callable[[Callable[[], Any]], asyncio.Future[Any]]
        self.set_exception_handler(lambda loop, context: None)  # whoever awaits a task is told

    def time(self) -> float:
        return self.now

    def thaw(self, *processes: int) -> None:
        for process in processes:
            self.frozen.pop(process, None)
        parked, self._parked = self._parked, []
        self._ready.extend(parked)  # type: ignore[attr-defined]

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled  # type: ignore[attr-defined]
        while ready:
            handle = ready.popleft()
            process = handle._context.get(PROCESS, 0)
            if process in self.dead or process in self.frozen:
                self._parked.append(handle)
            elif not handle._cancelled:
                handle._run()
            if self._stopping:  # type: ignore[attr-defined]
                return
        while timers and (timers[0]._cancelled or timers[0]._context.get(PROCESS, 0) in self.dead):
            timer = heapq.heappop(timers)
            timer._scheduled = False
            self._parked.append(timer)
        due = bool(timers) and timers[0]._when <= self.now
        if due or not self._open_one():
            if not timers:
                raise AssertionError("nobody can go on, and nothing will ever come")
            timer = heapq.heappop(timers)
            timer._scheduled = False
            self.now = max(self.now, timer._when)
            ready.append(timer)

    def _process_events(self, event_list: object) -> None: ...

    def _write_to_self(self) -> None: ...

    def run_in_executor(self, executor: object, func: Callable[..., T], *args: Any) -> Any:
        return self.thread(lambda: func(*args))


class Schedule:
    """Gates and who opens them. `fault_rate`: of requests that `tender` says matter; of others a tenth.

    `event` is called between two requests, at `event_rate`, and more often before those that matter, with the process
    whose request it would be; `on_death` when a
    process dies, whoever killed it. `landing_rate`: between two requests, one that is late lands.
    """

    def __init__(
        self,
        rng: random.Random,
        *,
        tender: tuple[str, ...],
        event: Callable[[int], None],
        on_death: Callable[[int], None],
        fault_rate: float,
        event_rate: float,
        landing_rate: float,
    ) -> None:
        self.rng, self._tender, self._event, self._on_death = rng, tender, event, on_death
        self._fault_rate, self._event_rate, self._landing_rate = fault_rate, event_rate, landing_rate
        self.loop = Loop(self._open_one)
        self.loop.thread = self._thread
        self.late: list[tuple[str, Callable[[], object]]] = []
        self.calm = self._closing = False
        self.picks = 0
        self.broken: list[Exception] = []  # what must not be, said by whoever cannot raise it where it matters
        self.history: list[str] = []
        self.counts: Counter[str] = Counter()
        self._gates: list[tuple[int, str, asyncio.Future[str | None]]] = []
        self._graves: list[asyncio.Future[Any]] = []  # what the dead wait for: nobody else would keep them

    def tell(self, what: str, kind: str) -> None:
        self.history.append(f"{self.picks} {self.loop.now:.2f} {what}")
        self.counts[kind] += 1

    def kill(self, process: int) -> None:
        self.loop.dead.add(process)
        self.loop.frozen.pop(process, None)
        self._graves += [gate for owner, _, gate in self._gates if owner == process]
        self._gates = [gate for gate in self._gates if gate[0] != process]
        self._on_death(process)

    def freeze(self, process: int, picks: int) -> None:
        if process not in self.loop.dead:
            self.loop.frozen[process] = self.picks + picks

    def land(self) -> None:
        """Everything that is still on its way is carried out."""
        while self.late:
            self._land_one()

    def _land_one(self) -> None:
        with suppress(PcaplakeError):  # nobody hears it
            self.late.pop(self.rng.randrange(len(self.late)))[1]()

    # -- gates ----------------------------------------------------------------------------------------------------
    def _gate(self, point: str) -> asyncio.Future[str | None]:
        future: asyncio.Future[str | None] = self.loop.create_future()
        if self._closing:
            future.cancel()
        else:
            self._gates.append((PROCESS.get(), point, future))
        return future

    async def request(self, point: str, effect: Callable[[], T]) -> T:
        """One request of the process that asks: `effect` as one step, with what the seed adds to it."""
        kind = await self._gate(point)
        if kind == "error":
            raise Retryable(f"injected: {point} did not happen")
        if kind == "late":
            self.late.append((point, effect))
        if kind not in ("late", "dead before"):
            answer = effect()
            if kind is None:
                return answer
        if kind in ("dead before", "dead after"):
            self.kill(PROCESS.get())
            self._graves.append(self.loop.create_future())
            await self._graves[-1]
        raise OutcomeUnknown(f"injected: the answer to {point} is lost")

    def _thread(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """A thread goes on when nobody waits for it any more; what it reads and writes may fail."""
        done: asyncio.Future[T] = self.loop.create_future()

        def run(opened: asyncio.Future[str | None]) -> None:
            kind = None if opened.cancelled() else opened.result()
            error: Exception | None = None
            if kind in ("dead before", "late"):
                self.kill(PROCESS.get())
            elif kind == "error" or opened.cancelled():
                error = Retryable("injected: it did not begin")
            else:
                try:
                    answer = call()
                except Exception as raised:  # noqa: BLE001 -- it belongs to whoever awaits the call
                    error = raised
                if kind == "dead after":
                    self.kill(PROCESS.get())
                elif kind == "lost":
                    error = Retryable("injected: it failed at its end")
            if PROCESS.get() in self.loop.dead or done.done():
                return
            if error is None:
                done.set_result(answer)
            else:
                done.set_exception(error)

        self._gate("thread").add_done_callback(run)
        return done

    def _open_one(self) -> bool:
        self.picks += 1
        if self.broken and not self._closing:
            raise self.broken[0]
        if self.picks > MOST_PICKS:
            raise AssertionError("it never ends")
        loop, rng = self.loop, self.rng
        if not self.calm and rng.random() < self._event_rate:
            self._event(0)
        if self.late and rng.random() < self._landing_rate:
            self._land_one()
        thawing = [process for process, until in loop.frozen.items() if until <= self.picks]
        if thawing:
            loop.thaw(*thawing)
            return True
        ready = [gate for gate in self._gates if gate[0] not in loop.frozen and not gate[2].done()]
        if not ready:
            return False
        loop.now += rng.random() * 0.02
        gate = rng.choice(ready)
        process, point, future = gate
        tender = point.startswith(self._tender)
        kind = None
        if not self.calm and process:
            if tender and rng.random() < self._event_rate * 10:
                self._event(process)
                return True  # the event may have been the end of that very process
            if rng.random() < (self._fault_rate if tender else self._fault_rate / 10):
                kind = rng.choice(KINDS)
                self.tell(f"{process} {point}: {kind}", kind)
        self._gates.remove(gate)
        future.set_result(kind)
        return True

    # -- a whole schedule -----------------------------------------------------------------------------------------
    def run(self, story: Coroutine[Any, Any, None]) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(story)
        finally:
            self._end()
            asyncio.set_event_loop(None)
            self.loop.close()

    def _end(self) -> None:
        """No task is left behind, whatever it waits for: nothing may be told about it in another test."""
        self._closing = self.calm = True
        self.loop.dead.clear()
        self.loop.thaw(*self.loop.frozen)
        for _ in range(100):
            for gate in [*self._graves, *(gate for _, _, gate in self._gates)]:
                gate.cancel()
            left = asyncio.all_tasks(self.loop)
            if not left:
                break
            for task in left:
                task.cancel()
            self.loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())


class Gates(Faults):
    """The faults of a process: each of its requests waits for its gate. `around` may put something around an effect."""

    def __init__(
        self, schedule: Schedule, wrap: Callable[[str, Callable[[], Any]], Callable[[], Any]] = lambda _, effect: effect
    ) -> None:
        super().__init__()
        self._schedule, self._wrap = schedule, wrap

    async def run_with_faults(self, point: str, effect: Callable[[], T]) -> T:
        return await self._schedule.request(point, self._wrap(point, effect))
