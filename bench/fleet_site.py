"""What a benchmark of the fleet runs on: S3, SQS and DynamoDB on loopback, names in them, and proxies that count.

Nothing of it knows what is measured. Everything is in memory and ends with the process.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.config import Config

from tests.integration.fault_proxy import FaultProxy
from tools.local.engines import Engine
from tools.local.install import install
from tools.local.stack import REGION, Stack, free_ports

STATE = Path(".local-aws")
_NOT_OURS = (
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_SQS",
)


class Site:
    """The services of one run, and one way to make what a measurement needs in them."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.environment, self.folder = dict(environment), folder
        self._count = itertools.count()
        session = boto3.Session(region_name=REGION)
        config = Config(s3={"addressing_style": "path"})

        def client(service: str, variable: str) -> Any:
            return session.client(service, endpoint_url=environment[variable], config=config)

        self._s3, self._sqs = client("s3", "AWS_ENDPOINT_URL"), client("sqs", "AWS_ENDPOINT_URL")
        self._dynamodb = client("dynamodb", "AWS_ENDPOINT_URL_DYNAMODB")

    def name(self, hint: str) -> str:
        return f"{hint}-{next(self._count)}"

    def log(self, hint: str) -> Path:
        """A new file for what a process says."""
        return self.folder / f"{self.name(hint)}.log"

    def bucket(self, hint: str) -> str:
        name = self.name(hint)
        self._s3.create_bucket(Bucket=name)
        return name

    def queue(self, hint: str) -> str:
        """The name of a new queue."""
        name = self.name(hint)
        self._sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": "300"})
        return name

    def announce(self, bucket: str, queue: str) -> None:
        """What is put into the bucket from now on is told to the queue."""
        url = self._sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        arn = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        told = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
        self._s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=told)

    def ledger_table(self) -> str:
        return self._table("ledger", "pk", "sk")

    def lock_table(self) -> str:
        return self._table("locks", "tablePath", "fileName")

    def _table(self, hint: str, hash_key: str, range_key: str) -> str:
        name = self.name(hint)
        self._dynamodb.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[
                {"AttributeName": hash_key, "KeyType": "HASH"},
                {"AttributeName": range_key, "KeyType": "RANGE"},
            ],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in (hash_key, range_key)],
        )
        self._dynamodb.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
        return name


@contextmanager
def site(engine: Engine, folder: Path) -> Iterator[Site]:
    """Services up, the environment of this process leading to them, and down again."""
    install(engine, STATE)
    port, dynamodb_port = free_ports(2)
    run = folder / "services"
    stack = Stack(engine, port=port, dynamodb_port=dynamodb_port, state=STATE, run=run, tethered=True)
    before = dict(os.environ)
    stack.start()
    try:
        for name in _NOT_OURS:
            os.environ.pop(name, None)
        nowhere = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "NO_PROXY": "127.0.0.1"}
        os.environ.update(stack.environment | nowhere)
        yield Site(os.environ, folder)
    finally:
        stack.stop()
        os.environ.clear()
        os.environ.update(before)


class Counting:
    """`async with Counting(environment, delay)`: proxies before the services, each request `delay` seconds late.

    `environment` leads clients through them. A request that waits for another's answer arrives at least `delay` after
    it, which is how requests in sequence are told from those beside each other.
    """

    def __init__(self, environment: Mapping[str, str], delay: float = 0.0) -> None:
        self._delay, self._stack = delay, AsyncExitStack()
        self._arrived: list[float] = []
        self._upstream = environment
        self._aws: FaultProxy
        self._dynamodb: FaultProxy
        self.environment: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        upstream = self._upstream
        self._aws = await self._stack.enter_async_context(FaultProxy(upstream["AWS_ENDPOINT_URL"], sleep=self._late))
        self._dynamodb = await self._stack.enter_async_context(
            FaultProxy(upstream["AWS_ENDPOINT_URL_DYNAMODB"], sleep=self._late)
        )
        if self._delay:
            for proxy in (self._aws, self._dynamodb):
                proxy.add("*", "delay", times=None, seconds=self._delay)
        led = {"AWS_ENDPOINT_URL": self._aws.url, "AWS_ENDPOINT_URL_DYNAMODB": self._dynamodb.url}
        self.environment = {**upstream, **led}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _late(self, seconds: float) -> None:
        self._arrived.append(asyncio.get_running_loop().time())
        await asyncio.sleep(seconds)

    def take(self) -> tuple[Counter[str], int]:
        """Requests by `service operation` since the last time, and how many of them waited for one another."""
        found = Counter(f"{_service(one)} {one}" for one in self._aws.operations())
        found.update(f"DynamoDB {one}" for one in self._dynamodb.operations())
        depth, last = 0, float("-inf")
        for arrived in sorted(self._arrived):
            if arrived - last >= self._delay:
                depth, last = depth + 1, arrived
        for proxy in (self._aws, self._dynamodb):
            proxy.log.clear()
        self._arrived.clear()
        return found, depth


def _service(operation: str) -> str:
    return "SQS" if "Message" in operation or "Queue" in operation else "S3"
