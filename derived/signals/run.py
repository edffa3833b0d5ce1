"""A run of `pcaplake signals`.

    take over   a transaction of each table makes this the newest run: no commit of an earlier run is possible any more
    begin       a table of another state loses its rows: all frames are decoded
    mark        the changed ids in state.json
    follow      what happened to the frames since the last run: new and changed ones, in batches. One transaction replaces
                and adds the rows of a batch and moves the position of its kind (follow.py)
    check       rows that other programs changed in the tables of this run are made again
    again       frames of changed ids are decoded again, and their rows are swapped in one transaction
    record      state.json and `signal_catalog` get the new definitions

The position is the number of a transaction in the same version as the rows. So a run that is killed leaves the rows of a batch
and its position, or neither, and files that no table references. `output.py` has the transactions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow.compute as pc

from pcaplake.common.errors import Fatal
from pcaplake.common.plain_text import counted
from pcaplake.common.runtime import Runtime
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.delta.errors import TransactionConflict
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.follow.position import Position
from pcaplake.lake.follow.table_files import TableFile
from pcaplake.lake.identity import refuse_lake_with_lock_table
from pcaplake.lake.store.store import Store
from pcaplake.signals.database import Databases
from pcaplake.signals.decoder import DecodedCounts
from pcaplake.signals.definitions import DefinitionChanges, DefinitionState, hash_wide_table
from pcaplake.signals.sources import TABLES, Source, described_sources
from pcaplake.signals.tables import SIGNALS, wide_table_name
from pcaplake.signals.wide import require_wide_messages

from .catalog_table import update_catalog
from .checks import Checks
from .conditions import ROW_COLUMNS, of_changed_frames, of_changed_rows
from .decode import SignalWriter
from .follow import Plan, Planner, Unit, columns_of_rows
from .frames import FrameTable
from .layout import LONG, Layout, wide_layout
from .output import Output
from .parts import Threads, Tools, Workers
from .state import OTHER_RUN, SignalState, StateFile, read_generation
from .unmatched import UnmatchedFrames, explain_unmatched


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """`wide`: messages with a table of their own. `batch_bytes`: of the files of frames that a batch reads. `threads`: decoder
    threads."""

    databases: Databases
    wide: tuple[str, ...] = ()
    threads: int = 1
    batch_bytes: int = 64 << 20


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a run has done so far. `read_bytes` of `total_bytes` of frames are decoded; each table reads them. `wide`: wide
    table -> its new rows. `missing`: tables of frames that the databases describe and that do not exist. `counts`: what
    the messages were."""

    read_bytes: int = 0
    total_bytes: int = 0
    batches: int = 0
    rows: int = 0
    wide: dict[str, int] = field(default_factory=dict)
    catalog_rows: int = 0
    decoded_again: int = 0
    missing: list[str] = field(default_factory=list)
    counts: DecodedCounts = field(default_factory=DecodedCounts)


class SignalsRun:
    """One run. `stop` may be called at any time: a batch that has begun is committed. Raises `DatabaseError` for wide messages
    that cannot have a table."""

    def __init__(
        self,
        store: Store,
        options: Options,
        *,
        runtime: Runtime | None = None,
        say: Callable[[str], None] = lambda text: None,
        log: LogStore | None = None,
        workers: Workers | None = None,
    ) -> None:
        """`log`: of a lake with a lock table. `workers`: by default, threads of this process."""
        require_wide_messages(options.databases, options.wide)
        self.tally = Tally(wide={wide_table_name(name): 0 for name in options.wide})
        self.stopped = asyncio.Event()
        self._store, self._options, self._say = store, options, say
        self._runtime = runtime or Runtime()
        self._has_lock_table, self._log = log is not None, log or LogStore(store, runtime=self._runtime)
        tools = Tools(store=store, databases=options.databases, runtime=self._runtime, on_read=self._count_read)
        self._writer = SignalWriter(tools, workers or Threads(tools, options.threads))
        self._long = self._output(LONG, "")
        self._wide: list[Output] = []
        self._tables: Mapping[Source, FrameTable] = {kind: FrameTable(store, kind) for kind in TABLES}
        self._planner = Planner(store, self._log, self._tables, options.batch_bytes)
        self._checks = Checks(
            self._log,
            self._planner,
            self._tables,
            decode=self._decode,
            runtime=self._runtime,
            say=say,
            stopped=self.stopped,
        )

    def _output(self, layout: Layout, state_id: str) -> Output:
        return Output(self._store, self._log, layout, state_id, self._writer)

    @property
    def version(self) -> int:
        """The last version of `signals` that this run has written."""
        return self._long.version

    def stop(self) -> None:
        self.stopped.set()

    async def run(self, every: float | None = None) -> None:
        """Decode what is new, then end, or look again every so many seconds.

        Raises `Fatal` if another program decodes the signals of the lake, if another run takes over, or if the log of a
        table lacks versions; what the store raises.
        """
        if not self._has_lock_table:
            await refuse_lake_with_lock_table(self._store)
        try:
            generation = await self._begin()
            while True:
                await self._follow()
                self._runtime.step("after signals.follow")
                if every is None or self.stopped.is_set():
                    return
                try:
                    await asyncio.wait_for(self.stopped.wait(), every)
                    return
                except TimeoutError:
                    pass
                if await read_generation(self._store, self._log) != generation:
                    self._say("the lake was overwritten: decoding all frames again")
                    generation = await self._begin()
        except TransactionConflict as error:
            raise Fatal(OTHER_RUN) from error

    # -- begin ----------------------------------------------------------------------------------------------------
    async def _begin(self) -> int:
        generation = await read_generation(self._store, self._log)
        file = StateFile(self._store, generation)
        claimed = await file.claim()
        self._runtime.step("after signals.claim")
        self._long = self._output(LONG, claimed.id)
        await self._long.take_over()
        state = await file.load()  # an earlier run may have written it until this one took over
        if (
            state is None
            # rule: a run that lost the state changes no row
            or state.id != claimed.id
        ):
            raise Fatal(OTHER_RUN)
        state = await self._take_over_wide_tables(file, state)
        for output in self._outputs:
            if not await output.has_begun():
                await self._begin_output(output, keep_rows=state.after_spark)
            self._runtime.step(f"after {output.layout.table}.begin")
        await self._update_definitions(file, state)
        return generation

    async def _take_over_wide_tables(self, file: StateFile, state: SignalState) -> SignalState:
        databases = self._options.databases
        hashes = {name: hash_wide_table(databases, name) for name in self._options.wide}
        new = state.with_wide_tables(hashes)
        if new != state:
            await file.save(new)
            self._runtime.step("after signals.wide")
        layouts = {name: wide_layout(databases, name) for name in hashes}
        self._wide = [self._output(layouts[name], new.wide_ids[name]) for name in hashes]
        for output in self._wide:
            await output.take_over()
        # rule: a run that lost the ids of wide tables changes no row
        if self._wide and await file.load() != new:
            raise Fatal(OTHER_RUN)
        return new

    async def _begin_output(self, output: Output, *, keep_rows: bool) -> None:
        """`signals` begins without rows, or keeps them until each day is decoded; a wide table until all frames are decoded."""
        captures = await self._planner.pin_captures(output)
        if output is self._long:
            await output.begin(captures, keep_rows=keep_rows)
            return
        (kind,) = output.layout.kinds
        table = self._tables[kind]
        newest, table_id = await self._log.read_version(table.table), await self._log.read_table_id(table.table)
        if newest < 0 or table_id is None:
            await output.begin(captures)
            return
        last = await self._planner.find_last(kind, Position(followed=0), newest)
        adds = await self._decode(output, kind, await table.list_live(last))
        position = await output.position_txns(kind, table_id, Position(followed=last + 1))
        await output.begin(captures, adds, position)

    @property
    def _outputs(self) -> list[Output]:
        return [self._long, *self._wide]

    async def _update_definitions(self, file: StateFile, state: SignalState) -> None:
        wide = state.definitions.wide
        new = replace(DefinitionState.from_databases(self._options.databases), wide=wide)
        changes = state.definitions.find_changes(new)
        if changes and await self._has_decoded_frames():
            self._say(f"{counted(changes.message_count, 'id')} changed: decoding their older frames again")
            # rule: definitions are marked before frames are decoded with other ones
            state = await file.save_definitions(state, state.definitions.with_pending_changes(changes))
            self._runtime.step("after signals.mark")
            await self._follow()
            if self.stopped.is_set():
                return
            self._runtime.step("after signals.drain")
            await self._decode_again(changes)
            self._runtime.step("after signals.swap")
        self.tally.catalog_rows += await update_catalog(self._store, self._log, self._options.databases, self._runtime)
        if state.definitions != new:
            await file.save_definitions(state, new)
        self._runtime.step("after signals.record")

    async def _has_decoded_frames(self) -> bool:
        """Whether `signals` has rows of older definitions, or would have some if another program had not removed them."""
        positions = [await self._planner.read_position(self._long, kind) for kind in TABLES]
        begun = any(one is not None and (one.followed > 0 or one.range is not None) for one in positions)
        return begun or bool((await self._long.read_snapshot()).files.live)

    async def explain_no_rows(self) -> UnmatchedFrames | None:
        """Why the table `signals` is empty; None if it is not, or if there are no frames."""
        snapshot = None if self.tally.rows else await self._log.read_snapshot(SIGNALS)
        if snapshot is None or snapshot.files.live:
            return None
        files: dict[Source, Sequence[TableFile]] = {
            kind: await self._tables[kind].list_live(position.followed - 1)
            for kind, position in self._long.positions.items()
            if position.followed > 0 and kind != "someip"  # whose unknown messages are in the tally
        }
        return explain_unmatched(await self._writer.count_frames(files), self._options.databases)

    # -- frames -------------------------------------------------------------------------------------------------------
    async def _follow(self) -> None:
        """Bring the tables up to date with the frames as they are now. An interrupt ends it after a batch."""
        again, whole = True, set[str]()
        while again and not self.stopped.is_set():
            again = False
            for plan in [plan for output in self._outputs for plan in await self._plan(output)]:
                again = again or plan.resumes
                whole |= {plan.output.layout.table} if plan.why else set()
                await self._execute(plan)
        for output in self._outputs:
            if not self.stopped.is_set():
                await self._checks.check(output, made_again=output.layout.table in whole)

    async def _plan(self, output: Output) -> list[Plan]:
        await self._planner.pin_captures(output)
        plans = {kind: await self._planner.plan(output, kind) for kind in output.layout.kinds}
        if output is self._long:
            described = described_sources(self._options.databases)
            self.tally.missing = [TABLES[kind] for kind, plan in plans.items() if plan is None and kind in described]
        found = [plan for plan in plans.values() if plan is not None]
        for plan in found:
            self._count_files([file for unit in plan.units for file in unit.files])
            if plan.waits and output is self._long:
                self._say(f"new frames of {TABLES[plan.kind]} wait until `captures` has their captures")
            if plan.why:
                self._say(f"{plan.why}: decoding all frames of {TABLES[plan.kind]} again, for {output.layout.table}")
        return found

    async def _execute(self, plan: Plan) -> None:
        for unit in plan.units:
            if self.stopped.is_set():
                return
            await self._execute_unit(plan, unit)
        # also if no version after the position changed a row: files of older versions may be gone
        plan.output.positions[plan.kind] = Position(followed=plan.until)

    async def _execute_unit(self, plan: Plan, unit: Unit) -> None:
        output, kind = plan.output, plan.kind
        adds = await self._decode_counted(output, kind, unit.files, unit.only)
        txns = [] if unit.then is None else await output.position_txns(kind, plan.table_id, unit.then)
        if unit.replaced is None:
            await output.add(adds, txns)
        else:
            self._runtime.step(f"before {output.layout.table}.replace {kind}")
            await output.replace(unit.replaced, columns_of_rows(output), adds, txns)
        self.tally.batches += bool(unit.files) and output is self._long
        self._runtime.step(f"after {output.layout.table}.commit {kind}")

    async def _decode(
        self, output: Output, kind: Source, files: Sequence[TableFile], only: pc.Expression | None = None
    ) -> Sequence[AddFile]:
        self._count_files(files)
        return await self._decode_counted(output, kind, files, only)

    async def _decode_counted(
        self, output: Output, kind: Source, files: Sequence[TableFile], only: pc.Expression | None
    ) -> Sequence[AddFile]:
        self._runtime.step(f"before {output.layout.table}.decode {kind}")
        decoded = await self._writer.decode_files(output.layout, kind, files, only)
        if output is self._long:  # wide tables read the same messages
            self.tally.counts.add(decoded.counts)
            self.tally.rows += decoded.rows
        else:
            self.tally.wide[output.layout.table] += decoded.rows
        self._runtime.step(f"after {output.layout.table}.decode {kind}")
        return decoded.adds

    # -- older frames ---------------------------------------------------------------------------------------------
    async def _decode_again(self, changes: DefinitionChanges) -> None:
        """Swap the rows of the changed ids for those that the new definitions give, of all frames up to the positions."""
        wanted, adds = None, list[AddFile]()
        for kind, position in self._long.positions.items():
            frames, rows = of_changed_frames(changes, kind), of_changed_rows(changes, kind)
            if frames is None or rows is None or position.followed <= 0:
                continue
            wanted = rows if wanted is None else wanted | rows
            files = await self._tables[kind].list_live(position.followed - 1)
            adds += await self._decode(self._long, kind, files, frames)
        if wanted is None:
            return
        self._runtime.step("before signals.swap")
        await self._long.replace(wanted, ROW_COLUMNS, adds)
        self.tally.decoded_again += changes.message_count

    def _count_files(self, files: Sequence[TableFile]) -> None:
        self.tally.total_bytes += sum(file.size for file in files)

    def _count_read(self, size: int) -> None:
        self.tally.read_bytes += size
