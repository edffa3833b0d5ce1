"""The commands around the service on a real account: made once, filled, checked and mended; and what roles may do."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable

from pcaplake.common.meter import SILENT
from pcaplake.common.runtime import Runtime
from pcaplake.ingest.captures.range_reader import FetchConfig
from pcaplake.ingest.captures.reference import ObjectRef, capture_from_reference
from pcaplake.lake.current_captures import find_current
from pcaplake.lake.dynamodb_table import DynamoClient
from pcaplake.lake.identity import read_identity
from pcaplake.lake.lake import Lake
from pcaplake.lake.ledger.dynamodb import DynamoLedger
from pcaplake.lake.records import Manifest, Stage
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES
from pcaplake.worker.admin.aws_clients import Clients
from pcaplake.worker.admin.setup.policies import Role
from pcaplake.worker.admin.setup.queues import Arn, find, redrive_allow_policy
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.service import run as serve
from pcaplake.worker.service.notification import TEST_EVENT, parse_notification
from pcaplake.worker.service.queue.sqs import SqsQueue
from pcaplake.worker.service.service import Service
from tests.worker import fleets, lakes
from tests.worker.iam import VERSION_FILE, allows

from .conftest import Aws
from .fault_proxy import FaultProxy

Capsys = pytest.CaptureFixture[str]
KEY = "drives/a b+ü%20=1.pcap"


@dataclass
class Account:
    """Buckets that are there, and the settings of a fleet that is not yet."""

    aws: Aws
    folder: Path
    capsys: Capsys
    key: str = "drives/*"
    raw: str = ""
    lake: str = ""
    queue: str = ""
    given: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.raw, self.queue = self.aws.bucket("raw"), self.aws.name("captures")
        self.lake = f"s3://{self.aws.bucket('lakes')}/drives"
        self.ledger, self.locks = self.aws.name("ledger"), self.aws.name("locks")

    @property
    def config(self) -> Path:
        route = {"name": "all", "bucket": self.raw, "key": self.key, "lake": self.lake}
        (self.folder / "routes.yaml").write_text(yaml.safe_dump({"routes": [route]}))
        values = {
            "queue": self.queue,
            "routes": "routes.yaml",
            "ledger_table": self.ledger,
            "lock_table": self.locks,
            "storage_option": {"allow_http": "true"},
            "shards": 1,
            **self.given,
        }
        path = self.folder / "fleet.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    @property
    def settings(self) -> FleetSettings:
        return FleetSettings.load(self.config)

    def run(self, *arguments: object, code: int = 0) -> tuple[str, str]:
        """A command with this configuration -> stdout, stderr."""
        got, out, err = lakes.run(self.capsys, *arguments, "--config", self.config)
        assert got == code, err
        return out, err

    def json(self, *arguments: object, code: int = 0) -> dict[str, Any]:
        out, _ = self.run(*arguments, "--json", code=code)
        found: dict[str, Any] = json.loads(out.splitlines()[-1])
        return found

    def put(self, key: str, data: bytes = b"x") -> ObjectRef:
        etag = self.aws.client("s3").put_object(Bucket=self.raw, Key=key, Body=data)["ETag"].strip('"')
        return ObjectRef(uri=f"s3://{self.raw}/{key}", size=len(data), explicit=True, etag=etag)

    def url(self, name: str = "") -> str:
        found: str = self.aws.client("sqs").get_queue_url(QueueName=name or self.queue)["QueueUrl"]
        return found

    def received(self, name: str = "", wait: int = 1) -> list[dict[str, Any]]:
        """Messages until none comes, hidden from then on."""
        found: list[dict[str, Any]] = []
        sqs, url = self.aws.client("sqs"), self.url(name)
        while some := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=wait).get("Messages"):
            found += some
        return found

    def keys(self, name: str = "") -> list[str]:
        """The keys that messages announce, sorted; test events are none."""
        said = [parse_notification(one["Body"]) for one in self.received(name)]
        assert all(set(one.ignored) <= {TEST_EVENT} for one in said)
        return sorted(ref.uri.removeprefix(f"s3://{self.raw}/") for one in said for ref in one.objects)

    async def with_ledger(self, work: Callable[[DynamoLedger], Any]) -> None:
        store = Store.open(self.lake, {"allow_http": "true"})
        identity = await read_identity(store)
        assert identity is not None
        async with await SharedTables.open(self.ledger, None) as shared_tables:
            await work(DynamoLedger(shared_tables.ledger, store, lake_id=identity[0].lake_id, shards=1))

    def stage(self, *refs: ObjectRef, commit: bool = False) -> None:
        """As if these captures had been decoded, and perhaps committed."""
        stage = Stage(
            stage_id=self.aws.name("stage"),
            generation=0,
            decoder_version="test",
            written_at=0,
            captures=tuple(map(capture_from_reference, refs)),
            schemas={},
            adds={},
        )

        async def work(ledger: DynamoLedger) -> None:
            assert await ledger.put_stage_if_absent(stage) == {}
            if commit:
                manifest = Manifest(batch=0, generation=0, opens=True, tables=(), stages=(stage,))
                await ledger.mark_batch_stages(manifest)
                await ledger.flag_batch_committed(manifest)

        asyncio.run(self.with_ledger(work))


@pytest.fixture
def account(aws: Aws, tmp_path: Path, capsys: Capsys) -> Account:
    return Account(aws, tmp_path, capsys)


# -- setup ------------------------------------------------------------------------------------------------------------
def test_setup_makes_what_is_not_there_and_then_nothing(account: Account) -> None:
    first = account.json("setup")
    made = {(step["what"], step["name"]): step["state"] for step in first["steps"]}
    assert made["queue", account.queue] == made["lake", account.lake] == made["notification", account.raw] == "created"
    assert first["notes"] == []
    check_queue(account)
    check_tables(account)
    check_lake(account)

    second = account.json("setup")
    assert second["changes"] == 0
    assert {step["state"] for step in second["steps"]} <= {"exists", "not supported"}
    out, _ = account.run("setup")
    assert f"exists       queue {account.queue}" in out
    assert re.search(r"^\d+ unchanged(, \d not supported)?\. `pcaplake setup --policies-to", out.splitlines()[-1])
    printed = json.loads(account.run("setup", "--policies")[0])
    assert set(printed) == {"worker", "committer", "spark", "operator", "doctor"}
    folder = account.folder / "new" / "policies"
    account.run("setup", "--policies-to", folder)
    assert {path.stem: json.loads(path.read_text()) for path in folder.iterdir()} == printed
    assert "--policies-to: " in account.run("setup", "--policies-to", account.config, code=2)[1]


def check_queue(account: Account) -> None:
    sqs = account.aws.client("sqs")

    def attributes(name: str) -> dict[str, str]:
        found: dict[str, str] = sqs.get_queue_attributes(QueueUrl=account.url(name), AttributeNames=["All"])[
            "Attributes"
        ]
        return found

    queue, dead = attributes(account.queue), attributes(f"{account.queue}-dead")
    redrive = json.loads(queue["RedrivePolicy"])
    assert (redrive["deadLetterTargetArn"], int(redrive["maxReceiveCount"])) == (dead["QueueArn"], 5)
    assert json.loads(dead["RedriveAllowPolicy"]) == redrive_allow_policy(Arn.parse(queue["QueueArn"]))
    assert queue["VisibilityTimeout"] == "120"
    assert int(queue["MessageRetentionPeriod"]) < int(dead["MessageRetentionPeriod"]) == 14 * 86_400
    (statement,) = json.loads(queue["Policy"])["Statement"]
    condition = statement["Condition"]
    assert condition["ArnEquals"]["aws:SourceArn"] == [f"arn:aws:s3:::{account.raw}"]
    assert condition["StringEquals"]["aws:SourceAccount"] == queue["QueueArn"].split(":")[4]


def check_tables(account: Account) -> None:
    dynamodb = account.aws.client("dynamodb")
    for name, keys in ((account.ledger, ["pk", "sk"]), (account.locks, ["tablePath", "fileName"])):
        table = dynamodb.describe_table(TableName=name)["Table"]
        assert [one["AttributeName"] for one in table["KeySchema"]] == keys
        assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
        expires = dynamodb.describe_time_to_live(TableName=name)["TimeToLiveDescription"]
        assert (expires["TimeToLiveStatus"], expires["AttributeName"]) == ("ENABLED", "expireTime")
        if account.aws.engine == "ministack":  # DynamoDB Local has neither
            assert table["DeletionProtectionEnabled"]
            backups = dynamodb.describe_continuous_backups(TableName=name)["ContinuousBackupsDescription"]
            assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"


def check_lake(account: Account) -> None:
    bucket, _, prefix = account.lake.removeprefix("s3://").partition("/")
    listed = account.aws.client("s3").list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")["Contents"]
    names = {one["Key"].removeprefix(f"{prefix}/") for one in listed}
    assert "_pcaplake/lake.json" in names
    assert {f"{table}/_delta_log/{0:020d}.json" for table in TABLES} <= names


def test_what_is_uploaded_comes_and_only_what_a_route_is_about(account: Account) -> None:
    account.run("setup")
    account.put(KEY)
    account.put("other/b.pcap")
    assert account.keys() == [KEY]


def test_a_rehearsal_makes_nothing(account: Account) -> None:
    said = account.json("setup", "--dry-run")
    assert said["changes"] >= 7
    again = account.json("setup", "--dry-run")
    assert again["changes"] == said["changes"]
    with Clients() as clients:
        assert find(clients.sqs, account.queue) is None
        assert find(clients.sqs, f"{account.queue}-dead") is None
    assert "would be created queue" in account.run("setup", "--dry-run")[0]
    made = account.json("setup")
    states = {("changed" if step["state"] == "created" else step["state"]) for step in made["steps"]}
    assert "changed" in states
    assert account.json("setup", "--dry-run")["changes"] == 0


def test_a_wider_route_widens_the_notification_and_others_keep_theirs(account: Account) -> None:
    other = account.aws.queue_arn(account.aws.queue("other"))
    s3 = account.aws.client("s3")
    theirs = {
        "Id": "theirs",
        "QueueArn": other,
        "Events": ["s3:ObjectCreated:Put"],
        "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": "logs/"}]}},
    }
    s3.put_bucket_notification_configuration(
        Bucket=account.raw, NotificationConfiguration={"QueueConfigurations": [theirs], "EventBridgeConfiguration": {}}
    )
    account.key = "drives/2026/*"
    account.run("setup")
    account.key = "drives/*"
    assert account.json("setup")["changes"] == 1
    now = s3.get_bucket_notification_configuration(Bucket=account.raw)
    filters = {
        one["Filter"]["Key"]["FilterRules"][0]["Value"]: one["QueueArn"].rpartition(":")[2]
        for one in now["QueueConfigurations"]
    }
    assert filters == {"logs/": other.rpartition(":")[2], "drives/": account.queue}
    assert "EventBridgeConfiguration" in now

    account.key = "*"
    _, err = account.run("setup", code=3)
    assert "sends s3:ObjectCreated:Put of keys 'logs/'" in err
    assert "SNS topic" in err


def test_an_overlap_is_refused_before_anything_is_made(account: Account) -> None:
    other = account.aws.queue_arn(account.aws.queue("other"))
    theirs = {"Id": "theirs", "QueueArn": other, "Events": ["s3:ObjectCreated:*"]}
    account.aws.client("s3").put_bucket_notification_configuration(
        Bucket=account.raw, NotificationConfiguration={"QueueConfigurations": [theirs]}
    )
    for arguments in (["--dry-run"], []):
        _, err = account.run("setup", *arguments, code=3)
        assert "'theirs'" in err
        with Clients() as clients:
            assert find(clients.sqs, account.queue) is None
    made = account.json("setup", "--no-notifications")
    assert not {step["what"] for step in made["steps"]} & {"notification", "queue policy"}
    now = account.aws.client("s3").get_bucket_notification_configuration(Bucket=account.raw)
    assert [one["Id"] for one in now["QueueConfigurations"]] == ["theirs"]


def test_a_queue_that_is_gone_is_made_again(account: Account) -> None:
    account.run("setup")
    s3 = account.aws.client("s3")
    before = s3.get_bucket_notification_configuration(Bucket=account.raw)["QueueConfigurations"]
    account.aws.client("sqs").delete_queue(QueueUrl=account.url())
    told = {step["what"]: step["state"] for step in account.json("setup", "--dry-run")["steps"]}
    assert (told["queue"], told["notification"]) == ("created", "exists")
    states = {(step["what"], step["name"]): step["state"] for step in account.json("setup")["steps"]}
    assert states["queue", account.queue] == states["queue policy", account.queue] == "created"
    assert states["notification", account.raw] == "exists"
    assert s3.get_bucket_notification_configuration(Bucket=account.raw)["QueueConfigurations"] == before
    account.put(KEY)
    assert account.keys() == [KEY]
    account.queue = account.aws.name("captures")
    assert "remove it" in account.run("setup", code=3)[1]


def test_a_table_that_went_missing_is_made_again_and_told(account: Account) -> None:
    account.run("setup")
    s3 = account.aws.client("s3")
    bucket, _, prefix = account.lake.removeprefix("s3://").partition("/")
    log = f"{prefix}/packets/_delta_log/"
    for one in s3.list_objects_v2(Bucket=bucket, Prefix=log)["Contents"]:
        s3.delete_object(Bucket=bucket, Key=one["Key"])
    dynamodb = account.aws.client("dynamodb")
    for one in dynamodb.scan(TableName=account.locks)["Items"]:
        if "packets" in one["tablePath"]["S"]:
            dynamodb.delete_item(TableName=account.locks, Key={name: one[name] for name in ("tablePath", "fileName")})
    steps = account.json("setup")["steps"]
    assert [step["state"] for step in steps if step["what"] == "lake"] == ["changed"]
    assert s3.list_objects_v2(Bucket=bucket, Prefix=log)["KeyCount"]


def test_settings_that_cannot_be(account: Account) -> None:
    account.raw = account.aws.name("no-such-bucket")
    assert "Create the bucket first" in account.run("setup", code=3)[1]
    account.raw = "raw-*"
    assert "--bucket" in account.run("setup", code=2)[1]
    assert "no route selects" in account.run("setup", "--bucket", "other", code=2)[1]
    assert "--visibility-timeout" in account.run("setup", "--visibility-timeout", "13h", code=2)[1]
    assert "12 digits" in account.run("setup", "--account", "x", code=2)[1]


def test_before_setup_the_doctor_says_one_thing(account: Account) -> None:
    (only,) = account.json("doctor", code=1)["findings"]
    assert only["level"] == "error"
    for name in (account.queue, account.ledger, account.lake):
        assert name in only["what"]
    assert "run `pcaplake setup`" in only["do"]
    account.aws.client("s3").put_object(
        Bucket=account.lake.split("/")[2], Key="drives/_pcaplake/batches/00000000000000000000.json", Body=b"{}"
    )
    assert len(account.json("doctor", code=1)["findings"]) > 5, "rows remain: every check counts"


def test_the_doctor_says_which_bucket_is_missing(account: Account) -> None:
    account.lake = f"s3://{account.aws.name('lakes')}/drives"
    (only,) = account.json("doctor", code=1)["findings"]
    assert only["do"].startswith(f"create the bucket of {account.lake}, then run `pcaplake setup`")
    account.aws.client("s3").create_bucket(Bucket=account.lake.split("/")[2])
    account.run("setup")
    account.lake = f"s3://{account.aws.name('lakes')}/drives"
    found = [one for one in account.json("doctor", code=1)["findings"] if one["level"] == "error"]
    assert [(one["what"], one["check"]) for one in found] == [
        (f"the bucket of {account.lake} does not exist", "storage")
    ]


def test_policies_of_an_account_before_anything_is_there(account: Account) -> None:
    out, _ = account.run("setup", "--policies", "--account", "123456789012")
    queue = json.loads(out)["worker"]["Statement"][0]["Resource"]
    assert queue == [f"arn:aws:sqs:us-east-1:123456789012:{account.queue}"]


def test_visibility_and_dead_letters_as_given(account: Account) -> None:
    account.run("setup", "--dead-letters", f"{account.queue}-lost", "--visibility-timeout", "5m")
    attributes = account.aws.client("sqs").get_queue_attributes(QueueUrl=account.url(), AttributeNames=["All"])
    assert attributes["Attributes"]["VisibilityTimeout"] == "300"
    assert f"{account.queue}-lost" in attributes["Attributes"]["RedrivePolicy"]
    assert account.json("setup")["changes"] == 0  # what is there is not made what it would be by default
    assert account.json("setup", "--visibility-timeout", "60s")["changes"] == 1
    assert "do not pass --dead-letters" in account.run("setup", "--dead-letters", "x", code=3)[1]


def test_a_lake_among_the_captures_is_told(account: Account) -> None:
    account.lake, account.key = f"s3://{account.raw}/lake", "*"
    out, _ = account.run("setup", "--dry-run")
    assert f"note: the lake {account.lake} is below" in out


def test_no_lake_is_made_inside_another(account: Account) -> None:
    account.run("setup")
    outer, account.ledger = account.lake, account.aws.name("ledger")
    account.lake = f"{outer}/can_frames"
    _, err = account.run("setup", code=2)
    assert f"{outer} is a lake: name a place outside it" in err
    s3, (bucket, _, prefix) = account.aws.client("s3"), account.lake.removeprefix("s3://").partition("/")
    assert s3.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/_pcaplake/")["KeyCount"] == 0


# -- replay, reconcile, redrive ---------------------------------------------------------------------------------------
@pytest.fixture
def filled(account: Account) -> Iterator[Account]:
    """Set up after five captures came: two are known to the ledger, the fifth is on no route."""
    refs = [account.put(key) for key in ("drives/1.pcap", "drives/2.pcap", "drives/3.pcap", KEY)]
    account.put("other/5.pcap")
    account.run("setup")
    account.stage(refs[1])
    account.stage(refs[2], commit=True)
    assert account.keys() == []
    return account


def test_replay_announces_what_no_lake_has(filled: Account) -> None:
    out, err = filled.run("replay", f"s3://{filled.raw}/", "--dry-run")
    assert out.splitlines() == [f"s3://{filled.raw}/{key}" for key in ("drives/1.pcap", KEY)]
    assert err.startswith("5 objects: 2 not in any lake, 1 staged, 1 in the lakes, 1 without a route")
    assert filled.keys() == []
    said = filled.json("replay", f"s3://{filled.raw}/")
    assert (said["complete"], said["announced"], said["no_route"]) == (True, 2, 1)
    assert said["last_key"] == "other/5.pcap"
    assert filled.keys() == ["drives/1.pcap", KEY]


def test_replay_by_glob_by_age_and_from_a_key(filled: Account) -> None:
    assert filled.json("replay", f"s3://{filled.raw}/drives/?.pcap")["announced"] == 1
    assert filled.json("replay", f"s3://{filled.raw}/", "--match", "*/a*")["announced"] == 1
    assert filled.keys() == ["drives/1.pcap", KEY]
    assert filled.json("replay", f"s3://{filled.raw}/", "--older-than", "1h")["filtered"] == {"too_young": 5}
    said = filled.json("replay", f"s3://{filled.raw}/drives", "--newer-than", "1h", "--start-after", "drives/1.pcap")
    assert (said["listed"], said["announced"]) == (3, 1)
    out, _ = filled.run("replay", f"s3://{filled.raw}/drives/")
    assert out.startswith("4 objects: 2 announced")


def test_replay_tells_how_to_go_on(filled: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is gone when the first page has been sent."""
    for number in range(600):
        filled.put(f"many/{number:04}")
    filled.key = "many/*"
    sent = 0
    send = SqsQueue.send

    async def failing(self: SqsQueue, bodies: Any) -> None:
        nonlocal sent
        if sent:
            raise KeyboardInterrupt
        sent += len(bodies)
        await send(self, bodies)

    monkeypatch.setattr(SqsQueue, "send", failing)
    out, err = filled.run("replay", f"s3://{filled.raw}/many/", "--json", code=130)
    said = json.loads(out)
    assert (said["complete"], said["announced"], said["last_key"]) == (False, 500, "many/0499")
    assert "--start-after many/0499" in err
    monkeypatch.undo()
    rest = filled.json("replay", f"s3://{filled.raw}/many/", "--start-after", said["last_key"])
    assert rest["announced"] == 100
    assert rest["queued_before"] >= 500


def test_reconcile_finds_what_was_never_ingested(filled: Account) -> None:
    lost = ["drives/1.pcap", KEY]
    young = filled.json("reconcile")
    assert (young["listed"], young["filtered"], young["absent"]) == (
        4,
        {"too_young": 4},
        0,
    )  # only what the route is about
    out, err = filled.run("reconcile", "--older-than", "0")
    assert out.splitlines() == [f"s3://{filled.raw}/{key}" for key in lost]
    assert "2 not in any lake" in err
    assert filled.keys() == []
    said = filled.json("reconcile", f"s3://{filled.raw}/", "--older-than", "0s", "--announce", "--match", "*.pcap")
    assert (said["absent"], said["announced"], said["no_route"]) == (2, 2, 1)
    assert said["missing"] == [f"s3://{filled.raw}/{key}" for key in lost]
    assert filled.keys() == lost


def test_reconcile_refuses(filled: Account) -> None:
    assert "--match" in filled.run("reconcile", "s3://raw/a*", "s3://raw/b", code=2)[1]
    filled.ledger = filled.aws.table("ledger")
    assert "set the ledger table" in filled.run("reconcile", code=3)[1]
    filled.lake = f"{filled.lake}-other"
    assert "pcaplake setup" in filled.run("reconcile", code=3)[1]


def dead(account: Account, *keys: str) -> None:
    """Captures whose messages were received five times, without success."""
    for key in keys:
        account.put(key)
    sqs, url = account.aws.client("sqs"), account.url()
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "0"})
    while sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1).get("Messages"):
        pass
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "120"})


@pytest.mark.slow
def test_redrive(account: Account) -> None:
    account.run("setup")
    dead(account, "drives/1.pcap", "drives/2.pcap", "drives/x/3.pcap")
    said = account.json("redrive", "--dry-run")
    uris = sorted(uri for letter in said["messages"] for uri in letter["uris"])
    assert uris == [f"s3://{account.raw}/drives/{key}" for key in ("1.pcap", "2.pcap", "x/3.pcap")]
    assert (said["found"], said["matched"], said["moved"]) == (4, 4, 0)  # one is the test event of S3
    assert all(letter["receive_count"] >= 1 and letter["age_seconds"] >= 0 for letter in said["messages"])
    assert account.keys() == []
    out, err = account.run("redrive", "--match", "*/drives/?.pcap", "--limit", "1")
    assert "received" in out
    assert "1 moved" in err
    out, err = account.run("redrive", "--match", "*/drives/?.pcap")
    assert "1 moved" in err
    assert account.keys() == ["drives/1.pcap", "drives/2.pcap"]
    assert account.keys(f"{account.queue}-dead") == ["drives/x/3.pcap"]


def test_redrive_of_what_is_not_there(account: Account) -> None:
    out, err = account.run("redrive", code=3)
    assert "pcaplake setup" in err
    assert "dead letter" not in err
    assert out == account.run("redrive", "--json", code=3)[0] == ""
    account.queue = account.aws.queue("plain").rpartition("/")[2]
    assert "no redrive policy" in account.run("redrive", code=3)[1]
    account.given["queue"] = ""
    assert "PCAPLAKE_QUEUE" in account.run("redrive", code=2)[1]


# -- policies ---------------------------------------------------------------------------------------------------------
S3_ACTIONS = {
    "GetObject": "GetObject",
    "HeadObject": "GetObject",
    "PutObject": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "UploadPart": "PutObject",
    "CompleteMultipartUpload": "PutObject",
    "ListObjectsV2": "ListBucket",
    "DeleteObject": "DeleteObject",
    "DeleteObjects": "DeleteObject",
}
SELDOM: dict[Role, set[str]] = {  # what a short run does not get to
    "worker": {
        "s3:GetObjectVersion",  # buckets without versions
        "s3:AbortMultipartUpload",  # a part that failed
        "dynamodb:UpdateItem",  # an entry of the lock table that somebody left incomplete
        "sqs:ChangeMessageVisibility",  # a heartbeat, a message that is given back
    },
    "committer": {
        "s3:GetObjectVersion",
        "s3:AbortMultipartUpload",
        "dynamodb:ConditionCheckItem",  # a stage that is held
        "s3:DeleteObject",  # log entries of 30 days ago, temp objects below a checkpoint
        "sqs:SendMessage",  # captures of stages that waited for five days
    },
    "operator": set(),
}


class Recording:
    """What is asked of the three services while its block runs, as IAM would be asked.

    Action, resource, partition key of an item, conditional headers.
    """

    def __init__(self, account: Account) -> None:
        self.made: set[tuple[str, str, str, frozenset[str]]] = set()
        self._account = account

    @asynccontextmanager
    async def on(self) -> AsyncIterator[None]:
        request, made = DynamoClient._send_request, self.made

        async def recorded(client: DynamoClient, operation: str, arguments: Any) -> dict[str, Any]:
            table = f"arn:aws:dynamodb:us-east-1:000000000000:table/{client.table}"
            actions = [
                (f"{kind}Item", one) for action in arguments.get("TransactItems", ()) for kind, one in action.items()
            ]
            for name, one in actions or [(operation, arguments)]:
                item = one.get("Key") or one.get("Item") or {}
                key = next((item[part]["S"] for part in ("pk", "tablePath") if part in item), "")
                made.add((f"dynamodb:{name}", table, key, frozenset()))
            return await request(client, operation, arguments)

        account, aws = self._account, self._account.aws
        async with FaultProxy(aws.s3) as s3, FaultProxy(aws.sqs) as sqs:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(DynamoClient, "_send_request", recorded)
                patch.setenv("AWS_ENDPOINT_URL_SQS", sqs.url)
                account.given = {**GIVEN, "storage_option": {"allow_http": "true", "aws_endpoint": s3.url}}
                yield
        lakes = account.lake.removeprefix("s3://").partition("/")[0]
        for seen in s3.log:
            bucket = lakes if seen.key.startswith("lake/") else account.raw
            resource = f"arn:aws:s3:::{bucket}/{seen.key}" if seen.key else ""  # no key: a list, or keys in the body
            made.add((f"s3:{S3_ACTIONS[seen.operation]}", resource, "", seen.conditions))
        for one in sqs.log:
            made.add((f"sqs:{one.operation.removesuffix('Batch')}", "", "", frozenset()))


GIVEN = {"threads": 1, "poll_wait": 1.0, "flush_interval": 0.5, "max_batch_age": 0.2, "checkpoint_interval": 1}


async def served(account: Account, role: str, done: Callable[[Lake], Awaitable[bool]]) -> None:
    """A service of that role until it has done it; as `pcaplake run` makes one."""
    settings = FleetSettings.load(account.config, role=role)
    async with serve.open_service_parts(settings, SILENT) as parts:
        service = Service(parts, serve.build_service_config(settings, FetchConfig()), Runtime())
        task = asyncio.create_task(service.run())
        (lake,) = parts.lakes.values()
        async with asyncio.timeout(120):
            while not await done(lake) and not task.done():
                await asyncio.sleep(0.05)
        service.stop()
        await task


@pytest.mark.slow
def test_the_lake_says_which_content_came_last(account: Account) -> None:
    """A, B and A again; then B again, whose message is lost until `reconcile` announces it. Contents are read once."""
    account.given = GIVEN
    account.run("setup")
    contents = [fleets.can_capture(frames) for frames in (3, 5)]

    def upload(number: int) -> str:
        time.sleep(1.1)  # a listing has whole seconds
        return capture_from_reference(account.put("drives/a.pcap", contents[number])).capture_id

    def serve_until_current(capture_id: str) -> None:
        async def is_current(lake: Lake) -> bool:
            current = (await find_current(lake.store, [uri])).get(uri)
            return current is not None and current.capture_id == capture_id

        asyncio.run(served(account, "all", is_current))

    uri = f"s3://{account.raw}/drives/a.pcap"
    for number in (0, 1, 0):
        serve_until_current(upload(number))
    assert account.json("reconcile", "--older-than", "0")["absent"] == 0
    again = upload(1)
    assert account.keys() == ["drives/a.pcap"]  # hidden from then on, as if it were lost
    assert account.json("reconcile", "--older-than", "0", "--announce")["announced"] == 1
    serve_until_current(again)
    assert account.json("reconcile", "--older-than", "0")["absent"] == 0
    code, out, _ = lakes.run(
        account.capsys, "tables", "--lake", account.lake, "--storage-option", "allow_http=true", "--json"
    )
    rows = {name: one["rows"] for name, one in json.loads(out).items()}
    assert (code, rows["captures"], rows["can_frames"], rows["sightings"]) == (0, 2, 8, 2)


@pytest.mark.slow
def test_the_policies_allow_what_the_roles_do_and_nothing_else(account: Account) -> None:
    account.lake = f"{account.lake.rpartition('/')[0]}/lake"
    account.run("setup")
    one = capture_from_reference(account.put(KEY, fleets.can_capture(5)))
    recordings = {role: Recording(account) for role in SELDOM}

    async def staged(lake: Lake) -> bool:
        there = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        waiting = int(there["ApproximateNumberOfMessages"]) + int(there["ApproximateNumberOfMessagesNotVisible"])
        return not waiting and await lake.capture_states([one.capture_id]) == {one.capture_id: "STAGED"}

    async def committed(lake: Lake) -> bool:
        seen = await lake.capture_states([one.capture_id]) == {one.capture_id: "COMMITTED"}
        return seen and await lake.store.head("captures/_delta_log/_last_checkpoint") is not None

    sqs, url = account.aws.client("sqs"), account.url()

    async def main() -> None:
        async with recordings["worker"].on():
            await served(account, "worker", staged)
        async with recordings["committer"].on():
            await served(account, "committer", committed)
        await asyncio.to_thread(dead, account, "drives/late.pcap")
        async with recordings["operator"].on():
            for command in (["replay", f"s3://{account.raw}/"], ["reconcile"], ["redrive", "--dry-run"], ["redrive"]):
                await asyncio.to_thread(account.run, *command)

    asyncio.run(main())
    account.given = {}
    documents = json.loads(account.run("setup", "--policies")[0])
    for role, recording in recordings.items():
        asked = {action for action, *_ in recording.made}
        said = {action for statement in documents[role]["Statement"] for action in statement["Action"]}
        assert asked <= said, role
        assert said <= asked | SELDOM[role], role
        for request in recording.made:
            if request[1]:
                assert allows(documents[role], *request), (role, request)
    versions = {made[1] for made in recordings["committer"].made if "if-none-match" in made[3]}
    assert any(VERSION_FILE.search(resource) for resource in versions)


@pytest.mark.slow
def test_maintenance_of_a_fleet_goes_through_its_lock_table_with_the_rights_of_a_spark_job(account: Account) -> None:
    account.lake = f"{account.lake.rpartition('/')[0]}/lake"
    account.run("setup")
    for number in range(3):
        account.run("ingest", account.put(f"drives/{number}.pcap", fleets.can_capture(5, number)).uri)

    def frames() -> DeltaTable:
        return DeltaTable(f"{account.lake}/can_frames", storage_options={"allow_http": "true"})

    def rows() -> list[dict[str, Any]]:
        return sorted(frames().to_pyarrow_table().to_pylist(), key=lambda row: (row["capture_id"], row["packet_no"]))

    before, version, recording = rows(), frames().version(), Recording(account)
    assert len(before) == 15

    async def main() -> dict[str, Any]:
        async with recording.on():
            return await asyncio.to_thread(account.json, "maintain")

    (report,) = asyncio.run(main()).values()
    account.given = {}
    assert (report["can_frames"]["compacted"], report["can_frames"]["added"]) == (3, 1)
    assert rows() == before
    assert (frames().version(), len(frames().file_uris())) == (version + 1, 1)
    path = account.lake.replace("s3://", "s3a://")
    key = {"tablePath": {"S": f"{path}/can_frames"}, "fileName": {"S": f"{version + 1:020d}.json"}}
    entry = account.aws.client("dynamodb").get_item(TableName=account.locks, Key=key)["Item"]
    assert entry["complete"] == {"S": "true"}
    document = json.loads(account.run("setup", "--policies")[0])["spark"]
    for request in recording.made:
        if request[1]:
            assert allows(document, *request), request
    (again,) = account.json("maintain").values()
    assert all(result["compacted"] == 0 for result in again.values())
    _, out, err = lakes.run(account.capsys, "maintain", "--lake", account.lake, "--storage-option", "allow_http=true")
    assert "name the settings of its fleet with --config" in err, out
