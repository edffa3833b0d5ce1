"""Tests whether a store honors conditional writes. All commits rely on them, and some stores silently ignore them."""

from __future__ import annotations

import uuid
from contextlib import suppress

from pcaplake.common.errors import Fatal, Retryable

from .store import Store

PROBES = "_pcaplake/doctor"  # folder of the test objects
ADVICE = (
    "use a store with conditional writes, such as S3 or Azure, or a version of this store that has them. If rows "
    "were written meanwhile, check the lake with `pcaplake doctor`"
)


async def find_ignored_condition(store: Store) -> str | None:
    """What is wrong with the store's conditional writes and listings, or None.

    Creates an object twice, lists it, replaces it, replaces a content that no longer exists, and deletes the object; where
    deleting is not allowed, the object stays. A retried request may be refused because of its first attempt, so the content
    decides.
    """
    path = f"{PROBES}/{uuid.uuid4().hex}"
    try:
        await store.put_if_absent(path, b"first")
        if await store.put_if_absent(path, b"second"):
            return (
                f"{store.uri} creates an object twice: it ignores If-None-Match, so two writers could both create a version "
                "and rows would be lost"
            )
        seen = await store.head(path)
        if seen is None:
            return f"{store.uri} does not find an object that was just written"
        if path not in [meta.path for meta in await store.list(PROBES, start_after=path[:-1])]:
            return (
                f"{store.uri} does not list an object that was just written, when the list begins shortly before it: new "
                "versions of a table would not be found"
            )
        await store.replace(path, b"third", seen)
        current = await store.get(path)
        if current is None or current[0] != b"third":
            return f"{store.uri} refuses to replace an object by its current eTag"
        if await store.replace(path, b"fourth", seen):
            return (
                f"{store.uri} replaces an object that does not exist: it ignores If-Match, so concurrent writes of lake.json "
                "would be lost"
            )
        return None
    finally:
        with suppress(Fatal, Retryable):
            await store.delete(path)


async def require_conditional_writes(store: Store) -> None:
    """Raise Fatal for a store that ignores the conditions of writes."""
    if (problem := await find_ignored_condition(store)) is not None:
        raise Fatal(f"{problem}; {ADVICE}")
