"""Objects whose keys `obstore` cannot name: it reads `a` for `/a` and for `a/`, and `a/b` for `a//b`;
control characters it refuses.

Knows aiobotocore (the extra `aws`). One client for each request: such keys are rare.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from .errors import Retryable
from .objects import PART_BYTES, REFUSALS, Changed, Content, Gone, Refused

_OPTIONS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "token": "aws_session_token",
    "region": "region_name",
    "default_region": "region_name",
    "endpoint": "endpoint_url",
    "endpoint_url": "endpoint_url",
}
_CONFIG: dict[str, Any] = {"s3": {"addressing_style": "path"}, "connect_timeout": 5, "read_timeout": 30}
_GONE = frozenset({"NoSuchKey", "NoSuchVersion"})


class SignedObjects:
    """A bucket of S3, `uri` as `s3://bucket`; `options`: storage options as obstore takes them."""

    def __init__(self, uri: str, options: Mapping[str, str] | None = None) -> None:
        self.uri = uri
        given = {name.lower().removeprefix("aws_"): value for name, value in (options or {}).items()}
        self._client = {_OPTIONS[name]: value for name, value in given.items() if name in _OPTIONS}

    async def head(self, key: str, version_id: str | None = None) -> Content:
        async with self._get(key, VersionId=version_id) as answer:  # to HEAD nobody says what is not there
            return Content(key=key, size=answer["ContentLength"], etag=answer["ETag"].strip('"'), version_id=version_id)

    async def read(self, content: Content, start: int, end: int) -> AsyncIterator[memoryview]:
        given = {"VersionId": content.version_id, "IfMatch": f'"{content.etag}"', "Range": f"bytes={start}-{end - 1}"}
        async with self._get(content.key, **given) as answer:
            total = answer.get("ContentRange", "").rpartition("/")[2]
            if total != str(content.size):
                raise Refused(
                    f"{self.uri}/{content.key}: it was said to have {content.size} bytes, it has {total or '?'}"
                )
            async for part in answer["Body"].iter_chunks(PART_BYTES):
                yield memoryview(part)

    @asynccontextmanager
    async def _get(self, key: str, **given: str | None) -> AsyncIterator[Any]:
        where = f"{self.uri}/{key}"
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import get_session
            from aiohttp import ClientError as HttpError
            from botocore.exceptions import BotoCoreError, ClientError
        except ImportError as error:
            raise Retryable(f"{where}: to read it needs the extra `aws`: pip install 'pcaplake[aws]'") from error
        asked = {name: value for name, value in given.items() if value is not None}
        try:
            async with get_session().create_client("s3", config=AioConfig(**_CONFIG), **self._client) as client:
                answer = await client.get_object(Bucket=self.uri.removeprefix("s3://"), Key=key, **asked)
                try:
                    yield answer
                finally:
                    answer["Body"].close()
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code in _GONE:
                raise Gone(f"{where} is not there (any more)") from error
            if code == "PreconditionFailed":
                raise Changed(f"{where} is not what it was when it was named") from error
            kind = Refused if code in REFUSALS else Retryable
            raise kind(f"{where}: {error}") from error
        except (BotoCoreError, HttpError, OSError, ValueError) as error:
            raise Retryable(f"{where}: {error!r}") from error
