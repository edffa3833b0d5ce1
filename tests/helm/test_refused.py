"""Values that give something broken are refused, all at once, before anything is made; what only looks broken is taken."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import helm_python
import pytest
from cronsim import CronSim

from .rendered import LEAST, manifests, with_values

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no queue", {"settings": {"lake": "s3://a"}}, "settings.queue is missing"),
    ("no lake", {"settings": {"queue": "q"}}, "no lake: set settings.lake"),
    ("a lake and routes", with_values(routes=[{"bucket": "a", "lake": "s3://b"}]), "leave settings.lake"),
    ("a file of routes and a lake", with_values(settings__routes="x.yaml"), "leave settings.lake and settings.profile"),
    (
        "a profile that is not there",
        {"settings": {"queue": "q"}, "routes": [{"bucket": "a", "lake": "s3://b", "profile": "profiles/x.yaml"}]},
        "a route names the profile profiles/x.yaml, which does not exist",
    ),
    (
        "one lake's profile",
        with_values(settings__profile="profiles/x.yaml"),
        "settings.profile is profiles/x.yaml, which does not exist",
    ),
    ("both autoscalers", with_values(hpa__enabled=True, keda__enabled=True, settings__region="x"), "both would scale"),
    ("both monitors", with_values(podMonitor__enabled=True, serviceMonitor__enabled=True), "counted twice"),
    ("least above most", with_values(hpa__minReplicas=9, hpa__maxReplicas=3), "hpa.minReplicas is more than"),
    (
        "nobody commits",
        with_values(keda__enabled=True, keda__minReplicas=0, settings__region="x"),
        "no process commits what is staged",
    ),
    ("KEDA without a region", with_values(keda__enabled=True), "KEDA needs settings.region"),
    ("two say the role", with_values(committer__separate=True, settings__role="all"), "leave settings.role null"),
    ("no role for IRSA", with_values(identity__kind="irsa"), "serviceAccounts.worker.roleArn is missing"),
    ("no role for the doctor", with_values(identity__kind="irsa"), "serviceAccounts.doctor.roleArn is missing"),
    (
        "authentication of no name",
        with_values(keda__enabled=True, settings__region="x", keda__authentication__create=False),
        "set keda.authentication.name to an existing TriggerAuthentication",
    ),
    (
        "a role that nobody wrote down for KEDA",
        with_values(keda__enabled=True, settings__region="x", keda__authentication__identityOwner="workload"),
        "which identity.kind pod-identity does not write",
    ),
    (
        "two roles for KEDA",
        with_values(
            keda__enabled=True,
            settings__region="x",
            keda__authentication__identityOwner="workload",
            keda__authentication__roleArn="arn:aws:iam::123456789012:role/keda",
        ),
        "roleArn and identityOwner workload cannot be combined",
    ),
    (
        "Spark on another log",
        with_values(settings__log_store="put-if-absent"),
        "Spark would commit through another log",
    ),
    (
        "lakes that nobody knows",
        {"settings": {"queue": "q", "routes": "more/routes.yaml"}},
        "list the lakes for the Spark jobs in spark.lakes",
    ),
    (
        "a volume twice",
        with_values(extraVolumes=[{"name": "scratch", "emptyDir": {}}]),
        "the name scratch is already used",
    ),
    (
        "a mount of nothing",
        with_values(extraVolumeMounts=[{"name": "a", "mountPath": "/a"}]),
        "extraVolumes has no volume a",
    ),
    ("a variable twice", with_values(extraEnv=[{"name": "A", "value": v} for v in "12"]), "A occurs twice"),
    ("a variable of the chart", with_values(extraEnv=[{"name": "PCAPLAKE_ROLE", "value": "all"}]), "use settings"),
    (
        "two schedulers",
        with_values(schedule__by="operator", spark__mode="kubeflow"),
        "a ScheduledSparkApplication has its own schedule",
    ),
    (
        "a scheduler of nothing",
        with_values(
            schedule__by="operator",
            reconcile__enabled=False,
            spark__compact__enabled=False,
            spark__vacuum__enabled=False,
        ),
        "no enabled job has a schedule",
    ),
    (
        "a scheduler of what has no schedule",
        with_values(
            schedule__by="operator",
            spark__compact__enabled=False,
            spark__vacuum__enabled=False,
            spark__signals={"enabled": True, "schedule": "", "args": ["--databases", "/a.dbc"]},
        ),
        "no enabled job has a schedule",
    ),
    (
        "two accounts of one name",
        with_values(serviceAccounts__worker__name="pcaplake", serviceAccounts__doctor__name="pcaplake"),
        "serviceAccounts.worker and serviceAccounts.doctor are both created with the name pcaplake",
    ),
    (
        "an account called as another would be",
        with_values(schedule__by="operator", serviceAccounts__spark__name="pcaplake-scheduler"),
        "serviceAccounts.spark and serviceAccounts.scheduler are both created with the name pcaplake-scheduler",
    ),
    ("half a fallback", with_values(keda__fallback={"replicas": 3}), "/keda/fallback"),
    ("the other half of a fallback", with_values(keda__fallback={"failureThreshold": 3}), "/keda/fallback"),
    ("a zone of words", with_values(schedule__timeZone="Europe/Berlin (CET)"), "/schedule/timeZone"),
    ("the zone of the machine", with_values(schedule__timeZone="Local"), "/schedule/timeZone"),
    *(
        (f"no time of cron: {text}", with_values(spark__vacuum__schedule=text), "/spark/vacuum/schedule")
        for text in (
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * 32 * *",
            "* * * 13 *",
            "* * * * 7",
            "* * * * *  *",
            "* * * *",
            "? * * * *",
            "*/0 * * * *",
            "1- * * * *",
            ",1 * * * *",
            "* * * FEBRUARY *",
            "* * * * L",
            "a b c d e",
        )
    ),
    ("words of cron", with_values(schedule__by="operator", reconcile__schedule="@daily"), "with five fields"),
    (
        "a scheduler of a reconcile that knows no bucket",
        with_values(schedule__by="operator", spark__compact__enabled=False, spark__vacuum__enabled=False),
        "no enabled job has a schedule",
    ),
    (
        "nothing is kept",
        with_values(schedule__by="operator", schedule__failedJobsHistoryLimit=0),
        "schedule.failedJobsHistoryLimit to at least 1",
    ),
    ("Spark's folder", with_values(spark__conf={"spark.local.dir": "/d"}), "the chart sets spark.local.dir"),
    (
        "rights for everybody's account",
        with_values(settings__deletion_cost=True, serviceAccounts__worker__create=False),
        "serviceAccounts.worker: settings.deletion_cost grants it permission to patch pods, and all pods",
    ),
    (
        "the lease for everybody's account",
        with_values(schedule__by="operator", serviceAccounts__scheduler__create=False),
        "serviceAccounts.scheduler: schedule.by operator grants it permissions on Jobs and a Lease",
    ),
    (
        "a driver as everybody's account",
        with_values(spark__mode="kubeflow", serviceAccounts__spark__create=False),
        "serviceAccounts.spark: the driver of a Spark application needs permission to create pods",
    ),
    ("a queue's URL", with_values(settings__queue="https://sqs.x.amazonaws.com/1/q"), "not a URL or an ARN"),
    ("a FIFO queue", with_values(settings__queue="captures.fifo"), "name of a standard SQS queue"),
    ("no URL for KEDA", with_values(keda__queueURL="arn:aws:sqs:x:1:q"), "keda.queueURL is arn:aws:sqs:x:1:q"),
    ("a lake on a disk", with_values(settings__lake="/data/lake"), "the lake /data/lake is not a URI"),
    ("a lake without a bucket", with_values(spark__lakes=["s3:///lake"]), "the lake s3:///lake is not a URI"),
    (
        "a route's lake",
        {"settings": {"queue": "q"}, "routes": [{"bucket": "a", "lake": "lakes/b"}]},
        "the lake lakes/b is not a URI",
    ),
    ("loopback", with_values(settings__http_host="127.0.0.1"), "probes and Prometheus connect from outside"),
    ("loopback of IPv6", with_values(settings__http_host="::1"), "probes and Prometheus connect from outside"),
    ("only workers", with_values(settings__role="worker"), "set committer.separate"),
    ("only committers", with_values(settings__role="committer"), "set committer.separate"),
    (
        "labels of selectors",
        with_values(worker__podLabels={"app.kubernetes.io/component": "x"}),
        "worker.podLabels: the chart sets the label app.kubernetes.io/component",
    ),
    (
        "labels of all",
        with_values(commonLabels={"app.kubernetes.io/name": "x"}),
        "commonLabels: the chart sets the label app.kubernetes.io/name",
    ),
    *(
        (
            f"a mount at {place}",
            with_values(
                extraVolumes=[{"name": "a", "emptyDir": {}}], extraVolumeMounts=[{"name": "a", "mountPath": place}]
            ),
            f"the path {place} is already used",
        )
        for place in ("/tmp", "/tmp/", "/etc/pcaplake", "/etc/pcaplake/more", "/scratch", "/app")
    ),
    (
        "a place twice",
        with_values(
            extraVolumes=[{"name": "a", "emptyDir": {}}], extraVolumeMounts=[{"name": "a", "mountPath": "/a"}] * 2
        ),
        "the path /a is already used",
    ),
    ("a scratch above the limit", with_values(scratch="3Gi"), "exceeds worker.resources.limits.memory"),
    (
        "a scratch above another's",
        with_values(scratch="600M", reconcile__resources={"limits": {"memory": 536870912}}),
        "exceeds reconcile.resources.limits.memory",
    ),
    (
        "a scratch above the doctor's",
        with_values(scratch="200Mi", tests__resources={"limits": {"memory": "100Mi"}}),
        "exceeds tests.resources.limits.memory",
    ),
    (
        "a driver above the limit",
        with_values(spark__driverMemory="6g"),
        "spark.compact: driverMemory is 6g: resources.limits.memory has no room",
    ),
    (
        "a job's driver above the limit",
        with_values(spark__vacuum__pod={"driverMemory": "6g"}),
        "spark.vacuum: driverMemory is 6g: resources.limits.memory has no room",
    ),
    (
        "a driver as large as the limit",
        with_values(spark__driverMemory="2048m", spark__resources={"limits": {"memory": "2Gi"}}),
        "spark.compact: driverMemory is 2048m",
    ),
    # the schema
    ("capitals", with_values(fullnameOverride="Captures"), "/fullnameOverride"),
    ("a name above the length", with_values(fullnameOverride="a" * 35), "/fullnameOverride"),
    ("a part of names above the length", with_values(nameOverride="a" * 41), "/nameOverride"),
    ("an unknown value", with_values(autoscaling={}), "additional properties 'autoscaling' not allowed"),
    ("an unknown setting", with_values(settings__lakes="x"), "additional properties 'lakes' not allowed"),
    ("below the top", with_values(worker__replica=1), "additional properties 'replica' not allowed"),
    ("no such role", with_values(settings__role="leader"), "/settings/role"),
    ("no size", with_values(settings__target_file_size="128 monkeys"), "/settings/target_file_size"),
    ("no time", with_values(settings__drain_timeout="soon"), "/settings/drain_timeout"),
    ("any port", with_values(settings__http_port=0), "/settings/http_port"),
    ("no port", with_values(settings__http_port=None), "missing property 'http_port'"),
    ("no pair", with_values(settings__storage_option=["a"]), "/settings/storage_option"),
    ("too many threads", with_values(settings__threads=5000), "/settings/threads"),
    ("no digest", with_values(image__digest="latest"), "/image/digest"),
    ("no image", with_values(image__repository=""), "/image/repository"),
    ("a policy of its own", with_values(image__pullPolicy="Sometimes"), "/image/pullPolicy"),
    ("no ARN", with_values(serviceAccounts__worker__roleArn="pcaplake-worker"), "/serviceAccounts/worker/roleArn"),
    ("no schedule", with_values(spark__compact__schedule="hourly"), "/spark/compact/schedule"),
    ("compact all the time", with_values(spark__compact__schedule=""), "/spark/compact/schedule"),
    ("HPA to none", with_values(hpa__minReplicas=0), "/hpa/minReplicas"),
    ("another identity", with_values(identity__kind="kiam"), "/identity/kind"),
    ("another mode", with_values(spark__mode="cluster"), "/spark/mode"),
    ("no quantity", with_values(scratch="lots"), "/scratch"),
    ("no property of Spark", with_values(spark__conf={"sql.x": "1"}), "sql.x"),
    ("a route without a lake", {"settings": {"queue": "q"}, "routes": [{"bucket": "a"}]}, "missing property 'lake'"),
    ("a grace that is none", with_values(worker__graceSeconds=0), "/worker/graceSeconds"),
]


@pytest.mark.parametrize(("values", "message"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED])
def test_broken_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(helm_python.HelmError) as raised:
        manifests(values)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "schedule",
    [
        "0 0 * * 0",
        "*/15 0-23/2 1,15,31 jan-mar,12 MON-fri",
        "00 05 01 Feb *",
        "5/15  4 * * sun,6",
        "59 23 31 12 6",
        "@daily",
    ],
)
def test_times_of_cron_are_taken(schedule: str) -> None:
    """By the schema as by what launches: cronsim of the operator."""
    assert manifests(with_values(spark__vacuum__schedule=schedule, spark__signals__schedule=schedule))
    if not schedule.startswith("@"):
        assert manifests(with_values(schedule__by="operator", spark__vacuum__schedule=schedule))
        CronSim(schedule, datetime(2026, 1, 1))


def test_one_lake_is_one_however_its_uri_ends() -> None:
    lakes = ["s3://lake/a", "s3://lake/a/", "s3://lake/b//"]
    routes = [{"name": f"r{n}", "bucket": f"b{n}", "lake": lake} for n, lake in enumerate(lakes)]
    objects = manifests({"settings": {"queue": "captures"}, "routes": routes})
    jobs = [one for one in objects if one["kind"] == "CronJob" and "compact" in one["metadata"]["name"]]
    assert [one["metadata"]["annotations"]["pcaplake/lake"] for one in jobs] == ["s3://lake/a", "s3://lake/b"]


@pytest.mark.slow
def test_what_only_looks_broken_is_taken() -> None:
    """Limits as numbers, of another unit or not there; places beside ours; a lake of another store; IPv6."""
    for values in (
        with_values(scratch="500M", worker__resources={"limits": {"memory": 536870912}}),
        with_values(scratch="1Gi", reconcile__resources={"limits": {"memory": "1Gi"}}),
        with_values(
            scratch="64Gi",
            worker__resources={"limits": {"memory": None}},
            reconcile__resources={"limits": {"memory": None}},
            tests__resources={"limits": {"memory": None}},
        ),
        with_values(spark__driverMemory="4915m", spark__resources={"limits": {"memory": "5Gi"}}),
        with_values(spark__driverMemory="9g", spark__mode="kubeflow"),
        with_values(
            extraVolumes=[{"name": "a", "emptyDir": {}}], extraVolumeMounts=[{"name": "a", "mountPath": "/tmpx"}]
        ),
        with_values(settings__lake="gs://lake"),
        with_values(schedule__timeZone=""),
        with_values(schedule__timeZone="America/Argentina/Buenos_Aires"),
        with_values(schedule__timeZone="Etc/GMT+3"),
        with_values(  # one account for all, made by one
            serviceAccounts__worker__name="a", serviceAccounts__doctor={"create": False, "name": "a"}
        ),
        with_values(settings__http_host="::"),
        with_values(worker__podLabels={"app.kubernetes.io/part-of": "x"}, fullnameOverride="a" * 34),
    ):
        assert manifests(values)
    with pytest.raises(helm_python.HelmError, match=r"set fullnameOverride"):
        manifests(LEAST, release="a.pcaplake")


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(helm_python.HelmError) as raised:
        manifests({"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}})
    for said in ("settings.queue is missing", "no lake", "counted twice"):
        assert said in str(raised.value)
