"""When a request is tried again, how long it waits before, and when it gives up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tenacity import RetryCallState, retry_if_result

from pcaplake.common import retry
from pcaplake.common.errors import Fatal, OutcomeUnknown, Retryable
from pcaplake.common.retry import Limit, after_seconds, backoff
from tools import retries_page

ROOT = Path(__file__).parents[2]


@settings(max_examples=200)
@given(st.integers(0, 10_000), st.floats(0.1, 100), st.floats(100, 10_000), st.floats(0, 1))
def test_full_jitter(failures: int, first: float, longest: float, luck: float) -> None:
    """Anything between nothing and a limit that doubles with each failure up to the longest pause."""
    limits: list[float] = []

    def uniform(low: float, high: float) -> float:
        assert low == 0
        limits.append(high)
        return high * luck

    seconds = [backoff(one, first=first, longest=longest, uniform=uniform) for one in (failures, failures + 1)]
    assert limits[0] <= limits[1] <= longest
    assert limits[0] in (first, longest) or limits[0] == limits[1] or limits[1] == min(longest, 2 * limits[0])
    assert seconds == [limit * luck for limit in limits]
    assert backoff(1, first=first, longest=longest) <= first


class Request:
    """Fails with these errors, one for each attempt, and then answers."""

    def __init__(self, *errors: BaseException) -> None:
        self.errors, self.attempts = list(errors), 0
        self.slept: list[float] = []

    async def __call__(self) -> str:
        return self.blocking()

    def blocking(self) -> str:
        self.attempts += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def policy(
    attempts: int, failed: Callable[[RetryCallState], None] = lambda state: None, stop: retry.Rule | None = None
) -> retry.Policy:
    limit = Limit(what="a request", attempts=attempts, first=1.0, longest=4.0, then="an error")
    return retry.Policy(limit=limit, stop=stop, uniform=retry.no_jitter, failed=failed)


async def test_what_passes_is_tried_again() -> None:
    told: list[int] = []
    request = Request(Retryable("busy"), OutcomeUnknown("no answer"), Retryable("busy"), Retryable("busy"))
    run = policy(5, lambda state: told.append(state.attempt_number)).run(request, request.sleep)
    assert await run == "done"
    assert request.slept == [1.0, 2.0, 4.0, 4.0]
    assert told == [1, 2, 3, 4]


async def test_the_last_error_is_raised() -> None:
    request = Request(Retryable("first"), Retryable("second"), Retryable("third"))
    with pytest.raises(Retryable, match="second"):
        await policy(2).run(request, request.sleep)
    assert (request.attempts, len(request.slept)) == (2, 1)


@pytest.mark.parametrize("error", [Fatal("no"), ValueError("no"), asyncio.CancelledError()])
async def test_nothing_else_is_tried_again(error: BaseException) -> None:
    request = Request(error)
    with pytest.raises(type(error)):
        await policy(5).run(request, request.sleep)
    assert (request.attempts, request.slept) == (1, [])


async def test_time_ends_it_however_few_the_attempts_are() -> None:
    clock = 100.0
    request = Request(*(Retryable(str(number)) for number in range(9)))

    async def sleep(seconds: float) -> None:
        nonlocal clock
        clock += seconds

    with pytest.raises(Retryable, match="3"):
        await policy(0, stop=after_seconds(6.5, lambda: clock)).run(request, sleep)
    assert clock == 107.0


async def test_a_result_may_be_a_failure_and_the_last_one_is_returned() -> None:
    async def none_left() -> str | None:
        return left.pop(0)

    left: list[str | None] = ["some", "fewer", None]
    limit = Limit(what="a request", attempts=3, then="the last result")
    waits = retry.Policy(limit=limit, on=retry_if_result(lambda one: one is not None))
    assert await waits.run(none_left) is None
    left = ["some", "fewer", "still"]
    assert await waits.run(none_left) == "still"


def test_a_thread_may_wait_too() -> None:
    request = Request(Retryable("busy"))
    assert policy(2).run_blocking(request.blocking, request.slept.append) == "done"
    assert request.slept == [1.0]


def test_the_page_is_generated() -> None:
    assert (ROOT / "docs/retries.md").read_text() == retries_page.render_markdown(), "make docs"
