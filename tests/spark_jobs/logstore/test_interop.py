"""Spark and the workers' log store on one table: in turns, at once, and after each other's deaths."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pcaplake.lake.delta.lock_table import Entry, TablePath
from tests.spark_jobs.conftest import Site
from tests.spark_jobs.fleet import FaultProxy, Spark
from tests.spark_jobs.logstore.places import Place
from tests.spark_jobs.tables import DAY, Shared

STATES = ("entry", "complete")  # the last step but that one was done


def spread(*pairs: tuple[str, str]) -> list[Any]:
    """Each state with each action; `make test` runs those of `pairs`, which have every state and every action."""
    actions = dict.fromkeys(action for _, action in pairs)
    assert {state for state, _ in pairs} == set(STATES)
    return [
        pytest.param(state, action, marks=[] if (state, action) in pairs else pytest.mark.torture)
        for state in STATES
        for action in actions
    ]


@pytest.fixture
def table(site: Site, spark: Any) -> Shared:
    return Shared(site, spark)


def test_in_turns(table: Shared) -> None:
    table.ours([1, 2])
    table.sparks([3, 4])
    table.ours([5])
    table.optimize()
    table.ours([6])
    table.sparks([7])
    assert table.read() == [1, 2, 3, 4, 5, 6, 7]
    assert len(table.versions()) == 7
    for number, item in table.items().items():
        assert item["tempPath"]["S"].startswith(f".tmp/{number:020d}.json.")
        assert table.log_files()[item["tempPath"]["S"]] == table.log_files()[f"{number:020d}.json"]
        assert item["expireTime"].keys() == {"N"}


def test_three_schemes_are_one_table(table: Shared) -> None:
    for value, scheme in enumerate(("s3a", "s3", "s3n")):
        table.sparks([value], scheme)
    table.ours([3])
    assert table.read("s3") == table.read("s3n") == table.read() == [0, 1, 2, 3]
    assert {item["tablePath"]["S"] for item in table.items().values()} == {table.path}
    assert len(table.versions()) == 5


@pytest.mark.parametrize(("state", "then"), spread(("entry", "read"), ("complete", "append"), ("entry", "optimize")))
def test_spark_finishes_what_a_worker_began(table: Shared, state: str, then: str) -> None:
    table.ours([1])
    assert not table.ours([2], dies=state)
    if then == "read":
        assert table.read() == [1, 2]
    elif then == "append":
        table.sparks([3])
    else:
        table.optimize()
    assert not [item for item in table.items().values() if item["complete"]["S"] == "false"]
    table.ours([4])
    assert table.read() == ([1, 2, 3, 4] if then == "append" else [1, 2, 4])
    table.versions()


@pytest.mark.parametrize(("state", "last_write"), spread(("entry", "optimize"), ("complete", "append")))
def test_a_worker_finishes_what_spark_began(table: Shared, state: str, last_write: str) -> None:
    table.ours([1])
    table.sparks([2])
    if last_write == "optimize":
        table.optimize()
    last = max(table.items())
    table.unmake(last, keep=state == "complete")
    assert table.ours([3])
    assert len(table.versions()) == last + 2
    assert table.read() == [1, 2, 3]


def test_a_temp_object_alone_is_nothing(table: Shared) -> None:
    """Dead after step 1: the next version is still free."""
    name = f".tmp/{1:020d}.json.{uuid.uuid4()}"
    table.site.aws.client("s3").put_object(Bucket=table.bucket, Key=f"lake/t/_delta_log/{name}", Body=b"{}\n")
    table.sparks([1])
    table.ours([2])
    assert table.read() == [1, 2]
    assert len(table.versions()) == 3


def test_what_nobody_can_finish_is_said(table: Shared) -> None:
    table.ours([1])
    entry = Entry(table=TablePath.for_table(table.lake, "t"), version=2, temp_path=f".tmp/{2:020d}.json.{uuid.uuid4()}")
    item = {name: {"S": value} for name, value in entry.to_item().items()}
    table.site.aws.client("dynamodb").put_item(TableName=table.site.locks, Item=item)
    with pytest.raises((PySparkException, Py4JJavaError), match=r"Restore one of them"):
        table.sparks([2])
    key = {name: item[name] for name in ("tablePath", "fileName")}
    table.site.aws.client("dynamodb").delete_item(TableName=table.site.locks, Key=key)  # as it says
    table.sparks([2])
    assert table.read() == [1, 2]


def test_a_version_of_somebody_who_does_not_ask_is_kept(table: Shared) -> None:
    """A foreign N.json without an entry: the stock class would write over it."""
    table.ours([1])
    said = {
        "path": table.add([9]).path,
        "partitionValues": {"date": DAY},
        "size": 1,
        "modificationTime": 0,
        "dataChange": True,
    }
    body = json.dumps({"add": said}).encode() + b"\n"
    table.read()  # Spark's snapshot is version 1, and 2 is foreign when it commits
    store = java(table, "DynamoDBLogStore")
    table.site.aws.client("s3").put_object(Bucket=table.bucket, Key=f"lake/t/_delta_log/{2:020d}.json", Body=body)
    assert not put(table, store, 2, '{"commitInfo":{"txnId":"x"}}')
    assert table.log_files()[f"{2:020d}.json"] == body
    table.sparks([3])
    assert len(table.versions()) == 4
    assert table.versions()[2] == body


def java(table: Shared, name: str) -> Any:
    """A log store of the session's JVM."""
    jvm = table.spark._jvm
    return getattr(jvm.io.pcaplake.logstore, name)(table.spark._jsparkSession.sessionState().newHadoopConf())


def put(table: Shared, store: Any, version: int, line: str, path: str | None = None) -> bool:
    """Did this commit make the version?"""
    jvm = table.spark._jvm
    file = jvm.org.apache.hadoop.fs.Path(f"{path or table.path}/_delta_log/{version:020d}.json")
    actions = jvm.java.util.ArrayList()
    actions.add(line)
    conf = table.spark._jsparkSession.sessionState().newHadoopConf()
    try:
        store.write(file, actions.iterator(), False, conf)
    except Py4JJavaError as error:
        if "FileAlreadyExistsException" not in str(error.java_exception.getClass()):
            raise
        return False
    return True


@pytest.mark.parametrize("name", ["DynamoDBLogStore", "PutIfAbsentLogStore"])
def test_of_many_at_once_one_makes_the_version(table: Shared, name: str) -> None:
    stores = [java(table, name) for _ in range(6)]
    with ThreadPoolExecutor(len(stores)) as threads:
        for version in range(1, 9):
            together = threading.Barrier(len(stores))

            def one(number: int, version: int = version, together: threading.Barrier = together) -> bool:
                together.wait()
                return put(table, stores[number], version, json.dumps({"commitInfo": {"txnId": f"{version} {number}"}}))

            made = list(threads.map(one, range(len(stores))))
            assert made.count(True) == 1
            said = json.loads(table.log_files()[f"{version:020d}.json"])
            assert said == {"commitInfo": {"txnId": f"{version} {made.index(True)}"}}


def test_at_once(table: Shared) -> None:
    """Two workers append, at the pace of a committer, while Spark appends and compacts; nothing is lost or doubled."""
    ended = threading.Event()
    counted: list[int] = []

    def worker(first: int) -> None:
        async def commits() -> None:
            async with table.log() as log:
                for value in range(first, first + 1000):
                    await log.commit("t", [table.add([value])])
                    counted.append(value)
                    if await asyncio.to_thread(ended.wait, 3.0):
                        return

        asyncio.run(commits())

    with ThreadPoolExecutor(2) as threads:
        both = [threads.submit(worker, first) for first in (10_000, 20_000)]
        try:
            for value in range(2):
                table.sparks([value])
                found = table.read()
                assert len(set(found)) == len(found)
            table.optimize()
        finally:
            ended.set()
        for one in both:
            one.result()
    assert len(counted) >= 2
    assert table.read() == sorted([0, 1, *counted])
    table.versions()


def test_without_a_lock_table_on_s3(table: Shared) -> None:
    """The class of lakes that are `put-if-absent`: no entries, no temp objects."""
    store, other = java(table, "PutIfAbsentLogStore"), f"{table.path}-plain"
    assert put(table, store, 0, "{}", other)
    assert not put(table, store, 0, '{"a":1}', other)
    found = table.site.aws.client("s3").list_objects_v2(Bucket=table.bucket, Prefix="lake/t-plain/")["Contents"]
    assert [each["Key"] for each in found] == [f"lake/t-plain/_delta_log/{0:020d}.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "action", "made"),
    [
        pytest.param("PutItem", "hold", False, marks=pytest.mark.torture),
        pytest.param("PutItem", "hold_response", False, marks=pytest.mark.torture),  # test_proof.py has this one
        ("UpdateItem", "hold", True),
    ],
)
async def test_a_jvm_is_killed(site: Site, tmp_path: Path, request_: str, action: str, made: bool) -> None:
    """In the middle of its commit, by SIGKILL; a worker goes on."""
    table = await asyncio.to_thread(Shared, site)  # it has an event loop of its own

    await table.append([1, 2])
    async with (
        FaultProxy(site.aws.dynamodb) as locks,
        Spark(Place(table, tmp_path), "spark", dynamodb=locks.url) as spark,
    ):  # type: ignore[arg-type]
        await spark.ready()
        held = locks.add(request_, action)  # type: ignore[arg-type]
        spark.say("append", "t")
        await asyncio.wait_for(held.reached.wait(), 120)
        await spark.kill()
        begun = action == "hold_response" or made
        assert (2 in table.items()) == begun
        assert (f"{2:020d}.json" in table.log_files()) == made
        assert await table.append([3])
    assert len(table.versions()) == (4 if begun else 3)
