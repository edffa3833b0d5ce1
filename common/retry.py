"""Retries with exponential backoff and full jitter, based on tenacity: every limit, and the one way to wait.

All limits are declared here, because they multiply: a range of a capture is requested several times, in each of several
reads, for each of several messages. docs/retries.md is generated from them, and says what that adds up to. Tests switch off
the waiting in one place: `backoff`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from tenacity import AsyncRetrying, RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from pcaplake.common.errors import Retryable

log = logging.getLogger(__name__)
T = TypeVar("T")
Rule = Callable[[RetryCallState], bool]
Uniform = Callable[[float, float], float]


def backoff(failures: int, *, first: float, longest: float, uniform: Uniform = random.uniform) -> float:
    """Seconds to wait after this many failures in a row.

    A random value between 0 and a limit. The limit is `first` after one failure, and doubles with each, up to `longest`.
    """
    return uniform(0.0, min(longest, first * 2.0 ** min(max(failures - 1, 0), 32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How often a request is attempted at most, and how long the waits between attempts are.

    `what`, `then`: what is attempted, and what follows the last failure, for docs/retries.md. `attempts` 0: until
    `then`. `first`, `longest`: seconds, as in `backoff`.
    """

    what: str
    attempts: int = 0
    first: float = 0.0
    longest: float = 0.0
    then: str

    def pause(self, failures: int, uniform: Uniform = random.uniform) -> float:
        """Seconds to wait after this many failures in a row."""
        return backoff(failures, first=self.first, longest=self.longest, uniform=uniform)

    @property
    def rounds(self) -> range:
        """The numbers of the attempts, from 1."""
        return range(1, self.attempts + 1)


# -- how often a capture is read ------------------------------------------------------------------------------------------
CAPTURE_RANGE = Limit(
    what="one range of a capture's object; an attempt that delivers bytes starts the count again",
    attempts=5,
    first=0.2,
    longest=5.0,
    then="this read of the capture fails",
)
CAPTURE_READ = Limit(
    what="to stage one capture, when another capture ended the window that both share; `backfill`: also when reading fails",
    attempts=3,
    first=0.5,
    longest=10.0,
    then="`run`: the message is released; `ingest`: the file is read again at the end; `backfill`: the capture is reported",
)
CAPTURE_FILE = Limit(
    what="`ingest`: one file that cannot be read, or changes while it is read; the second time at the end of the run",
    attempts=2,
    then="the file is reported, and the exit code is 3",
)
# -- the queue ------------------------------------------------------------------------------------------------------------
RECEIVE = Limit(what="to receive messages", first=0.2, longest=10.0, then="never given up")
OUTAGE = Limit(
    what="to work on messages, after several in a row failed: receives would use up the redrive policy",
    first=1.0,
    longest=60.0,
    then="never given up",
)
DELETE_MESSAGE = Limit(
    what="to delete messages whose captures are staged",
    attempts=3,
    then="they are delivered again, and the ledger knows their captures",
)
SQS_ENTRIES = Limit(
    what="the entries of a batch that SQS refused temporarily", attempts=3, first=0.25, longest=0.5, then="an error"
)
SQS_REQUEST = Limit(what="one request to SQS (by botocore)", attempts=3, then="an error")
QUEUE_POLICY = Limit(
    what="`setup`: to announce a bucket to a queue whose new policy does not hold yet; the waits have no jitter",
    attempts=7,
    first=1.0,
    longest=30.0,
    then="an error",
)
ADMIN_REQUEST = Limit(what="one request of the administration to AWS (by botocore)", attempts=5, then="an error")
# -- the lake -------------------------------------------------------------------------------------------------------------
OBJECT_REQUEST = Limit(
    what="one request to an object store, for at most 20 s (by obstore)",
    attempts=4,
    then="the layer above it counts a failure",
)
DYNAMODB_REQUEST = Limit(what="one request to DynamoDB", attempts=3, first=0.1, longest=0.2, then="an error")
DYNAMODB_BUSY = Limit(
    what="one request to the ledger while DynamoDB is busy", attempts=6, first=0.05, longest=0.8, then="an error"
)
DELTA_LOG = Limit(
    what="to read a Delta log, or to commit to it", first=0.02, longest=2.0, then="after `commit_timeout`"
)
LEDGER_WRITE = Limit(what="to record a stage in the ledger", first=0.05, longest=5.0, then="after `commit_timeout`")
COMMITTER_TURN = Limit(what="a turn of the committer", first=0.2, longest=10.0, then="never given up")
ROW_SWAP = Limit(
    what="to replace rows or files of a table while other programs change the same files", attempts=5, then="an error"
)
# -- Spark ----------------------------------------------------------------------------------------------------------------
SHORT_OUTAGE = Limit(
    what="a request of a long job: the lake at its start, the queue",
    attempts=7,
    first=2.0,
    longest=30.0,
    then="an error",
)
LIMITS = tuple(value for value in globals().values() if isinstance(value, Limit))


def no_jitter(low: float, high: float) -> float:
    """As `uniform`: always the whole limit, for a service that takes a known time to apply a change."""
    return high


def after_seconds(seconds: float, clock: Callable[[], float]) -> Rule:
    """A `stop` for `Policy`: at the first failure that is `seconds` or more from now by `clock`."""
    deadline = clock() + seconds
    return lambda state: clock() >= deadline


_IF_RETRYABLE = retry_if_exception_type(Retryable)


def _nothing(state: RetryCallState) -> None:
    """Ignore a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Repeats a request within a limit.

    `uniform`: as in `backoff`. `on`: which attempts are repeated; by default those that raise Retryable. `failed` is called
    after each of these, including the last. After `limit.attempts`, or when `stop` is true if there is one, the last error is
    raised or the last result returned.
    """

    limit: Limit
    stop: Rule | None = None
    on: Rule = _IF_RETRYABLE
    uniform: Uniform = random.uniform
    failed: Callable[[RetryCallState], None] = _nothing

    async def run(
        self, request: Callable[[], Awaitable[T]], sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> T:
        """The result of the first successful attempt."""

        async def attempt() -> T:  # tenacity awaits only functions declared `async def`
            return await request()

        async def pause(seconds: float) -> None:
            await sleep(seconds)

        return cast(T, await AsyncRetrying(sleep=pause, **self._arguments())(attempt))

    def run_blocking(self, request: Callable[[], T], sleep: Callable[[float], None] = time.sleep) -> T:
        """As `run`, for a thread without an event loop."""
        return Retrying(sleep=sleep, **self._arguments())(request)

    def _arguments(self) -> dict[str, Any]:
        return {
            "stop": self.stop or stop_after_attempt(self.limit.attempts),
            "wait": lambda state: self.limit.pause(state.attempt_number, self.uniform),
            "retry": self.on,
            "after": self.failed,
            "retry_error_callback": _last,
        }


def _last(state: RetryCallState) -> Any:
    assert state.outcome is not None
    return state.outcome.result()


async def outlast_outage(
    request: Callable[[], Awaitable[T]], sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
) -> T:
    """The result of `request`, which is retried for about a minute, so that a long job survives a short outage."""

    def failed(state: RetryCallState) -> None:
        assert state.outcome is not None
        log.warning("%s; attempt %d of %d", state.outcome.exception(), state.attempt_number, SHORT_OUTAGE.attempts)

    return await Policy(limit=SHORT_OUTAGE, failed=failed).run(request, sleep)
