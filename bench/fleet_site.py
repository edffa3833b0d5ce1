"""The services of a fleet benchmark: S3, SQS and DynamoDB on loopback, unique names in them, and proxies that count requests.

All data is in memory and ends with the process.
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
from tools.local.engines import REGION, Engine
from tools.local.install import install_engine
from tools.local.stack import EngineStack, find_free_ports

STATE = Path(".local-aws")
_NOT_OURS = (
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_SQS",
)


class BenchSite:
    """The services of one run. Creates buckets, queues and tables in them."""

    def __init__(self, environment: Mapping[str, str], folder: Path) -> None:
        self.environment, self.folder = dict(environment), folder
        self._count = itertools.count()
        session = boto3.Session(region_name=REGION)
        config = Config(s3={"addressing_style": "path"})

        def create_client(service: str, variable: str) -> Any:
            return session.client(service, endpoint_url=environment[variable], config=config)

        self._s3, self._sqs = create_client("s3", "AWS_ENDPOINT_URL"), create_client("sqs", "AWS_ENDPOINT_URL")
        self._dynamodb = create_client("dynamodb", "AWS_ENDPOINT_URL_DYNAMODB")

    def unique_name(self, hint: str) -> str:
        return f"{hint}-{next(self._count)}"

    def make_log_path(self, hint: str) -> Path:
        """The path of a new log file."""
        return self.folder / f"{self.unique_name(hint)}.log"

    def make_bucket(self, hint: str) -> str:
        name = self.unique_name(hint)
        self._s3.create_bucket(Bucket=name)
        return name

    def make_queue(self, hint: str, visibility_timeout: int = 300) -> str:
        """Create a queue, and return its name."""
        name = self.unique_name(hint)
        self._sqs.create_queue(QueueName=name, Attributes={"VisibilityTimeout": str(visibility_timeout)})
        return name

    def notify_queue_of_uploads(self, bucket: str, queue: str) -> None:
        """Make the bucket notify the queue of new objects."""
        url = self._sqs.get_queue_url(QueueName=queue)["QueueUrl"]
        arn = self._sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
        configuration = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
        self._s3.put_bucket_notification_configuration(Bucket=bucket, NotificationConfiguration=configuration)

    def make_ledger_table(self) -> str:
        return self._create_dynamodb_table("ledger", "pk", "sk")

    def make_lock_table(self) -> str:
        return self._create_dynamodb_table("locks", "tablePath", "fileName")

    def _create_dynamodb_table(self, hint: str, hash_key: str, range_key: str) -> str:
        name = self.unique_name(hint)
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
def start_bench_site(engine: Engine, folder: Path) -> Iterator[BenchSite]:
    """Start the services, point the environment of this process to them, and stop them at the end."""
    install_engine(engine, STATE)
    port, dynamodb_port = find_free_ports(2)
    run = folder / "services"
    stack = EngineStack(engine, port=port, dynamodb_port=dynamodb_port, state=STATE, run=run, tethered=True)
    before = dict(os.environ)
    stack.start()
    try:
        for name in _NOT_OURS:
            os.environ.pop(name, None)
        nowhere = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "NO_PROXY": "127.0.0.1"}
        os.environ.update(stack.client_environment | nowhere)
        yield BenchSite(os.environ, folder)
    finally:
        stack.stop()
        os.environ.clear()
        os.environ.update(before)


class CountingProxies:
    """`async with CountingProxies(environment, delay)`: proxies before the services that delay each request by `delay` seconds.

    `environment` points clients to them. A request that waits for the answer to another arrives at least `delay` after
    it, which tells requests in sequence from concurrent ones.
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
        self._aws = await self._stack.enter_async_context(
            FaultProxy(upstream["AWS_ENDPOINT_URL"], sleep=self._delay_request)
        )
        self._dynamodb = await self._stack.enter_async_context(
            FaultProxy(upstream["AWS_ENDPOINT_URL_DYNAMODB"], sleep=self._delay_request)
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

    async def _delay_request(self, seconds: float) -> None:
        self._arrived.append(asyncio.get_running_loop().time())
        await asyncio.sleep(seconds)

    def take_request_counts(self) -> tuple[Counter[str], int]:
        """Requests by `service operation` since the last call, and the number of them in sequence."""
        counts = Counter(f"{_service_of_operation(operation)} {operation}" for operation in self._aws.operations())
        counts.update(f"DynamoDB {operation}" for operation in self._dynamodb.operations())
        depth, last = 0, float("-inf")
        for arrived in sorted(self._arrived):
            if arrived - last >= self._delay:
                depth, last = depth + 1, arrived
        for proxy in (self._aws, self._dynamodb):
            proxy.log.clear()
        self._arrived.clear()
        return counts, depth


def _service_of_operation(operation: str) -> str:
    return "SQS" if "Message" in operation or "Queue" in operation else "S3"
