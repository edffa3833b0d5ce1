"""The proxy itself: each fault does what it says, no more, and what has no fault passes byte for byte."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from botocore.exceptions import ClientError, ConnectionClosedError, HTTPClientError, ResponseStreamingError
from multidict import CIMultiDict
from yarl import URL

from .conftest import Aws
from .fault_proxy import FaultProxy
from .operations import name_of

PATIENCE = 30.0  # s; only so that a broken proxy fails and does not hang
TARGET = {"X-Amz-Target": "DynamoDB_20120810.PutItem"}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


class Upstream:
    """A service that says what came to it, and answers as `respond` says."""

    def __init__(self) -> None:
        self.url = ""
        self.paths: list[str] = []
        self.hosts: list[str] = []
        self.bodies: list[bytes] = []
        self.respond: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]] = self.record

    async def record(self, request: web.BaseRequest) -> web.StreamResponse:
        self.bodies.append(await request.content.read())
        return web.Response(body=b"0123456789")

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.paths.append(f"{request.method} {request.raw_path}")
        self.hosts.append(request.headers["Host"])
        return await self.respond(request)


@asynccontextmanager
async def behind(
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncIterator[tuple[Upstream, FaultProxy, aiohttp.ClientSession]]:
    """A service, the proxy in front of it, and a client of the proxy that tries everything once."""
    upstream = Upstream()
    runner = web.ServerRunner(web.Server(upstream.handle, access_log=None, auto_decompress=False), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream.url = "http://{}:{}".format(*runner.addresses[0][:2])
    try:
        async with FaultProxy(upstream.url, sleep=sleep) as proxy, aiohttp.ClientSession() as client:
            client._retry_connection = False
            yield upstream, proxy, client
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("request_line", "headers", "name", "key"),
    [
        ("PUT /b/in/a%20b%2B%C3%BC%3D1.pcap", {}, "PutObject", "in/a b+ü=1.pcap"),
        ("PUT /b/k?partNumber=1&uploadId=u", {}, "UploadPart", "k"),
        ("PUT /b/k", {"x-amz-copy-source": "/b/other"}, "CopyObject", "k"),
        ("PUT /b/k?partNumber=1&uploadId=u", {"X-Amz-Copy-Source": "/b/other"}, "UploadPartCopy", "k"),
        ("POST /b/k?uploads", {}, "CreateMultipartUpload", "k"),
        ("POST /b/k?uploadId=u", {}, "CompleteMultipartUpload", "k"),
        ("DELETE /b/k?uploadId=u", {}, "AbortMultipartUpload", "k"),
        ("GET /b/k?versionId=3", {}, "GetObject", "k"),
        ("GET /b/k?X-Amz-Signature=f&X-Amz-Expires=9", {}, "GetObject", "k"),
        ("GET /b/k?acl", {}, "GET /b/k?acl", "k"),
        ("HEAD /b/k", {}, "HeadObject", "k"),
        ("DELETE /b/k", {}, "DeleteObject", "k"),
        ("GET /b?list-type=2&prefix=_delta_log%2F", {}, "ListObjectsV2", ""),
        ("GET /b/?prefix=", {}, "ListObjects", ""),
        ("GET /b?uploads", {}, "ListMultipartUploads", ""),
        ("POST /b?delete", {}, "DeleteObjects", ""),
        ("PUT /b", {}, "CreateBucket", ""),
        ("HEAD /b/", {}, "HeadBucket", ""),
        ("GET /", {}, "ListBuckets", ""),
        ("POST /", {"X-Amz-Target": "AmazonSQS.ReceiveMessage"}, "ReceiveMessage", ""),
        ("POST /", {"x-amz-target": "DynamoDB_20120810.TransactWriteItems"}, "TransactWriteItems", ""),
        ("POST /", {"Content-Type": "application/x-www-form-urlencoded; charset=utf-8"}, "SendMessage", ""),
        ("GET /0/queue?Action=DeleteMessage&Version=2012-11-05", {}, "DeleteMessage", ""),
    ],
)
def test_names(request_line: str, headers: dict[str, str], name: str, key: str) -> None:
    method, raw_path = request_line.split(" ")
    form = b"Action=SendMessage&MessageBody=Action%3Dx"
    assert name_of(method, raw_path, CIMultiDict(headers), form) == (name, key)


@pytest.mark.parametrize("path", ["/b/a%20b%2B%C3%BC%3D1.pcap", "/b//a/../%2e%2E/c+d%2f?list-type=2&prefix=%20+&x"])
def test_passes_as_it_is(path: str) -> None:
    async def scenario() -> None:
        async with behind() as (upstream, proxy, client):
            body = bytes(range(256)) * 20_000
            asked = {"Content-Encoding": "gzip", "Expect": "100-continue"}  # not gzip at all: nobody may look inside
            async with client.put(URL(proxy.url + path, encoded=True), data=io.BytesIO(body), headers=asked) as answer:
                assert await answer.read() == b"0123456789"
            assert (upstream.paths, upstream.bodies) == ([f"PUT {path}"], [body])
            assert upstream.hosts == [proxy.url.removeprefix("http://")]
            assert [one.status for one in proxy.log] == [200]

    run(scenario())


def test_bodies_are_streams() -> None:
    async def scenario() -> None:
        async with behind() as (upstream, proxy, client):
            up, down = asyncio.Event(), asyncio.Event()

            async def respond(request: web.BaseRequest) -> web.StreamResponse:
                assert await request.content.readexactly(5) == b"first"
                up.set()
                assert await request.content.read() == b"second"
                out = web.StreamResponse()
                await out.prepare(request)
                await out.write(b"third")
                await down.wait()
                await out.write(b"fourth")
                return out

            async def body() -> AsyncIterator[bytes]:
                yield b"first"
                await up.wait()
                yield b"second"

            upstream.respond = respond
            async with client.put(proxy.url + "/b/k", data=body()) as answer:
                assert await answer.content.readexactly(5) == b"third"
                down.set()
                assert await answer.content.read() == b"fourth"

    run(scenario())


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_a_service_that_drops_a_request_is_asked_once(method: str) -> None:
    async def scenario() -> None:
        async with behind() as (upstream, proxy, client):

            async def respond(request: web.BaseRequest) -> web.StreamResponse:
                await request.content.read()
                assert request.transport is not None
                request.transport.abort()
                return web.Response()

            upstream.respond = respond
            with pytest.raises(aiohttp.ClientError):
                await client.request(method, proxy.url + "/b/k", data=b"x" if method == "PUT" else None)
            assert upstream.paths == [f"{method} /b/k"]
            assert [one.status for one in proxy.log] == [None]

    run(scenario())


def test_an_upload_that_is_cut_is_not_made_whole() -> None:
    async def scenario() -> None:
        async with behind() as (upstream, proxy, client):
            began, ended = asyncio.Event(), asyncio.Event()

            async def respond(request: web.BaseRequest) -> web.StreamResponse:
                await request.content.readexactly(5)
                began.set()
                try:
                    await upstream.record(request)
                finally:
                    ended.set()
                raise AssertionError("the rest never came")

            async def body() -> AsyncIterator[bytes]:
                yield b"first"
                await asyncio.Event().wait()

            upstream.respond = respond
            upload = asyncio.create_task(client.put(proxy.url + "/b/k", data=body()))
            await began.wait()
            upload.cancel()
            await ended.wait()
            assert upstream.bodies == []

    run(scenario())


def test_deletes_are_told_apart_by_what_they_delete() -> None:
    async def scenario() -> None:
        async with behind() as (upstream, proxy, client):
            rule = proxy.add("DeleteObjects", "error", containing="<Key>two</Key>")
            answers = [
                (await client.post(f"{proxy.url}/b?delete", data=f"<Delete><Key>{key}</Key></Delete>")).status
                for key in ("one", "two", "three")
            ]
            assert (answers, rule.hits) == ([200, 500, 200], 1)
            assert upstream.bodies == [f"<Delete><Key>{key}</Key></Delete>".encode() for key in ("one", "three")]

    run(scenario())


def test_truncated_by_half() -> None:
    async def scenario() -> None:
        async with behind() as (upstream, proxy, client):
            proxy.add("GetObject", "truncate")
            async with client.get(proxy.url + "/b/k") as answer:
                assert answer.content_length == 10
                assert await answer.content.readexactly(5) == b"01234"
                with pytest.raises(aiohttp.ClientPayloadError):
                    await answer.content.read()
            assert await (await client.get(proxy.url + "/b/k")).read() == b"0123456789"
            assert len(upstream.paths) == 2

    run(scenario())


def test_delayed_by_the_clock_it_is_given() -> None:
    async def scenario() -> None:
        slept: list[float] = []
        upstream_saw: list[int] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            upstream_saw.append(len(upstream.paths))

        async with behind(sleep) as (upstream, proxy, client):
            proxy.add("HeadObject", "delay", seconds=3600)
            assert (await client.head(proxy.url + "/b/k")).status == 200
            assert (slept, upstream_saw, len(upstream.paths)) == ([3600], [0], 1)

    run(scenario())


def test_held_until_released() -> None:
    async def scenario() -> None:
        async with behind() as (upstream, proxy, client):
            held = proxy.add("PutObject", "hold", key="*.json")
            body = b"held" * 1_000_000
            put = asyncio.create_task(client.put(proxy.url + "/b/N.json", data=io.BytesIO(body)))
            await held.reached.wait()
            assert (await client.put(proxy.url + "/b/N.parquet", data=b"passes")).status == 200
            assert upstream.bodies == [b"passes"]
            held.release()
            assert (await put).status == 200
            assert upstream.bodies == [b"passes", body]

    run(scenario())


def test_a_held_request_arrives_though_its_client_is_gone() -> None:
    async def scenario() -> None:
        async with behind() as (upstream, proxy, client):
            arrived = asyncio.Event()

            async def respond(request: web.BaseRequest) -> web.StreamResponse:
                try:
                    return await upstream.record(request)
                finally:
                    arrived.set()

            upstream.respond = respond
            held = proxy.add("PutObject", "hold")
            put = asyncio.create_task(client.put(proxy.url + "/b/k", data=b"late"))
            await held.reached.wait()
            put.cancel()
            await asyncio.wait([put])
            held.release()
            await arrived.wait()
            assert upstream.bodies == [b"late"]

    run(scenario())


def test_an_answer_held_until_released() -> None:
    async def scenario() -> None:
        async with behind() as (upstream, proxy, client):
            held = proxy.add("PutObject", "hold_response")
            put = asyncio.create_task(client.put(proxy.url + "/b/k", data=b"done"))
            await held.reached.wait()
            assert upstream.bodies == [b"done"]
            assert not put.done()
            held.release()
            assert await (await put).read() == b"0123456789"

    run(scenario())


def test_what_is_held_at_the_end_is_lost() -> None:
    async def scenario() -> None:
        async with behind() as (upstream, _, client):
            async with FaultProxy(upstream.url) as proxy:
                held = proxy.add("PutObject", "hold")
                put = asyncio.create_task(client.put(proxy.url + "/b/k", data=b"never"))
                await held.reached.wait()
            with pytest.raises(aiohttp.ClientError):
                await put
            assert upstream.paths == []

    run(scenario())


def test_cleared() -> None:
    async def scenario() -> None:
        async with behind() as (upstream, proxy, client):
            held = proxy.add("PutObject", "hold", times=None)
            put = asyncio.create_task(client.put(proxy.url + "/b/k", data=b"1"))
            await held.reached.wait()
            proxy.clear()
            assert (await put).status == (await client.put(proxy.url + "/b/k", data=b"2")).status == 200
            assert upstream.bodies == [b"1", b"2"]
            assert [one.action for one in proxy.log] == ["hold", None]

    run(scenario())


def test_which_requests_a_rule_takes() -> None:
    async def scenario() -> None:
        async with behind() as (upstream, proxy, client):
            proxy.add("Put*", "error", skip=1, times=2, status=503)
            proxy.add("*Object", "error", key="in/*", times=None, status=404)
            proxy.add("PutItem", "error", containing='"delta_log"', status=400)

            async def put(path: str) -> int:
                return (await client.put(proxy.url + path, data=b"x")).status

            async def item(table: str) -> int:
                answer = await client.post(proxy.url, data=f'{{"TableName": "{table}"}}'.encode(), headers=TARGET)
                return answer.status

            assert [await put(path) for path in ("/b/k", "/b/k", "/b/in/k", "/b/k")] == [200, 503, 503, 200]
            assert [await put(path) for path in ("/b/in/k", "/b/in/l", "/b/inn/k")] == [404, 404, 200]
            assert [await item(table) for table in ("ledger", "delta_log", "delta_log")] == [200, 400, 200]
            assert proxy.operations() == ["PutObject"] * 7 + ["PutItem"] * 3
            assert [one.action for one in proxy.log].count("error") == 5
            assert len(upstream.paths) == 5

    run(scenario())


async def outcome(client: Any, method: str, **arguments: Any) -> str:
    """What a caller of boto3, who does not try again, learns: `done`, `lost`, or the code of an error."""
    try:
        answer = await asyncio.to_thread(getattr(client, method), **arguments)
        if "Body" in answer:
            await asyncio.to_thread(answer["Body"].read)
    except ClientError as error:
        return f"{error.response['ResponseMetadata']['HTTPStatusCode']} {error.response['Error']['Code']}"
    except (ConnectionClosedError, HTTPClientError, ResponseStreamingError):
        return "lost"
    return "done"


@pytest.mark.parametrize(
    ("action", "says", "was_done"),
    [
        ("error", "503 SlowDown", False),
        ("error_response", "503 SlowDown", True),
        ("drop_request", "lost", False),
        ("drop_response", "lost", True),
    ],
)
def test_s3_through_it(aws: Aws, action: Any, says: str, was_done: bool) -> None:
    async def scenario() -> None:
        bucket, key = aws.bucket(), "in/a b+ü=1.pcap"
        async with FaultProxy(aws.s3) as proxy:
            s3 = aws.client("s3", endpoint=proxy.url)
            proxy.add("PutObject", action, key=key, status=503, code="SlowDown")
            body = b"x" * 3_000_000
            assert await outcome(s3, "put_object", Bucket=bucket, Key=key, Body=body) == says
            found = await outcome(aws.client("s3"), "head_object", Bucket=bucket, Key=key)
            assert found == ("done" if was_done else "404 404")
            assert await outcome(s3, "put_object", Bucket=bucket, Key=key, Body=body) == "done"
            proxy.add("GetObject", "truncate")
            assert await outcome(s3, "get_object", Bucket=bucket, Key=key) == "lost"
            assert await outcome(s3, "get_object", Bucket=bucket, Key=key) == "done"
            proxy.add("HeadObject", "error", status=403)
            assert await outcome(s3, "head_object", Bucket=bucket, Key=key) == "403 403"
            assert proxy.operations() == ["PutObject"] * 2 + ["GetObject"] * 2 + ["HeadObject"]

    run(scenario())


@pytest.mark.parametrize(
    ("action", "says", "was_done"),
    [
        ("error", "400 ThrottlingException", False),
        ("error_response", "400 ThrottlingException", True),
        ("drop_request", "lost", False),
        ("drop_response", "lost", True),
    ],
)
def test_dynamodb_through_it(aws: Aws, action: Any, says: str, was_done: bool) -> None:
    async def scenario() -> None:
        table = aws.table()
        key = {"pk": {"S": "a"}, "sk": {"S": "-"}}
        put = dict(TableName=table, Item=key, ConditionExpression="attribute_not_exists(pk)")
        async with FaultProxy(aws.dynamodb) as proxy:
            dynamodb = aws.client("dynamodb", endpoint=proxy.url)
            proxy.add("PutItem", action, containing=table, status=400, code="ThrottlingException")
            assert await outcome(dynamodb, "put_item", **put) == says
            again = await outcome(dynamodb, "put_item", **put)
            assert again == ("400 ConditionalCheckFailedException" if was_done else "done")

    run(scenario())


def test_reasons_of_a_cancelled_transaction(aws: Aws) -> None:
    async def scenario() -> None:
        async with FaultProxy(aws.dynamodb) as proxy:
            reasons = [{"Code": "TransactionConflict"}]
            proxy.add(
                "TransactWriteItems",
                "error",
                status=400,
                code="TransactionCanceledException",
                fields={"CancellationReasons": reasons},
            )
            dynamodb = aws.client("dynamodb", endpoint=proxy.url)
            put = {"Put": {"TableName": "any", "Item": {"pk": {"S": "a"}}}}
            with pytest.raises(ClientError) as caught:
                await asyncio.to_thread(dynamodb.transact_write_items, TransactItems=[put])
            assert caught.value.response["CancellationReasons"] == reasons

    run(scenario())


def test_sqs_through_it(aws: Aws) -> None:
    async def scenario() -> None:
        direct = aws.queue(VisibilityTimeout="0")
        async with FaultProxy(aws.sqs) as proxy:
            sqs = aws.client("sqs", endpoint=proxy.url)
            queue = direct.replace(aws.sqs, proxy.url)
            proxy.add("SendMessage", "error", status=400, code="RequestThrottled")
            sent = dict(QueueUrl=queue, MessageBody="hello")
            assert await outcome(sqs, "send_message", **sent) == "400 RequestThrottled"
            assert await outcome(sqs, "send_message", **sent) == "done"
            proxy.add("ReceiveMessage", "drop_response")
            assert await outcome(sqs, "receive_message", QueueUrl=queue) == "lost"
            answer = await asyncio.to_thread(
                sqs.receive_message, QueueUrl=queue, MessageSystemAttributeNames=["ApproximateReceiveCount"]
            )
            (message,) = answer["Messages"]
            assert (message["Body"], message["Attributes"]["ApproximateReceiveCount"]) == ("hello", "2")
            assert proxy.operations() == ["SendMessage"] * 2 + ["ReceiveMessage"] * 2

    run(scenario())
