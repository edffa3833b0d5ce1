"""Retries with exponential backoff and full jitter, based on tenacity.

All retries use this module, so that all wait by the same rule, and tests can switch off the waiting in one place:
`backoff`.
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


def no_jitter(low: float, high: float) -> float:
    """As `uniform`: always the whole limit, for a service that takes a known time to apply a change."""
    return high


def after_attempts(attempts: int) -> Rule:
    """A `stop` for `Policy`: after this many attempts."""
    return stop_after_attempt(attempts)


def after_seconds(seconds: float, clock: Callable[[], float]) -> Rule:
    """A `stop` for `Policy`: at the first failure that is `seconds` or more from now by `clock`."""
    deadline = clock() + seconds
    return lambda state: clock() >= deadline


_IF_RETRYABLE = retry_if_exception_type(Retryable)


def _nothing(state: RetryCallState) -> None:
    """Ignore a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which attempts are repeated, after which pause, and until when.

    `first`, `longest`, `uniform`: as in `backoff`. `on`: which attempts are repeated; by default those that raise
    Retryable. `failed` is called after each of these, including the last. When `stop` is true, the last error is raised
    or the last result returned.
    """

    stop: Rule
    first: float
    longest: float
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
            "stop": self.stop,
            "wait": lambda state: backoff(
                state.attempt_number, first=self.first, longest=self.longest, uniform=self.uniform
            ),
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
        log.warning("%s; attempt %d of 7", state.outcome.exception(), state.attempt_number)

    return await Policy(stop=after_attempts(7), first=2.0, longest=30.0, failed=failed).run(request, sleep)
