"""The Terraform module says what `pcaplake setup` makes: policies, tables, queues, notifications.

`definitions` is evaluated by the real program; it needs no provider. The resources around it are only looked at as text:
their provider cannot be had without a network.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pcaplake.worker.admin.setup import dynamodb_tables as tables
from pcaplake.worker.admin.setup import notifications, queues
from pcaplake.worker.admin.setup.policies import Scope, policies
from pcaplake.worker.admin.setup.setup import prefixes
from pcaplake.worker.config.s3_prefixes import Place, remove_covered_places
from tools import terraform

from .rendered import ROOT

MODULE = ROOT / "deploy" / "terraform"
Evaluate = Callable[..., dict[str, Any]]
PLACES = (Place(bucket="raw", prefix="drives/"), Place(bucket="bench"), Place(bucket="raw", prefix="drives/old/"))
CASES: dict[str, dict[str, Any]] = {
    "two lakes": {"places": PLACES, "lakes": ["s3://lakes/a", "s3://lakes/b/c"]},
    "no lock table": {"places": PLACES, "lakes": ["s3://lakes/a"], "lock_table": None, "dead_letters": "graveyard"},
    "odd letters": {
        "places": (Place(bucket="raw", prefix="a${b*?/ü"), Place(bucket="raw", prefix="a/b c/")),
        "lakes": ["s3://lakes/$x*", "s3://whole-bucket"],
        "ledger_table": "other",
    },
    "no partitions": {"places": PLACES, "lakes": ["s3://lakes/a"], "partition_column": None},
    "other partitions": {"places": PLACES, "lakes": ["s3://lakes/a"], "partition_column": "vehicle_id"},
    "China": {"places": PLACES, "lakes": ["s3://lakes/a"], "partition": "aws-cn", "region": "cn-north-1"},
}


def program() -> str:
    for name in ("terraform", "tofu"):
        if found := shutil.which(name):
            return found
    pytest.skip("neither terraform nor tofu is here")


@pytest.fixture
def evaluate(tmp_path: Path) -> Evaluate:
    """The outputs of `definitions` for variables."""
    binary = program()
    for path in (MODULE / "definitions").glob("*.tf*"):
        shutil.copy(path, tmp_path)

    def run(**variables: Any) -> dict[str, Any]:
        (tmp_path / "terraform.tfvars.json").write_text(json.dumps(variables))
        for arguments in (["apply", "-auto-approve", "-input=false", "-no-color"], ["output", "-json"]):
            done = subprocess.run([binary, *arguments], cwd=tmp_path, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        return {name: one["value"] for name, one in json.loads(done.stdout).items()}

    return run


def scope_of(case: dict[str, Any]) -> Scope:
    partition, region = case.get("partition", "aws"), case.get("region", "eu-central-1")
    arn = queues.Arn(partition=partition, region=region, account="123456789012", name="captures")
    return Scope(
        queue=arn,
        dead_letters=case.get("dead_letters") or queues.dead_letters_of("captures"),
        places=case["places"],
        lakes=case["lakes"],
        ledger_table=case.get("ledger_table", "pcaplake_ledger"),
        lock_table=case.get("lock_table", "delta_log"),
        partition_column=case.get("partition_column", "date"),
    )


def by_sid(document: dict[str, Any]) -> dict[str, Any]:
    statements = document["Statement"]
    found = {one["Sid"]: {**one, "Action": sorted(one["Action"])} for one in statements}
    assert len(found) == len(statements)
    return {"Version": document["Version"], **found}


def test_the_definitions_are_generated() -> None:
    assert terraform.PATH.read_text() == terraform.render_definitions(), "make docs"


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_says_what_setup_makes(case: dict[str, Any], evaluate: Evaluate) -> None:
    given = {"region": "eu-central-1", "account": "123456789012", "queue": "captures", **case}
    given["places"] = [{"bucket": one.bucket, "prefix": one.prefix} for one in case["places"]]
    made, scope = evaluate(**given), scope_of(case)
    wanted = policies(scope)
    assert {role: by_sid(one) for role, one in made["policies"].items()} == {
        role: by_sid(one) for role, one in wanted.items()
    }

    shapes = {"ledger": (scope.ledger_table, tables.LEDGER), "locks": (scope.lock_table, tables.LOCKS)}
    assert made["tables"] == {
        key: {"name": name, "hash_key": shape.hash_key, "range_key": shape.range_key, "expires": tables.EXPIRES}
        for key, (name, shape) in shapes.items()
        if name is not None
    }

    assert made["queue"] == {
        "name": "captures",
        "arn": str(scope.queue),
        "visibility_timeout_seconds": queues.VISIBILITY_TIMEOUT,
        "message_retention_seconds": queues.RETENTION,
        "max_receive_count": queues.MAX_RECEIVES,
    }
    assert made["dead_letters"]["name"] == scope.dead_letters
    assert made["dead_letters"]["message_retention_seconds"] == queues.DEAD_RETENTION
    assert made["dead_letters"]["redrive_allow_policy"] == queues.redrive_allow_policy(scope.queue)

    announced = {
        bucket: {notifications.filter_of(prefix) for prefix in below}
        for bucket, below in prefixes(case["places"]).items()
    }
    assert {bucket: set(below) for bucket, below in made["notifications"].items()} == {
        bucket: {one.prefix for one in remove_covered_places(Place(bucket=bucket, prefix=prefix) for prefix in below)}
        for bucket, below in announced.items()
    }


@pytest.mark.slow
def test_the_queue_lets_s3_send(evaluate: Evaluate) -> None:
    class Client:
        said: dict[str, Any]

        def set_queue_attributes(self, *, QueueUrl: str, Attributes: dict[str, str]) -> None:
            self.said = json.loads(Attributes["Policy"])

    from pcaplake.worker.admin.setup.setup_plan import Steps

    case, client = CASES["two lakes"], Client()
    found = queues.Found(arn=scope_of(case).queue, url="url", attributes={})
    queues.allow_buckets(client, found, ["raw", "bench"], Steps(dry_run=False, show=lambda step: None))
    places = [{"bucket": one.bucket, "prefix": one.prefix} for one in case["places"]]
    made = evaluate(region="eu-central-1", account="123456789012", queue="captures", places=places, lakes=case["lakes"])
    assert made["queue_policy"] == client.said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"queue": "captures.fifo"}, "S3 cannot send notifications to a FIFO queue"),
        ({"lakes": ["lakes/a"]}, "s3://bucket/prefix"),
        ({"places": []}, "Set at least one place"),
    ],
)
def test_it_refuses(variables: dict[str, Any], message: str, evaluate: Evaluate) -> None:
    given = {"region": "x", "account": "1", "queue": "q", "places": [{"bucket": "b"}], "lakes": ["s3://a/b"]}
    with pytest.raises(AssertionError, match=message):
        evaluate(**{**given, **variables})


@pytest.mark.slow
def test_formatted() -> None:
    done = subprocess.run([program(), "fmt", "-check", "-diff", "-recursive", MODULE], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_resources_take_what_is_defined() -> None:
    """As text: every output of `definitions` is used, every variable is used and described."""
    main = "\n".join(path.read_text() for path in MODULE.glob("*.tf"))
    inner = "\n".join(path.read_text() for path in (MODULE / "definitions").glob("*.tf"))
    for output in re.findall(r'^output "(\w+)"', inner, re.M):
        assert f"module.definitions.{output}" in main, output
    for text in (main, inner):
        for name, body in re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', text, re.M | re.S):
            assert "description" in body, name
            assert len(re.findall(rf"\bvar\.{name}\b", text)) > body.count(f"var.{name}"), name
    for kind, setting in {
        "aws_dynamodb_table": "deletion_protection_enabled = true",
        "aws_s3_bucket_notification": '"s3:ObjectCreated:*"',
    }.items():
        resource = re.search(rf'^resource "{kind}".*?^\}}', main, re.M | re.S)
        assert resource is not None
        assert setting in re.sub(r" +", " ", resource[0])
    assert 'billing_mode = "PAY_PER_REQUEST"' in re.sub(r" +", " ", main)
    assert "point_in_time_recovery {\n    enabled = true" in main
