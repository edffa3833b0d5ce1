"""What people do to a lake and its captures from outside, as events of the soak; each is over when its coroutine ends.

    a version lost       the newest N.json of a table is removed, and put back
    a table dropped      all its objects are deleted, and put back
    an overwrite         by no capture: the next batch replaces all rows by those that wait for it
    a capture copied     onto itself, with other metadata: the content and its eTag stay, and it is announced again
    messages given back  received by a stranger, and visible again after a second: the next receipt is not the first

What was put back must not have been made anew meanwhile. Knows the bucket, and no process.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Collection, Sequence
from typing import Any

from botocore.exceptions import ClientError

from pcaplake.lake.commit.overwrite import begin_generation, reserve_generation
from pcaplake.lake.identity import read_identity
from pcaplake.lake.store.store import Store

from .stages import LAKE, Books, Stage

_CREDENTIALS = {"aws_access_key_id", "aws_secret_access_key", "aws_region"}
_VERSION = re.compile(r"\d{20}\.json")


async def version_lost(stage: Stage, rng: random.Random) -> list[str]:
    """-> what is wrong."""
    folder = f"{rng.choice(Books.TABLES)}/_delta_log/"
    versions = sorted(path for path in await _paths(stage, folder) if _VERSION.fullmatch(path.removeprefix(folder)))
    return await _without(stage, versions[-1:], rng.uniform(0.5, 6))


async def table_dropped(stage: Stage, rng: random.Random) -> list[str]:
    """-> what is wrong."""
    return await _without(stage, await _paths(stage, f"{rng.choice(Books.TABLES)}/"), rng.uniform(0.5, 6))


async def overwritten(stage: Stage, books: Books) -> None:
    """Rows of captures that are in the tables go; whoever announces these captures again brings them back."""
    keys = {name.lower(): value for name, value in stage.aws.environment.items() if name.startswith("AWS_")}
    options = {name: value for name, value in keys.items() if name in _CREDENTIALS}
    store = Store.open(stage.uri, {**options, "aws_endpoint": stage.aws.s3, "allow_http": "true"})
    if (found := await read_identity(store)) is None:  # no worker has begun yet
        return
    books.overwritten = True
    await begin_generation(store, found[0], await reserve_generation(store), [])


async def copied_onto_itself(stage: Stage, key: str) -> None:
    client = stage.aws.client("s3")
    before = await asyncio.to_thread(client.head_object, Bucket=stage.raw, Key=key)
    source = {"Bucket": stage.raw, "Key": key}
    how = {"MetadataDirective": "REPLACE", "Metadata": {"copied": "yes"}}
    await asyncio.to_thread(client.copy_object, Bucket=stage.raw, Key=key, CopySource=source, **how)
    after = await asyncio.to_thread(client.head_object, Bucket=stage.raw, Key=key)
    assert after["ETag"] == before["ETag"], "another eTag would be another capture"
    await asyncio.to_thread(stage.announce, key)


async def given_back(stage: Stage) -> None:
    how = {"MaxNumberOfMessages": 10, "VisibilityTimeout": 1, "WaitTimeSeconds": 0}
    await asyncio.to_thread(stage.aws.client("sqs").receive_message, QueueUrl=stage.queue_url, **how)


async def _paths(stage: Stage, prefix: str) -> list[str]:
    return await asyncio.to_thread(lambda: list(stage.objects(prefix)))


async def _without(stage: Stage, paths: Sequence[str], seconds: float) -> list[str]:
    """The lake without these objects for so long -> those that came anew with another content."""
    kept = await asyncio.to_thread(_take, stage, paths)
    await asyncio.sleep(seconds)
    return await asyncio.to_thread(_put_back, stage, kept)


def _take(stage: Stage, paths: Collection[str]) -> dict[str, bytes]:
    client, kept = stage.aws.client("s3"), {}
    for path in paths:
        try:
            kept[path] = stage.get(path)
        except client.exceptions.NoSuchKey:  # a temp object that its writer has deleted
            continue
    for path in kept:
        client.delete_object(Bucket=stage.lake, Key=f"{LAKE}/{path}")
    return kept


def _put_back(stage: Stage, kept: dict[str, bytes]) -> list[str]:
    wrong = []
    for path, body in kept.items():
        try:
            _put_if_absent(stage, path, body)
        except ClientError as error:
            if error.response["Error"]["Code"] != "PreconditionFailed":
                raise
            if stage.get(path) != body and not path.endswith("_last_checkpoint"):
                wrong.append(f"{path} was made anew while it was gone")
    return wrong


def _put_if_absent(stage: Stage, path: str, body: bytes) -> Any:
    return stage.aws.client("s3").put_object(Bucket=stage.lake, Key=f"{LAKE}/{path}", Body=body, IfNoneMatch="*")
