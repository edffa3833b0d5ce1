"""What the DynamoDB arbiter makes of answers; what it does to a table is tested with one (tests/integration)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from tests.worker.lake.arbiters import JAVA
from worker.errors import Fatal, Retryable
from worker.lake.delta.arbiter import Entry, TablePath
from worker.lake.delta.dynamodb import DynamoArbiter
from worker.lake.dynamo import ConditionLost, Dynamo, item

TABLE = TablePath(JAVA["tablePath"])
DATE = {"HTTPHeaders": {"date": "Sat, 21 Nov 2026 12:00:00 GMT"}}
DESCRIBED = {
    "KeySchema": [
        {"AttributeName": "fileName", "KeyType": "RANGE"},
        {"AttributeName": "tablePath", "KeyType": "HASH"},
    ],
    "AttributeDefinitions": [
        {"AttributeName": "tablePath", "AttributeType": "S"},
        {"AttributeName": "fileName", "AttributeType": "S"},
        {"AttributeName": "other", "AttributeType": "N"},
    ],
    "TableStatus": "ACTIVE",
    "Replicas": [],
}


class Scripted:
    """A client that answers in turn, and keeps what it was asked."""

    table = "delta_log"

    def __init__(self, *answers: Mapping[str, Any] | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.closed = False

    async def call(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        self.asked.append((operation, arguments))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed = True


def arbiter(*answers: Mapping[str, Any] | Exception) -> tuple[Scripted, DynamoArbiter]:
    client = Scripted(*answers)
    return client, DynamoArbiter(cast(Dynamo, client))


def verify(described: Mapping[str, Any], **rest: Any) -> float | None:
    return asyncio.run(arbiter({"Table": described, **rest})[1].verify())


def test_a_lock_table_is_accepted_with_its_clock() -> None:
    assert verify(DESCRIBED, ResponseMetadata=DATE) == 1_795_262_400.0
    assert verify({**DESCRIBED, "TableStatus": "UPDATING"}) is None
    assert verify(DESCRIBED, ResponseMetadata={"HTTPHeaders": {"date": "soon"}}) is None


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"Replicas": [{"RegionName": "eu-west-1"}]}, Fatal, "global table.*Remove its replicas"),
        ({"GlobalTableVersion": "2017.11.29"}, Fatal, "global table"),
        ({"TableStatus": "CREATING"}, Retryable, "delta_log is CREATING"),
        (
            {
                "AttributeDefinitions": [
                    {"AttributeName": name, "AttributeType": "B"} for name in ("tablePath", "fileName")
                ]
            },
            Fatal,
            "no lock table",
        ),
        ({"KeySchema": [{"AttributeName": "tablePath", "KeyType": "HASH"}]}, Fatal, "no lock table"),
    ],
)
def test_a_lock_table_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        verify({**DESCRIBED, **change}, ResponseMetadata=DATE)
    assert type(caught.value) is error


def pages(*names: Sequence[str]) -> list[dict[str, Any]]:
    items = [[item({**JAVA, "fileName": name}) for name in page] for page in names]
    last = len(items) - 1
    return [
        {"Items": page} | ({"LastEvaluatedKey": {"page": {"N": str(n)}}} if n < last else {})
        for n, page in enumerate(items)
    ]


def test_the_newest_version_is_found_behind_other_files_and_empty_pages() -> None:
    async def run() -> None:
        client, found = arbiter(*pages(["zz.crc"], [], [JAVA["fileName"]], ["never asked for"]))
        assert await found.newest(TABLE) == Entry.from_item(JAVA)
        assert [each.get("ExclusiveStartKey") for _, each in client.asked] == [
            None, {"page": {"N": "0"}}, {"page": {"N": "1"}},
        ]  # fmt: skip
        assert all(each["ConsistentRead"] and not each["ScanIndexForward"] for _, each in client.asked)
        client, found = arbiter(*pages(["zz.crc"], []))
        assert await found.newest(TABLE) is None
        assert not await arbiter(*pages([]))[1].knows("s3://bucket/lake/t")
        await found.close()
        assert client.closed

    asyncio.run(run())


def test_a_lost_condition_tells_whose_entry_it_is() -> None:
    async def run() -> None:
        mine, theirs = Entry.new(TABLE, 42), Entry.from_item(JAVA)
        done = mine.completed(1.8e9)
        for lost, answer in ((ConditionLost(JAVA), theirs), (ConditionLost({}), None)):
            assert await arbiter(lost)[1].complete(done) == answer
        assert await arbiter(ConditionLost(JAVA))[1].put(mine) == theirs
        client, found = arbiter({}, {})
        assert await found.put(mine) is None
        assert await found.complete(done) is None
        (_, put), (_, update) = client.asked
        assert put["Item"] == {name: {"S": value} for name, value in {**JAVA, "tempPath": mine.temp_path}.items()}
        assert update["ExpressionAttributeValues"] == {
            ":complete": {"S": "true"}, ":expires": {"N": "1800086400"}, ":temp": {"S": mine.temp_path},
        }  # fmt: skip

    asyncio.run(run())
