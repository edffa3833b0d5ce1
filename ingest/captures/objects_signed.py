"""Reads objects with keys that `obstore` does not support: it reads `a` for `/a` and `a/`, and `a/b` for `a//b`, and it
refuses control characters.

Uses aiobotocore (the extra `aws`), with one client for each request, because such keys are rare.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pcaplake.common.errors import Retryable
from pcaplake.lake.store.credentials import botocore_client_arguments
from pcaplake.lake.store.store import Listing, ObjectMeta

from .objects import PART_BYTES, REFUSALS, Changed, Content, Gone, Refused

_CONFIG: dict[str, Any] = {"s3": {"addressing_style": "path"}, "connect_timeout": 5, "read_timeout": 30}
_GONE = frozenset({"NoSuchKey", "NoSuchVersion"})


class SignedObjects:
    """The objects of an S3 bucket. `uri` is `s3://bucket`; `options` are storage options in obstore's names."""

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        given = {name.lower().removeprefix("aws_"): value for name, value in (options or {}).items()}
        self._client = botocore_client_arguments(options or {})
        self._anonymous = given.get("skip_signature", "").lower() == "true"

    async def list_objects(self, prefix: str) -> Listing:
        """All objects whose keys start with `prefix`, sorted by their unchanged keys. Raises Retryable."""
        objects: Listing = []
        async with self._connect_client(f"{self.uri}/{prefix}") as client:
            pages = client.get_paginator("list_objects_v2").paginate(
                Bucket=self.uri.removeprefix("s3://"), Prefix=prefix
            )
            async for page in pages:
                objects += [
                    ObjectMeta(
                        path=item["Key"], size=item["Size"], etag=item["ETag"], last_modified=item["LastModified"]
                    )
                    for item in page.get("Contents", ())
                ]
        return sorted(objects, key=lambda meta: meta.path)

    async def head_object(self, key: str, version_id: str | None = None) -> Content:
        # HEAD does not tell a missing key from a missing bucket
        async with self._get_object(key, VersionId=version_id) as answer:
            return Content(
                key=key,
                size=answer["ContentLength"],
                etag=answer["ETag"].strip('"'),
                version_id=version_id,
                modified=answer.get("LastModified"),
            )

    async def read_range(self, content: Content, start: int, end: int) -> AsyncIterator[memoryview]:
        arguments = {
            "VersionId": content.version_id,
            "IfMatch": f'"{content.etag}"',
            "Range": f"bytes={start}-{end - 1}",
        }
        async with self._get_object(content.key, **arguments) as answer:
            total = answer.get("ContentRange", "").rpartition("/")[2]
            if total != str(content.size):
                raise Refused(
                    f"{self.uri}/{content.key}: it was announced with {content.size} bytes, but has {total or '?'}"
                )
            async for part in answer["Body"].iter_chunks(PART_BYTES):
                yield memoryview(part)

    @asynccontextmanager
    async def _get_object(self, key: str, **given: str | None) -> AsyncIterator[Any]:
        arguments = {name: value for name, value in given.items() if value is not None}
        async with self._connect_client(f"{self.uri}/{key}") as client:
            answer = await client.get_object(Bucket=self.uri.removeprefix("s3://"), Key=key, **arguments)
            try:
                yield answer
            finally:
                answer["Body"].close()

    @asynccontextmanager
    async def _connect_client(self, where: str) -> AsyncIterator[Any]:
        """A client. Its exceptions become Gone, Changed, Refused or Retryable."""
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import get_session
            from aiohttp import ClientError as HttpError
            from botocore import UNSIGNED
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise Retryable(f"{where}: reading it needs the extra `aws`: pip install 'pcaplake[aws]'") from error
        config = AioConfig(**_CONFIG, **({"signature_version": UNSIGNED} if self._anonymous else {}))
        try:
            async with get_session().create_client("s3", config=config, **self._client) as client:
                yield client
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in _GONE:
                raise Gone(f"{where} does not exist") from error
            if code == "PreconditionFailed":
                raise Changed(f"{where} has changed since it was listed or announced") from error
            kind = Refused if code in REFUSALS else Retryable
            raise kind(f"{where}: {error}") from error
        except (BotoCoreError, HttpError, OSError, ValueError) as error:
            raise Retryable(f"{where}: {error!r}") from error
