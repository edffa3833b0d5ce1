"""Parses the body of a message into references to the objects that were created, and builds such bodies.

Knows the envelopes: an S3 event (from S3, or from SNS with raw delivery), an SNS notification around it, EventBridge, and
the test event that S3 sends when notifications are configured. Pure: must not know queues, stores, or what a capture is.

S3 events have percent-encoded keys, with `+` (AWS) or `%20` (LocalStack) for a space; EventBridge does not encode keys.
Structure: "Event message structure" and "EventBridge event message structure" of the S3 user guide.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus, unquote_plus

from pcaplake.common.errors import PcaplakeError
from pcaplake.ingest.captures.reference import UNKNOWN_SIZE, ObjectRef
from pcaplake.lake.store.bucket_names import is_bucket_name

CREATED = "ObjectCreated:"
CREATED_BY_EVENTBRIDGE = "Object Created"
FOLDER = "folder marker"
TEST_EVENT = "s3:TestEvent"
OWED = "pcaplake"  # field of a record that only pcaplake writes and reads
_SHOWN = 200
_NO_FIELDS: Mapping[str, Any] = {}
_LATEST_MS = 253_370_764_800_000  # 9999-01-01
_IN_A_HEADER = re.compile(r"[!#-~]*")  # an entity tag without quotes (RFC 9110, 8.8.3); the store gets it in If-Match


class BadNotification(PcaplakeError):
    """The body cannot be read. The message is kept until the redrive policy moves it to the dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """`objects` were created. `ignored` counts the other events by kind.

    `bad`: the error of the first record that cannot be read; all other records are in `objects` and `ignored`.
    """

    objects: tuple[ObjectRef, ...] = ()
    ignored: Mapping[str, int] = field(default_factory=dict)
    bad: BadNotification | None = None


def parse_notification(body: str) -> Notification:
    """Parse the body of a message. Raises BadNotification when nothing in it can be read."""
    message = _require_object(_parse_json(body, "the body"), "the body")
    if message.get("Type") == "Notification" and "Message" in message:
        text = _require_text(message, "Message", "the SNS notification")
        message = _require_object(_parse_json(text, "the SNS message"), "the SNS message")
    if "Records" in message:
        return _parse_records(message["Records"])
    if "detail-type" in message:
        return _parse_eventbridge_event(message)
    if message.get("Event") == TEST_EVENT:
        return Notification(ignored={TEST_EVENT: 1})
    raise BadNotification(
        f"neither an S3 event nor one of SNS or EventBridge: its keys are {_shorten_for_display(list(message))}"
    )


def build_s3_event(ref: ObjectRef) -> str:
    """The event that S3 would send for the creation of this object; `parse_notification` reads it.

    `owed_to` and `modified` are in a field that S3 does not use. Raises ValueError for an object that is not in S3.
    """
    scheme, _, path = ref.uri.partition("://")
    bucket, _, key = path.partition("/")
    if scheme != "s3" or not bucket or not key:
        raise ValueError(f"{ref.uri} is not an object in S3")
    object_fields = {
        "key": quote_plus(key, safe="/"),
        "size": None if ref.size == UNKNOWN_SIZE else ref.size,
        "eTag": ref.etag,
        "versionId": ref.version_id,
        "sequencer": ref.sequencer,
    }
    record = {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": f"{CREATED}Put",
        "userIdentity": {"principalId": "pcaplake"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": bucket, "arn": f"arn:aws:s3:::{bucket}"},
            "object": {name: value for name, value in object_fields.items() if value is not None},
        },
    }
    own_fields = {"lake": ref.owed_to, "modified": ref.modified}
    if own := {name: value for name, value in own_fields.items() if value is not None}:
        record[OWED] = own
    if ref.event_time is not None:
        record["eventTime"] = ref.event_time.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return json.dumps({"Records": [record]})


def _parse_records(records: Any) -> Notification:
    if not isinstance(records, list) or not records:
        raise BadNotification("Records is not a list, or is empty")
    objects: list[ObjectRef] = []
    ignored: Counter[str] = Counter()
    bad: BadNotification | None = None
    for number, raw_record in enumerate(records):
        try:
            _parse_record(raw_record, f"record {number}", objects, ignored)
        except BadNotification as error:
            bad = bad or error
    if bad is not None and not objects and not ignored:
        raise bad
    return Notification(objects=tuple(objects), ignored=dict(ignored), bad=bad)


def _parse_record(raw_record: Any, where: str, objects: list[ObjectRef], ignored: Counter[str]) -> None:
    record = _require_object(raw_record, where)
    version = str(record.get("eventVersion", "2"))
    if version.partition(".")[0] != "2":  # S3 raises the major version for incompatible changes
        raise BadNotification(f"{where} has the event version {_shorten_for_display(version)}, not 2.x")
    name = _require_text(record, "eventName", where).removeprefix("s3:")
    if not name.startswith(CREATED):
        ignored[name] += 1
        return
    s3 = _require_object(record.get("s3"), f"{where}: s3")
    raw = _require_object(s3.get("object"), f"{where}: s3.object")
    bucket = _require_text(_require_object(s3.get("bucket"), f"{where}: s3.bucket"), "name", f"{where}: s3.bucket")
    own = _require_object(record.get(OWED, {}), f"{where}: {OWED}")
    ref = _build_reference(
        where,
        bucket=bucket,
        key=_decode_key(_require_text(raw, "key", f"{where}: s3.object"), where),
        raw=raw,
        etag=raw.get("eTag"),
        version_id=raw.get("versionId"),
        time=record.get("eventTime"),
        own=own,
    )
    _append_unless_folder(ref, objects, ignored)


def _parse_eventbridge_event(event: Mapping[str, Any]) -> Notification:
    where = "the EventBridge event"
    kind = _require_text(event, "detail-type", where)
    if event.get("source") != "aws.s3":
        raise BadNotification(f"{where} is from {_shorten_for_display(event.get('source'))}, not from aws.s3")
    if kind != CREATED_BY_EVENTBRIDGE:
        return Notification(ignored={kind: 1})
    detail = _require_object(event.get("detail"), f"{where}: detail")
    raw = _require_object(detail.get("object"), f"{where}: detail.object")
    bucket = _require_text(
        _require_object(detail.get("bucket"), f"{where}: detail.bucket"), "name", f"{where}: detail.bucket"
    )
    ref = _build_reference(
        where,
        bucket=bucket,
        key=_require_text(raw, "key", f"{where}: detail.object"),
        raw=raw,
        etag=raw.get("etag"),
        version_id=raw.get("version-id"),
        time=event.get("time"),
    )
    objects: list[ObjectRef] = []
    ignored: Counter[str] = Counter()
    _append_unless_folder(ref, objects, ignored)
    return Notification(objects=tuple(objects), ignored=dict(ignored))


def _append_unless_folder(ref: ObjectRef, objects: list[ObjectRef], ignored: Counter[str]) -> None:
    """Consoles and file managers create empty objects named like folders."""
    if ref.uri.endswith("/") and ref.size == 0:
        ignored[FOLDER] += 1
    else:
        objects.append(ref)


def _build_reference(
    where: str,
    *,
    bucket: str,
    key: str,
    raw: Mapping[str, Any],
    etag: Any,
    version_id: Any,
    time: Any,
    own: Mapping[str, Any] = _NO_FIELDS,
) -> ObjectRef:
    """`own`: the fields of pcaplake."""
    size = raw.get("size")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 0):
        raise BadNotification(f"{where} has the size {_shorten_for_display(size)}")
    # routes compare this text, and the store parses it as a URL
    if not is_bucket_name("s3", bucket):
        raise BadNotification(f"{where} has the bucket {_shorten_for_display(bucket)}")
    uri = f"s3://{bucket}/{key}"
    # JSON allows half of a surrogate pair, stores do not
    if any("\ud800" <= letter <= "\udfff" for letter in key):
        raise BadNotification(f"{where} has a name that is not valid Unicode: {_shorten_for_display(uri)}")
    etag = _optional_text(etag, f"{where}: etag").strip('"')
    version_id = _optional_text(version_id, f"{where}: version")
    for text in (etag, version_id):
        if not _IN_A_HEADER.fullmatch(text):
            raise BadNotification(f"{where} has the eTag or version {_shorten_for_display(text)}")
    return ObjectRef(
        uri=uri,
        size=UNKNOWN_SIZE if size is None else size,
        explicit=True,
        etag=etag or None,
        version_id=version_id or None,
        sequencer=_optional_text(raw.get("sequencer"), f"{where}: sequencer") or None,
        event_time=_parse_event_time(time),
        modified=_parse_own_time(own.get("modified"), where),
        owed_to=_optional_text(own.get("lake"), f"{where}: {OWED}.lake") or None,
    )


def _parse_own_time(value: Any, where: str) -> int | None:
    """Epoch ms between 1970 and 9999."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LATEST_MS):
        raise BadNotification(f"{where}: {OWED}.modified is {_shorten_for_display(value)}")
    return value


def _decode_key(key: str, where: str) -> str:
    try:
        return unquote_plus(key, errors="strict")
    except UnicodeDecodeError as error:
        raise BadNotification(f"{where} has a key that is not valid UTF-8: {_shorten_for_display(key)}") from error


def _parse_event_time(value: Any) -> datetime | None:
    """None if it cannot be read. It measures the lag, and says which content of an object is the latest."""
    try:
        time = datetime.fromisoformat(value)
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):  # OverflowError: outside the calendar
        return None


def _parse_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadNotification(f"{what} is not JSON: {_shorten_for_display(text)}") from error


def _require_object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise BadNotification(f"{what} is not a JSON object: {_shorten_for_display(value)}")
    return value


def _require_text(raw: Mapping[str, Any], name: str, where: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not value:
        raise BadNotification(f"{where}: {name} is {_shorten_for_display(value)}, not a string")
    return value


def _optional_text(value: Any, what: str) -> str:
    if not isinstance(value, str | None):
        raise BadNotification(f"{what} is {_shorten_for_display(value)}, not a string")
    return value or ""


def _shorten_for_display(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
