"""S3, SQS and DynamoDB for tests: one engine on loopback for the whole session, and one way to reach it.

PCAPLAKE_TEST_AWS chooses: `ministack` (the default), `localstack`, or the address of one that runs already, whose
DynamoDB is at AWS_ENDPOINT_URL_DYNAMODB if that is set. Everything a test makes has a name of its own, so nothing has
to be tidied up between tests; the servers hold all in memory and end with the session, however it ends.
"""

from __future__ import annotations

import itertools
import os
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from tools.local.engines import AWS_ENGINES, REGION, Engine
from tools.local.install import CannotInstall, install_engine
from tools.local.stack import CannotStart, EngineStack, find_free_ports

ROOT = Path(__file__).parents[1]
START_TRIES = 3  # a port that was free may be taken before the engine has it
NOT_OURS = (  # what a developer may have set and what would lead clients elsewhere
    "AWS_PROFILE",
    "AWS_SESSION_TOKEN",
    "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT_URL_SQS",
)


class Aws:
    """The endpoints of the session's engine, unique names, and boto3 clients that are closed at its end."""

    region = REGION

    def __init__(self, engine: str, environment: Mapping[str, str]) -> None:
        self.engine = engine
        self.environment = dict(environment)
        self.s3 = self.sqs = environment["AWS_ENDPOINT_URL"]
        self.dynamodb = environment["AWS_ENDPOINT_URL_DYNAMODB"]
        import boto3  # not of those who only run tests that need none

        self._session = boto3.Session(region_name=REGION)
        self._clients: dict[tuple[str, str, int], Any] = {}
        self._run = uuid.uuid4().hex[:8]
        self._count = itertools.count()

    def name(self, hint: str = "test") -> str:
        """A name that nobody else has, good for buckets, queues and tables."""
        return f"{hint}-{self._run}-{next(self._count)}"

    def client(self, service: str, *, endpoint: str | None = None, attempts: int = 1) -> Any:
        """A boto3 client of `s3`, `sqs` or `dynamodb`; `endpoint` for a proxy; no retry unless `attempts` says so."""
        from botocore.config import Config

        url = endpoint or {"s3": self.s3, "sqs": self.sqs, "dynamodb": self.dynamodb}[service]
        key = (service, url, attempts)
        if key not in self._clients:
            config = Config(
                s3={"addressing_style": "path"},
                retries={"mode": "standard", "total_max_attempts": attempts},
                max_pool_connections=64,
            )
            self._clients[key] = self._session.client(service, endpoint_url=url, config=config)
        return self._clients[key]

    def bucket(self, hint: str = "bucket") -> str:
        """A new bucket."""
        name = self.name(hint)
        self.client("s3").create_bucket(Bucket=name)
        return name

    def queue(self, hint: str = "queue", **attributes: str) -> str:
        """The URL of a new queue with these attributes (VisibilityTimeout="5")."""
        made = self.client("sqs").create_queue(QueueName=self.name(hint), Attributes=attributes)
        return cast(str, made["QueueUrl"])

    def queue_arn(self, url: str) -> str:
        answer = self.client("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        return cast(str, answer["Attributes"]["QueueArn"])

    def table(self, hint: str = "table", *, hash_key: str = "pk", range_key: str | None = "sk") -> str:
        """A new table on demand, its keys strings."""
        name = self.name(hint)
        keys = {hash_key: "HASH"} | ({range_key: "RANGE"} if range_key else {})
        client = self.client("dynamodb")
        client.create_table(
            TableName=name,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": key, "KeyType": kind} for key, kind in keys.items()],
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
        )
        client.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 30})
        return name

    def close(self) -> None:
        for client in self._clients.values():
            client.close()
        self._clients.clear()


@pytest.fixture(scope="session")
def aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    """The session's engine; the environment of this process leads to it until the session ends."""
    chosen = os.environ.get("PCAPLAKE_TEST_AWS", "ministack")
    if chosen in AWS_ENGINES:
        stack = start_engine(chosen, tmp_path_factory.mktemp("aws"))
        try:
            yield from _connected(chosen, stack.client_environment)
        finally:
            stack.stop()
    else:
        environment = EngineStack("ministack", port=0, state=ROOT / ".local-aws").client_environment
        dynamodb = os.environ.get("AWS_ENDPOINT_URL_DYNAMODB", chosen)
        yield from _connected(
            "other", environment | {"AWS_ENDPOINT_URL": chosen, "AWS_ENDPOINT_URL_DYNAMODB": dynamodb}
        )


def start_engine(engine: Engine, folder: Path) -> EngineStack:
    """The engine, installed if needed; `folder` is for what it keeps while it runs. Skips the test if it cannot be installed."""
    state = ROOT / ".local-aws"
    try:
        install_engine(engine, state)
    except CannotInstall as error:
        if os.environ.get("CI"):
            raise  # there a skip would hide every test of this folder
        pytest.skip(f"no {engine} here: {error}")
    for attempt in range(1, START_TRIES + 1):
        port, dynamodb_port = find_free_ports(2)
        run = folder / f"try-{attempt}"
        stack = EngineStack(engine, port=port, dynamodb_port=dynamodb_port, state=state, run=run, tethered=True)
        try:
            stack.start()
            break
        except CannotStart:
            if attempt == START_TRIES:
                raise
    return stack


def _connected(engine: str, environment: Mapping[str, str]) -> Iterator[Aws]:
    from tests.aws_clients import share_what_clients_read  # imports botocore

    with pytest.MonkeyPatch.context() as patch:
        share_what_clients_read(patch)
        for name in NOT_OURS:
            patch.delenv(name, raising=False)
        nowhere = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull, "NO_PROXY": "127.0.0.1"}
        for name, value in {**environment, **nowhere}.items():
            patch.setenv(name, value)
        account = Aws(engine, environment)
        try:
            yield account
        finally:
            account.close()
