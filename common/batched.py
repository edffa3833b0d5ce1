"""Coalesces requests: one call is in flight, and keys that are asked for meanwhile share the next call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Batched(Generic[K, V]):
    """Coalesced lookups. `call` gets all waiting keys, each once, and its exception is raised for all of them."""

    def __init__(self, call: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._call = call
        self._waiting: dict[K, list[asyncio.Future[V | None]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def ask(self, key: K) -> V | None:
        """The value of the key; None if the answer has none."""
        answer: asyncio.Future[V | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(answer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer())
        return await answer

    async def _answer(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, {}
            values, error = dict[K, V](), None
            try:
                values = dict(await self._call(list(asked)))
            except Exception as raised:  # noqa: BLE001 -- passed on to the callers of `ask`
                error = raised
            for key, answers in asked.items():
                for answer in answers:
                    if answer.done():  # its caller was canceled
                        continue
                    if error is not None:
                        answer.set_exception(error)
                    else:
                        answer.set_result(values.get(key))
