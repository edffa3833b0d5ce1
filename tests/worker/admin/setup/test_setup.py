"""What a setup works out: places, notifications that S3 would take, steps; and what services answer, in our words."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError, NoCredentialsError
from botocore.stub import Stubber
from hypothesis import given
from hypothesis import strategies as st

from pcaplake.common.errors import Fatal, NotAllowed, PcaplakeError, Retryable
from pcaplake.worker.admin import aws_clients as clients
from pcaplake.worker.admin.aws_clients import Clients
from pcaplake.worker.admin.setup import dynamodb_tables as tables
from pcaplake.worker.admin.setup import notifications, queues, setup
from pcaplake.worker.admin.setup.notifications import EVENTS, merged
from pcaplake.worker.admin.setup.queues import Arn, Found
from pcaplake.worker.admin.setup.setup_plan import Step, Steps
from pcaplake.worker.config.routes import Routes, WrongRoutes
from pcaplake.worker.config.s3_prefixes import (
    Place,
    find_watched_places,
    fixed_prefix,
    parse_place,
    remove_covered_places,
)
from tools.local.engines import LOOPBACK

QUEUE = "arn:aws:sqs:eu-central-1:123456789012:captures"
OTHER = "arn:aws:sqs:eu-central-1:123456789012:other"
FUNCTION = "arn:aws:lambda:eu-central-1:123456789012:function:f"
TOPIC = "arn:aws:sns:eu-central-1:123456789012:t"


def routes(*pairs: tuple[str, str]) -> Routes:
    return Routes.parse_routes(
        [
            {"name": f"{number}", "bucket": bucket, "key": key, "lake": f"s3://lakes/{number}"}
            for number, (bucket, key) in enumerate(pairs)
        ]
    )


def place(uri: str) -> Place:
    return parse_place(uri)[0]


# -- places -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("uri", "expected", "glob"),
    [
        ("s3://raw", Place(bucket="raw"), "*"),
        ("s3://raw/", Place(bucket="raw"), "*"),
        ("s3://raw/a/b", Place(bucket="raw", prefix="a/b"), "*"),
        ("s3a://raw/a//b+%20/", Place(bucket="raw", prefix="a//b+%20/"), "*"),
        ("s3://raw/a/*/x?.pcap", Place(bucket="raw", prefix="a/"), "a/*/x?.pcap"),
        ("s3://raw/a[12]", Place(bucket="raw", prefix="a"), "a[12]"),
    ],
)
def test_places_as_people_name_them(uri: str, expected: Place, glob: str) -> None:
    assert parse_place(uri) == (expected, glob)


@pytest.mark.parametrize("uri", ["raw", "file:///a", "s3://", "s3:///a", "s3://ra*/a", "gs://raw/a"])
def test_what_is_no_place(uri: str) -> None:
    with pytest.raises(ValueError, match="s3://bucket/prefix"):
        parse_place(uri)


def test_where_the_routes_captures_lie() -> None:
    assert find_watched_places(routes(("raw", "a/*.pcap"), ("raw", "a/b/*"), ("raw", "c"), ("bench", "*"))) == (
        Place(bucket="bench"),
        Place(bucket="raw", prefix="a/"),
        Place(bucket="raw", prefix="c"),
    )
    patterns = routes(("raw-*", "a/*"), ("raw-1", "b/*"), ("*", "c/*"))
    found = find_watched_places(patterns, ["raw-2", "bench"])
    assert [one.uri for one in found] == [
        "s3://bench/c/",
        "s3://raw-1/a/",
        "s3://raw-1/b/",
        "s3://raw-1/c/",
        "s3://raw-2/a/",
        "s3://raw-2/c/",
    ]


def test_buckets_that_must_be_named_or_are_nobodys() -> None:
    with pytest.raises(WrongRoutes, match=r"^0: its bucket is the pattern 'raw-\*'.*--bucket"):
        find_watched_places(routes(("raw-*", "*"), ("bench", "*")))
    with pytest.raises(WrongRoutes, match=r"with s3://BUCKET/PREFIX$"):
        find_watched_places(routes(("raw-*", "*")), by="s3://BUCKET/PREFIX")
    with pytest.raises(WrongRoutes, match="no route selects the bucket other"):
        find_watched_places(routes(("raw", "*")), ["other"])


prefixes = st.text("ab/+ü", max_size=4)


@given(st.lists(st.builds(Place, bucket=st.sampled_from("xy"), prefix=prefixes)), st.sampled_from("xy"), prefixes)
def test_the_fewest_places_hold_the_same_keys(places: list[Place], bucket: str, key: str) -> None:
    def inside(some: Sequence[Place]) -> bool:
        return any(one.bucket == bucket and key.startswith(one.prefix) for one in some)

    few = remove_covered_places(places)
    assert inside(few) == inside(places)
    assert not any(one.covers_place(other) for one in few for other in few if one is not other)


def test_what_all_names_begin_with() -> None:
    assert [fixed_prefix(pattern) for pattern in ("a/b", "a/*", "*", "a?b*", "a[b]", "")] == [
        "a/b",
        "a/",
        "",
        "a",
        "a",
        "",
    ]


# -- notifications ----------------------------------------------------------------------------------------------------
def rule(
    receiver: str, prefix: str = "", suffix: str = "", *, id: str = "theirs", events: str = EVENTS
) -> dict[str, Any]:
    kind = {"lambda": "LambdaFunctionArn", "sns": "TopicArn", "sqs": "QueueArn"}[receiver.split(":")[2]]
    filters = [{"Name": name, "Value": value} for name, value in (("Prefix", prefix), ("suffix", suffix)) if value]
    return {"Id": id, kind: receiver, "Events": [events], "Filter": {"Key": {"FilterRules": filters}}}


def sent_here(configuration: dict[str, Any]) -> set[str]:
    return {one.prefix for one in notifications.rules(configuration) if one.serves(QUEUE)}


def test_ours_is_added_and_all_else_kept() -> None:
    there = {
        "QueueConfigurations": [rule(OTHER, "b/"), rule(OTHER, events="s3:ObjectRemoved:*", id="removed")],
        "LambdaFunctionConfigurations": [rule(FUNCTION, "logs/", ".txt")],
        "TopicConfigurations": [rule(TOPIC, "c/")],
        "EventBridgeConfiguration": {},
    }
    made = merged("raw", there, QUEUE, ["a/", "a2"])
    assert made is not None
    assert sent_here(made) == {"a/", "a2"}
    assert {name: value for name, value in made.items() if name != "QueueConfigurations"} == {
        name: value for name, value in there.items() if name != "QueueConfigurations"
    }
    assert made["QueueConfigurations"][:2] == there["QueueConfigurations"]
    assert merged("raw", made, QUEUE, ["a/", "a2"]) is None
    assert merged("raw", made, QUEUE, ["a/b/"]) is None  # it comes already


def test_a_whole_bucket_takes_no_filter() -> None:
    made = merged("raw", {}, QUEUE, [""])
    assert made is not None
    ((one,),) = made.values()
    assert (one["QueueArn"], one["Events"], "Filter" in one) == (QUEUE, [EVENTS], False)


def test_a_wider_one_of_ours_takes_the_place_of_narrower_ones() -> None:
    narrow = merged("raw", {}, QUEUE, ["a/x", "a/y", "b/"])
    assert narrow is not None
    wide = merged("raw", narrow, QUEUE, ["a/"])
    assert wide is not None
    assert sent_here(wide) == {"a/", "b/"}
    assert merged("raw", wide, QUEUE, ["a/x", "b/"]) is None  # nothing is ever taken away


def test_one_that_somebody_else_made_for_our_queue_serves_us() -> None:
    theirs = {"QueueConfigurations": [rule(QUEUE, "a/")]}
    assert merged("raw", theirs, QUEUE, ["a/b"]) is None
    with pytest.raises(Fatal, match="theirs"):
        merged("raw", theirs, QUEUE, [""])
    with pytest.raises(Fatal, match="theirs"):
        merged("raw", {"QueueConfigurations": [rule(QUEUE, "a/", ".pcap")]}, QUEUE, ["a/b"])


@pytest.mark.parametrize("receiver", [OTHER, FUNCTION, TOPIC])
@pytest.mark.parametrize("prefix", ["", "a/", "a", "a/b/c"])
@pytest.mark.parametrize("suffix", ["", ".pcap"])
@pytest.mark.parametrize("events", [EVENTS, "s3:ObjectCreated:Put"])
def test_an_overlap_is_refused_with_what_to_do(receiver: str, prefix: str, suffix: str, events: str) -> None:
    kind = {OTHER: "Queue", FUNCTION: "LambdaFunction", TOPIC: "Topic"}[receiver]
    there = {f"{kind}Configurations": [rule(receiver, prefix, suffix, events=events)]}
    with pytest.raises(Fatal) as met:
        merged("raw", there, QUEUE, ["a/b/"])
    for word in ("the bucket raw", receiver, "'theirs'", "SNS topic", "EventBridge", "pcaplake docs setup"):
        assert word in str(met.value)


def test_another_setups_queue_is_an_overlap_too() -> None:
    made = merged("raw", {}, OTHER, ["a/"])
    assert made is not None
    with pytest.raises(Fatal, match="one receiver"):
        merged("raw", made, QUEUE, ["a/"])


def test_what_to_do_about_an_earlier_setups_rule() -> None:
    made = merged("raw", {}, OTHER, ["a/"])
    assert made is not None
    with pytest.raises(Fatal, match=r"earlier `pcaplake setup`.*other.*remove it") as met:
        merged("raw", made, QUEUE, ["a/"])
    assert made["QueueConfigurations"][0]["Id"] in str(met.value)
    with pytest.raises(Fatal) as met:
        merged("raw", {"QueueConfigurations": [rule(OTHER, "a/")]}, QUEUE, ["a/"])
    assert "earlier" not in str(met.value)


def test_our_rule_stays_ours_while_the_queue_is_gone(account: Clients) -> None:
    """Nobody knows the account of a queue that is not there."""
    nobodys = str(setup.arn_of(account, "captures", None))
    made = merged("raw", {}, QUEUE, ["a/"])
    assert made is not None
    assert merged("raw", made, nobodys, ["a/b"]) is None
    china = {"QueueConfigurations": [rule(QUEUE.replace("arn:aws:", "arn:aws-cn:"), "a/")]}
    assert merged("raw", china, nobodys, ["a/b"]) is None
    topic = QUEUE.replace(":sqs:", ":sns:")
    for elsewhere in (OTHER, QUEUE.replace("eu-central-1", "eu-west-1"), f"{QUEUE}2", topic, f"{FUNCTION}:captures"):
        kind = {"sqs": "Queue", "sns": "Topic", "lambda": "LambdaFunction"}[elsewhere.split(":")[2]]
        with pytest.raises(Fatal, match="one receiver"):
            merged("raw", {f"{kind}Configurations": [rule(elsewhere, "a/")]}, nobodys, ["a/b"])
    with pytest.raises(Fatal, match="one receiver"):  # of a queue that is there the account is known
        merged("raw", made, QUEUE.replace("123456789012", "210987654321"), ["a/"])


@given(prefixes)
def test_filters_hold_nothing_that_must_be_encoded(prefix: str) -> None:
    assert prefix.startswith(notifications.filter_of(prefix))
    assert notifications.filter_of(prefix).isascii()
    assert "+" not in notifications.filter_of(prefix)


def test_a_filter_ends_before_what_must_be_encoded() -> None:
    assert notifications.filter_of("drives/date=2026/") == "drives/date"
    assert notifications.filter_of("drives/a b") == "drives/a"
    assert notifications.filter_of("A-1_(x)!'./z") == "A-1_(x)!'./z"


@given(st.lists(st.lists(prefixes, min_size=1, max_size=3), min_size=1, max_size=4))
def test_whatever_was_set_up_before_s3_takes_it_and_every_prefix_is_served(setups: list[list[str]]) -> None:
    configuration: dict[str, Any] = {}
    for wanted in setups:
        configuration = merged("raw", configuration, QUEUE, wanted) or configuration
        assert merged("raw", configuration, QUEUE, wanted) is None
    mine = sent_here(configuration)
    assert len({one["Id"] for one in configuration["QueueConfigurations"]}) == len(mine)
    assert not any(a != b and a.startswith(b) for a in mine for b in mine)
    assert all(any(prefix.startswith(one) for one in mine) for wanted in setups for prefix in wanted)


def test_lakes_that_would_be_announced() -> None:
    places = [place("s3://raw/drives"), place("s3://bench/")]
    (note,) = setup.announced_in_vain(places, ["s3://lakes/a", "s3://raw/drives-lake", "s3://raw/lake"])
    assert "s3://raw/drives-lake" in note
    assert setup.announced_in_vain([place("s3://raw/lake/captures/")], ["s3://raw/lake"]) == []


# -- steps ------------------------------------------------------------------------------------------------------------
def test_a_rehearsal_tells_and_does_nothing() -> None:
    shown: list[Step] = []
    steps = Steps(dry_run=True, show=shown.append)
    steps.apply_change("created", "queue", "captures", lambda: pytest.fail("it was done"))
    steps.record_existing("table", "t", "x")
    assert (
        shown
        == steps.done
        == [
            Step(what="queue", name="captures", state="created"),
            Step(what="table", name="t", state="exists", detail="x"),
        ]
    )
    assert steps.changes == 1


def test_what_fails_is_not_told() -> None:
    steps = Steps()
    with pytest.raises(ZeroDivisionError):
        steps.apply_change("created", "queue", "captures", lambda: 1 // 0)
    assert (steps.done, steps.changes) == ([], 0)


# -- services ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def account() -> Iterator[Clients]:
    """Clients that may not ask anybody: every answer is put there by a test."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("", "_S3", "_SQS", "_DYNAMODB", "_STS"):
            patch.delenv(f"AWS_ENDPOINT_URL{name}", raising=False)
        patch.delenv("AWS_PROFILE", raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        with Clients(region="eu-central-1") as made:
            yield made


def test_s3_is_reached_as_the_lakes_are(account: Clients) -> None:
    options = {
        "AWS_ENDPOINT": f"http://{LOOPBACK}:9",
        "aws_access_key_id": "me",
        "aws_secret_access_key": "mine",
        "allow_http": "true",
        "region": "us-west-2",
    }
    with Clients(region="eu-central-1", options=options) as given:
        assert given.s3.meta.endpoint_url == f"http://{LOOPBACK}:9"
        assert given.s3.meta.region_name == "us-west-2"
        assert given.s3.meta.config.s3 == {"addressing_style": "path"}
        assert given.s3._get_credentials().access_key == "me"
        assert given.sqs.meta.endpoint_url == "https://sqs.eu-central-1.amazonaws.com"
    assert account.s3.meta.endpoint_url == "https://s3.eu-central-1.amazonaws.com"
    assert account.s3.meta.config.s3 is None
    assert account.region_name == "eu-central-1"


def test_without_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(Fatal, match="AWS_REGION"):
        _ = Clients().sqs


@pytest.mark.parametrize(
    ("code", "status", "expected", "word"),
    [
        ("NoSuchBucket", 404, Fatal, "Create the bucket"),
        ("AccessDenied", 403, NotAllowed, "pcaplake docs permissions"),
        ("AccessDeniedException", 400, NotAllowed, "pcaplake docs permissions"),
        ("InvalidClientTokenId", 403, Fatal, "credentials"),
        ("com.amazonaws.sqs#UnrecognizedClientException", 400, Fatal, "credentials"),
        ("RequestThrottled", 403, Retryable, "again"),
        ("ThrottlingException", 400, Retryable, "again"),
        ("SlowDown", 503, Retryable, "again"),
        ("InternalError", 500, Retryable, "again"),
        ("ValidationException", 400, Fatal, "said so"),
    ],
)
def test_errors_in_our_words(
    account: Clients, code: str, status: int, expected: type[PcaplakeError], word: str
) -> None:
    with Stubber(account.sqs) as stub:
        stub.add_client_error("list_queues", code, "said so.", status)
        with pytest.raises(expected, match=f"^here: .*{word}") as met, clients.translate_errors("here"):
            account.sqs.list_queues()
    assert met.type is expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EndpointConnectionError(endpoint_url="x"), Retryable),
        (ConnectionResetError(), Retryable),
        (NoCredentialsError(), Fatal),
    ],
)
def test_no_answer(error: Exception, expected: type[PcaplakeError]) -> None:
    with pytest.raises(expected, match=r"^here: "), clients.translate_errors("here"):
        raise error


def test_a_service_without_backups_and_protection(account: Clients) -> None:
    """As DynamoDB Local is."""
    steps = Steps()
    with Stubber(account.dynamodb) as stub:
        stub.add_response("describe_table", {"Table": {"TableStatus": "ACTIVE"}})
        stub.add_response(
            "describe_time_to_live",
            {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLING", "AttributeName": "expireTime"}},
        )
        stub.add_client_error("describe_continuous_backups", "UnknownOperationException")
        tables.ensure(account.dynamodb, "ledger", tables.LEDGER, steps)
    assert [(one.what, one.state) for one in steps.done] == [
        ("ledger table", "exists"),
        ("time to live", "exists"),
        ("point-in-time recovery", "not supported"),
        ("deletion protection", "not supported"),
    ]


def test_a_table_is_waited_for_and_its_backups_too(account: Clients) -> None:
    steps, slept = Steps(), list[float]()
    active = {"Table": {"TableStatus": "ACTIVE", "DeletionProtectionEnabled": True}}
    off = {
        "ContinuousBackupsStatus": "DISABLED",
        "PointInTimeRecoveryDescription": {"PointInTimeRecoveryStatus": "DISABLED"},
    }
    with Stubber(account.dynamodb) as stub:
        stub.add_client_error("describe_table", "ResourceNotFoundException")
        stub.add_client_error("create_table", "ResourceInUseException")
        stub.add_response("describe_table", {"Table": {"TableStatus": "CREATING"}})
        stub.add_response("describe_table", active)
        stub.add_response("describe_table", active)
        stub.add_response("describe_time_to_live", {"TimeToLiveDescription": {"TimeToLiveStatus": "DISABLED"}})
        stub.add_response("update_time_to_live", {})
        stub.add_response("describe_continuous_backups", {"ContinuousBackupsDescription": off})
        stub.add_client_error("update_continuous_backups", "ContinuousBackupsUnavailableException")
        stub.add_response("update_continuous_backups", {})
        tables.ensure(account.dynamodb, "ledger", tables.LEDGER, steps, sleep=slept.append)
        stub.assert_no_pending_responses()
    assert [(one.what, one.state) for one in steps.done] == [
        ("ledger table", "created"),
        ("time to live", "changed"),
        ("point-in-time recovery", "changed"),
        ("deletion protection", "exists"),
    ]
    assert len(slept) == 2


def test_items_that_expire_by_something_else(account: Clients) -> None:
    with Stubber(account.dynamodb) as stub:
        stub.add_response("describe_table", {"Table": {"TableStatus": "ACTIVE"}})
        stub.add_response(
            "describe_time_to_live", {"TimeToLiveDescription": {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}}
        )
        with pytest.raises(Fatal, match="expire by ttl, not by expireTime"):
            tables.ensure(account.dynamodb, "locks", tables.LOCKS, Steps())


def found(**attributes: str) -> Found:
    return Found(arn=Arn.parse(QUEUE), url="https://queue", attributes=attributes)


def allowed(account: Clients, queue: Found, buckets: list[str]) -> dict[str, Any] | None:
    """The new policy of the queue; None: it is not changed."""
    steps = Steps()
    with Stubber(account.sqs) as stub:
        given: dict[str, Any] = {}
        account.sqs.meta.events.register(
            "provide-client-params.sqs.SetQueueAttributes", lambda params, **_: given.update(params)
        )
        stub.add_response("set_queue_attributes", {})
        queues.allow_buckets(account.sqs, queue, buckets, steps)
    assert steps.changes == bool(given)
    return json.loads(given["Attributes"]["Policy"]) if given else None


def test_a_queues_policy_is_added_to_and_never_taken_from(account: Clients) -> None:
    theirs = {"Sid": "theirs", "Effect": "Allow", "Principal": "*", "Action": "sqs:*", "Resource": QUEUE}
    first = allowed(account, found(Policy=json.dumps({"Version": "2008-10-17", "Statement": theirs})), ["raw"])
    assert first is not None
    assert first["Version"] == "2008-10-17"
    kept, ours = first["Statement"]
    assert kept == theirs
    assert ours["Action"] == "sqs:SendMessage"
    assert ours["Principal"] == {"Service": "s3.amazonaws.com"}
    assert ours["Condition"] == {
        "ArnEquals": {"aws:SourceArn": ["arn:aws:s3:::raw"]},
        "StringEquals": {"aws:SourceAccount": "123456789012"},
    }
    assert allowed(account, found(Policy=json.dumps(first)), ["raw"]) is None
    ours["Condition"]["ArnEquals"]["aws:SourceArn"] = "arn:aws:s3:::raw"  # as a service may write it
    assert allowed(account, found(Policy=json.dumps(first)), ["raw"]) is None
    second = allowed(account, found(Policy=json.dumps(first)), ["bench"])
    assert second is not None
    assert second["Statement"][0] == theirs
    assert second["Statement"][1]["Condition"]["ArnEquals"]["aws:SourceArn"] == [
        "arn:aws:s3:::bench",
        "arn:aws:s3:::raw",
    ]


def test_a_fifo_queue_is_refused(account: Clients) -> None:
    with pytest.raises(Fatal, match="FIFO"):
        queues.ensure(account.sqs, "captures.fifo", Steps())


def test_dead_letters_that_are_elsewhere(account: Clients) -> None:
    policy = json.dumps({"deadLetterTargetArn": OTHER, "maxReceiveCount": 3})
    attributes = {"QueueArn": QUEUE, "VisibilityTimeout": "30", "RedrivePolicy": policy}
    dead = {"QueueArn": OTHER}
    for named_by_hand, fails in ((None, False), ("other", False), ("third", True)):
        with Stubber(account.sqs) as stub:
            for answer in (attributes, attributes) if fails else (attributes, dead, attributes):
                stub.add_response("get_queue_url", {"QueueUrl": "https://queue"})
                stub.add_response("get_queue_attributes", {"Attributes": answer})
            steps = Steps()
            if fails:
                with pytest.raises(Fatal, match=r"in other: .*--dead-letters"):
                    queues.ensure(account.sqs, "captures", steps, dead_letters=named_by_hand)
            else:
                queue = queues.ensure(account.sqs, "captures", steps, dead_letters=named_by_hand)
                assert queue is not None
                assert queue.dead_letters == Arn.parse(OTHER)
            assert steps.changes == 0


@pytest.mark.parametrize(
    ("attributes", "detail"),
    [
        ({}, "without a redrive allow policy: any queue of the account may use it"),
        ({"RedriveAllowPolicy": json.dumps({"redrivePermission": "denyAll"})}, ""),
        (None, ""),
    ],
    ids=["without", "with", "not allowed"],
)
def test_existing_dead_letters_keep_their_settings(
    attributes: dict[str, str] | None, detail: str, account: Clients
) -> None:
    policy = json.dumps({"deadLetterTargetArn": OTHER, "maxReceiveCount": 3})
    queue = {"QueueArn": QUEUE, "VisibilityTimeout": "30", "RedrivePolicy": policy}
    with Stubber(account.sqs) as stub:
        for answer in (queue, attributes, queue):
            if answer is None:
                stub.add_client_error("get_queue_url", "AccessDenied", "no", 403)
                continue
            stub.add_response("get_queue_url", {"QueueUrl": "https://queue"})
            stub.add_response("get_queue_attributes", {"Attributes": {"QueueArn": OTHER, **answer}})
        steps = Steps()
        queues.ensure(account.sqs, "captures", steps)
    assert {step.state for step in steps.done} == {"exists"}
    assert next(step for step in steps.done if step.what == "dead letters").detail == detail


def test_a_policy_that_does_not_hold_yet_is_waited_for(account: Clients) -> None:
    slept: list[float] = []
    queue = found(Policy="{}")
    with Stubber(account.s3) as s3, Stubber(account.sqs) as sqs:
        s3.add_response("get_bucket_notification_configuration", {})
        sqs.add_response("set_queue_attributes", {})
        for _ in range(2):
            s3.add_client_error("put_bucket_notification_configuration", "InvalidArgument", "Unable to validate", 400)
        s3.add_response("put_bucket_notification_configuration", {})
        setup.make_notifications(account, [place("s3://raw/a/")], "captures", queue, Steps(), sleep=slept.append)
        s3.assert_no_pending_responses()
    assert slept == sorted(slept)
    assert len(slept) == 2
    with Stubber(account.s3) as s3, Stubber(account.sqs) as sqs:
        s3.add_response("get_bucket_notification_configuration", {})
        sqs.add_response("set_queue_attributes", {})
        s3.add_client_error("put_bucket_notification_configuration", "AccessDenied", "no", 403)
        with pytest.raises(Fatal, match="bucket raw: notification: AccessDenied"):
            setup.make_notifications(account, [place("s3://raw/a/")], "captures", queue, Steps(), sleep=slept.append)


def test_which_account_it_is(account: Clients) -> None:
    assert setup.account_of(account, found(), "captures", None) == Arn.parse(QUEUE)
    assert str(setup.account_of(account, None, "captures", "210987654321")) == QUEUE.replace(
        "123456789012", "210987654321"
    )
    with Stubber(account.sts) as stub:
        answer = {"Account": "123456789012", "Arn": "arn:aws:iam::123456789012:user/me", "UserId": "x"}
        stub.add_response("get_caller_identity", answer)
        assert str(setup.account_of(account, None, "captures", None)) == QUEUE
        stub.add_client_error("get_caller_identity", "InvalidClientTokenId", "", 403)
        with pytest.raises(Fatal, match="--account"):
            setup.account_of(account, None, "captures", None)
    with Clients(region="cn-north-1") as china:
        assert setup.account_of(china, None, "q", "123456789012").partition == "aws-cn"
    with Clients(region="us-gov-west-1") as government:
        assert setup.account_of(government, None, "q", "123456789012").partition == "aws-us-gov"


def test_boto3_needs_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(Fatal, match=r"pcaplake\[aws\]"):
        _ = Clients(region="eu-central-1").s3
