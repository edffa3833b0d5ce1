"""What DynamoDB's answers mean, against a server on loopback that answers as it is told."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.common.errors import Fatal, NotAllowed, OutcomeUnknown, Retryable
from pcaplake.lake.dynamodb_table import (
    Canceled,
    ConditionLost,
    DynamoClient,
    from_attribute_values,
    to_attribute_values,
)
from tests.retries import hardly_wait
from tools.local.engines import LOOPBACK

Answer = dict[str, Any] | tuple[int, dict[str, Any]] | str
PREFIX = "com.amazonaws.dynamodb.v20120810#"
KEY = to_attribute_values({"pk": "a", "sk": "-"})
PUT = ("PutItem", {"Item": KEY})
GET = ("GetItem", {"Key": KEY})


def error(code: str, status: int = 400, **more: Any) -> tuple[int, dict[str, Any]]:
    return status, {"__type": PREFIX + code, "message": f"because of {code}", **more}


THROTTLED = error("ThrottlingException")
LOST = error("ConditionalCheckFailedException", Item=to_attribute_values({"pk": "a", "owner": "me", "n": 3}))


class Server:
    """Answers in turn: a body, a status and a body, `drop` the connection, `cut` the answer, `noise`, `damaged`."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Any]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        operation = request.headers["X-Amz-Target"].rpartition(".")[2]
        self.asked.append((operation, json.loads(await request.read())))
        answer = self.answers.pop(0)
        if answer == "noise":
            return web.Response(text="<html>not what was expected</html>")
        if answer == "damaged":
            return web.json_response({"Item": KEY}, headers={"x-amz-crc32": "1"})
        if isinstance(answer, str):
            response = web.StreamResponse(headers={"Content-Length": "1000"})
            if answer == "cut":
                await response.prepare(request)
                await response.write(b'{"Item": ')
            assert request.transport is not None
            request.transport.close()
            return response
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        return web.json_response(body, status=status, content_type="application/x-amz-json-1.0")


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": LOOPBACK,
    }.items():
        monkeypatch.setenv(name, value)
    endpoints = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_DYNAMODB", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", *endpoints):
        monkeypatch.delenv(name, raising=False)
    hardly_wait(monkeypatch)


def asked(
    monkeypatch: pytest.MonkeyPatch, server: Server, story: Callable[[DynamoClient], Coroutine[Any, Any, Any]]
) -> Any:
    """What `story` makes of a client of this server."""

    async def whole() -> Any:
        app = web.Application()
        app.router.add_post("/", server.answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, LOOPBACK, 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", f"http://{host}:{port}")
        client = await DynamoClient.open("books")
        try:
            return await story(client)
        finally:
            await client.close()
            await runner.cleanup()

    return asyncio.run(whole())


def refusal(monkeypatch: pytest.MonkeyPatch, request: tuple[str, dict[str, Any]], *answers: Answer) -> Exception:
    """What a request raises, after exactly these answers."""
    server = Server(*answers)

    async def story(client: DynamoClient) -> None:
        await client.call_operation(request[0], **request[1])

    with pytest.raises(Exception) as raised:  # noqa: PT011 -- whatever it is, it is returned
        asked(monkeypatch, server, story)
    assert server.answers == []
    return raised.value


def test_the_table_is_named_where_an_operation_takes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server({"Item": KEY}, {}, {})

    async def story(client: DynamoClient) -> None:
        assert client.region == "eu-central-1"
        assert (await client.call_operation("GetItem", Key=KEY))["Item"] == KEY
        await client.call_operation("DescribeTable", TableName="another")
        await client.call_operation("BatchGetItem", RequestItems={"books": {"Keys": [KEY]}})

    asked(monkeypatch, server, story)
    assert server.asked == [
        ("GetItem", {"TableName": "books", "Key": KEY}),
        ("DescribeTable", {"TableName": "another"}),
        ("BatchGetItem", {"RequestItems": {"books": {"Keys": [KEY]}}}),
    ]


def test_every_attempt_is_the_same_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server("drop", THROTTLED, {}, {})

    async def story(client: DynamoClient) -> None:
        for _ in range(2):
            await client.call_operation(
                "TransactWriteItems", TransactItems=[{"Put": {"TableName": "books", "Item": KEY}}]
            )

    asked(monkeypatch, server, story)
    tokens = [arguments["ClientRequestToken"] for _, arguments in server.asked]
    assert tokens[0] == tokens[1] == tokens[2] != tokens[3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "answers", "kind", "words"),
    [
        (PUT, [THROTTLED] * 3, Retryable, "PutItem on books: ThrottlingException: because"),
        (PUT, [error("ProvisionedThroughputExceededException")] * 3, Retryable, "Provisioned"),
        (PUT, [error("TransactionConflictException")] * 3, Retryable, "Conflict"),
        (PUT, [error("SomethingNewException")] * 3, OutcomeUnknown, "SomethingNew"),
        (PUT, [error("InternalServerError", 500)] * 3, OutcomeUnknown, "InternalServerError"),
        (PUT, [(503, {})] * 3, OutcomeUnknown, "503"),
        (PUT, [error("TransactionInProgressException")] * 3, OutcomeUnknown, "InProgress"),
        (PUT, ["drop"] * 3, OutcomeUnknown, "PutItem on books"),
        (PUT, ["cut"] * 3, OutcomeUnknown, "PutItem on books"),
        (PUT, ["noise"] * 3, OutcomeUnknown, "not a response from DynamoDB"),
        (PUT, ["damaged"] * 3, OutcomeUnknown, "not a response from DynamoDB"),
        (PUT, ["drop", THROTTLED, THROTTLED], OutcomeUnknown, "Throttling"),  # the first may have been carried out
        (PUT, [THROTTLED, "drop", THROTTLED], OutcomeUnknown, "Throttling"),
        (GET, [error("InternalServerError", 500)] * 3, Retryable, "Internal"),
        (GET, ["drop", "cut", "noise"], Retryable, "GetItem on books"),
        (PUT, [error("AccessDeniedException")], NotAllowed, "pcaplake setup"),
        (PUT, ["drop", error("ResourceNotFoundException")], Fatal, "create the table"),
        (GET, [error("ResourceNotFoundException")], Fatal, "create the table"),
        (PUT, [error("ValidationException")], Fatal, "the table differs"),
        (PUT, [error("IdempotentParameterMismatchException")], Fatal, "report it"),
        (GET, [error("UnrecognizedClientException")], Fatal, "credentials"),
        (GET, [error("InvalidSignatureException")], Fatal, "clock"),
        (GET, [error("ExpiredTokenException")], Fatal, "credentials"),
    ],
)
def test_what_a_failure_means(
    monkeypatch: pytest.MonkeyPatch,
    request_: tuple[str, dict[str, Any]],
    answers: list[Answer],
    kind: type[Exception],
    words: str,
) -> None:
    raised = refusal(monkeypatch, request_, *answers)
    assert type(raised) is kind
    assert words in str(raised)


@pytest.mark.parametrize("before", [[], ["drop"], [THROTTLED, error("InternalServerError", 500)]])
def test_it_is_asked_again_until_there_is_an_answer(monkeypatch: pytest.MonkeyPatch, before: list[Answer]) -> None:
    server = Server(*before, {"Attributes": to_attribute_values({"n": 1})})
    answer = asked(monkeypatch, server, lambda client: client.call_operation(PUT[0], **PUT[1]))
    assert from_attribute_values(answer["Attributes"]) == {"n": 1}
    assert server.answers == []


@pytest.mark.slow
@pytest.mark.parametrize("before", [[], ["drop"]])
def test_a_lost_condition_says_what_is_there(monkeypatch: pytest.MonkeyPatch, before: list[Answer]) -> None:
    raised = refusal(monkeypatch, PUT, *before, LOST)
    assert isinstance(raised, ConditionLost)
    assert raised.item == {"pk": "a", "owner": "me", "n": 3}
    raised = refusal(monkeypatch, PUT, *before, error("ConditionalCheckFailedException"))
    assert isinstance(raised, ConditionLost)
    assert raised.item == {}


def test_a_canceled_transaction_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = [{"Code": "None"}, {"Code": "ConditionalCheckFailed", "Item": KEY}, {"Code": "TransactionConflict"}]
    request = ("TransactWriteItems", {"TransactItems": [{"Put": {"TableName": "books", "Item": KEY}}] * 3})
    raised = refusal(monkeypatch, request, error("TransactionCanceledException", CancellationReasons=reasons))
    assert isinstance(raised, Canceled)
    assert raised.reasons == [
        ("None", {}),
        ("ConditionalCheckFailed", from_attribute_values(KEY)),
        ("TransactionConflict", {}),
    ]
    assert str(raised) == "transaction canceled: ConditionalCheckFailed, TransactionConflict"


async def test_nobody_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(request: tuple[str, dict[str, Any]]) -> None:
        client = await DynamoClient.open("books", region="eu-west-1")
        try:
            assert client.region == "eu-west-1"
            await client.call_operation(request[0], **request[1])
        finally:
            await client.close()

    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", f"http://{LOOPBACK}:9")
    with pytest.raises(Retryable) as raised:
        await story(GET)
    assert type(raised.value) is Retryable
    with pytest.raises(OutcomeUnknown):
        await story(PUT)


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    raised = refusal(monkeypatch, PUT)
    assert isinstance(raised, Fatal)
    assert "credentials" in str(raised)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"AWS_DEFAULT_REGION": ""},
        {"AWS_DEFAULT_REGION": "", "AWS_ENDPOINT_URL_DYNAMODB": f"http://{LOOPBACK}:9"},
        {"AWS_ENDPOINT_URL_DYNAMODB": "no address"},
        {"AWS_PROFILE": "nobody"},
    ],
)
async def test_settings_that_make_no_client(monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(Fatal, match=r"books.*AWS_DEFAULT_REGION"):
        await DynamoClient.open("books")


async def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore.session", None)
    with pytest.raises(Fatal, match=r"pcaplake\[aws\]"):
        await DynamoClient.open("books")


NAMES = st.text(max_size=4)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**37), 10**37) | NAMES | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner.filter(lambda one: one is not None)),
    max_leaves=5,
)


@pytest.mark.slow
@given(st.dictionaries(NAMES, PLAIN, max_size=4))
def test_values_come_back_as_they_were(whole: dict[str, Any]) -> None:
    assert from_attribute_values(to_attribute_values(whole)) == {
        name: value for name, value in whole.items() if value is not None
    }


def test_attributes_of_others() -> None:
    assert from_attribute_values({"a": {"N": "1.5"}, "b": {"N": "-7"}, "c": {"N": "1E+2"}}) == {
        "a": 1.5,
        "b": -7,
        "c": 100.0,
    }
    assert to_attribute_values({"yes": True, "one": 1}) == {"yes": {"BOOL": True}, "one": {"N": "1"}}
    with pytest.raises(ValueError, match="SS"):
        from_attribute_values({"a": {"SS": ["x"]}})
    with pytest.raises(TypeError, match=r"1\.5"):
        to_attribute_values({"a": 1.5})
