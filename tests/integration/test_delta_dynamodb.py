"""The log store under Spark's lock table, on S3 and DynamoDB: items as they are on the wire, faults, races."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiobotocore.session
import pytest
from deltalake import DeltaTable

from pcaplake.common.errors import Fatal
from pcaplake.lake.delta import LogStore, TableBlocked, TablePath, Txn
from pcaplake.lake.delta.lock_table import Entry, LockTable
from pcaplake.lake.delta.lock_table_dynamodb import DynamoLockTable
from pcaplake.lake.delta.preflight import check_lock_table
from pcaplake.lake.store.store import Store
from tests.lake.delta.deltas import SCHEMA, add
from tests.lake.delta.lock_tables import JAVA, RULES
from tests.retries import hardly_wait

from .conftest import Aws
from .fault_proxy import Action, FaultProxy, Rule

APP = "app"


_session = functools.cache(aiobotocore.session.get_session)  # reading what services there are takes most of a client


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hardly_wait(monkeypatch)
    monkeypatch.setattr(aiobotocore.session, "get_session", _session)


def txn(version: int) -> Txn:
    return Txn(app_id=APP, version=version)


class Ground:
    """A bucket and a lock table of a test's own; log stores on it, each with its own clients."""

    def __init__(self, aws: Aws) -> None:
        self.aws = aws
        self.bucket = aws.bucket()
        self.table = aws.table("delta-log", hash_key="tablePath", range_key="fileName")
        self.uri = f"s3a://{self.bucket}/lake/t"

    def store(self, endpoint: str | None = None) -> Store:
        options = {"aws_endpoint": endpoint or self.aws.s3, "aws_allow_http": "true", "aws_region": self.aws.region}
        keys = {name.lower(): self.aws.environment[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        return Store.open(f"s3://{self.bucket}/lake", options | keys)

    @asynccontextmanager
    async def lock_table(
        self, endpoint: str | None = None, *, table: str | None = None
    ) -> AsyncIterator[DynamoLockTable]:
        with pytest.MonkeyPatch.context() as patch:
            if endpoint is not None:
                patch.setenv("AWS_ENDPOINT_URL_DYNAMODB", endpoint)
            lock_table = await DynamoLockTable.open(table or self.table)
        try:
            yield lock_table
        finally:
            await lock_table.close()

    @asynccontextmanager
    async def log(self, s3: str | None = None, dynamodb: str | None = None, **options: Any) -> AsyncIterator[LogStore]:
        async with self.lock_table(dynamodb) as lock_table:
            yield LogStore(self.store(s3), lock_table=lock_table, **options)

    def items(self) -> dict[int, dict[str, Any]]:
        """version -> item of `t`, as on the wire."""
        answer = self.aws.client("dynamodb").query(
            TableName=self.table,
            KeyConditionExpression="tablePath = :t",
            ExpressionAttributeValues={":t": {"S": self.uri}},
            ConsistentRead=True,
        )
        return {int(item["fileName"]["S"][:20]): item for item in answer["Items"]}

    def put(self, item: dict[str, Any]) -> None:
        self.aws.client("dynamodb").put_item(TableName=self.table, Item=item)

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """What is in the log of `t`, by name."""
        s3, folder = self.aws.client("s3"), "lake/t/_delta_log/"
        found = s3.list_objects_v2(Bucket=self.bucket, Prefix=folder + prefix).get("Contents", [])
        return {
            each["Key"].removeprefix(folder): s3.get_object(Bucket=self.bucket, Key=each["Key"])["Body"].read()
            for each in found
        }

    def added(self) -> Counter[str]:
        """How often each file was added; AssertionError for a gap in the versions."""
        log = {name: data for name, data in self.objects().items() if "/" not in name and name.endswith(".json")}
        assert sorted(log) == [f"{number:020d}.json" for number in range(len(log))]
        lines = [json.loads(line) for data in log.values() for line in data.splitlines()]
        return Counter(line["add"]["path"] for line in lines if "add" in line)

    async def settled(self) -> None:
        """What must hold in the end: the next commit succeeds, every file is there once, nothing is incomplete."""
        async with self.log() as log:
            last = await log.read_transaction("t", APP)
            assert not (await log.commit("t", [add("the last")], txn=txn(last + 1))).already
            assert max(self.added().values()) == 1
            await log.clean("t")
        assert {item["complete"]["S"] for item in self.items().values()} == {"true"}

    async def start(self) -> None:
        async with self.log() as log:
            await log.create("t", SCHEMA, partition_columns=["date"])
            await log.commit("t", [add("first")], txn=txn(0))


@pytest.fixture
def ground(aws: Aws) -> Ground:
    return Ground(aws)


@asynccontextmanager
async def proxies(ground: Ground) -> AsyncIterator[dict[str, FaultProxy]]:
    async with FaultProxy(ground.aws.s3) as s3, FaultProxy(ground.aws.dynamodb) as dynamodb:
        yield {"s3": s3, "dynamodb": dynamodb}


def whole(*names: str) -> Counter[str]:
    return Counter(add(name).path for name in names)


@pytest.mark.parametrize("rule", RULES)
async def test_the_lock_table_in_dynamodb(ground: Ground, rule: Callable[[LockTable], Awaitable[None]]) -> None:
    async with ground.lock_table() as lock_table:
        await rule(lock_table)


async def test_more_entries_than_a_page_holds(ground: Ground) -> None:
    """1 MB a page: here by temp paths as long as an item may have."""

    path = TablePath(ground.uri)
    async with ground.lock_table() as lock_table:
        entries = [Entry(table=path, version=n, temp_path=f".tmp/{n}{'x' * 300_000}") for n in range(8)]
        for entry in entries:
            await lock_table.put_entry_if_absent(entry)
        await lock_table.complete_entry(entries[3].as_completed(time.time()))
        assert await lock_table.list_incomplete_entries(path) == [*entries[:3], *entries[4:]]
        ground.put({"tablePath": {"S": ground.uri}, "fileName": {"S": f"{9:020d}.crc"}, "tempPath": {"S": "x"}})
        assert await lock_table.get_newest_entry(path) == entries[-1], "a file that is no version is passed over"
        assert await lock_table.list_incomplete_entries(path, above=6) == [entries[7]]


async def test_what_is_on_the_wire_is_what_java_writes(ground: Ground) -> None:
    before = int(time.time())
    await ground.start()
    items, objects = ground.items(), ground.objects()
    assert list(items) == [0, 1]
    for version, item in items.items():
        name, temp = f"{version:020d}.json", item["tempPath"]["S"]
        expires = int(item["expireTime"]["N"])
        assert item == {
            "tablePath": {"S": ground.uri}, "fileName": {"S": name}, "tempPath": {"S": temp},
            "complete": {"S": "true"}, "expireTime": {"N": str(expires)},
        }  # fmt: skip
        assert before + 86_400 <= expires <= time.time() + 86_400
        assert temp.startswith(f".tmp/{name}.")
        assert objects[temp] == objects[name]
    assert len(objects) == 4
    table = DeltaTable(ground.store().external_location("t"), storage_options=dict(ground.store().options))
    assert (table.version(), table.transaction_version(APP)) == (1, 0)
    assert table.file_uris() == [f"s3://{ground.bucket}/lake/t/{add('first').path}"]


async def test_an_uncontended_commit_asks_for_six_things(ground: Ground) -> None:
    await ground.start()
    async with proxies(ground) as both, ground.log(both["s3"].url, both["dynamodb"].url) as log:
        await log.read_version("t")
        for number in range(1, 4):
            for proxy in both.values():
                proxy.log.clear()
            await log.commit("t", [add(number)], txn=txn(number))
            assert both["dynamodb"].operations() == ["PutItem", "UpdateItem"]
            assert both["s3"].operations()[:2] == ["PutObject", "PutObject"]
            assert both["s3"].operations()[2:] == ["GetObject", "GetObject"]


async def test_items_that_java_left_are_repaired(ground: Ground) -> None:
    await ground.start()
    java = {name: {"S": value} for name, value in JAVA.items()}
    java |= {"tablePath": {"S": ground.uri}, "fileName": {"S": f"{2:020d}.json"}}
    data = json.dumps({"add": add("java's").to_json()}).encode() + b"\n"
    key = f"lake/t/_delta_log/{java['tempPath']['S']}"
    ground.put(java)
    async with ground.log() as log:
        with pytest.raises(TableBlocked, match="version 2 has begun, and neither"):
            await log.commit("t", [add("a")], txn=txn(1))
        ground.aws.client("s3").put_object(Bucket=ground.bucket, Key=key, Body=data)
        assert (await log.commit("t", [add("a")], txn=txn(1))).version == 3
    repaired = ground.items()[2]
    expires = repaired.pop("expireTime")
    assert abs(int(expires["N"]) - 86_400 - time.time()) < 600
    assert repaired == {**java, "complete": {"S": "true"}}
    assert ground.objects()[f"{2:020d}.json"] == data
    assert ground.added() == whole("first", "java's", "a")
    await ground.settled()


async def test_checkpoint_and_clean_up_beside_temp_objects(ground: Ground) -> None:
    await ground.start()
    async with ground.log() as log:
        for number in range(1, 4):
            await log.commit("t", [add(number)], txn=txn(number))
        assert len(ground.objects(".tmp/")) == 5
        assert await log.checkpoint("t") == 4
        assert await log.clean("t") == 4
        left = [name for name in ground.objects() if "/" in name]
        assert [name[5:25] for name in left] == [f"{4:020d}"]
    await ground.settled()
    table = DeltaTable(ground.store().external_location("t"), storage_options=dict(ground.store().options))
    assert (table.version(), table.transaction_version(APP)) == (5, 4)
    assert len(table.file_uris()) == 5


# A fault at each write of a commit

Where = tuple[str, str, str]  # service, operation, key
WRITES: dict[str, Where] = {
    "1 temp object": ("s3", "PutObject", "*/.tmp/*"),
    "2 entry": ("dynamodb", "PutItem", "*"),
    "3 version": ("s3", "PutObject", f"*/{2:020d}.json"),
    "3b before": ("s3", "GetObject", f"*/{1:020d}.json"),
    "3b horizon": ("s3", "GetObject", "*/_last_checkpoint"),
    "4 completed": ("dynamodb", "UpdateItem", "*"),
}
FAULTS: dict[str, dict[str, Any]] = {
    "request lost": {"action": "drop_request"},
    "response lost": {"action": "drop_response"},
    "500": {"action": "error", "status": 500, "code": "InternalServerError"},
    "500 and done": {"action": "error_response", "status": 500, "code": "InternalServerError"},
    "throttled": {"action": "error", "status": 400, "code": "ThrottlingException"},
    "slow down": {"action": "error", "status": 503, "code": "SlowDown"},
    "409": {"action": "error", "status": 409, "code": "ConditionalRequestConflict"},
}


def inject(proxies: dict[str, FaultProxy], where: Where, *, times: int, action: Action, **how: Any) -> Rule:
    service, operation, key = where
    return proxies[service].add(operation, action, key=key, times=times, **how)


def applies(where: Where, fault: str) -> bool:
    """S3 throttles by SlowDown, DynamoDB by an exception; 409 is for conditional writes of S3."""
    if fault in ("throttled", "slow down"):
        return (where[0] == "s3") == (fault == "slow down")
    return fault != "409" or where is WRITES["3 version"]


CASES = [(step, fault) for step, where in WRITES.items() for fault in FAULTS if applies(where, fault)]


@pytest.mark.parametrize(("step", "fault"), CASES)
@pytest.mark.parametrize("times", [1, 4], ids=["once", "four times"])
async def test_a_fault_loses_and_doubles_nothing(ground: Ground, step: str, fault: str, times: int) -> None:
    await ground.start()
    async with proxies(ground) as both, ground.log(both["s3"].url, both["dynamodb"].url) as log:
        await log.read_version("t")
        rule = inject(both, WRITES[step], times=times, **FAULTS[fault])
        await log.commit("t", [add("a")], txn=txn(1))
        assert rule.hits
        rule.times = rule.hits
        assert (await log.commit("t", [add("a")], txn=txn(1))).already
    assert ground.added() == whole("first", "a")
    await ground.settled()


@pytest.mark.parametrize("step", ["1 temp object", "2 entry", "3 version"])
async def test_what_nobody_may_is_fatal_and_repaired_by_who_may(ground: Ground, step: str) -> None:
    await ground.start()
    async with proxies(ground) as both, ground.log(both["s3"].url, both["dynamodb"].url) as log:
        await log.read_version("t")
        code = "AccessDeniedException" if WRITES[step][0] == "dynamodb" else "AccessDenied"
        status = 400 if WRITES[step][0] == "dynamodb" else 403
        rule = inject(both, WRITES[step], times=1, action="error", status=status, code=code)
        with pytest.raises(Fatal):
            await log.commit("t", [add("a")], txn=txn(1))
        assert rule.hits == 1
    async with ground.log() as log:
        landed = (await log.commit("t", [add("a")], txn=txn(1))).already
        assert landed == (step == "3 version"), "its entry promised it, and the reader kept the promise"
    assert ground.added() == whole("first", "a")
    await ground.settled()


@pytest.mark.parametrize("action", ["hold", "hold_response"])
@pytest.mark.parametrize("step", ["1 temp object", "2 entry", "3 version", "4 completed"])
@pytest.mark.parametrize("same", [True, False], ids=["the same transaction", "another"])
async def test_a_committer_frozen_within_a_step_while_another_goes_on(
    ground: Ground, action: Action, step: str, same: bool
) -> None:
    await ground.start()
    async with AsyncExitStack() as stack:
        both = await stack.enter_async_context(proxies(ground))
        frozen = await stack.enter_async_context(ground.log(both["s3"].url, both["dynamodb"].url))
        other = await stack.enter_async_context(ground.log())
        await frozen.read_version("t")
        held = inject(both, WRITES[step], times=1, action=action)
        task = asyncio.create_task(frozen.commit("t", [add("a")], txn=txn(1)))
        await held.reached.wait()
        theirs = txn(1) if same else Txn(app_id="other", version=0)
        await other.commit("t", [add("a" if same else "b")], txn=theirs)
        await other.commit("t", [add("c")], txn=Txn(app_id="other", version=1))
        held.release()
        await task
    assert ground.added() == whole("first", "a", "c", *([] if same else ["b"]))
    await ground.settled()


# Against each other


@pytest.mark.parametrize("shared", [True, False], ids=["the same transactions", "their own"])
async def test_writers_at_once_leave_no_gap_and_add_every_file_once(ground: Ground, shared: bool) -> None:
    writers, commits = 4, 5

    async def write(writer: int) -> None:
        async with ground.log() as log:
            for number in range(commits):
                app = "shared" if shared else f"writer-{writer}"
                name = f"{app}-{number}"
                await log.commit("t", [add(name)], txn=Txn(app_id=app, version=number), schema=SCHEMA)

    await asyncio.gather(*map(write, range(writers)))
    apps = ["shared"] if shared else [f"writer-{writer}" for writer in range(writers)]
    assert ground.added() == whole(*(f"{app}-{number}" for app in apps for number in range(commits)))
    assert len(ground.items()) == 1 + len(apps) * commits
    await ground.settled()


# The start


async def test_the_start_up_check_on_the_real_thing(ground: Ground) -> None:
    await ground.start()
    async with ground.lock_table() as lock_table:
        clock = await lock_table.verify_and_read_clock()
        assert clock is not None
        assert abs(clock - time.time()) < 60
        await check_lock_table(ground.store(), lock_table, ["t", "u"])
        spelling = f"s3://{ground.bucket}/lake/t"
        ground.put({name: {"S": value} for name, value in {**JAVA, "tablePath": spelling}.items()})
        with pytest.raises(Fatal, match=rf"entries of {spelling}, and this table is {ground.uri} here"):
            await check_lock_table(ground.store(), lock_table, ["t", "u"])


@pytest.mark.parametrize(("hash_key", "range_key"), [("tablePath", None), ("fileName", "tablePath"), ("pk", "sk")])
async def test_a_table_of_another_shape_is_refused(ground: Ground, hash_key: str, range_key: str | None) -> None:
    name = ground.aws.table(hash_key=hash_key, range_key=range_key)
    async with ground.lock_table(table=name) as lock_table:
        with pytest.raises(Fatal, match=rf"{name} is not a lock table: its key is .*tablePath \(S, HASH\)"):
            await lock_table.verify_and_read_clock()


async def test_a_table_that_is_not_there_is_refused(ground: Ground) -> None:
    async with ground.lock_table(table=ground.aws.name()) as lock_table:
        with pytest.raises(Fatal, match="create the table with `pcaplake setup`"):
            await lock_table.verify_and_read_clock()
