"""One question at a time, with everything that was asked while the last one was under way.

Knows futures. Must not know what is asked: a ledger for captures, a queue for deletions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Batched(Generic[K, V]):
    """`ask` for one key; `call` gets as many as have come together, each once. Its exception is everybody's."""

    def __init__(self, call: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]]) -> None:
        self._call = call
        self._waiting: dict[K, list[asyncio.Future[V | None]]] = {}
        self._task: asyncio.Task[None] | None = None

    async def ask(self, key: K) -> V | None:
        """What the answer has for the key; None where it has nothing."""
        answer: asyncio.Future[V | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(answer)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer())
        return await answer

    async def _answer(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, {}
            found, error = dict[K, V](), None
            try:
                found = dict(await self._call(list(asked)))
            except Exception as raised:  # noqa: BLE001 -- it belongs to those who asked
                error = raised
            for key, answers in asked.items():
                for answer in answers:
                    if answer.done():  # nobody waits for it any more
                        continue
                    if error is not None:
                        answer.set_exception(error)
                    else:
                        answer.set_result(found.get(key))
