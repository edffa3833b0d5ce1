"""The service in this process, made of what `pcaplake run` is made of, with a fault proxy before each of its services.

Knows which settings make faults cheap: pauses are short, what repeats does so at once. Must not know what is checked.
"""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiobotocore.session
import pytest
from botocore.retries.standard import ExponentialBackoff

from pcaplake.common.meter import SILENT
from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.range_reader import FetchConfig
from pcaplake.lake.commit import blocked_tables
from pcaplake.lake.lake import Lake
from pcaplake.lake.records import manifest_path
from pcaplake.lake.store import object_store as lake_store
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.service import run as serve
from pcaplake.worker.service.service import Service
from tests.retries import hardly_wait

from .conftest import Aws
from .fault_proxy import FaultProxy, Rule
from .stages import FRAMES, PATIENCE, Books, Stage, check_logs, staged

LOOK = 0.05  # seconds between two looks at the tables

_session = functools.cache(aiobotocore.session.get_session)  # reading what services there are takes most of a client


def quick(patch: pytest.MonkeyPatch) -> None:
    """Clients repeat what failed at once, and as often as ever."""
    patch.setattr(aiobotocore.session, "get_session", _session)
    patch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)
    hardly_wait(patch)
    patch.setattr(blocked_tables, "BLOCKED_RETRY_SECONDS", LOOK)
    backoff = {"init_backoff": timedelta(milliseconds=1), "max_backoff": timedelta(milliseconds=2), "base": 2}
    patch.setattr(lake_store, "_RETRIES", {**lake_store._RETRIES, "backoff": backoff})


class _Hasty(random.Random):
    """Who waits for a random time waits for none, or nearly."""

    def uniform(self, a: float, b: float) -> float:
        return min(super().uniform(a, b), LOOK)


async def _nap(seconds: float) -> None:
    """What is done every few seconds is done every second."""
    await asyncio.sleep(min(seconds, 1.0))


@dataclass
class Running:
    """A service that runs in this event loop, until it is stopped or has a reason to end."""

    service: Service
    lake: Lake
    task: asyncio.Task[None]

    def check(self) -> None:
        if self.task.done():
            self.task.result()
            raise AssertionError("the service has ended")


@dataclass
class Proxied:
    """A stage and the proxies before its services; `expected`: frames by URI, of everything uploaded by `upload`."""

    stage: Stage
    s3: FaultProxy
    sqs: FaultProxy
    dynamodb: FaultProxy
    expected: dict[str, int] = field(default_factory=dict)
    cleaned: bool = False  # does the service clean its logs up?

    def __post_init__(self) -> None:
        self.books = Books(self.stage)
        self._numbers = iter(range(1 << 30))

    def add(self, service: str, operation: str, action: Any, **how: Any) -> Rule:
        proxy: FaultProxy = getattr(self, service)
        return proxy.add(operation, action, **how)

    def clear(self) -> None:
        for proxy in (self.s3, self.sqs, self.dynamodb):
            proxy.clear()

    async def upload(self, count: int = 1, frames: int = FRAMES) -> list[str]:
        """New captures, with their notifications -> their URIs."""
        numbers = [next(self._numbers) for _ in range(count)]
        await asyncio.to_thread(self.stage.upload, numbers, frames)
        uris = sorted(self.stage.uris(numbers))
        self.expected |= dict.fromkeys(uris, frames)
        return uris

    async def put(self, key: str, body: bytes, frames: int) -> None:
        """One capture of this content, with its notification."""
        await asyncio.to_thread(self.stage.put, key, body)
        self.expected[f"s3://{self.stage.raw}/{key}"] = frames

    def settings(self, **given: Any) -> FleetSettings:
        stage = self.stage
        values: dict[str, Any] = {
            "queue": stage.queue,
            "lake": stage.uri,
            "ledger_table": stage.ledger,
            "lock_table": stage.locks,
            "storage_option": {"allow_http": "true", "aws_endpoint": self.s3.url},
            "shards": 1,
            "threads": 1,
            "max_inflight_bytes": 1 << 28,
            "poll_wait": 1.0,
            "retry_first": 0.2,
            "retry_most": 0.2,
            "drain_timeout": 20.0,
            "flush_interval": 0.2,
            "max_batch_age": 0.2,
            "commit_timeout": 5.0,
            "lease_timeout": 1.0,
        }
        return FleetSettings(**{**values, **given})

    @asynccontextmanager
    async def run(
        self,
        *,
        step: Callable[[str], None] = lambda name: None,
        fetch_config: FetchConfig | None = None,
        **given: Any,
    ) -> AsyncIterator[Running]:
        """A service; when the block ends it is stopped, as by SIGTERM, if it has not ended before."""
        settings = self.settings(**given)
        fetch_config = fetch_config or FetchConfig(first_pause=0.01, longest_pause=0.01)
        async with AsyncExitStack() as stack:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AWS_ENDPOINT_URL_SQS", self.sqs.url)
                patch.setenv("AWS_ENDPOINT_URL_DYNAMODB", self.dynamodb.url)
                patch.setattr(serve, "Runtime", functools.partial(Runtime, step=step))
                parts = await stack.enter_async_context(serve.open_service_parts(settings, SILENT))
            service = Service(parts, serve.build_service_config(settings, fetch_config), Runtime(sleep=_nap))
            (lake,) = parts.lakes.values()
            lake._rng = lake.committer._rng = lake.log._rng = _Hasty()
            lake.source._fetch_config = fetch_config  # type: ignore[attr-defined]
            running = Running(service=service, lake=lake, task=asyncio.create_task(service.run()))
            try:
                yield running
            finally:
                ended = running.task.done()
                service.stop()
                # An idle service abandons its polls. The next test's message must not be delivered to one of them.
                await asyncio.gather(asyncio.wait([running.task]), asyncio.sleep(settings.poll_wait))
                if not ended:
                    running.task.result()

    async def until(self, what: Callable[[], bool], *services: Running) -> None:
        """Wait for it, as long as these services live, and for `PATIENCE` at most; the loop goes on meanwhile."""
        async with asyncio.timeout(PATIENCE):
            while not what():
                for running in services:
                    running.check()
                await asyncio.sleep(LOOK / 5)

    async def committed(self, *services: Running, uris: Collection[str] | None = None) -> None:
        """Until everything expected (or these) is in the tables."""
        wanted = self.expected if uris is None else {uri: self.expected[uri] for uri in uris}
        async with asyncio.timeout(PATIENCE):
            while True:
                if await asyncio.to_thread(self.books.has, wanted):
                    return
                for running in services:
                    running.check()
                await asyncio.sleep(LOOK)

    async def settled(self, running: Running) -> None:
        """All is committed, the next commit works, the queue is empty, every row is there once, nothing is left open."""
        await self.committed(running)
        await self.upload()
        await self.finished(running)

    async def finished(self, running: Running) -> None:
        """The same of what was uploaded so far."""
        await self.committed(running)
        await self.idle(running)
        for table in Books.TABLES:
            await running.lake.log.clean(table)
        await asyncio.to_thread(self.books.check, self.expected)
        await asyncio.to_thread(check_logs, self.stage, cleaned=self.cleaned)

    async def idle(self, running: Running) -> None:
        """No message is left, and every manifest is flagged."""
        async with asyncio.timeout(PATIENCE):
            while running.service.messages_in_flight or await asyncio.to_thread(self.stage.left):
                running.check()
                await asyncio.sleep(LOOK)
            while await self._has_manifest(await running.lake.ledger.read_head() + 1):
                running.check()
                await asyncio.sleep(LOOK)

    async def _has_manifest(self, batch: int) -> bool:
        return await asyncio.to_thread(lambda: any(self.stage.objects(manifest_path(batch))))


@asynccontextmanager
async def proxied(stage: Stage) -> AsyncIterator[Proxied]:
    """With clients that are quick to repeat."""
    with pytest.MonkeyPatch.context() as patch:
        quick(patch)
        async with (
            FaultProxy(stage.aws.s3) as s3,
            FaultProxy(stage.aws.sqs) as sqs,
            FaultProxy(stage.aws.dynamodb) as dynamodb,
        ):
            yield Proxied(stage=stage, s3=s3, sqs=sqs, dynamodb=dynamodb)


class Ground:
    """A lake, the proxies before its services, and a loop in which one service stands by from test to test."""

    def __init__(self, runner: asyncio.Runner, town: Proxied, settings: Mapping[str, Any]) -> None:
        self.town, self._settings = town, settings
        self._runner = runner
        self._stack = AsyncExitStack()
        self._running: Running | None = None

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._runner.run(asyncio.wait_for(main(), 5 * PATIENCE))

    async def service(self) -> Running:
        """The one that stands by, or a new one when that has ended."""
        if self._running is None or self._running.task.done():
            await self.stop()
            self._running = await self._stack.enter_async_context(self.town.run(**self._settings))
        return self._running

    async def stop(self) -> None:
        self._running = None
        await self._stack.aclose()


@contextmanager
def standing(aws: Aws, folder: Path, *, visibility: int = 3, **settings: Any) -> Iterator[Ground]:
    """For the tests of a module; `visibility` of the queue in seconds, `settings` of the service that stands by."""
    with asyncio.Runner() as runner, staged(aws, folder, visibility=visibility) as stage:
        behind = proxied(stage)
        made = Ground(runner, runner.run(behind.__aenter__()), settings)
        yield made
        runner.run(made.stop())
        runner.run(behind.__aexit__(None, None, None))
