"""The IAM policies say what the code does: nothing is missing, nothing is more; and they are about nothing else."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pcaplake.lake.delta.lock_table import TablePath
from pcaplake.lake.ledger.dynamodb_items import Scope as ItemScope
from pcaplake.lake.ledger.dynamodb_items import head_key, lake_key, lease_key, stage_object_path
from pcaplake.lake.records import manifest_path
from pcaplake.worker.admin.setup import policies
from pcaplake.worker.admin.setup.policies import PROBE_ENTRIES, PROBE_ITEMS, Role, Scope
from pcaplake.worker.admin.setup.queues import Arn
from pcaplake.worker.config.s3_prefixes import Place
from tests.worker.iam import IF_ABSENT, IF_UNCHANGED, allows
from tools import ROOMS

ROOT = Path(__file__).parents[2]
WORKER, LAKE = ROOT / "worker", ROOT / "lake"
SIGNALS, SWAPS, CLOCK = "_pcaplake/spark/signals", f"{policies.SWAPS}/0.json", "_spark/clock"  # of spark_jobs
JAVA = ROOT / "spark_jobs" / "logstore" / "src" / "main" / "java"
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
FILE, VERSION = "packets/date=2026-01-01/f.parquet", f"packets/_delta_log/{7:020d}.json"
LOG = "packets/_delta_log"
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

REPAIRED_LOCKS = {"DeleteItem", "Scan"}


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


def of_table(name: str, roles: tuple[Role, ...]) -> set[str]:
    """All that these roles may do with some items of a table."""
    documents = policies.policies(SCOPE)
    return {
        action.removeprefix("dynamodb:")
        for role in roles
        for statement in documents[role]["Statement"]
        if statement["Resource"] == [table_arn(name)]
        for action in statement["Action"]
    }


def table_arn(name: str) -> str:
    return f"arn:aws:dynamodb:eu-central-1:123456789012:table/{name}"


def calls(folder: Path) -> Iterator[ast.Call]:
    for path in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
        yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def operations(folder: Path) -> set[str]:
    """What is asked of DynamoDB by `call_operation("...")` and `_read_pages("...")`."""
    return {
        node.args[0].value
        for node in calls(folder)
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("call_operation", "_read_pages")
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
    kinds = constants(LAKE / "ledger" / "dynamodb_items.py") & TRANSACTED
    made = operations(LAKE / "ledger")
    assert "TransactWriteItems" in made
    made = made - {"TransactWriteItems"} | {f"{kind}Item" for kind in kinds}
    assert of_table(SCOPE.ledger_table, OURS) == made


def test_the_lock_table() -> None:
    """Only repairs delete entries, and look for those of all tables. A person starts them, with rights of their own."""
    made = operations(LAKE / "delta")
    assert {"PutItem", *REPAIRED_LOCKS} <= made
    assert of_table("delta_log", OURS) == made - REPAIRED_LOCKS
    users = {
        path.parent.name
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if "lock_table_upkeep import" in path.read_text() and path.parent.name != "delta"
    }
    assert users == {"doctor"}


def test_the_lock_table_by_our_log_store_for_spark() -> None:
    made = {name for path in JAVA.rglob("*.java") for name in re.findall(r'\bcall\("(\w+)"', path.read_text())}
    assert {"PutItem", "UpdateItem"} <= made
    assert of_table("delta_log", ("spark",)) == {*made, "DescribeTable"}  # asked by the session before it starts


@pytest.mark.slow
def test_s3() -> None:
    used = {
        node.func.attr
        for room in ROOMS
        for node in calls(ROOT / room)
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
    guide = (ROOT / "docs" / "permissions.md").read_text()
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
        (
            "worker",
            "s3:PutObject",
            [f"lakes/b/c/{FILE}", "lakes/a/captures/vehicle_id=a/date=b/f.parquet", "lakes/a/_pcaplake/clock"],
            ["raw/drives/a", "bench/x", "lakes/b/d", f"lakes/b/d/{FILE}"],
        ),
        *(
            (role, "s3:AbortMultipartUpload", [f"lakes/b/c/{FILE}"], ["raw/drives/a", f"lakes/b/d/{FILE}"])
            for role in ("worker", "committer", "spark")
        ),
        (
            "committer",
            "s3:PutObject",
            [
                f"lakes/a/{FILE}",
                "lakes/a/_pcaplake/clock",
                f"lakes/a/{LOG}/.tmp/{7:020d}.json.x",
                f"lakes/a/{LOG}/{7:020d}.checkpoint.parquet",
                f"lakes/a/{LOG}/_last_checkpoint",
            ],
            [f"lakes/a/{VERSION}", f"lakes/a/{manifest_path(7)}", f"lakes/a/{stage_object_path('s')}", "raw/drives/a"],
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
                f"lakes/b/c/{SWAPS}",
                f"lakes/a/{CLOCK}",
            ],
            [f"lakes/a/{manifest_path(7)}", "lakes/b/c/_pcaplake/lake.json", "raw/drives/a"],
        ),
        (
            "spark",
            "s3:DeleteObject",
            [f"lakes/a/{SIGNALS}/0/can/offsets/7"],
            [f"lakes/a/{stage_object_path('s')}", f"lakes/b/c/{SWAPS}", f"lakes/b/c/{manifest_path(0)}"],
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


def test_a_stolen_worker_overwrites_no_record_and_no_version() -> None:
    """With the worker's own condition it may create some of them, and no condition lets it replace one."""
    worker = policies.policies(SCOPE)["worker"]
    created = {VERSION, stage_object_path("s"), "_pcaplake/lake.json", "_pcaplake/doctor/0123"}
    never = {
        f"{LOG}/{7:020d}.checkpoint.parquet",
        f"{LOG}/{7:020d}.checkpoint.0000000001.0000000002.parquet",
        f"{LOG}/{7:020d}.checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.parquet",
        f"{LOG}/{7:020d}.checkpoint.3a0d65cd-4056-49b8-937b-95f9e3ee90e5.json",
        f"{LOG}/{7:020d}.checkpoint.date=2026-01-01.parquet",
        f"{LOG}/_last_checkpoint",
        f"{LOG}/.tmp/{7:020d}.json.x",
        manifest_path(7),
        *(f"{folder}/0.json" for folder in (policies.LOSSES, policies.OVERWRITES, policies.SWAPS)),
    }
    for path in created | never:
        resource = f"arn:aws:s3:::lakes/b/c/{path}"
        assert not allows(worker, "s3:PutObject", resource), path
        assert allows(worker, "s3:PutObject", resource, headers={IF_ABSENT}) == (path in created), path
        replaced = allows(worker, "s3:PutObject", resource, headers={IF_UNCHANGED})
        assert replaced == path.startswith("_pcaplake/doctor/"), path


def test_a_stolen_worker_deletes_nothing_and_leads_nothing() -> None:
    document = policies.policies(SCOPE)["worker"]
    granted = {action for statement in document["Statement"] for action in statement["Action"]}
    assert {action for action in granted if "Delete" in action} == {"sqs:DeleteMessage"}
    assert not granted & {"s3:PutObjectAcl", "s3:PutObjectRetention", "s3:DeleteObjectVersion", "dynamodb:Scan"}
    ledger, locks = table_arn("pcaplake_ledger"), table_arn("delta_log")
    scope = ItemScope(lake_id="lake", generation=0, shards=1)
    for key in (scope.capture_key("c"), scope.stage_key("s"), scope.pending_key("s", 0), lake_key("lake")):
        assert allows(document, "dynamodb:PutItem", ledger, key["pk"]), key
    for key in (head_key("lake"), lease_key("lake"), scope.held_key("s")):
        assert not allows(document, "dynamodb:PutItem", ledger, key["pk"]), key
    for action in ("UpdateItem", "DeleteItem"):
        assert not allows(document, f"dynamodb:{action}", ledger, scope.capture_key("c")["pk"])
    entry = TablePath.for_table(SCOPE.lakes[1], "packets").uri
    assert allows(document, "dynamodb:UpdateItem", locks, entry)
    assert not allows(document, "dynamodb:PutItem", locks, entry)


@pytest.mark.parametrize("role", ["worker", "committer", "spark"])
def test_entries_of_other_lakes_are_only_read(role: Role) -> None:
    document, locks = policies.policies(SCOPE)[role], table_arn("delta_log")
    for path in ("s3a://lakes/ab/packets", "s3a://lakes/b/d/packets", "s3://lakes/a/packets", "s3a://lakes/a"):
        assert not allows(document, "dynamodb:UpdateItem", locks, path), path
        assert not allows(document, "dynamodb:PutItem", locks, path), path
        assert allows(document, "dynamodb:Query", locks, path), "other spellings of a table are looked for"


def test_a_committer_creates_records_and_replaces_only_lake_json() -> None:
    committer = policies.policies(SCOPE)["committer"]
    for path in (VERSION, manifest_path(7), "_pcaplake/lake.json", "_pcaplake/losses/s-packets.json"):
        resource = f"arn:aws:s3:::lakes/b/c/{path}"
        assert not allows(committer, "s3:PutObject", resource), path
        assert allows(committer, "s3:PutObject", resource, headers={IF_ABSENT}), path
        replaced = allows(committer, "s3:PutObject", resource, headers={IF_UNCHANGED})
        assert replaced == (path == "_pcaplake/lake.json"), path


@pytest.mark.parametrize(
    ("columns", "found"),
    [(None, "date"), (("vehicle_id", "date"), "vehicle_id"), (("bus", "date"), "date"), (("bus",), None), ((), None)],
)
def test_the_partition_column_of_all_tables(columns: tuple[str, ...] | None, found: str | None) -> None:
    assert policies.find_common_partition_column(columns) == found
    scope = Scope(**{name: getattr(SCOPE, name) for name in Scope.__slots__} | {"partition_column": found})
    worker = policies.policies(scope)["worker"]
    folder = f"{found}=x/" if found else ""
    data, log = (
        f"arn:aws:s3:::lakes/a/packets/{path}" for path in (f"{folder}{'0' * 32}-0.zstd.parquet", "_delta_log/")
    )
    assert allows(worker, "s3:PutObject", data)
    assert not allows(worker, "s3:PutObject", f"{log}{7:020d}.checkpoint.parquet")
    assert not allows(worker, "s3:PutObject", f"{log}{7:020d}.json")


CREATED = {"s3:PutObject": frozenset({IF_ABSENT})}
JOBS: dict[str, tuple[tuple[Role, ...], dict[str, list[str]]]] = {  # docs/permissions.md: roles, and what they write
    "signals": (
        ("spark",),
        {"s3:PutObject": [f"{SIGNALS}/0/state.json", "signals/f.parquet", "signals/_delta_log/.tmp/x"]},
    ),
    "vacuum": (("spark",), {"s3:PutObject": [CLOCK], "s3:DeleteObject": ["packets/f.parquet"]}),
    "backfill": (("worker",), {"s3:PutObject": [FILE, stage_object_path("s"), "_pcaplake/clock"]}),
    "backfill in a session for tables": (
        ("worker", "spark"),
        {"s3:PutObject": [FILE, stage_object_path("s"), "_pcaplake/clock"]},
    ),
    "backfill --commit": (
        ("worker", "committer"),
        {"s3:PutObject": [manifest_path(7), stage_object_path("s")], "s3:DeleteObject": ["packets/_delta_log/0.json"]},
    ),
    "replace": (
        ("worker", "spark"),
        {"s3:PutObject": [SWAPS, FILE]},
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
        if not allows(documents, action, f"arn:aws:s3:::lakes/b/c/{path}", headers=CREATED.get(action, ()))
    ]
    assert denied == []
    if set(roles) & {"spark"}:
        assert not allows(documents, "s3:PutObject", f"arn:aws:s3:::lakes/b/c/{manifest_path(0)}", headers={IF_ABSENT})


def test_spark_writes_none_of_the_lakes_records() -> None:
    """Each folder of records that a module of lake names; the lake's account of itself goes with them."""
    named = re.compile(r'^FOLDER = "(_pcaplake/\w+)"$', re.M)
    folders = [found[1] for path in LAKE.rglob("*.py") if (found := named.search(path.read_text()))]
    assert len(folders) >= 3
    spark = policies.policies(SCOPE)["spark"]
    for path in ("_pcaplake/lake.json", *(f"{folder}/0123.json" for folder in folders)):
        for action in ("s3:PutObject", "s3:DeleteObject"):
            resource = f"arn:aws:s3:::lakes/b/c/{path}"
            assert not allows(spark, action, resource, headers={IF_ABSENT, IF_UNCHANGED}), (action, path)


def test_the_guide_says_which_roles_jobs_have() -> None:
    guide = (ROOT / "docs" / "permissions.md").read_text()
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
    assert allows(doctor, "cloudwatch:GetMetricStatistics", "anything"), "the age of the oldest message, for `status`"
    assert allows(doctor, "s3:PutObject", "arn:aws:s3:::lakes/a/_pcaplake/clock")
    assert not allows(doctor, "sqs:ReceiveMessage", str(QUEUE))
    assert not allows(doctor, "sqs:DeleteMessage", f"{QUEUE}-dead")


def test_nobody_deletes_captures_or_tables() -> None:
    for service in ("s3", "dynamodb", "sqs"):
        for action in actions(service, (*OURS, "spark", "doctor")):
            assert not re.search(r"(Table|Queue|Bucket)$", action) or action in ("DescribeTable", "ListBucket"), action
    for document in policies.policies(SCOPE).values():
        granted = {action for statement in document["Statement"] for action in statement["Action"]}
        assert "s3:DeleteObjectVersion" not in granted, "a bucket with versions keeps what is overwritten or deleted"
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
    assert allows(worker, "s3:PutObject", f"arn:aws:s3:::lakes/$x/{FILE}")
    star = Scope(**{name: getattr(SCOPE, name) for name in Scope.__slots__} | {"lakes": ("s3://lakes/*",)})
    worker = policies.policies(star)["worker"]
    assert allows(worker, "dynamodb:UpdateItem", table_arn("delta_log"), "s3a://lakes/*/packets")
    assert not allows(worker, "dynamodb:UpdateItem", table_arn("delta_log"), "s3a://lakes/a/packets")


def test_china_and_long_policies() -> None:
    def streams(number: int) -> Scope:
        changed = {
            "queue": Arn(partition="aws-cn", region="cn-north-1", account="123456789012", name="q"),
            "lakes": tuple(f"s3://lakes/stream-{number}" for number in range(number)),
        }
        return Scope(**{name: getattr(SCOPE, name) for name in Scope.__slots__} | changed)

    documents = policies.policies(streams(70))
    assert "arn:aws:" not in json.dumps(documents)
    assert policies.too_long(documents) == ["worker", "committer", "spark", "doctor"]
    assert policies.too_long(policies.policies(streams(6))) == [], "a vehicle programme has some lakes"
    assert policies.too_long(policies.policies(SCOPE)) == []
    assert allows(documents["worker"], "sqs:ReceiveMessage", "arn:aws-cn:sqs:cn-north-1:123456789012:q")
