"""What SQS answers, told in our words: by a client that answers what it is told to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
)

from pcaplake.common.errors import Fatal, PcaplakeError, Retryable
from pcaplake.worker.service.queue import Attributes, BatchResult, Delivery
from pcaplake.worker.service.queue.sqs import SqsQueue
from tests.retries import hardly_wait

Answer = Mapping[str, Any] | Exception


class Client:
    """Answers what it is told to, in that order; `asked` are the requests."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[Mapping[str, Any]] = []

    async def _answer(self, **request: Any) -> Mapping[str, Any]:
        self.asked.append(request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    receive_message = send_message_batch = delete_message_batch = change_message_visibility_batch = (
        get_queue_attributes
    ) = _answer


def queue(*answers: Answer) -> tuple[SqsQueue, Client]:
    client = Client(*answers)
    return SqsQueue("captures", client, client, AsyncExitStack()), client


def deliveries(count: int) -> list[Delivery]:
    return [
        Delivery(message_id=f"m{n}", receipt_handle=f"h{n}", receive_count=1, sent_at=0, body="") for n in range(count)
    ]


def refused(code: str, status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": "said so"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "Operation")


def failed(key: int, code: str, *, fault: bool) -> dict[str, Any]:
    return {"Id": str(key), "Code": code, "SenderFault": fault, "Message": "said so"}


def done(*keys: int) -> Sequence[Mapping[str, str]]:
    return [{"Id": str(key)} for key in keys]


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    hardly_wait(monkeypatch)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (refused("AWS.SimpleQueueService.NonExistentQueue"), Fatal),
        (refused("QueueDoesNotExist"), Fatal),
        (refused("com.amazonaws.sqs#QueueDoesNotExist"), Fatal),
        (refused("AccessDenied", 403), Fatal),
        (refused("AccessDeniedException"), Fatal),
        (refused("Whatever", 403), Fatal),
        (refused("InvalidClientTokenId", 403), Fatal),
        (refused("ExpiredTokenException"), Fatal),
        (refused("RequestTimeTooSkewed"), Fatal),
        (refused("KmsDisabled"), Fatal),
        (NoCredentialsError(), Fatal),
        (PartialCredentialsError(provider="env", cred_var="x"), Fatal),
        (refused("KmsThrottled"), Retryable),
        (refused("RequestThrottled", 403), Retryable),
        (refused("AWS.SimpleQueueService.OverLimit", 403), Retryable),
        (refused("InternalError", 500), Retryable),
        (refused("ServiceUnavailable", 503), Retryable),
        (refused("SomethingNew"), Retryable),
        (EndpointConnectionError(endpoint_url="x"), Retryable),
        (ConnectTimeoutError(endpoint_url="x"), Retryable),
        (aiohttp.ClientPayloadError("cut"), Retryable),
        (ConnectionResetError(), Retryable),
    ],
    ids=repr,
)
async def test_errors_in_our_words(error: Exception, expected: type[PcaplakeError]) -> None:
    with pytest.raises(expected, match="captures") as met:
        await queue(error)[0].receive(1, 0)
    assert met.type is expected
    with pytest.raises(expected, match="captures"):
        await queue(error)[0].read_attributes()


async def test_what_is_asked_for_when_receiving() -> None:
    message = {
        "MessageId": "m",
        "ReceiptHandle": "h",
        "Body": "b",
        "Attributes": {"ApproximateReceiveCount": "3", "SentTimestamp": "1700000000123"},
    }
    one, client = queue({"Messages": [message]}, {})
    expected = Delivery(message_id="m", receipt_handle="h", receive_count=3, sent_at=1700000000.123, body="b")
    assert await one.receive(25, 0.5) == [expected]
    assert await one.receive(3, 60) == []
    asked = [(request["MaxNumberOfMessages"], request["WaitTimeSeconds"]) for request in client.asked]
    assert asked == [(10, 1), (3, 20)]


async def test_attributes_and_a_visibility_timeout_that_cannot_be() -> None:
    counts = {
        "ApproximateNumberOfMessages": "7",
        "ApproximateNumberOfMessagesNotVisible": "5",
        "ApproximateNumberOfMessagesDelayed": "3",
    }
    one, _ = queue(
        {"Attributes": counts | {"VisibilityTimeout": "90"}}, {"Attributes": counts | {"VisibilityTimeout": "0"}}
    )
    assert await one.read_attributes() == Attributes(visible=7, in_flight=5, delayed=3)
    assert one.visibility_timeout == 90
    with pytest.raises(Fatal, match="visibility timeout of 0"):
        await one.read_attributes()


@pytest.mark.parametrize(("seconds", "asked"), [(0, 0), (0.2, 1), (30, 30), (10**9, 43200), (-5, 0)])
async def test_seconds_are_whole_and_within_limits(seconds: float, asked: int) -> None:
    one, client = queue({"Successful": done(0)})
    await one.release_message(deliveries(1)[0], seconds)
    assert client.asked[0]["Entries"] == [{"Id": "0", "ReceiptHandle": "h0", "VisibilityTimeout": asked}]


async def test_partial_failures_one_by_one() -> None:
    """A worthless receipt is lost; what failed is tried again, and only that."""
    one, client = queue(
        {
            "Successful": done(0, 3),
            "Failed": [
                failed(1, "ReceiptHandleIsInvalid", fault=True),
                failed(2, "InternalError", fault=False),
                failed(4, "RequestThrottled", fault=True),
                failed(5, "AWS.SimpleQueueService.MessageNotInflight", fault=True),
                failed(6, "InvalidParameterValue", fault=True),
            ],
        },
        {"Successful": done(2), "Failed": [failed(4, "RequestThrottled", fault=True)]},
        {"Successful": done(4)},
    )
    all_ = deliveries(7)
    result = await one.delete(all_)
    assert result == BatchResult(done=(all_[0], all_[3], all_[2], all_[4]), lost=(all_[1], all_[5], all_[6]), failed=())
    assert [[entry["Id"] for entry in request["Entries"]] for request in client.asked] == [
        ["0", "1", "2", "3", "4", "5", "6"],
        ["2", "4"],
        ["4"],
    ]


async def test_what_fails_again_and_again_is_told() -> None:
    all_ = deliveries(2)
    again = {"Successful": (), "Failed": [failed(1, "InternalError", fault=False)]}
    one, client = queue({**again, "Successful": done(0)}, again, again)
    assert await one.change_visibility_timeout(all_, 5) == BatchResult(done=(all_[0],), failed=(all_[1],))
    assert len(client.asked) == 3


async def test_a_batch_that_fails_says_nothing_about_the_others() -> None:
    all_ = deliveries(23)
    one, client = queue(
        {"Successful": done(*range(10))}, refused("ServiceUnavailable", 503), {"Successful": done(0, 1, 2)}
    )
    result = await one.delete(all_)
    assert result == BatchResult(done=(*all_[:10], *all_[20:]), failed=tuple(all_[10:20]))
    assert [len(request["Entries"]) for request in client.asked] == [10, 10, 3]
    one, _ = queue({"Successful": done(*range(10))}, refused("AccessDenied", 403), {"Successful": done(0, 1, 2)})
    with pytest.raises(Fatal):
        await one.delete(all_)


async def test_of_a_batch_only_what_was_not_sent_is_sent_again() -> None:
    one, client = queue(
        {"Successful": done(0, 2), "Failed": [failed(1, "InternalError", fault=False)]},
        {"Successful": done(1)},
    )
    await one.send(["a", "b", "c"])
    assert [[entry["MessageBody"] for entry in request["Entries"]] for request in client.asked] == [
        ["a", "b", "c"],
        ["b"],
    ]


async def test_some_messages_that_cannot_be_sent_do_not_stop_the_others() -> None:
    again = {"Failed": [failed(0, "InternalError", fault=False)]}
    one, client = queue({"Successful": done(*range(10))}, {"Successful": done(*range(1, 10)), **again}, again, again)
    with pytest.raises(Retryable, match=r"captures: some .* InternalError: said so"):
        await one.send([str(number) for number in range(20)])
    assert [len(request["Entries"]) for request in client.asked] == [10, 10, 1, 1]
    assert client.asked[-1]["Entries"][0]["MessageBody"] == "10"
    one, client = queue(refused("ServiceUnavailable", 503), {"Successful": done(0)})
    with pytest.raises(Retryable, match="ServiceUnavailable"):
        await one.send([str(number) for number in range(11)])
    assert [len(request["Entries"]) for request in client.asked] == [10, 1]


async def test_an_answer_that_names_nothing_is_none() -> None:
    one, client = queue({}, {}, {})
    with pytest.raises(Retryable, match="does not list them"):
        await one.send(["a"])
    assert len(client.asked) == 3
