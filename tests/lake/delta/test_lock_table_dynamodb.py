"""What the DynamoDB lock table makes of answers; what it does to a table is tested with one (tests/integration)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from pcaplake.common.errors import Fatal, Retryable
from pcaplake.lake.delta.lock_table import Entry, TablePath
from pcaplake.lake.delta.lock_table_dynamodb import DynamoLockTable
from pcaplake.lake.dynamodb_table import ConditionLost, DynamoClient, to_attribute_values
from tests.lake.delta.lock_tables import JAVA

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

    async def call_operation(self, operation: str, **arguments: Any) -> Mapping[str, Any]:
        self.asked.append((operation, arguments))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self.closed = True


def lock_table(*answers: Mapping[str, Any] | Exception) -> tuple[Scripted, DynamoLockTable]:
    client = Scripted(*answers)
    return client, DynamoLockTable(cast(DynamoClient, client))


def verify(described: Mapping[str, Any], **rest: Any) -> float | None:
    return asyncio.run(lock_table({"Table": described, **rest})[1].verify_and_read_clock())


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
            "not a lock table",
        ),
        ({"KeySchema": [{"AttributeName": "tablePath", "KeyType": "HASH"}]}, Fatal, "not a lock table"),
    ],
)
def test_a_lock_table_is_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        verify({**DESCRIBED, **change}, ResponseMetadata=DATE)
    assert type(caught.value) is error


def pages(*names: Sequence[str]) -> list[dict[str, Any]]:
    items = [[to_attribute_values({**JAVA, "fileName": name}) for name in page] for page in names]
    last = len(items) - 1
    return [
        {"Items": page} | ({"LastEvaluatedKey": {"page": {"N": str(n)}}} if n < last else {})
        for n, page in enumerate(items)
    ]


async def test_the_newest_version_is_found_behind_other_files_and_empty_pages() -> None:
    client, found = lock_table(*pages(["zz.crc"], [], [JAVA["fileName"]], ["never asked for"]))
    assert await found.get_newest_entry(TABLE) == Entry.from_item(JAVA)
    assert [each.get("ExclusiveStartKey") for _, each in client.asked] == [
        None, {"page": {"N": "0"}}, {"page": {"N": "1"}},
    ]  # fmt: skip
    assert all(each["ConsistentRead"] and not each["ScanIndexForward"] for _, each in client.asked)
    client, found = lock_table(*pages(["zz.crc"], []))
    assert await found.get_newest_entry(TABLE) is None
    assert not await lock_table(*pages([]))[1].has_entries_for("s3://bucket/lake/t")
    await found.close()
    assert client.closed


async def test_a_lost_condition_tells_whose_entry_it_is() -> None:
    mine, theirs = Entry.for_new_version(TABLE, 42), Entry.from_item(JAVA)
    done = mine.as_completed(1.8e9)
    for lost, answer in ((ConditionLost(JAVA), theirs), (ConditionLost({}), None)):
        assert await lock_table(lost)[1].complete_entry(done) == answer
    assert await lock_table(ConditionLost(JAVA))[1].put_entry_if_absent(mine) == theirs
    client, found = lock_table({}, {})
    assert await found.put_entry_if_absent(mine) is None
    assert await found.complete_entry(done) is None
    (_, put), (_, update) = client.asked
    assert put["Item"] == {name: {"S": value} for name, value in {**JAVA, "tempPath": mine.temp_path}.items()}
    assert update["ExpressionAttributeValues"] == {
        ":complete": {"S": "true"}, ":expires": {"N": "1800086400"}, ":temp": {"S": mine.temp_path},
    }  # fmt: skip
