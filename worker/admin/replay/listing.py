"""Captures that lie in a bucket, page by page in the order of their keys. Knows S3's listing; asks for nothing else.

Keys come as they are: obstore would read `a//b` as `a/b`, and a prefix as a folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from ..errors import Retryable
from ..source import ObjectRef
from .clients import errors
from .places import Place

_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An object. `age`: seconds since it was made, by the store's clock. `archived`: it must be restored to be read."""

    ref: ObjectRef
    key: str
    age: float
    archived: bool

    @property
    def folder(self) -> bool:
        """A folder marker of a console or a file manager."""
        return self.key.endswith("/") and self.ref.size == 0


Page = tuple[Found, ...]


async def pages(client: Any, place: Place, *, start_after: str = "") -> AsyncIterator[Page]:
    """Up to 1,000 objects at a time, of keys above `start_after`. Fatal where there is no such bucket; Retryable."""
    asked: dict[str, Any] = {
        "Bucket": place.bucket,
        "Prefix": place.prefix,
        "OptionalObjectAttributes": ["RestoreStatus"],
    }
    if start_after:
        asked["StartAfter"] = start_after
    while True:
        answer = await asyncio.to_thread(_list, client, place, asked)
        now = _date(place, answer)
        yield tuple(_found(place.bucket, raw, now) for raw in answer.get("Contents", ()))
        if not answer.get("IsTruncated"):
            return
        asked["ContinuationToken"] = answer["NextContinuationToken"]


def _list(client: Any, place: Place, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    with errors(f"listing {place.uri}"):
        answer: Mapping[str, Any] = client.list_objects_v2(**asked)
    return answer


def _found(bucket: str, raw: Mapping[str, Any], now: datetime) -> Found:
    ref = ObjectRef(uri=f"s3://{bucket}/{raw['Key']}", size=raw["Size"], explicit=True, etag=raw["ETag"].strip('"'))
    restored = "RestoreExpiryDate" in raw.get("RestoreStatus", {})
    return Found(
        ref=ref,
        key=raw["Key"],
        age=max(0.0, (now - raw["LastModified"]).total_seconds()),  # Date has whole seconds
        archived=raw.get("StorageClass") in _ARCHIVES and not restored,
    )


def _date(place: Place, answer: Mapping[str, Any]) -> datetime:
    said = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return parsedate_to_datetime(said)
    except ValueError as error:
        raise Retryable(f"listing {place.uri}: the store does not say what time it is: {said!r}") from error
