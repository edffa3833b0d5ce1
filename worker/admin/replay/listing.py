"""Lists the objects of a bucket, page by page in the order of their keys.

Uses S3's own listing, which returns keys unchanged: obstore would read `a//b` as `a/b`, and a prefix as a folder.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from pcaplake.common.errors import Retryable
from pcaplake.ingest.captures.reference import ObjectRef, epoch_ms
from pcaplake.worker.admin.aws_clients import translate_errors
from pcaplake.worker.config.s3_prefixes import Place

_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An object. `age` is in seconds by the store's clock. An `archived` object must be restored before it can be read."""

    ref: ObjectRef
    key: str
    age: float
    archived: bool

    @property
    def folder(self) -> bool:
        """True for the folder marker of a console or a file manager."""
        return self.key.endswith("/") and self.ref.size == 0


Page = tuple[Found, ...]


async def pages(client: Any, place: Place, *, start_after: str = "") -> AsyncIterator[Page]:
    """Pages of up to 1,000 objects with keys after `start_after`. Raises Fatal if the bucket does not exist, and Retryable."""
    arguments: dict[str, Any] = {
        "Bucket": place.bucket,
        "Prefix": place.prefix,
        "OptionalObjectAttributes": ["RestoreStatus"],
    }
    if start_after:
        arguments["StartAfter"] = start_after
    while True:
        answer = await asyncio.to_thread(_list, client, place, arguments)
        now = _date(place, answer)
        yield tuple(_found(place.bucket, raw, now) for raw in answer.get("Contents", ()))
        if not answer.get("IsTruncated"):
            return
        arguments["ContinuationToken"] = answer["NextContinuationToken"]


def _list(client: Any, place: Place, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    with translate_errors(f"listing {place.uri}"):
        answer: Mapping[str, Any] = client.list_objects_v2(**asked)
    return answer


def _found(bucket: str, raw: Mapping[str, Any], now: datetime) -> Found:
    ref = ObjectRef(
        uri=f"s3://{bucket}/{raw['Key']}",
        size=raw["Size"],
        explicit=True,
        etag=raw["ETag"].strip('"'),
        modified=epoch_ms(raw["LastModified"]),
    )
    restored = "RestoreExpiryDate" in raw.get("RestoreStatus", {})
    return Found(
        ref=ref,
        key=raw["Key"],
        age=max(0.0, (now - raw["LastModified"]).total_seconds()),  # Date has whole seconds
        archived=raw.get("StorageClass") in _ARCHIVES and not restored,
    )


def _date(place: Place, answer: Mapping[str, Any]) -> datetime:
    date_header = answer["ResponseMetadata"]["HTTPHeaders"].get("date", "")
    try:
        return parsedate_to_datetime(date_header)
    except ValueError as error:
        raise Retryable(f"listing {place.uri}: the store's answer has no valid date: {date_header!r}") from error
