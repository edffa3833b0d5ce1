"""What pcaplake relies on, asked of the engine that the other tests use: a failure here explains theirs.

Not asked, because nothing relies on it and the engines differ: conditional CompleteMultipartUpload and CopyObject, what
becomes of a receipt handle after a redelivery, message move tasks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from email.utils import parsedate_to_datetime
from threading import Barrier
from typing import Any
from urllib.parse import unquote_plus

import obstore
import pytest
from botocore.exceptions import ClientError
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import S3Store

from .conftest import Aws

RACERS = 16
ROUNDS = 10
KEYS = ["plain.pcap", "a b+c.pcap", "ü/=1&2.pcap", "50%25%2F.pcap", "date=2026-11-21/x~'(1)!.pcap"]


def race(contest: Callable[[int], Any]) -> list[Any]:
    """What `contest` gives each of the racers, who all start at once."""
    start = Barrier(RACERS)

    def run(racer: int) -> Any:
        start.wait()
        return contest(racer)

    with ThreadPoolExecutor(RACERS) as threads:
        return list(threads.map(run, range(RACERS)))


def code_of(error: ClientError) -> str:
    code: str = error.response["Error"]["Code"]
    return code


def refused(call: Callable[..., Any], **arguments: Any) -> str:
    """The code with which the service refuses."""
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    return code_of(caught.value)


@pytest.mark.parametrize("size", [200, 1_000_000])
def test_one_of_many_creates_an_object(aws: Aws, size: int) -> None:
    s3, bucket = aws.client("s3"), aws.bucket()
    for number in range(ROUNDS):
        key = f"_delta_log/{number:020d}.json"

        def put(racer: int, key: str = key) -> str:
            try:
                s3.put_object(Bucket=bucket, Key=key, Body=bytes([racer]) * size, IfNoneMatch="*")
            except ClientError as error:
                return code_of(error)
            return "won"

        outcomes = race(put)
        assert sorted(set(outcomes)) == ["PreconditionFailed", "won"]
        assert outcomes.count("won") == 1
        body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        assert body == bytes([outcomes.index("won")]) * size


def test_nothing_is_overwritten_unseen(aws: Aws) -> None:
    """Each racer adds one by compare and swap: If-Match loses none."""
    s3, bucket = aws.client("s3"), aws.bucket()
    s3.put_object(Bucket=bucket, Key="lake.json", Body=b"0")

    def add(_: int) -> None:
        while True:
            seen = s3.get_object(Bucket=bucket, Key="lake.json")
            body = b"%d" % (int(seen["Body"].read()) + 1)
            try:
                s3.put_object(Bucket=bucket, Key="lake.json", Body=body, IfMatch=seen["ETag"])
            except ClientError as error:
                if code_of(error) != "PreconditionFailed":
                    raise
            else:
                return

    race(add)
    assert s3.get_object(Bucket=bucket, Key="lake.json")["Body"].read() == b"%d" % RACERS


def test_objects_as_obstore_sees_them(aws: Aws) -> None:
    store = S3Store(
        aws.bucket(), endpoint=aws.s3, virtual_hosted_style_request=False, client_options={"allow_http": True}
    )
    obstore.put(store, "a/1", b"0123456789", mode="create", use_multipart=False)
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, "a/1", b"other", mode="create", use_multipart=False)
    first = obstore.head(store, "a/1")["e_tag"]
    obstore.put(store, "a/1", b"abcdefghij", mode={"e_tag": first}, use_multipart=False)
    with pytest.raises(PreconditionError):
        obstore.put(store, "a/1", b"late", mode={"e_tag": first}, use_multipart=False)
    with pytest.raises(PreconditionError):
        obstore.get(store, "a/1", options={"if_match": first})
    assert bytes(obstore.get_range(store, "a/1", start=3, end=7)) == b"defg"
    for number in range(2, 6):
        obstore.put(store, f"a/{number}", b"", use_multipart=False)
    (listed,) = obstore.list(store, "a", offset="a/2")
    assert [one["path"] for one in listed] == ["a/3", "a/4", "a/5"]


def test_keys_are_kept(aws: Aws) -> None:
    s3, bucket = aws.client("s3"), aws.bucket()
    for key in KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    listed = [one["Key"] for one in s3.list_objects_v2(Bucket=bucket)["Contents"]]
    assert listed == sorted(KEYS, key=str.encode)
    for key in KEYS:
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == key.encode()


def test_versions_and_the_clock_of_the_store(aws: Aws) -> None:
    s3, bucket = aws.client("s3"), aws.bucket()
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    first = s3.put_object(Bucket=bucket, Key="k", Body=b"first")
    second = s3.put_object(Bucket=bucket, Key="k", Body=b"second")
    old = s3.get_object(Bucket=bucket, Key="k", VersionId=first["VersionId"], Range="bytes=0-2")
    assert (old["Body"].read(), old["ContentRange"], old["ETag"]) == (b"fir", "bytes 0-2/5", first["ETag"])
    assert refused(s3.get_object, Bucket=bucket, Key="k", IfMatch=first["ETag"]) == "PreconditionFailed"
    assert refused(s3.get_object, Bucket=bucket, Key="none") == "NoSuchKey"
    dates = [parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]) for answer in (first, second)]
    assert dates == sorted(dates)


def test_one_of_many_puts_an_item(aws: Aws) -> None:
    dynamodb, table = aws.client("dynamodb"), aws.table()
    for number in range(ROUNDS):
        key = {"pk": {"S": "s3a://bucket/table"}, "sk": {"S": f"{number:020d}.json"}}

        def put(racer: int, key: dict[str, Any] = key) -> str:
            try:
                dynamodb.put_item(
                    TableName=table,
                    Item={**key, "tempPath": {"S": str(racer)}},
                    ConditionExpression="attribute_not_exists(sk)",
                    ReturnValuesOnConditionCheckFailure="ALL_OLD",
                )
            except ClientError as error:
                if code_of(error) != "ConditionalCheckFailedException":
                    raise
                found: str = error.response["Item"]["tempPath"]["S"]
                return found
            return f"won by {racer}"

        outcomes = race(put)
        (won,) = [outcome for outcome in outcomes if outcome.startswith("won")]
        winner = won.removeprefix("won by ")
        assert set(outcomes) == {won, winner}  # each loser is told who has it
    newest = dynamodb.query(
        TableName=table,
        KeyConditionExpression="pk = :pk",
        ExpressionAttributeValues={":pk": {"S": "s3a://bucket/table"}},
        ConsistentRead=True,
        ScanIndexForward=False,
        Limit=1,
    )
    assert [item["sk"]["S"] for item in newest["Items"]] == [f"{ROUNDS - 1:020d}.json"]


def put(table: str, pk: str, *, absent: bool = True, **attributes: str) -> dict[str, Any]:
    """One put of a transaction."""
    item = {"pk": {"S": pk}, "sk": {"S": "-"}} | {name: {"S": value} for name, value in attributes.items()}
    only = {
        "ConditionExpression": "attribute_not_exists(pk)",
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }
    return {"Put": {"TableName": table, "Item": item} | (only if absent else {})}


def count_up(table: str) -> dict[str, Any]:
    """One update of a transaction."""
    return {
        "Update": {
            "TableName": table,
            "Key": {"pk": {"S": "counter"}, "sk": {"S": "-"}},
            "UpdateExpression": "ADD n :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
    }


def counted(aws: Aws, table: str) -> int:
    key = {"pk": {"S": "counter"}, "sk": {"S": "-"}}
    answer = aws.client("dynamodb").get_item(TableName=table, Key=key, ConsistentRead=True)
    return int(answer["Item"]["n"]["N"])


def test_one_of_many_transactions_takes_all(aws: Aws) -> None:
    """The losers leave nothing behind, whichever of the two things they are told."""
    dynamodb, table = aws.client("dynamodb"), aws.table()
    for number in range(ROUNDS):

        def stage(racer: int, capture: str = f"capture#{number}") -> str:
            items = [put(table, f"stage#{capture}#{racer}"), put(table, capture), count_up(table)]
            while True:
                try:
                    dynamodb.transact_write_items(TransactItems=items)
                except ClientError as error:
                    if code_of(error) != "TransactionCanceledException":
                        raise
                    codes = {reason["Code"] for reason in error.response["CancellationReasons"]}
                    if "ConditionalCheckFailed" in codes:
                        return "lost"
                    assert codes <= {"None", "TransactionConflict"}
                else:
                    return "won"

        assert race(stage).count("won") == 1
    assert counted(aws, table) == ROUNDS
    assert dynamodb.scan(TableName=table, Select="COUNT", ConsistentRead=True)["Count"] == 2 * ROUNDS + 1


def test_reasons_are_in_the_order_of_the_items(aws: Aws) -> None:
    dynamodb, table = aws.client("dynamodb"), aws.table()
    dynamodb.transact_write_items(TransactItems=[put(table, "b", stage_id="theirs")])
    items = [put(table, name, stage_id="ours") for name in ("a", "b", "c")]
    with pytest.raises(ClientError) as caught:
        dynamodb.transact_write_items(TransactItems=items)
    reasons = caught.value.response["CancellationReasons"]
    assert [reason["Code"] for reason in reasons] == ["None", "ConditionalCheckFailed", "None"]
    assert reasons[1]["Item"]["stage_id"] == {"S": "theirs"}
    assert dynamodb.scan(TableName=table, Select="COUNT", ConsistentRead=True)["Count"] == 1


def test_a_transaction_repeated_with_its_token_is_one(aws: Aws) -> None:
    dynamodb, table = aws.client("dynamodb"), aws.table()
    items = [put(table, "a"), count_up(table)]
    for _ in range(3):  # the condition would fail
        dynamodb.transact_write_items(TransactItems=items, ClientRequestToken="attempt")
    assert counted(aws, table) == 1
    other = [put(table, "b"), count_up(table)]
    code = refused(dynamodb.transact_write_items, TransactItems=other, ClientRequestToken="attempt")
    assert code == "IdempotentParameterMismatchException"


def test_a_table_made_again_is_another(aws: Aws) -> None:
    """lake.json holds the identity of its ledger. DynamoDB Local gives tables no TableId, only the time they were made."""
    dynamodb, name = aws.client("dynamodb"), aws.name("table")

    def made() -> str:
        keys = [{"AttributeName": "pk", "KeyType": "HASH"}]
        types = [{"AttributeName": "pk", "AttributeType": "S"}]
        dynamodb.create_table(TableName=name, KeySchema=keys, AttributeDefinitions=types, BillingMode="PAY_PER_REQUEST")
        dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
        table = dynamodb.describe_table(TableName=name)["Table"]
        return str(table.get("TableId") or table["CreationDateTime"])

    first = made()
    dynamodb.delete_table(TableName=name)
    dynamodb.get_waiter("table_not_exists").wait(TableName=name, WaiterConfig={"Delay": 1})
    assert refused(dynamodb.describe_table, TableName=name) == "ResourceNotFoundException"
    assert made() != first


def test_items_expire_by_an_attribute(aws: Aws) -> None:
    dynamodb, table = aws.client("dynamodb"), aws.table()
    ttl = {"Enabled": True, "AttributeName": "expireTime"}
    dynamodb.update_time_to_live(TableName=table, TimeToLiveSpecification=ttl)
    described = dynamodb.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert described == {"TimeToLiveStatus": "ENABLED", "AttributeName": "expireTime"}


def received(aws: Aws, queue: str, *, wait: int = 10) -> list[dict[str, Any]]:
    """Up to ten messages; `wait` in seconds only if there are none."""
    answer = aws.client("sqs").receive_message(
        QueueUrl=queue, MaxNumberOfMessages=10, WaitTimeSeconds=wait, MessageSystemAttributeNames=["All"]
    )
    messages: list[dict[str, Any]] = answer.get("Messages", [])
    return messages


def test_uploads_are_notified(aws: Aws) -> None:
    s3, bucket, queue = aws.client("s3"), aws.bucket(), aws.queue()
    rules = [{"Name": "prefix", "Value": "in/"}, {"Name": "suffix", "Value": ".pcap"}]
    told = {
        "QueueArn": aws.queue_arn(queue),
        "Events": ["s3:ObjectCreated:*"],
        "Filter": {"Key": {"FilterRules": rules}},
    }
    s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration={"QueueConfigurations": [told]})
    (test_event,) = received(aws, queue)
    assert json.loads(test_event["Body"])["Event"] == "s3:TestEvent"
    s3.put_object(Bucket=bucket, Key="out/no.pcap", Body=b"")
    s3.put_object(Bucket=bucket, Key="in/no.txt", Body=b"")
    tags = {key: s3.put_object(Bucket=bucket, Key=f"in/{key}", Body=key.encode())["ETag"].strip('"') for key in KEYS}
    events: dict[str, tuple[str, int]] = {}
    while len(events) < len(KEYS):
        messages = received(aws, queue)
        assert messages, f"only {sorted(events)} of {KEYS}"
        for record in (record for message in messages for record in json.loads(message["Body"])["Records"]):
            assert record["eventName"].startswith("ObjectCreated:")
            assert record["s3"]["bucket"]["name"] == bucket
            s3_object = record["s3"]["object"]
            events[unquote_plus(s3_object["key"])] = (s3_object["eTag"].strip('"'), s3_object["size"])
    assert events == {f"in/{key}": (tag, len(key.encode())) for key, tag in tags.items()}


def test_visibility_in_batches(aws: Aws) -> None:
    sqs, queue = aws.client("sqs"), aws.queue(VisibilityTimeout="600")
    sqs.send_message_batch(QueueUrl=queue, Entries=[{"Id": str(n), "MessageBody": str(n)} for n in range(3)])
    first: dict[str, dict[str, Any]] = {}
    while len(first) < 3:
        first |= {message["Body"]: message for message in received(aws, queue)}
    assert received(aws, queue, wait=0) == []
    entries = [
        {"Id": "kept", "ReceiptHandle": first["0"]["ReceiptHandle"], "VisibilityTimeout": 900},
        {"Id": "wrong", "ReceiptHandle": "no handle", "VisibilityTimeout": 900},
        {"Id": "returned", "ReceiptHandle": first["1"]["ReceiptHandle"], "VisibilityTimeout": 0},
    ]
    answer = sqs.change_message_visibility_batch(QueueUrl=queue, Entries=entries)
    assert {one["Id"] for one in answer["Successful"]} == {"kept", "returned"}
    assert {one["Id"] for one in answer["Failed"]} == {"wrong"}
    (again,) = received(aws, queue)
    assert (again["Body"], again["Attributes"]["ApproximateReceiveCount"]) == ("1", "2")
    handles = [first["0"]["ReceiptHandle"], again["ReceiptHandle"], "no handle"]
    deleted = sqs.delete_message_batch(
        QueueUrl=queue, Entries=[{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles)]
    )
    assert ([one["Id"] for one in deleted["Successful"]], [one["Id"] for one in deleted["Failed"]]) == (
        ["0", "1"],
        ["2"],
    )


def test_what_always_fails_becomes_a_dead_letter(aws: Aws) -> None:
    sqs, dead = aws.client("sqs"), aws.queue("dead")
    policy = {"deadLetterTargetArn": aws.queue_arn(dead), "maxReceiveCount": "2"}
    queue = aws.queue(VisibilityTimeout="600", RedrivePolicy=json.dumps(policy))
    sqs.send_message(QueueUrl=queue, MessageBody="poison")
    for count in ("1", "2"):
        (message,) = received(aws, queue)
        assert message["Attributes"]["ApproximateReceiveCount"] == count
        sqs.change_message_visibility(QueueUrl=queue, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=0)
    assert received(aws, queue, wait=1) == []
    (letter,) = received(aws, dead)
    assert letter["Body"] == "poison"
    states = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    left = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=states)["Attributes"]
    assert [left[state] for state in states] == ["0", "0"]
