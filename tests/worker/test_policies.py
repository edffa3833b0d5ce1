"""The IAM policies say what the code does: nothing is missing, nothing is more; and they are about nothing else."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.fleet import policies
from worker.fleet.places import Place
from worker.fleet.policies import Document, Role, Scope
from worker.fleet.queues import Arn

WORKER = Path(__file__).parents[2] / "worker"
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
    "open_writer": "PutObject",
    "put_async": "PutObject",
}
TRANSACTED = {"Put", "Update", "Delete", "ConditionCheck"}


def allows(document: Document, action: str, resource: str) -> bool:
    """What IAM would say, for the little that these policies use of it."""
    said = [
        statement["Effect"]
        for statement in document["Statement"]
        if action in statement["Action"] and any(_matches(pattern, resource) for pattern in statement["Resource"])
    ]
    return "Allow" in said and "Deny" not in said


def _matches(pattern: str, text: str) -> bool:
    parts = re.split(r"(\$\{[$*?]\}|[*?])", pattern)
    expression = "".join(
        {"*": ".*", "?": "."}.get(part, re.escape(part[2] if part[:2] == "${" else part)) for part in parts
    )
    return re.fullmatch(expression, text, re.DOTALL) is not None


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
    """What is asked of DynamoDB by `call("...")`."""
    return {
        node.args[0].value
        for node in calls(folder)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "call"
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
        for node in ast.walk(ast.parse((WORKER / "queue" / "sqs.py").read_text()))
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


def test_s3() -> None:
    used = {
        node.func.attr
        for node in calls(WORKER)
        if isinstance(node.func, ast.Attribute)
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "obstore"
    }
    assert used == set(OBSTORE)
    assert actions("s3") == {*OBSTORE.values(), "GetObjectVersion"}  # a version is read as `GetObject` with its id


IN_IAM = {  # operations whose permissions have other names; None: everybody may
    "GetBucketNotificationConfiguration": "GetBucketNotification",
    "PutBucketNotificationConfiguration": "PutBucketNotification",
    "GetCallerIdentity": None,
}


def test_the_guide_says_what_setup_itself_needs() -> None:
    made = {
        camel(node.func.attr)
        for name in ("setup", "queues", "tables")
        for node in calls(WORKER / "fleet" / f"{name}.py")
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


def test_nobody_deletes_captures_or_tables() -> None:
    for service in ("s3", "dynamodb", "sqs"):
        for action in actions(service, (*OURS, "spark")):
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
    assert policies.too_long(documents) == ["committer", "spark"]
    assert policies.too_long(policies.policies(SCOPE)) == []
    assert allows(documents["worker"], "sqs:ReceiveMessage", "arn:aws-cn:sqs:cn-north-1:123456789012:q")
