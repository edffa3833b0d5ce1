"""Requests that an ordinary message never makes go wrong in every way: what is old, held, large, overwritten, cleaned up.

Each is made for real: the lake is brought to where it makes the request, again and again, until the request has gone
wrong as often as it should. Only ages and sizes are not waited for. Beside test_fault_matrix.py, in its words.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from pcaplake.common.errors import Retryable
from pcaplake.lake.delta.log_state import delta_log_path
from pcaplake.lake.ledger import dynamodb as ledger
from pcaplake.lake.ledger import dynamodb_items
from pcaplake.lake.records import Stage
from pcaplake.lake.staging.stage_files import CLOCK, HOUR_MS
from pcaplake.lake.staging.window import Window
from pcaplake.lake.store import object_store
from tests.integration.faults import DONE, FAULTS, PAST_THE_CLIENT, UNDONE, Request, dynamodb, inject, s3
from tests.lake.generations import raise_generation

from .conftest import Aws
from .fault_proxy import Rule
from .proxied import LOOK, Ground, Proxied, Running, standing
from .stages import PATIENCE, Books

TIMES_ROUND = 10  # at most, until everything has gone wrong as often as it should
AGAIN = 3
A_DAY_OLD, TOO_OLD = 25 * HOUR_MS, 6 * 24 * HOUR_MS
TABLE, COLUMN = "can_frames", "dlc"
COMPOSES, FIXES, WRITES = f"*/{CLOCK}", "*/_pcaplake/batches/*", f"*/{TABLE}/*.parquet"
LARGE = "*/_pcaplake/stages/*"
CONFLICT = {"action": "error", "status": 409, "code": "ConditionalRequestConflict"}
OTHERS = {"409": CONFLICT, "412": {"action": "error", "status": 412, "code": "PreconditionFailed"}}


@dataclass(kw_only=True)
class Scene:
    """A way aside, to be gone more than once. `begin`: the request goes wrong from here."""

    ground: Ground
    running: Running
    begin: Callable[[], None]
    ages: deque[int]
    patch: pytest.MonkeyPatch
    town: Proxied = field(init=False)

    def __post_init__(self) -> None:
        self.town = self.ground.town

    async def when(self, reached: Rule) -> None:
        await self.town.until(reached.reached.is_set, self.running)

    def gate(self, key: str) -> Rule:
        """The next PUT of it waits until it is released."""
        return self.town.add("s3", "PutObject", "hold", key=key)

    def files(self) -> set[str]:
        return {path for path in self.town.stage.objects() if path.endswith(".parquet")}

    def delete(self, path: str) -> None:
        stage = self.town.stage
        stage.aws.client("s3").delete_object(Bucket=stage.lake, Key=f"{stage.uri.rpartition('/')[2]}/{path}")

    def put_back(self, path: str, data: bytes) -> None:
        stage = self.town.stage
        stage.aws.client("s3").put_object(Bucket=stage.lake, Key=f"{stage.uri.rpartition('/')[2]}/{path}", Body=data)

    async def held(self) -> None:
        """Until a stage is."""
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(self.town.stage.items, "held"):
                self.running.check()
                await asyncio.sleep(LOOK)

    def release(self) -> None:
        """As for a leader that has missed its beats: who leads now puts back what is held."""
        self.running.lake.committer._leadership.is_leading = False
        self.running.lake.committer.wake()

    async def through(self) -> None:
        """All that was uploaded is in the tables, and nothing is left to do."""
        await self.town.committed(self.running)
        await self.town.idle(self.running)


# Ways


async def copied(at: Scene) -> None:
    """Nobody has committed it for days: copies of its files are committed."""
    before = at.running.service.tally["staged"]
    at.ages.append(TOO_OLD)
    at.begin()
    await at.town.upload()
    await at.through()
    assert at.running.service.tally["staged"] == before + 1


async def old(at: Scene) -> None:
    """It is a day old when it is composed, and whole."""
    gate = at.gate(COMPOSES)
    at.ages.append(A_DAY_OLD)
    await at.town.upload()
    await at.when(gate)
    at.begin()
    gate.release()
    await at.through()


async def old_and_broken(at: Scene) -> None:
    """The same, and a file is gone: its capture is forgotten, announced and read again."""
    before, files = at.running.service.tally["staged"], at.files()
    gate = at.gate(COMPOSES)
    at.ages.append(A_DAY_OLD)
    await at.town.upload()
    await at.when(gate)
    at.delete(next(iter(at.files() - files)))
    at.begin()
    gate.release()
    await at.through()
    assert at.running.service.tally["staged"] == before + 2


async def lost(at: Scene, *, last: str = FIXES) -> None:
    """A file of an old stage is deleted after it was put into a batch: it is made again from its capture."""
    files, gate = at.files(), at.gate(FIXES)
    at.ages.append(A_DAY_OLD)
    await at.town.upload()
    await at.when(gate)
    (gone,) = (path for path in at.files() - files if path.startswith(TABLE))
    at.delete(gone)
    writes = None
    if last == WRITES:
        writes = at.gate(WRITES)
        at.patch.setattr(object_store, "_CLOCK_SECONDS", 0.0)  # else the time of an earlier object will do
    else:
        at.begin()
    gate.release()
    if writes is not None:  # nothing else is asked for what is there
        await at.when(writes)
        at.begin()
        writes.release()
    await at.through()
    assert gone not in at.town.books.files


async def held(at: Scene, *, aside: bool = False) -> None:
    """Somebody forbids nulls in a column; when they are allowed again, whoever leads puts the stage back."""
    await alter(at.running, nullable=False)
    if not aside:
        at.begin()
    await at.town.upload()
    await at.held()
    await alter(at.running, nullable=True)
    if aside:
        at.begin()
    at.release()
    await at.through()


async def alter(running: Running, *, nullable: bool) -> None:
    """ALTER TABLE ... ALTER COLUMN SET NOT NULL, or DROP NOT NULL, as Spark does it: under the lock table."""
    log = running.lake.log
    tail = await log._read_state(TABLE)
    assert tail.metadata is not None
    columns = [{**one, "nullable": nullable or one["name"] != COLUMN} for one in tail.metadata.schema["fields"]]
    changed = replace(tail.metadata, schema={**tail.metadata.schema, "fields": columns})
    said = [{"commitInfo": {"operation": "CHANGE COLUMN"}}, {"metaData": changed.to_json()}]
    data = "".join(json.dumps(one) + "\n" for one in said).encode()
    finish = await log._publisher.publish_version(TABLE, tail.version + 1, data)
    assert finish is not None
    await finish()


def all_large(at: Scene) -> None:
    for module in (ledger, dynamodb_items):
        at.patch.setattr(module, "INLINE_BYTES", 0)


async def large(at: Scene, *, refused: bool = False) -> None:
    """A stage that is no item's size; `refused`: it is there already, as far as its writer is told."""
    all_large(at)
    at.begin()
    if refused:
        at.town.add("s3", "PutObject", "error_response", key=LARGE, status=503, code="SlowDown")
    await at.town.upload()
    await at.through()


async def large_and_gone(at: Scene) -> None:
    """Somebody deletes what it holds: it is held until that is put back."""
    all_large(at)
    gate = at.gate(COMPOSES)
    await at.town.upload()
    await at.when(gate)
    (path,) = at.town.stage.objects("_pcaplake/stages/")
    body = at.town.stage.get(path)
    at.delete(path)
    at.begin()
    gate.release()
    await at.held()
    at.put_back(path, body)
    at.release()
    await at.through()


async def in_a_batch(at: Scene) -> None:
    """It was put into a batch, then something failed: it still waits when the next batch is composed."""
    at.town.add("dynamodb", "TransactWriteItems", "drop_request", containing="SET #state", times=PAST_THE_CLIENT)
    at.begin()
    await at.town.upload()
    await at.through()


async def found_again(at: Scene) -> None:
    """A manifest is there, and who put it has not marked its stage: it is read and marked."""
    at.town.add("dynamodb", "TransactWriteItems", "drop_request", containing="SET #batch = :batch", times=3)
    at.begin()
    await at.town.upload()
    await at.through()


async def repaired(at: Scene) -> None:
    """N.json was not put, and its entry is there: whoever looks next puts it."""
    lost = at.town.add(
        "s3", "PutObject", "drop_request", key=f"*/{delta_log_path(TABLE)}/0*.json", times=PAST_THE_CLIENT
    )
    waiting = asyncio.create_task(lost.reached.wait())
    waiting.add_done_callback(lambda _: at.begin())
    await at.town.upload()
    await at.through()


async def overwritten(at: Scene, *, reads: bool = False) -> None:
    """Somebody raises the generation while the service runs: what comes then replaces everything."""
    if not reads:
        at.begin()
    before = at.running.lake._current.generation
    while True:
        try:
            await raise_generation(at.running.lake.store)
            break
        except Retryable:  # whoever wants it tries again
            continue
    at.town.expected.clear()
    gate = at.gate(FIXES)
    await at.town.upload()
    await at.when(gate)
    if reads:
        at.begin()
    gate.release()
    await at.through()
    assert at.running.lake._current.generation > before
    await asyncio.to_thread(at.town.books.check, at.town.expected)


async def tidied(at: Scene) -> None:
    """Each version brings a checkpoint, and expires when there is one."""
    lake = at.running.lake
    at.begin()
    at.patch.setattr(lake.committer.checkpoints, "_interval", 1)
    await at.town.upload()
    await at.through()
    await asyncio.gather(*lake.committer.checkpoints.tasks.values())
    at.patch.undo()
    await clean(at)


async def unfinished(at: Scene) -> None:
    """Entries that nobody completed, and that are not the newest when somebody cleans up."""
    tables, attempts = len(Books.TABLES), 3
    lost = at.town.add(  # by who wrote them, and by who composes next
        "dynamodb", "UpdateItem", "drop_request", containing="SET #complete", times=2 * tables * attempts
    )
    for _ in range(2):
        await at.town.upload()
        await at.through()
    assert lost.hits == lost.times
    at.begin()
    await clean(at)


async def clean(at: Scene) -> None:
    """As with the next checkpoints."""
    for table in Books.TABLES * AGAIN:
        with suppress(Retryable):
            await at.running.lake.log.clean(table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """A request, how a lake comes to make it, and what it may be answered besides."""

    request: Request
    way: Callable[[Scene], Awaitable[None]]
    others: tuple[str, ...] = ()

    @property
    def faults(self) -> tuple[str, ...]:
        return (*UNDONE, *DONE, *(("cut",) if self.request.body else ()), *self.others)

    @property
    def in_a_row(self) -> dict[str, int]:
        """Nothing happens, past the client; then all but the answer, past the client together: once round does."""
        few = PAST_THE_CLIENT // 2 if self.request.service == "s3" else 1  # others ask three times
        return dict.fromkeys(self.faults, few) | dict.fromkeys(UNDONE, PAST_THE_CLIENT)


def aside(request: Request, way: Callable[..., Awaitable[None]], *others: str, **how: Any) -> Aside:
    return Aside(request=request, way=functools.partial(way, **how), others=others)


def deletes(containing: str) -> Request:
    """One object; the client asks as for many."""
    return Request("s3", "DeleteObjects", {"containing": containing}, True)


MEND = '"held#'
ASIDE = {
    "4.1 manifest": aside(s3("GetObject", FIXES), found_again),
    "4.2 is the old there?": aside(s3("HeadObject", "*.parquet"), old),
    "4.2 is the old whole?": aside(s3("HeadObject", "*.parquet"), old_and_broken),
    "4.2 hold": aside(dynamodb("TransactWriteItems", MEND), held),
    "4.2 what is held?": aside(dynamodb("Query", MEND), held, aside=True),
    "4.2 put back": aside(dynamodb("TransactWriteItems", MEND), held, aside=True),
    "4.2 forget captures": aside(
        dynamodb("TransactWriteItems", "attribute_not_exists(#pk) OR #stage_id"), old_and_broken
    ),
    "4.2 whose are they?": aside(dynamodb("BatchGetItem", '"#stage_id"'), old_and_broken),
    "4.2 announce": aside(Request("sqs", "SendMessageBatch", {}, True), old_and_broken),
    "4.2 where does it wait?": aside(dynamodb("BatchGetItem", '"#staged_at"'), in_a_batch),
    "4.2 waits no more": aside(dynamodb("TransactWriteItems", '"Delete"'), in_a_batch),
    "3.5 large stage": aside(s3("PutObject", LARGE), large, "409"),
    "3.5 is it there?": aside(s3("HeadObject", LARGE), large, refused=True),
    "4.2 large stage": aside(s3("GetObject", LARGE, body=True), large),
    "4.2 a large stage's batch": aside(dynamodb("GetItem", '"stage#'), large_and_gone),
    "4.5 large stage": aside(deletes("/_pcaplake/stages/"), large),
    "4.4 is the old still there?": aside(s3("HeadObject", "*.parquet"), lost),
    "4.4 its capture": aside(s3("GetObject", "in/*", body=True), lost),
    "4.4 what is copied": aside(s3("GetObject", WRITES, body=True), copied),
    "4.4 its new file": aside(s3("PutObject", WRITES), lost),
    "4.4 the new file's time": aside(s3("HeadObject", WRITES), lost, last=WRITES),
    "5.3 somebody's temp object": aside(s3("GetObject", "*/_delta_log/.tmp/*", body=True), repaired),
    "5.3 is it there?": aside(s3("HeadObject", f"*/{TABLE}/_delta_log/0*.json"), repaired),
}
TENDED = {
    "overwrite": aside(s3("PutObject", "*/lake.json"), overwritten, "412", "409"),
    "4.4 what is overwritten": aside(s3("GetObject", "*/_delta_log/0*.json", body=True), overwritten, reads=True),
    "checkpoint": aside(s3("PutObject", "*.checkpoint.parquet"), tidied),
    "last checkpoint": aside(s3("PutObject", "*/_last_checkpoint"), tidied),
    "what is in the log": aside(Request("s3", "ListObjectsV2", {}, True), tidied),
    "delete versions": aside(deletes("/_delta_log/0"), tidied),
    "delete temp objects": aside(deletes("/_delta_log/.tmp/"), tidied),
    "incomplete entries": aside(dynamodb("Query", "NOT #complete"), unfinished),
    "complete an entry": aside(dynamodb("UpdateItem", "SET #complete"), unfinished),
}
EVERY = [(name, fault) for name, one in (ASIDE | TENDED).items() for fault in one.faults]


@pytest.fixture(scope="module")
def plain(aws: Aws, torture: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    if aws.engine != "ministack" and not torture:
        pytest.skip("here the races are enough: make torture has all of it")
    with standing(aws, tmp_path_factory.mktemp("aside")) as made:
        yield made


@pytest.fixture(scope="module")
def tended(aws: Aws, torture: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Its logs expire nearly at once, and it may be overwritten."""
    if aws.engine != "ministack" and not torture:
        pytest.skip("here the races are enough: make torture has all of it")
    keeps = {"delta.logRetentionDuration": "interval 1 second"}
    with standing(aws, tmp_path_factory.mktemp("tended"), table_property=keeps, checkpoint_interval=10**6) as made:
        made.town.cleaned = made.town.books.overwritten = True
        yield made


@pytest.fixture
def ground(request: pytest.FixtureRequest) -> Ground:
    made: Ground = request.getfixturevalue("plain" if request.node.callspec.params["name"] in ASIDE else "tended")
    return made


@pytest.fixture
def ages(monkeypatch: pytest.MonkeyPatch) -> deque[int]:
    """How old the next stages are, as of one who stood still between their files and the ledger; others are new."""
    wanted: deque[int] = deque()
    close = Window.close

    def aged(window: Window) -> Stage | None:
        stage = close(window)
        if stage is None or not wanted:
            return stage
        return replace(stage, written_at=stage.written_at - wanted.popleft())

    monkeypatch.setattr(Window, "close", aged)
    return wanted


async def go_wrong(ground: Ground, one: Aside, faults: Mapping[str, int], ages: deque[int]) -> None:
    """The way is gone until these things have gone wrong, one after the other, each so many times."""
    town = ground.town
    rules = [(inject(town, one.request, (FAULTS | OTHERS)[fault], 0), times) for fault, times in faults.items()]

    def begin() -> None:
        for rule, times in rules:
            rule.times = times

    for _ in range(TIMES_ROUND):
        with pytest.MonkeyPatch.context() as patch:
            running = await ground.service()
            await one.way(Scene(ground=ground, running=running, begin=begin, ages=ages, patch=patch))
        if all(rule.hits == times for rule, times in rules):
            break
        for rule, _ in rules:
            rule.times = rule.hits  # until the way comes there again
    assert [rule.hits for rule, _ in rules] == [times for _, times in rules]
    assert not ages
    town.clear()


async def settled(ground: Ground) -> None:
    town = ground.town
    await town.settled(await ground.service())
    if town.cleaned:  # what checkpoints say
        frames = await asyncio.to_thread(town.stage.read, TABLE)
        assert frames.num_rows == sum(town.expected.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", ASIDE | TENDED)
def test_a_request_goes_wrong(ground: Ground, ages: deque[int], name: str) -> None:
    """In every way, one after the other, past what clients mend."""
    one = (ASIDE | TENDED)[name]

    async def main() -> None:
        await go_wrong(ground, one, one.in_a_row, ages)
        await settled(ground)

    ground.run(main)


@pytest.mark.slow
@pytest.mark.torture  # test_a_request_goes_wrong has all of them in a row
@pytest.mark.parametrize(("name", "fault"), EVERY)
def test_a_request_goes_wrong_in_one_way(ground: Ground, ages: deque[int], name: str, fault: str) -> None:
    async def main() -> None:
        for times in (1, PAST_THE_CLIENT):
            await go_wrong(ground, (ASIDE | TENDED)[name], {fault: times}, ages)
        await settled(ground)

    ground.run(main)
