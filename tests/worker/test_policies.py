"""The IAM policies say what the code does: nothing is missing, nothing is more; and they are about nothing else."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcaplake.worker.admin.setup import policies
from pcaplake.worker.admin.setup.policies import PROBE_ENTRIES, PROBE_ITEMS, Role, Scope
from pcaplake.worker.admin.setup.queues import Arn
from pcaplake.worker.config.s3_prefixes import Place
from pcaplake.worker.lake.ledger.dynamodb_items import stage_object_path
from pcaplake.worker.lake.records import manifest_path
from tests.worker.iam import allows

WORKER = Path(__file__).parents[2] / "worker"
SIGNALS, REPLACE, CLOCK = "_pcaplake/spark/signals", "_pcaplake/spark/replace", "_spark/clock"  # of spark_jobs
JAVA = WORKER.parent / "spark_jobs" / "logstore" / "src" / "main" / "java"
QUEUE = Arn(partition="aws", region="eu-central-1", account="123456789012", name="captures")
SCOPE = Scope(
    queue=QUEUE,
    dead_letters="captures-dead",
    places=(Place(bucket="raw", prefix="drives/"), Place(bucket="bench")),
    lakes=("s3://lakes/a", "s3://lakes/b/c"),
    ledger_table="pcaplake_ledger",
    lock_table="delta_log",
)
OURS: tuple[Role, ...] = ("worker", "committer", "operator")
OBSTORE = {  # the requests of its functions, as IAM calls them
    "delete_async": "DeleteObject",
    "get_async": "GetObject",
    "get_range_async": "GetObject",
    "head": "GetObject",
    "head_async": "GetObject",
    "list": "ListBucket",
    "list_with_delimiter_async": "ListBucket",
    "open_writer": "PutObject",
    "put": "PutObject",
    "put_async": "PutObject",
}
TRANSACTED = {"Put", "Update", "Delete", "ConditionCheck"}


def actions(service: str, roles: tuple[Role, ...] = OURS, scope: Scope = SCOPE) -> set[str]:
    """All that these roles may do of a service."""
    return {
        action.removeprefix(f"{service}:")
        for role, document in policies.policies(scope).items()
        if role in roles
        for statement in document["Statement"]
        for action in statement["Action"]
        if action.startswith(f"{service}:")
    }


def calls(folder: Path) -> Iterator[ast.Call]:
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
        yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def operations(folder: Path) -> set[str]:
    """What is asked of DynamoDB by `call_operation("...")`."""
    return {
        node.args[0].value
        for node in calls(folder)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "call_operation"
        if node.args and isinstance(node.args[0], ast.Constant)
    }


def constants(path: Path) -> set[str]:
    return {
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def camel(method: str) -> str:
    return "".join(word.capitalize() for word in method.removesuffix("_batch").split("_"))


def test_sqs() -> None:
    attributes = [
        node
        for node in ast.walk(ast.parse((WORKER / "service" / "queue" / "sqs.py").read_text()))
        if isinstance(node, ast.Attribute)
    ]
    clients = {"acts", "polls", "_acts", "_polls"}
    made = {
        camel(node.attr)
        for node in attributes
        if (isinstance(node.value, ast.Name) and node.value.id in clients)
        or (isinstance(node.value, ast.Attribute) and node.value.attr in clients)
    }
    assert len(made) >= 6
    assert actions("sqs") == made


def test_the_ledger() -> None:
    kinds = constants(WORKER / "lake" / "ledger" / "dynamodb_items.py") & TRANSACTED
    made = operations(WORKER / "lake" / "ledger")
    assert "TransactWriteItems" in made
    made = made - {"TransactWriteItems"} | {f"{kind}Item" for kind in kinds}
    assert {action for role in OURS for action in policies.LEDGER[role]} == made


def test_the_lock_table() -> None:
    made = operations(WORKER / "lake" / "delta")
    assert "PutItem" in made
    assert {action for role in OURS for action in policies.LOCKS.get(role, ())} == made


def test_the_lock_table_by_our_log_store_for_spark() -> None:
    made = {name for path in JAVA.rglob("*.java") for name in re.findall(r'\bcall\("(\w+)"', path.read_text())}
    assert {"PutItem", "UpdateItem"} <= made
    assert set(policies.LOCKS["spark"]) == {*made, "DescribeTable"}  # asked by the session before it starts


def test_s3() -> None:
    used = {
        node.func.attr
        for node in calls(WORKER)
        if isinstance(node.func, ast.Attribute)
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "obstore"
    }
    assert used == set(OBSTORE)
    ours = {"GetObjectVersion", "AbortMultipartUpload"}  # `GetObject` with a version's id; a writer whose part failed
    assert actions("s3") == {*OBSTORE.values(), *ours}


IN_IAM = {  # operations whose permissions have other names; None: everybody may
    "GetBucketNotificationConfiguration": "GetBucketNotification",
    "PutBucketNotificationConfiguration": "PutBucketNotification",
    "GetCallerIdentity": None,
}


def test_the_guide_says_what_setup_itself_needs() -> None:
    made = {
        camel(node.func.attr)
        for name in ("setup", "queues", "dynamodb_tables")
        for node in calls(WORKER / "admin" / "setup" / f"{name}.py")
        if isinstance(node.func, ast.Attribute)
        if (isinstance(node.func.value, ast.Name) and node.func.value.id == "client")
        or (isinstance(node.func.value, ast.Attribute) and node.func.value.attr in ("_client", "s3", "sqs", "sts"))
    }
    guide = (WORKER.parent / "docs" / "setup.md").read_text()
    said = {
        action.partition(":")[2]
        for line in re.findall(r"^(?:dynamodb|s3|sqs):.*$", guide, re.M)
        for action in line.split()
    }
    assert said == {IN_IAM.get(name, name) for name in made} - {None}


@pytest.mark.parametrize(
    ("role", "action", "allowed", "forbidden"),
    [
        (
            "worker",
            "s3:GetObject",
            ["raw/drives/a b.pcap", "bench/x", "lakes/a/t/f.parquet"],
            ["raw/other", "lakes/ab/f"],
        ),
        ("worker", "s3:PutObject", ["lakes/b/c/t/f.parquet"], ["raw/drives/a", "bench/x", "lakes/b/d"]),
        *(
            (role, "s3:AbortMultipartUpload", ["lakes/b/c/t/f.parquet"], ["raw/drives/a", "lakes/b/d"])
            for role in ("worker", "committer", "spark")
        ),
        ("worker", "s3:DeleteObject", [], ["lakes/a/t/f.parquet", "lakes/a/t/_delta_log/.tmp/x", "raw/drives/a"]),
        (
            "committer",
            "s3:DeleteObject",
            ["lakes/a/packets/_delta_log/.tmp/00000000000000000001.json.x", "lakes/b/c/packets/_delta_log/0.json"],
            [
                "lakes/a/packets/date=2026-01-01/f.parquet",
                "lakes/a/_pcaplake/batches/0.json",
                "raw/drives/a",
                "bench/x",
            ],
        ),
        (
            "spark",
            "s3:DeleteObject",
            ["lakes/a/packets/date=2026-01-01/f.parquet", "lakes/b/c/packets/_delta_log/.tmp/x"],
            ["lakes/a/_pcaplake/batches/0.json", "lakes/b/c/_pcaplake/lake.json", "raw/drives/a"],
        ),
        (
            "spark",
            "s3:PutObject",
            [
                "lakes/a/packets/date=2026-01-01/f.parquet",
                f"lakes/a/{SIGNALS}/0/state.json",
                f"lakes/a/{SIGNALS}/0/can/offsets/7",
                f"lakes/b/c/{REPLACE}/0123/packets/f.parquet",
                f"lakes/a/{CLOCK}",
            ],
            [f"lakes/a/{manifest_path(7)}", "lakes/b/c/_pcaplake/lake.json", "raw/drives/a"],
        ),
        (
            "spark",
            "s3:DeleteObject",
            [f"lakes/a/{SIGNALS}/0/can/offsets/7", f"lakes/b/c/{REPLACE}/0123/packets/f.parquet"],
            [f"lakes/a/{stage_object_path('s')}", f"lakes/b/c/{manifest_path(0)}"],
        ),
        (
            "doctor",
            "s3:PutObject",
            ["lakes/a/_pcaplake/doctor/0123", "lakes/b/c/_pcaplake/doctor/0123"],
            ["lakes/a/_pcaplake/lake.json", "lakes/a/packets/f.parquet", "raw/drives/_pcaplake/doctor"],
        ),
        ("doctor", "s3:DeleteObject", ["lakes/a/_pcaplake/doctor/0123"], ["lakes/a/packets/f.parquet", "raw/drives/a"]),
        (
            "doctor",
            "s3:GetObject",
            ["lakes/a/packets/f.parquet", "raw/drives/_pcaplake/doctor", "bench/_pcaplake/doctor"],
            ["raw/drives/a.pcap", "bench/a.pcap"],
        ),
        ("spark", "s3:GetObject", ["lakes/a/_pcaplake/lake.json"], ["raw/drives/a"]),
        ("operator", "s3:GetObject", ["lakes/a/_pcaplake/lake.json"], ["raw/drives/a", "lakes/a/packets/f.parquet"]),
        ("operator", "s3:PutObject", [], ["lakes/a/_pcaplake/lake.json", "raw/drives/a"]),
        ("worker", "s3:ListBucket", ["raw", "bench", "lakes"], ["other"]),
        ("spark", "s3:ListBucket", ["lakes"], ["raw", "bench"]),
    ],
)
def test_resources_of_s3(role: Role, action: str, allowed: list[str], forbidden: list[str]) -> None:
    document = policies.policies(SCOPE)[role]
    assert [one for one in allowed if not allows(document, action, f"arn:aws:s3:::{one}")] == []
    assert [one for one in forbidden if allows(document, action, f"arn:aws:s3:::{one}")] == []


JOBS: dict[str, tuple[tuple[Role, ...], dict[str, list[str]]]] = {  # docs/setup.md: roles, and what they write
    "signals": (
        ("spark",),
        {"s3:PutObject": [f"{SIGNALS}/0/state.json", "signals/f.parquet", "signals/_delta_log/.tmp/x"]},
    ),
    "vacuum": (("spark",), {"s3:PutObject": [CLOCK], "s3:DeleteObject": ["packets/f.parquet"]}),
    "backfill": (("worker",), {"s3:PutObject": ["packets/f.parquet", stage_object_path("s"), "_pcaplake/clock"]}),
    "backfill in a session for tables": (
        ("worker", "spark"),
        {"s3:PutObject": ["packets/f.parquet", stage_object_path("s"), "_pcaplake/clock"]},
    ),
    "backfill --commit": (
        ("worker", "committer"),
        {"s3:PutObject": [manifest_path(7), stage_object_path("s")], "s3:DeleteObject": ["packets/_delta_log/0.json"]},
    ),
    "replace": (
        ("worker", "spark"),
        {
            "s3:PutObject": [f"{REPLACE}/0123/packets/f.parquet", f"{SIGNALS}/0/state.json", "packets/f.parquet"],
            "s3:DeleteObject": [f"{REPLACE}/0123/packets/f.parquet"],
        },
    ),
}


@pytest.mark.parametrize(("roles", "written"), JOBS.values(), ids=JOBS)
def test_what_jobs_of_spark_write(roles: tuple[Role, ...], written: dict[str, list[str]]) -> None:
    """Together: what one policy denies, no other one gives back."""
    made = policies.policies(SCOPE)
    documents = [made[role] for role in roles]
    denied = [
        (action, path)
        for action, paths in written.items()
        for path in paths
        if not allows(documents, action, f"arn:aws:s3:::lakes/b/c/{path}")
    ]
    assert denied == []
    if set(roles) & {"spark"}:
        assert not allows(documents, "s3:PutObject", f"arn:aws:s3:::lakes/b/c/{manifest_path(0)}")


def test_spark_writes_none_of_the_lakes_records() -> None:
    """Each folder of records that a module of worker/lake names; the lake's account of itself goes with them."""
    named = re.compile(r'^FOLDER = "(_pcaplake/\w+)"$', re.M)
    folders = [found[1] for path in (WORKER / "lake").rglob("*.py") if (found := named.search(path.read_text()))]
    assert len(folders) >= 4
    spark = policies.policies(SCOPE)["spark"]
    for path in ("_pcaplake/lake.json", *(f"{folder}/0123.json" for folder in folders)):
        for action in ("s3:PutObject", "s3:DeleteObject"):
            assert not allows(spark, action, f"arn:aws:s3:::lakes/b/c/{path}"), (action, path)


def test_the_guide_says_which_roles_jobs_have() -> None:
    guide = (WORKER.parent / "docs" / "setup.md").read_text()
    rows = {cells[0]: cells[1] for line in re.findall(r"^\| (`.*) \|$", guide, re.M) if (cells := line.split(" | "))}
    said = {job: set(re.findall(r"`(\w+)`", roles)) for names, roles in rows.items() for job in names.split(", ")}
    for job, (roles, _) in JOBS.items():
        if "tables" not in job:
            assert said[f"`{job}`"] == set(roles), job
    assert said["`compact`"] == said["`quality`"] == {"spark"}


def test_the_doctor_reads_and_tries() -> None:
    """What it really asks is looked at in tests/integration/test_doctor.py."""
    doctor = policies.policies(SCOPE)["doctor"]
    ledger, locks = (
        f"arn:aws:dynamodb:eu-central-1:123456789012:table/{name}" for name in ("pcaplake_ledger", "delta_log")
    )
    for action in ("PutItem", "UpdateItem", "DeleteItem", "ConditionCheckItem"):
        assert allows(doctor, f"dynamodb:{action}", ledger, f"{PROBE_ITEMS}0123")
        assert not allows(doctor, f"dynamodb:{action}", ledger, "stage#0123")
    for action in ("PutItem", "UpdateItem"):
        assert allows(doctor, f"dynamodb:{action}", locks, f"{PROBE_ENTRIES}0123")
        assert not allows(doctor, f"dynamodb:{action}", locks, "s3a://lakes/a/packets")
    assert not allows(doctor, "dynamodb:DeleteItem", locks, f"{PROBE_ENTRIES}0123")
    assert not allows(doctor, "sqs:ReceiveMessage", str(QUEUE))
    assert not allows(doctor, "sqs:DeleteMessage", f"{QUEUE}-dead")


def test_nobody_deletes_captures_or_tables() -> None:
    for service in ("s3", "dynamodb", "sqs"):
        for action in actions(service, (*OURS, "spark", "doctor")):
            assert not re.search(r"(Table|Queue|Bucket)$", action) or action in ("DescribeTable", "ListBucket"), action
    for document in policies.policies(SCOPE).values():
        assert not any("*" in action for statement in document["Statement"] for action in statement["Action"])
        for action in ("s3:DeleteObject", "s3:PutObject"):
            assert not allows(document, action, "arn:aws:s3:::raw/drives/a.pcap")


def test_resources_of_queues_and_tables() -> None:
    made = policies.policies(SCOPE)
    queue, dead = str(QUEUE), f"{QUEUE}-dead"
    assert allows(made["worker"], "sqs:DeleteMessage", queue)
    assert not allows(made["worker"], "sqs:DeleteMessage", dead)
    assert not allows(made["operator"], "sqs:DeleteMessage", queue)
    assert allows(made["operator"], "sqs:DeleteMessage", dead)
    ledger, locks = (
        f"arn:aws:dynamodb:eu-central-1:123456789012:table/{name}" for name in ("pcaplake_ledger", "delta_log")
    )
    assert allows(made["committer"], "dynamodb:PutItem", ledger)
    assert allows(made["spark"], "dynamodb:Query", ledger), "what waits is asked before a VACUUM"
    assert not allows(made["spark"], "dynamodb:PutItem", ledger)
    assert allows(made["spark"], "dynamodb:GetItem", locks)
    assert not allows(made["worker"], "dynamodb:PutItem", locks)
    assert not allows(made["operator"], "dynamodb:PutItem", ledger)


def test_without_a_lock_table() -> None:
    alone = Scope(**{name: getattr(SCOPE, name) for name in Scope.__slots__} | {"lock_table": None})
    assert "table/delta_log" not in json.dumps(policies.policies(alone))
    assert "table/delta_log" in json.dumps(policies.policies(SCOPE))


def test_letters_that_iam_would_read_as_patterns() -> None:
    odd = Scope(
        **{name: getattr(SCOPE, name) for name in Scope.__slots__}
        | {"places": (Place(bucket="raw", prefix="a${b*?/"),), "lakes": ("s3://lakes/$x",)}
    )
    worker = policies.policies(odd)["worker"]
    assert allows(worker, "s3:GetObject", "arn:aws:s3:::raw/a${b*?/c")
    assert not allows(worker, "s3:GetObject", "arn:aws:s3:::raw/a${bxy/c")
    assert allows(worker, "s3:PutObject", "arn:aws:s3:::lakes/$x/y")


def test_china_and_long_policies() -> None:
    china = Scope(
        **{name: getattr(SCOPE, name) for name in Scope.__slots__}
        | {
            "queue": Arn(partition="aws-cn", region="cn-north-1", account="123456789012", name="q"),
            "lakes": tuple(f"s3://lakes/stream-{number}" for number in range(70)),
        }
    )
    documents = policies.policies(china)
    assert "arn:aws:" not in json.dumps(documents)
    assert policies.too_long(documents) == ["committer", "spark", "doctor"]
    assert policies.too_long(policies.policies(SCOPE)) == []
    assert allows(documents["worker"], "sqs:ReceiveMessage", "arn:aws-cn:sqs:cn-north-1:123456789012:q")
