"""Every envelope, every spelling of a key; what is none of them is refused with a short reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.common.errors import Fatal
from pcaplake.ingest.captures.reference import UNKNOWN_SIZE, ObjectRef
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.store.object_store import ObjectStore
from pcaplake.lake.store.store import Store
from pcaplake.worker.service.notification import (
    FOLDER,
    TEST_EVENT,
    BadNotification,
    Notification,
    build_s3_event,
    parse_notification,
)

WHEN = datetime(2026, 3, 1, 12, 30, 15, 123000, tzinfo=UTC)
ETAG = "d41d8cd98f00b204e9800998ecf8427e"


def record(key: str = "drives/a.pcap", name: str = "ObjectCreated:Put", **raw: Any) -> dict[str, Any]:
    """One record as AWS documents it; `key` is already encoded."""
    item = {"key": key, "size": 1024, "eTag": ETAG, "sequencer": "0055AED6DCD90281E5", **raw}
    return {
        "eventVersion": "2.6",
        "eventSource": "aws:s3",
        "awsRegion": "eu-central-1",
        "eventTime": "2026-03-01T12:30:15.123Z",
        "eventName": name,
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": "raw", "arn": "arn:aws:s3:::raw"},
            "object": {name: value for name, value in item.items() if value is not None},
        },
    }


def s3_event(*records: dict[str, Any]) -> str:
    return json.dumps({"Records": list(records)})


def sns(message: str) -> str:
    return json.dumps({"Type": "Notification", "MessageId": "1", "TopicArn": "arn:aws:sns:::t", "Message": message})


def eventbridge(key: str = "drives/a.pcap", kind: str = "Object Created", **raw: Any) -> str:
    item = {"key": key, "size": 1024, "etag": ETAG, "sequencer": "0055AED6DCD90281E5", **raw}
    detail = {"version": "0", "bucket": {"name": "raw"}, "object": item, "reason": "PutObject"}
    event = {"version": "0", "id": "1", "detail-type": kind, "source": "aws.s3", "time": "2026-03-01T12:30:15.123Z"}
    return json.dumps({**event, "resources": ["arn:aws:s3:::raw"], "detail": detail})


def ref(uri: str = "s3://raw/drives/a.pcap", **other: Any) -> ObjectRef:
    given = {"size": 1024, "etag": ETAG, "sequencer": "0055AED6DCD90281E5", "event_time": WHEN, **other}
    return ObjectRef(uri=uri, explicit=True, **given)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("body", [s3_event(record()), eventbridge()], ids=["s3", "eventbridge"])
def test_every_envelope_says_the_same(body: str, wrapped: bool) -> None:
    assert parse_notification(sns(body) if wrapped else body) == Notification(objects=(ref(),))


def test_versions_of_objects() -> None:
    assert parse_notification(s3_event(record(versionId="3HL4kqt"))).objects == (ref(version_id="3HL4kqt"),)
    assert parse_notification(eventbridge(**{"version-id": "3HL4kqt"})).objects == (ref(version_id="3HL4kqt"),)
    assert parse_notification(s3_event(record(versionId=""))).objects == (ref(),)


@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2", "2.6"])
def test_both_styles_of_event_versions(version: str) -> None:
    """2.1 with `%20` as LocalStack encodes, 2.6 with `+` as AWS does."""
    key = "in/a%20b%2B%C3%BC%3D1.pcap" if version == "2.1" else "in/a+b%2B%C3%BC%3D1.pcap"
    parsed = parse_notification(s3_event({**record(key), "eventVersion": version}))
    assert parsed.objects == (ref("s3://raw/in/a b+ü=1.pcap"),)


def test_a_key_is_decoded_once() -> None:
    assert parse_notification(s3_event(record("a%252Bb%2520"))).objects[0].uri == "s3://raw/a%2Bb%20"
    assert parse_notification(eventbridge("a%2Bb+c")).objects[0].uri == "s3://raw/a%2Bb+c"


letters = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)
keys = st.one_of(letters, st.text("+%/ =&ü🚗a2B", min_size=1, max_size=20))


@pytest.mark.slow
@given(
    st.lists(
        st.tuples(
            keys, st.integers(1, 5 << 40), st.sampled_from([quote_plus, quote, lambda k: quote_plus(k, safe="/")])
        ),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
def test_keys_come_back_from_the_encoders_of_others(items: list[tuple[str, int, Any]], wrapped: bool) -> None:
    body = s3_event(*(record(encode(key), size=size) for key, size, encode in items))
    parsed = parse_notification(sns(body) if wrapped else body)
    assert [(one.uri, one.size) for one in parsed.objects] == [(f"s3://raw/{key}", size) for key, size, _ in items]
    assert [parse_notification(eventbridge(key)).objects[0].uri for key, _, _ in items] == [
        f"s3://raw/{key}" for key, _, _ in items
    ]


refs = st.builds(
    ObjectRef,
    uri=st.tuples(st.sampled_from(["raw", "a.b-c"]), keys.filter(lambda key: not key.endswith("/"))).map(
        lambda pair: "s3://" + "/".join(pair)
    ),
    size=st.one_of(st.just(UNKNOWN_SIZE), st.integers(0, 5 << 40)),
    explicit=st.just(True),
    etag=st.none() | st.sampled_from([ETAG, f"{ETAG}-7"]),
    version_id=st.none() | st.just("3HL4kqt"),
    sequencer=st.none() | st.just("0055AED6DCD90281E5"),
    event_time=st.none() | st.datetimes(timezones=st.just(UTC)),
)


@given(refs)
def test_an_event_says_what_it_was_made_from(ref: ObjectRef) -> None:
    body = build_s3_event(ref)
    assert body.isascii()
    assert parse_notification(body) == Notification(objects=(ref,))


@pytest.mark.parametrize("uri", ["file:///a/b.pcap", "s3://raw", "s3://raw/", "s3:///key", "memory:///raw/key"])
def test_no_event_for_what_is_in_no_bucket(uri: str) -> None:
    with pytest.raises(ValueError, match="not an object in S3"):
        build_s3_event(ref(uri))


def test_several_records_in_their_order_and_what_is_ignored_counted() -> None:
    body = s3_event(
        record("a"),
        record("b", "ObjectRemoved:Delete", size=None, eTag=None),
        record("c", "s3:ObjectCreated:CompleteMultipartUpload"),
        record("d", "ObjectRemoved:Delete", size=None, eTag=None),
        record("e", "LifecycleExpiration:Delete"),
        record("drives/", size=0),
    )
    parsed = parse_notification(body)
    assert parsed.objects == (ref("s3://raw/a"), ref("s3://raw/c"))
    assert parsed.ignored == {"ObjectRemoved:Delete": 2, "LifecycleExpiration:Delete": 1, FOLDER: 1}


def test_nothing_was_created() -> None:
    test = json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "raw", "HostId": "x"})
    assert parse_notification(test) == parse_notification(sns(test)) == Notification(ignored={TEST_EVENT: 1})
    assert parse_notification(eventbridge(kind="Object Deleted")) == Notification(ignored={"Object Deleted": 1})
    assert parse_notification(eventbridge("drives/", size=0)) == Notification(ignored={FOLDER: 1})
    assert parse_notification(eventbridge("drives/", size=7)).objects == (ref("s3://raw/drives/", size=7),)


def test_what_was_not_said() -> None:
    bare = record(size=None, eTag=None, sequencer=None)
    bare["eventTime"] = "yesterday"
    expected = ObjectRef(uri="s3://raw/drives/a.pcap", size=UNKNOWN_SIZE, explicit=True)
    assert parse_notification(s3_event(bare)).objects == (expected,)
    assert parse_notification(s3_event({**bare, "eventTime": None})).objects == (expected,)
    quoted = parse_notification(s3_event(record(eTag=f'"{ETAG}"'))).objects[0]
    assert quoted.etag == ETAG


def test_times_are_utc() -> None:
    def time(text: str) -> datetime | None:
        return parse_notification(s3_event({**record(), "eventTime": text})).objects[0].event_time

    assert time("2026-03-01T12:30:15.123") == WHEN
    there = datetime(2026, 3, 1, 14, 30, 15, 123000, tzinfo=timezone(timedelta(hours=2)))
    assert time(there.isoformat()) == WHEN
    assert str(time(there.isoformat())).endswith("+00:00")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ("7", "not a JSON object"),
        ("{}", "neither an S3 event"),
        (json.dumps({"Type": "SubscriptionConfirmation", "Message": "x"}), "neither an S3 event"),
        (json.dumps({"Event": "s3:OtherEvent"}), "neither an S3 event"),
        (sns("no JSON"), "the SNS message is not JSON"),
        (sns("[]"), "the SNS message is not a JSON object"),
        (json.dumps({"Type": "Notification", "Message": 7}), "Message is 7"),
        (s3_event(), "Records"),
        (json.dumps({"Records": {"s3": 1}}), "Records"),
        (json.dumps({"Records": ["x"]}), "record 0"),
        (s3_event({**record(), "eventName": None}), "eventName"),
        (s3_event({**record(), "eventVersion": "3.0"}), "event version '3.0'"),
        (s3_event(record(key="%ff%fe")), "not valid UTF-8"),
        (s3_event(record(key="")), "key is ''"),
        (s3_event(record(key="\ud800")), "not valid Unicode"),
        (s3_event(record(size="12")), "size '12'"),
        (s3_event(record(size=-1)), "size -1"),
        (s3_event(record(size=True)), "size True"),
        (s3_event(record(size=1.5)), "size 1.5"),
        (s3_event(record(eTag=7)), "etag is 7"),
        (s3_event(record(eTag="\ud800")), "eTag or version"),
        (s3_event(record(versionId="\ud800")), "eTag or version"),
        (s3_event(record(versionId={"a": 1})), "version is"),
        (s3_event({**record(), "s3": {"bucket": {}, "object": {"key": "a"}}}), "name is None"),
        (s3_event({**record(), "s3": {"bucket": {"name": "a/b"}, "object": {"key": "a"}}}), "bucket 'a/b'"),
        (eventbridge().replace("aws.s3", "aws.ec2"), "from 'aws.ec2'"),
        (eventbridge("\udfff"), "not valid Unicode"),
        (eventbridge(size=[]), "size []"),
    ],
)
def test_what_cannot_be_read_is_refused_shortly(body: str, reason: str) -> None:
    with pytest.raises(BadNotification) as met:
        parse_notification(body)
    assert reason in str(met.value)
    assert len(str(met.value)) < 400


def test_a_record_that_cannot_be_read_costs_no_other() -> None:
    said = parse_notification(s3_event(record(), record(size=-1), record(key="other.pcap"), record(key="\ud800")))
    assert [one.uri.rpartition("/")[2] for one in said.objects] == [ref().uri.rpartition("/")[2], "other.pcap"]
    assert "record 1 has the size -1" in str(said.bad)
    assert parse_notification(s3_event(record())).bad is None


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_time_at_the_end_of_the_calendar_is_none(time: str) -> None:
    (found,) = parse_notification(s3_event({**record(), "eventTime": time})).objects
    assert found.event_time is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
paths = [
    ("Records",), ("Records", 0), ("Records", 0, "eventVersion"), ("Records", 0, "eventName"), ("Records", 0, "eventTime"),
    ("Records", 0, "s3"), ("Records", 0, "s3", "bucket"), ("Records", 0, "s3", "bucket", "name"),
    *(("Records", 0, "s3", "object", name) for name in ("key", "size", "eTag", "versionId", "sequencer")),
]  # fmt: skip


@given(st.sampled_from(paths), json_values)
def test_any_part_may_be_anything(path: tuple[Any, ...], value: Any) -> None:
    """It is read or it is refused: nothing else is ever raised, and what is read can be named."""
    event = json.loads(s3_event(record()))
    inner = event
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    try:
        parsed = parse_notification(json.dumps(event))
    except BadNotification:
        return
    assert len(parsed.objects) + sum(parsed.ignored.values()) == 1
    for one in parsed.objects:
        assert one.uri.encode().startswith(b"s3://")
        assert one.size >= UNKNOWN_SIZE


NO_BUCKETS = [
    "tenant-b@raw",
    "raw#1",
    "raw?2",
    "raw:1",
    "raw ",
    "raw%20",
    "a/b",
    "ra w",
    "r\u00e4w",
    "..",
    "-raw",
    "raw\n",
]


@pytest.mark.parametrize("name", NO_BUCKETS)
def test_a_bucket_has_one_spelling(name: str) -> None:
    """`fnmatch` compares the text, and a URL has the bucket `raw` for many of these."""
    one = record()
    one["s3"]["bucket"]["name"] = name
    event = json.loads(eventbridge())
    event["detail"]["bucket"]["name"] = name
    for body in (s3_event(one), json.dumps(event)):
        with pytest.raises(BadNotification, match="the bucket"):
            parse_notification(body)
    if "/" in name:
        return  # a folder in a bucket
    with pytest.raises(Fatal):
        Store.open(f"s3://{name}", {"region": "x", "skip_signature": "true"})


@given(st.text(alphabet="aB1.-_@#?:% /\\&=+~\u00e9\n", min_size=1, max_size=6) | st.text(min_size=1, max_size=6))
def test_routes_and_store_see_the_same_bucket(name: str) -> None:
    one = record()
    one["s3"]["bucket"]["name"] = name
    try:
        (object_,) = parse_notification(s3_event(one)).objects
    except BadNotification:
        return
    store, key = Sources({"region": "x", "skip_signature": "true"}).open_store(object_.uri)
    assert isinstance(store, ObjectStore)
    assert (store.obstore_client.config["bucket"], key) == (name, "drives/a.pcap")


@pytest.mark.parametrize("text", ["a\nb", "a\r\nX-Evil: 1", 'a"b', "a b", "\u00e9", "\x7f", "\0"])
@pytest.mark.parametrize("name", ["eTag", "versionId"])
def test_what_a_header_cannot_hold_is_refused(name: str, text: str) -> None:
    with pytest.raises(BadNotification, match="eTag or version"):
        parse_notification(s3_event(record(**{name: text})))
