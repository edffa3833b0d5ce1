"""Does a store keep the conditions of a write? Everything rests on it, and some stores ignore them without a word.

Knows the port of stores, and an object of its own that nobody else looks at.
"""

from __future__ import annotations

import uuid
from contextlib import suppress

from pcaplake.worker.errors import Fatal, Retryable

from .store import Store

PROBES = "_pcaplake/doctor"  # objects
ADVICE = (
    "use a store with conditional writes, as S3, GCS and Azure are, or a version of this one that has them. Where rows "
    "were written meanwhile, let `pcaplake doctor` look at the lake"
)


async def find_ignored_condition(store: Store) -> str | None:
    """What is wrong with the store's conditional writes, or None.

    Creates an object twice, replaces it, replaces a content that no longer exists, and deletes the object; where deleting
    is not allowed, the object stays. A retried request may be refused because of its first attempt, so the content decides.
    """
    path = f"{PROBES}/{uuid.uuid4().hex}"
    try:
        await store.put_if_absent(path, b"first")
        if await store.put_if_absent(path, b"second"):
            return (
                f"{store.uri} creates an object twice: it ignores If-None-Match, so of two writers of one version both win "
                "and rows are lost"
            )
        seen = await store.head(path)
        if seen is None:
            return f"{store.uri} does not find what was just written"
        await store.replace(path, b"third", seen)
        current = await store.get(path)
        if current is None or current[0] != b"third":
            return f"{store.uri} does not replace what nobody else has written: it does not know its own eTag"
        if await store.replace(path, b"fourth", seen):
            return (
                f"{store.uri} replaces an object that does not exist: it ignores If-Match, so of two writers of lake.json "
                "one is lost"
            )
        return None
    finally:
        with suppress(Fatal, Retryable):
            await store.delete(path)


async def require_conditional_writes(store: Store) -> None:
    """Fatal for a store that ignores them."""
    if (problem := await find_ignored_condition(store)) is not None:
        raise Fatal(f"{problem}; {ADVICE}")
