"""The doctor and the status of a fleet on S3, SQS and DynamoDB: damage made for real, found, and mended."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pytest

from pcaplake.lake.config import LakeConfig
from pcaplake.lake.delta.lock_table import Entry, TablePath
from pcaplake.lake.lake import Lake
from pcaplake.lake.shared_tables import SharedTables
from pcaplake.worker.admin.doctor import checks_files
from pcaplake.worker.admin.doctor.checks_queue import QueueClients
from pcaplake.worker.admin.doctor.doctor import CHECKS
from pcaplake.worker.admin.setup.policies import DEAD_LETTERS, LEDGER, Role, Scope, policies
from pcaplake.worker.admin.setup.queues import Arn
from pcaplake.worker.config.s3_prefixes import Place
from tests.worker.iam import allows
from tests.worker.lakes import run

from . import fault_proxy
from .conftest import Aws
from .examined_fleet import DAY, HTTP, WRITTEN, Capsys, Fleet, doctor, each, unwell
from .fault_proxy import FaultProxy
from .operations import conditions_of


@pytest.fixture
def fleet(aws: Aws, tmp_path: Path) -> Fleet:
    made = Fleet(aws, tmp_path)
    made.batches("a", "b")
    return made


def test_a_fleet_that_is_well(fleet: Fleet, capsys: Capsys) -> None:
    code, report = doctor(fleet, capsys)
    assert (code, unwell(report)) == (0, set()), report
    assert {one["check"] for one in report["findings"]} == {*CHECKS, "settings", "queue", "lakes"}
    code, report = doctor(fleet, capsys, "--lake", fleet.uri)
    assert (code, {one["lake"] for one in report["findings"]}) == (0, {fleet.uri})
    assert fleet.below("lake/_pcaplake/doctor/") == [], "its own object is gone"
    fleet.batches("c")
    assert fleet.rows() == each("a", "b", "c")


def test_stages_of_a_lake_that_no_route_names_any_more(fleet: Fleet, capsys: Capsys) -> None:
    """Messages of these captures are gone: without a word, their rows would be where nobody looks."""
    here, fleet.uri = fleet.uri, f"{fleet.uri}-of-old"
    fleet.batches("x")
    assert unwell(doctor(fleet, capsys)[1]) == set(), "all of it is committed"
    fleet.stage("y")
    there, fleet.uri = fleet.uri, here
    code, report = doctor(fleet, capsys)
    assert (code, unwell(report)) == (1, {("warning", "lakes", None)})
    (told,) = (one for one in report["findings"] if one["check"] == "lakes")
    assert there in told["what"]
    assert f"PCAPLAKE_LAKE={there} " in told["do"]
    fleet.uri = there
    fleet.batches("z")
    assert fleet.rows() == each("x", "y", "z")
    assert unwell(doctor(fleet, capsys)[1]) == set()


def test_a_ledger_that_lost_its_items_is_rebuilt(fleet: Fleet, capsys: Capsys) -> None:
    fleet.delete_items("capture", "stage")
    code, report = doctor(fleet, capsys, "--repair")
    assert (code, unwell(report)) == (1, {("error", "ledger contents", None)})
    assert fleet.items("capture") == [], "listing changes nothing"
    code, report = doctor(fleet, capsys, "--repair", "--yes")
    assert (code, unwell(report)) == (0, set()), report
    assert report["repaired"] == ["restored 2 batches up to head 1; the next committer commits 0 batches above head"]
    assert {item["state"]["S"] for item in fleet.items("capture")} == {"COMMITTED"}
    assert all("expireTime" in item for item in fleet.items("stage"))
    fleet.batches("c")
    assert fleet.rows() == each("a", "b", "c")


def test_a_ledger_that_lost_everything_is_rebuilt(fleet: Fleet, capsys: Capsys) -> None:
    fleet.delete_items("capture", "stage", "head", "lease")
    code, report = doctor(fleet, capsys)
    assert (code, unwell(report)) == (1, {("error", "ledger contents", None), ("warning", "transactions", None)})
    code, report = doctor(fleet, capsys, "--repair", "--yes")
    assert unwell(report) == set(), "head is where the manifests and the tables say"
    fleet.batches("c")
    assert doctor(fleet, capsys)[0] == 0
    assert fleet.rows() == each("a", "b", "c")


def test_a_ledger_in_another_table_is_adopted_when_that_was_said(fleet: Fleet, aws: Aws, capsys: Capsys) -> None:
    other = aws.table("restored")
    fleet.write(ledger_table=other)
    code, report = doctor(fleet, capsys, "--repair", "--yes")
    assert (code, report["repairs"]) == (1, [])
    assert ("error", "ledger", None) in unwell(report)
    code, report = doctor(fleet, capsys, "--repair", "--yes", "--adopt")
    assert len(report["repaired"]) == 1
    fleet.ledger = other
    aws.client("dynamodb").update_time_to_live(
        TableName=other, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expireTime"}
    )
    fleet.batches("c")
    code, report = doctor(fleet, capsys)
    assert (code, unwell(report)) == (0, set())
    assert fleet.rows() == each("a", "b", "c")


def test_a_copied_lake_is_given_an_identity_of_its_own(fleet: Fleet, aws: Aws, capsys: Capsys) -> None:
    """Both go on in one ledger table; the original, which stands still meanwhile, loses nothing."""
    fleet.stage("waits")
    s3, original = aws.client("s3"), fleet.uri
    for key in fleet.below("lake/"):
        s3.copy_object(Bucket=fleet.bucket, Key=f"copy{key[4:]}", CopySource={"Bucket": fleet.bucket, "Key": key})
    copy = f"s3://{fleet.bucket}/copy"
    arguments = ("doctor", "--config", fleet.config, "--json", "--lake", copy)
    code, out, _ = run(capsys, *arguments, "--repair", "--yes")
    assert (code, json.loads(out)["repairs"]) == (1, [])
    assert f"this lake is a copy of {original}" in out
    _, out, _ = run(capsys, *arguments, "--repair", "--yes", "--adopt")
    assert len(json.loads(out)["repaired"]) == 1
    fleet.uri = copy
    fleet.batches("c", "d")
    assert fleet.rows() == each("a", "b", "c", "d")
    fleet.uri = original
    fleet.batches("d", "e")
    assert fleet.rows() == each("a", "b", "d", "e", "waits")
    fleet.uri = copy
    fleet.batches("e")
    assert fleet.rows() == each("a", "b", "c", "d", "e")
    for uri in (original, copy):
        assert run(capsys, "doctor", "--config", fleet.config, "--json", "--lake", uri)[0] == 0


def test_incomplete_entries_are_finished(fleet: Fleet, capsys: Capsys) -> None:
    """An older one whose N.json is there, and the newest, whose writer died before N.json was made."""
    older = fleet.entry("packets", 1)
    del older["expireTime"]
    fleet.put_entry({**older, "complete": {"S": "false"}})
    begun = Entry.for_new_version(TablePath.for_table(fleet.uri, "captures"), 3)
    fleet.put_entry({name: {"S": value} for name, value in begun.to_item().items()})
    data = b'{"commitInfo":{"timestamp":0,"operation":"WRITE","operationParameters":{}}}\n'
    key = f"lake/captures/_delta_log/{begun.temp_path}"
    fleet.aws.client("s3").put_object(Bucket=fleet.bucket, Key=key, Body=data)
    code, report = doctor(fleet, capsys)
    assert (code, unwell(report)) == (
        1,
        {("warning", "lock entries", "packets"), ("warning", "lock entries", "captures")},
    )
    assert fleet.entry("captures", 3)["complete"] == {"S": "false"}, "looking changes nothing"
    assert not fleet.exists(f"lake/captures/_delta_log/{3:020d}.json")
    code, report = doctor(fleet, capsys, "--repair", "--yes")
    assert (code, unwell(report), len(report["repaired"])) == (0, set(), 2)
    for table, version in (("packets", 1), ("captures", 3)):
        entry = fleet.entry(table, version)
        assert entry["complete"] == {"S": "true"}
        assert int(entry["expireTime"]["N"]) > 0
    assert fleet.exists(f"lake/captures/_delta_log/{3:020d}.json")
    fleet.batches("c")
    assert fleet.rows() == each("a", "b", "c")


def test_orphans_are_deleted_and_files_of_stages_are_not(
    fleet: Fleet, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = fleet.stage("waits")
    orphan = f"lake/packets/date={DAY}/{'0' * 32}-0.zstd.parquet"
    fleet.aws.client("s3").put_object(Bucket=fleet.bucket, Key=orphan, Body=b"12345")
    code, report = doctor(fleet, capsys)
    assert (code, unwell(report)) == (0, set()), "it is young"
    monkeypatch.setattr(checks_files, "ORPHAN_AFTER_MS", -timedelta(hours=1) / timedelta(milliseconds=1))
    code, report = doctor(fleet, capsys, "--repair")
    assert (code, unwell(report)) == (1, {("warning", "files", "packets")})
    assert report["repairs"] == [f"delete 1 orphaned file of {fleet.uri}: {orphan.removeprefix('lake/')}"]
    code, report = doctor(fleet, capsys, "--repair", "--yes")
    assert (code, report["repaired"]) == (0, ["packets: 1 orphaned file deleted"])
    assert not fleet.exists(orphan)
    assert fleet.exists(f"lake/packets/date={DAY}/{stage}-1.zstd.parquet")
    fleet.batches("c")
    assert fleet.rows() == each("a", "b", "c", "waits")


def test_a_table_whose_protocol_was_raised(fleet: Fleet, capsys: Capsys) -> None:
    """By somebody who does not use the lock table either."""
    table = deltalake.DeltaTable(f"{fleet.uri}/packets")
    table.alter.add_feature(deltalake.TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    code, report = doctor(fleet, capsys)
    assert (code, unwell(report)) == (1, {("error", "blocked", "packets"), ("warning", "lock entries", "packets")})
    (found,) = [one for one in report["findings"] if one["check"] == "blocked"]
    where = f"ALTER TABLE delta.`s3a://{fleet.bucket}/lake/packets`"
    assert f"{where} DROP FEATURE deletionVectors;" in found["do"].splitlines()


def test_what_is_not_allowed_and_what_is_not_there(fleet: Fleet, aws: Aws, capsys: Capsys) -> None:
    async def refusing() -> tuple[int, dict[str, Any]]:
        async with FaultProxy(aws.dynamodb) as proxy:
            denied = {"status": 400, "code": "AccessDeniedException"}
            proxy.add("TransactWriteItems", "error", times=9, **denied)
            proxy.add("DescribeTimeToLive", "error", times=9, **denied)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AWS_ENDPOINT_URL_DYNAMODB", proxy.url)
                return await asyncio.to_thread(doctor, fleet, capsys)

    code, report = asyncio.run(refusing())
    untold = {("warning", "ledger", None), ("warning", "lock table", None)}
    assert (code, unwell(report)) == (1, {("error", "dynamodb", None)} | untold)
    assert "TransactWriteItems" in next(one["what"] for one in report["findings"] if one["level"] == "error")
    fleet.write(queue="nothing", lock_table="nothing")
    code, report = doctor(fleet, capsys)
    assert {("error", "queue", None), ("error", "lock table", None), ("error", "lake.json", None)} <= unwell(report)


def test_dead_letters_and_the_status_of_a_fleet(fleet: Fleet, capsys: Capsys) -> None:
    sqs = fleet.aws.client("sqs")
    sqs.send_message(QueueUrl=fleet.dead, MessageBody="{}")
    for _ in range(3):
        sqs.send_message(QueueUrl=fleet.url, MessageBody="{}")
    sqs.receive_message(QueueUrl=fleet.url, MaxNumberOfMessages=1, VisibilityTimeout=600)
    code, report = doctor(fleet, capsys)
    assert (code, unwell(report)) == (1, {("warning", "queue", None)})
    assert "1 dead letter" in next(one["what"] for one in report["findings"] if one["level"] == "warning")
    stage = fleet.stage("waits")
    code, out, err = run(capsys, "status", "--config", fleet.config, "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    queue = said["queue"]
    assert (queue["visible"], queue["in_flight"], queue["dead_letters"]["visible"]) == (2, 1, 1)
    (lake,) = said["lakes"]
    assert (lake["head"], lake["last_batch"], lake["pending"], lake["held"]) == (1, 1, 1, {})
    assert lake["oldest_pending"] >= 0
    assert {name: lake["tables"][name]["rows"] for name in WRITTEN} == dict.fromkeys(WRITTEN, 2)
    code, out, _ = run(capsys, "status", "--config", fleet.config)
    assert "2 visible" in out
    assert "1 in flight" in out
    assert "1 dead letter" in out
    assert stage


@pytest.mark.parametrize(
    ("roles", "unknown"),
    [
        (("worker",), {"GetItem", "Query", "dead letters"}),  # committer.separate
        (("worker", "committer"), {"dead letters"}),
        (("committer",), {"dead letters"}),
        (("doctor",), set()),
    ],
)
def test_status_shows_what_a_role_may_see(
    roles: tuple[Role, ...], unknown: set[str], fleet: Fleet, aws: Aws, capsys: Capsys
) -> None:
    """What is not in its policies is refused; the rest is shown, and the exit code is 0."""
    fleet.stage("waits")
    fleet.aws.client("sqs").send_message(QueueUrl=fleet.url, MessageBody="{}")
    dead = fleet.dead.rpartition("/")[2]

    async def refusing(*arguments: str) -> tuple[int, str, str]:
        async with FaultProxy(aws.sqs) as sqs, FaultProxy(aws.dynamodb) as dynamodb:
            for operation in ("BatchGetItem", "DescribeTable", "DescribeTimeToLive", "GetItem", "Query"):
                if not any(operation in LEDGER[role] for role in roles):
                    denied = {"status": 400, "code": "AccessDeniedException"}
                    dynamodb.add(operation, "error", times=None, containing=fleet.ledger, **denied)
            if not any(role in DEAD_LETTERS for role in roles):
                sqs.add("*", "error", times=None, containing=dead, status=403, code="AccessDenied")
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("AWS_ENDPOINT_URL_SQS", sqs.url)
                patch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb.url)
                return await asyncio.to_thread(run, capsys, "status", "--config", fleet.config, *arguments)

    code, out, err = asyncio.run(refusing("--json"))
    assert (code, err) == (0, "")
    said = json.loads(out)
    queue, (lake,) = said["queue"], said["lakes"]
    assert queue["visible"] == 1
    assert (queue["dead_letters"] is None) == ("dead letters" in unknown)
    assert queue["not_allowed"] == (f"SQS queue {dead}" if "dead letters" in unknown else None)
    assert lake["problem"] is None
    assert set(lake["not_allowed"]) == {f"DynamoDB {one} on {fleet.ledger}" for one in unknown - {"dead letters"}}
    kept = "GetItem" not in unknown
    assert lake["head"] == (1 if kept else None)
    assert lake["leader"] == ({"owner": "", "moves": False} if kept else None)
    assert (lake["pending"], lake["held"]) == ((1, {}) if "Query" not in unknown else (None, None))
    assert lake["last_batch"] == 1
    assert {name: lake["tables"][name]["rows"] for name in WRITTEN} == dict.fromkeys(WRITTEN, 2)
    code, out, _ = asyncio.run(refusing())
    assert code == 0
    assert out.count("not allowed") == len(unknown)


def test_no_message_is_received_by_looking(fleet: Fleet, capsys: Capsys) -> None:
    sqs = fleet.aws.client("sqs")
    sqs.send_message(QueueUrl=fleet.url, MessageBody="{}")
    for _ in range(2):
        doctor(fleet, capsys)
        run(capsys, "status", "--config", fleet.config)
    (message,) = sqs.receive_message(
        QueueUrl=fleet.url, MessageSystemAttributeNames=["ApproximateReceiveCount"]
    )["Messages"]  # fmt: skip
    assert message["Attributes"]["ApproximateReceiveCount"] == "1"


def test_a_process_opens_a_lake_beside_a_blocked_table(fleet: Fleet, capsys: Capsys) -> None:
    """A protocol that we do not write, and an entry of the lock table that nobody can finish."""
    blocked, torn = WRITTEN[:2]
    raised = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [], "writerFeatures": []}}
    name = f"{3:020d}.json"
    key = f"lake/{blocked}/_delta_log/{name}"
    fleet.aws.client("s3").put_object(Bucket=fleet.bucket, Key=key, Body=json.dumps(raised).encode() + b"\n")
    entry = fleet.entry(torn, 2)
    lost = {**entry, "fileName": {"S": name}, "tempPath": {"S": f".tmp/{name}.gone"}, "complete": {"S": "false"}}
    fleet.put_entry({field: value for field, value in lost.items() if field != "expireTime"})
    fleet.batches("c")

    async def names() -> set[str]:
        async with fleet.lake() as lake:
            await lake.committer.run_turn()
            return set(lake.committer.blocked)

    assert asyncio.run(names()) == {blocked, torn}
    _, out, _ = run(capsys, "status", "--config", fleet.config)
    assert f"blocked {blocked}" in " ".join(out.split())


def test_who_leads_is_seen(fleet: Fleet, capsys: Capsys) -> None:
    async def beside() -> tuple[int, str]:
        async with await SharedTables.open(fleet.ledger, fleet.locks) as shared_tables:
            lake_config = LakeConfig(max_batch_age=0.1, lease_timeout=1.0)
            lake = await Lake.open(fleet.uri, lake_config=lake_config, ledger=shared_tables, storage_options=HTTP)
            async with lake:
                while not lake.committer.is_leading:
                    await asyncio.sleep(0.01)
                code, out, _ = await asyncio.to_thread(run, capsys, "status", "--config", fleet.config, "--json")
        return code, out

    code, out = asyncio.run(beside())
    (lake,) = json.loads(out)["lakes"]
    assert (code, lake["leader"]["moves"]) == (0, True)
    code, out, _ = run(capsys, "status", "--config", fleet.config, "--json")
    (lake,) = json.loads(out)["lakes"]
    assert lake["leader"] == {"owner": "", "moves": False}, "it was given back"


async def test_the_age_of_the_queue_is_cloudwatchs(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[Any] = [
        {"Datapoints": [{"Timestamp": 1, "Maximum": 5.0}, {"Timestamp": 2, "Maximum": 65.0}]},
        {"Datapoints": []},
    ]

    class CloudWatch:
        def get_metric_statistics(self, **asked: Any) -> Any:
            assert asked["Dimensions"] == [{"Name": "QueueName", "Value": fleet.queue}]
            return answers.pop(0)

    monkeypatch.setattr(QueueClients, "cloudwatch", CloudWatch())
    fleet.aws.client("sqs").send_message(QueueUrl=fleet.url, MessageBody="{}")
    queues = QueueClients()
    try:
        assert (await queues.read_queue_facts(fleet.queue)).oldest_age == 65.0
        assert (await queues.read_queue_facts(fleet.queue)).oldest_age is None
    finally:
        queues.close()


NAMES = {"HeadObject": "GetObject", "ListObjectsV2": "ListBucket"}  # as IAM calls what is asked of S3


Asked = tuple[str, str, str, frozenset[str]]


def iam(method: str, raw_path: str, operation: str, headers: Mapping[str, str], body: bytes) -> Iterator[Asked]:
    """A request -> what it needs: action, resource (the end of its ARN), key of an item, conditional headers."""
    nothing = frozenset[str]()
    path = unquote(raw_path.partition("?")[0].lstrip("/"))
    if operation == "DeleteObjects":
        for key in re.findall(r"<Key>(.*?)</Key>", body.decode()):
            yield "s3:DeleteObject", f":::{path.rstrip('/')}/{unescape(key)}", "", nothing
    elif body:
        said = json.loads(body)
        if "TableName" in said or "RequestItems" in said or "TransactItems" in said:
            for name, one in _items(operation, said):
                key = one.get("Key") or one.get("Item") or {}
                values = [key[part]["S"] for part in ("pk", "tablePath") if part in key]
                table = one.get("TableName") or next(iter(said["RequestItems"]))
                yield f"dynamodb:{name}", f":table/{table}", "".join(values), nothing
        else:
            queue = said.get("QueueName") or said["QueueUrl"].rpartition("/")[2]
            yield f"sqs:{operation}", f":{queue}", "", nothing
    else:
        yield f"s3:{NAMES.get(operation, operation)}", f":::{path}", "", conditions_of(headers)


def _items(operation: str, said: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    if operation != "TransactWriteItems":
        return [(operation, said)]
    return [
        (f"{kind.removesuffix('Item')}Item", one) for action in said["TransactItems"] for kind, one in action.items()
    ]


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[Asked]]:
    """What all proxies are asked, as IAM would be asked."""
    asked: set[Asked] = set()
    named = fault_proxy.name_of

    def noted(method: str, raw_path: str, headers: Mapping[str, str], body: bytes) -> tuple[str, str]:
        operation, key = named(method, raw_path, headers, body)
        asked.update(iam(method, raw_path, operation, headers, body))
        return operation, key

    with monkeypatch.context() as patch:
        patch.setattr(fault_proxy, "name_of", noted)
        yield asked


@asynccontextmanager
async def proxied(fleet: Fleet, aws: Aws) -> AsyncIterator[None]:
    """Requests of commands go through proxies."""
    async with FaultProxy(aws.s3) as s3, FaultProxy(aws.sqs) as sqs, FaultProxy(aws.dynamodb) as dynamodb:
        with pytest.MonkeyPatch.context() as patch:
            for name, proxy in (("S3", s3), ("SQS", sqs), ("DYNAMODB", dynamodb)):
                patch.setenv(f"AWS_ENDPOINT_URL_{name}", proxy.url)
            fleet.write(storage_option={**HTTP, "aws_endpoint": s3.url})
            yield


def refused(policy: dict[str, Any], scope: Scope, asked: set[Asked]) -> set[Asked]:
    """What the policy does not allow."""
    arns = {"s3": "arn:aws:s3", "sqs": str(scope.queue).rpartition(":")[0]}
    arns["dynamodb"] = f"arn:aws:dynamodb:{scope.queue.region}:{scope.queue.account}"
    return {one for one in asked if not allows(policy, one[0], arns[one[0].partition(":")[0]] + one[1], *one[2:])}


def test_its_policy_is_what_it_and_status_ask(
    fleet: Fleet, aws: Aws, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that they ask is forbidden, and nothing is allowed that they do not ask."""
    fleet.stage("waits")
    older = fleet.entry("packets", 1)
    fleet.put_entry({**older, "complete": {"S": "false"}})
    fleet.aws.client("sqs").send_message(QueueUrl=fleet.url, MessageBody="{}")
    (fleet.config.parent / "routes.yaml").write_text(
        f"routes:\n  - {{bucket: {fleet.raw}, key: 'drives/*.pcap', lake: '{fleet.uri}'}}\n"
    )
    metrics: list[str] = []

    class CloudWatch:
        def get_metric_statistics(self, **asked: Any) -> Any:
            metrics.append(asked["MetricName"])
            return {"Datapoints": [{"Timestamp": 1, "Maximum": 65.0}]}

    monkeypatch.setattr(QueueClients, "cloudwatch", CloudWatch())

    async def both() -> tuple[tuple[int, dict[str, Any]], set[Asked], tuple[int, str, str], set[Asked]]:
        async with proxied(fleet, aws):
            with recorded(monkeypatch) as by_doctor:
                said = await asyncio.to_thread(doctor, fleet, capsys)
            with recorded(monkeypatch) as by_status:
                shown = await asyncio.to_thread(run, capsys, "status", "--config", fleet.config, "--json")
        return said, by_doctor, shown, by_status

    (code, report), by_doctor, (status_code, out, _), by_status = asyncio.run(both())
    assert (code, unwell(report)) == (1, {("warning", "lock entries", "packets")})
    assert status_code == 0
    status = json.loads(out)
    assert (status["queue"]["oldest_age"], status["queue"]["not_allowed"]) == (65.0, None)
    assert all(lake["problem"] is None and not lake["not_allowed"] for lake in status["lakes"])
    scope = Scope(
        queue=Arn(partition="aws", region=aws.region, account="123456789012", name=fleet.queue),
        dead_letters=fleet.dead.rpartition("/")[2],
        places=(Place(bucket=fleet.raw, prefix="drives/"),),
        lakes=(fleet.uri,),
        ledger_table=fleet.ledger,
        lock_table=fleet.locks,
    )
    policy = policies(scope)["doctor"]
    assert refused(policy, scope, by_doctor) == refused(policy, scope, by_status) == set()
    granted = {action for statement in policy["Statement"] for action in statement["Action"]}
    assert metrics == ["ApproximateAgeOfOldestMessage"]
    assert granted == {action for action, *_ in by_doctor | by_status} | {"cloudwatch:GetMetricStatistics"}
    put = {resource.rpartition("/")[0] for action, resource, *_ in by_doctor if action == "s3:PutObject"}
    assert put == {f":::{fleet.bucket}/lake/_pcaplake/doctor"}
    put = {resource for action, resource, *_ in by_status if action == "s3:PutObject"}
    assert put == {f":::{fleet.bucket}/lake/_pcaplake/clock"}
    assert fleet.below("lake/_pcaplake/doctor/") == []
