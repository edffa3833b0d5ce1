"""Values of the chart: settings are the service's and reach its pods, all is documented, what is broken is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from tools import chart as maker
from worker import VERSION
from worker.fleet.places import watched
from worker.fleet_settings import FleetSettings
from worker.routes import Routes, WrongRoutes
from worker.settings import PREFIX

from . import builtin
from .rendered import CASES, CHART, LEAST, NOTES, case, manifests, of_kind, pods, texts, with_values

ANY_CASE = pytest.mark.parametrize("name", CASES)


def test_settings_are_exactly_the_fields() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    properties = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]["properties"]
    assert list(values["settings"]) == list(FleetSettings.model_fields) == list(properties)


def test_what_is_made_is_as_it_would_be_made() -> None:
    """`make docs` makes it."""
    for path, text in maker.made().items():
        assert path.read_text() == text, path.name


def loaded(objects: list[dict[str, Any]], folder: Path, monkeypatch: pytest.MonkeyPatch) -> FleetSettings:
    """The settings as a pod would read them: all files of the ConfigMap in a folder."""
    spec = next(spec for name, spec in pods(objects) if name.endswith("-worker"))
    volume = next(one["configMap"] for one in spec["volumes"] if one["name"] == "settings")
    data = next(
        one["data"] for one in objects if one["kind"] == "ConfigMap" and one["metadata"]["name"] == volume["name"]
    )
    for item in volume["items"]:
        (folder / item["path"]).parent.mkdir(exist_ok=True)
        (folder / item["path"]).write_text(data[item["key"]])
    assert spec["containers"][0]["env"][0] == {"name": f"{PREFIX}CONFIG", "value": "/etc/pcaplake/fleet.yaml"}
    monkeypatch.setenv(f"{PREFIX}CONFIG", str(folder / "fleet.yaml"))
    return FleetSettings.load()


@ANY_CASE
def test_pods_read_the_settings_that_were_given(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = case(name)
    found = loaded(manifests(values), tmp_path, monkeypatch)
    wanted = FleetSettings(**{**values["settings"], "http_host": "0.0.0.0"})
    left = {"routes", "profile", "threads", "max_inflight_bytes"}
    assert found.model_dump(exclude=left) == wanted.model_dump(exclude=left)
    routes = found.load_routes()
    if "routes" in values:
        assert [(route.bucket, route.lake) for route in routes.routes] == [
            (route["bucket"], route["lake"]) for route in values["routes"]
        ]
    if name == "routes":
        assert routes.routes[0].profile.vehicle_id_pattern.pattern.startswith("{{ as it stands }}")
    if name == "everything":
        assert routes.routes[0].profile.vehicle_id_pattern is not None
        assert found.knobs.flush_interval == 1.0, "the preset holds: what nobody gave is not in the file"


GIVEN = {
    "target_file_size": st.one_of(st.integers(1 << 16, 1 << 50), st.sampled_from(["64KB", "1.5 GiB", "3t"])),
    "max_records": st.integers(1, 10**12),
    "flush_interval": st.one_of(st.floats(0.001, 1e9), st.integers(1, 10**9), st.sampled_from(["1ms", "2.5 m", "1h"])),
    "raw": st.booleans(),
    "compression": st.sampled_from(["zstd", "none"]),
    "ledger_table": st.sampled_from(["yes", "null", "1e3", "a: b", "0x1", "# x", "{{ x }}", "'", "2026-01-01"]),
    "table_property": st.one_of(
        st.lists(st.sampled_from(["a=b", "c=d=e", "f="]), unique=True), st.sampled_from(["a=b", "a=b,c=d=e"])
    ),
    "storage_option": st.dictionaries(st.sampled_from(["a", "no", "1"]), st.sampled_from(["true", "1e6", "007", ""])),
    "partition_by": st.lists(st.sampled_from(["date", "vehicle_id"]), unique=True, min_size=1),
}


@settings(max_examples=40)
@given(st.fixed_dictionaries({}, optional=GIVEN))
def test_a_setting_survives_the_way_into_the_file(given: dict[str, Any]) -> None:
    """YAML, JSON and Helm's numbers lie between."""
    text = of_kind(manifests({"settings": {**LEAST["settings"], **given}}), "ConfigMap")["data"]["fleet.yaml"]
    found, wanted = FleetSettings(**yaml.safe_load(text)), FleetSettings(**given)
    for name in given:
        one, other = getattr(found, name), getattr(wanted, name)
        assert math.isclose(one, other) if isinstance(one, float) else one == other


def test_the_threads_are_those_of_the_resources() -> None:
    def threads(**values: Any) -> Any:
        spec = of_kind(manifests(with_values(**values)), "Deployment")["spec"]["template"]["spec"]
        found = [one for one in spec["containers"][0]["env"] if one["name"] == f"{PREFIX}THREADS"]
        return found[0]["valueFrom"]["resourceFieldRef"]["resource"] if found else None

    assert threads() == "requests.cpu"
    assert threads(worker__resources={"limits": {"cpu": "3"}}) == "limits.cpu"
    assert threads(worker__resources={"limits": {"cpu": None}, "requests": {"cpu": None}}) is None
    assert threads(settings__threads=3) is None


def test_a_variable_of_ones_own_is_taken_instead_of_the_charts() -> None:
    """The API server takes no name twice: Helm applies on the server's side, where names are keys."""
    own = {"AWS_REGION": "a", "PCAPLAKE_THREADS": "7", "POD_NAME": "b", "POD_NAMESPACE": "c"}
    for name in ("everything", "scheduler"):
        values = {**case(name), "extraEnv": [{"name": key, "value": value} for key, value in own.items()]}
        plain = {called: spec["containers"][0]["env"] for called, spec in pods(manifests(case(name)))}
        assert {"AWS_REGION", "POD_NAME"} <= {one["name"] for env in plain.values() for one in env}
        for called, spec in pods(manifests(values)):
            env = [one["name"] for one in spec["containers"][0]["env"]]
            assert len(set(env)) == len(env), called
            assert {"PCAPLAKE_CONFIG", *own} <= set(env)
            assert {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}.items() >= own.items()


@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["raw", "b.c", "rawx", "*", "ra*", "b?c", "[rs]aw", "[!r]aw"]), min_size=1, unique=True)
)
def test_reconcile_runs_where_the_command_would_know_its_buckets(buckets: list[str]) -> None:
    """What a template works out of patterns is what `pcaplake reconcile` works out of them."""
    routes = [{"name": f"r{n}", "bucket": one, "lake": f"s3://lakes/{n}"} for n, one in enumerate(buckets)]
    try:
        watched(Routes.parse(routes))
        knows = True
    except WrongRoutes as error:
        if "its bucket is the pattern" not in str(error):
            return  # no routes at all
        knows = False
    values = {"settings": {"queue": "captures"}, "routes": routes}

    def runs(**more: Any) -> bool:
        jobs = [one["metadata"]["name"] for one in manifests({**values, **more}) if one["kind"] == "CronJob"]
        return "pcaplake-reconcile" in jobs

    assert runs() == knows
    assert runs(reconcile={"args": ["--announce", "s3://raw/drives"]})
    assert not runs(reconcile={"enabled": False})


def test_with_one_lake_reconcile_has_to_be_told_where_captures_lie() -> None:
    """It would fail each night: nothing says which buckets there are. The notes say so, and what to do."""
    for by in ("cronjobs", "operator"):
        values = with_values(schedule__by=by)
        assert "does NOT run" in texts(values)[NOTES]
        told = with_values(schedule__by=by, reconcile__args=["--announce", "s3://raw/drives/"])
        assert 'reconcile at "23 3 * * *"' in texts(told)[NOTES]
        assert ["reconcile" in str(one) for one in (_scheduled(values), _scheduled(told))] == [False, True]


def _scheduled(values: dict[str, Any]) -> list[str]:
    """What is launched: names of CronJobs, or of the operator's jobs."""
    objects = manifests(values)
    plans = [one["data"]["jobs.yaml"] for one in objects if one["kind"] == "ConfigMap" and "jobs.yaml" in one["data"]]
    jobs = [name for plan in plans for name in yaml.safe_load(plan)["jobs"]]
    return jobs + [one["metadata"]["name"] for one in objects if one["kind"] == "CronJob"]


# -- documentation ----------------------------------------------------------------------------------------------------
def test_every_value_is_documented() -> None:
    text = (CHART / "values.yaml").read_text()
    said = {name for name, _, comment in maker.documented(text) if comment}
    values, schema = yaml.safe_load(text), json.loads((CHART / "values.schema.json").read_text())

    def check(path: str, value: Any, schema_of: Any) -> None:
        schema_of = _resolved(schema_of, schema)
        if path in said and not (isinstance(value, dict) and any(each.startswith(f"{path}.") for each in said)):
            return
        assert isinstance(value, dict), f"{path} has no comment"
        assert schema_of.get("additionalProperties") is False, f"{path} takes any name"
        assert list(value) == list(schema_of["properties"]), path
        for name, below in value.items():
            check(f"{path}.{name}".lstrip("."), below, schema_of["properties"][name])

    check("", values, schema)
    readme = (CHART / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in said)


def _resolved(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return whole["$defs"][reference.rpartition("/")[2]] if reference else schema


def test_one_version() -> None:
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert described["appVersion"] == VERSION
    assert described["kubeVersion"] == f">={'.'.join(map(str, builtin.OLDEST))}.0-0"


# -- what it refuses --------------------------------------------------------------------------------------------------
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("no queue", {"settings": {"lake": "s3://a"}}, "settings.queue is missing"),
    ("no lake", {"settings": {"queue": "q"}}, "no lake: give settings.lake"),
    ("a lake and routes", with_values(routes=[{"bucket": "a", "lake": "s3://b"}]), "leave settings.lake"),
    ("a file of routes and a lake", with_values(settings__routes="x.yaml"), "leave settings.lake and settings.profile"),
    (
        "a profile that is not there",
        {"settings": {"queue": "q"}, "routes": [{"bucket": "a", "lake": "s3://b", "profile": "profiles/x.yaml"}]},
        "write it below profiles",
    ),
    ("one lake's profile", with_values(settings__profile="profiles/x.yaml"), "write it below profiles"),
    ("both autoscalers", with_values(hpa__enabled=True, keda__enabled=True, settings__region="x"), "two would count"),
    ("both monitors", with_values(podMonitor__enabled=True, serviceMonitor__enabled=True), "counted twice"),
    ("least above most", with_values(hpa__minReplicas=9, hpa__maxReplicas=3), "hpa.minReplicas is more than"),
    (
        "nobody commits",
        with_values(keda__enabled=True, keda__minReplicas=0, settings__region="x"),
        "nobody commits what is staged",
    ),
    ("KEDA without a region", with_values(keda__enabled=True), "KEDA needs settings.region"),
    ("two say the role", with_values(committer__separate=True, settings__role="all"), "leave settings.role null"),
    ("no role for IRSA", with_values(identity__kind="irsa"), "serviceAccounts.worker.roleArn is missing"),
    ("no role for the doctor", with_values(identity__kind="irsa"), "serviceAccounts.doctor.roleArn is missing"),
    (
        "authentication of no name",
        with_values(keda__enabled=True, settings__region="x", keda__authentication__create=False),
        "name the one that there is",
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
        "roleArn and identityOwner workload exclude each other",
    ),
    (
        "Spark on another log",
        with_values(settings__log_store="put-if-absent"),
        "Spark would commit through another log",
    ),
    (
        "lakes that nobody knows",
        {"settings": {"queue": "q", "routes": "more/routes.yaml"}},
        "list the lakes for Spark's jobs in spark.lakes",
    ),
    ("a volume twice", with_values(extraVolumes=[{"name": "scratch", "emptyDir": {}}]), "the name scratch is taken"),
    (
        "a mount of nothing",
        with_values(extraVolumeMounts=[{"name": "a", "mountPath": "/a"}]),
        "there is no volume a in extraVolumes",
    ),
    ("a variable twice", with_values(extraEnv=[{"name": "A", "value": v} for v in "12"]), "A is there twice"),
    ("a variable of the chart", with_values(extraEnv=[{"name": "PCAPLAKE_ROLE", "value": "all"}]), "use settings"),
    (
        "two schedulers",
        with_values(schedule__by="operator", spark__mode="kubeflow"),
        "a ScheduledSparkApplication has a schedule of its own",
    ),
    (
        "a scheduler of nothing",
        with_values(
            schedule__by="operator",
            reconcile__enabled=False,
            spark__compact__enabled=False,
            spark__vacuum__enabled=False,
        ),
        "there is no job with a schedule for it",
    ),
    (
        "a scheduler of what has no schedule",
        with_values(
            schedule__by="operator",
            spark__compact__enabled=False,
            spark__vacuum__enabled=False,
            spark__signals={"enabled": True, "schedule": "", "args": ["--databases", "/a.dbc"]},
        ),
        "there is no job with a schedule for it",
    ),
    (
        "two accounts of one name",
        with_values(serviceAccounts__worker__name="pcaplake", serviceAccounts__doctor__name="pcaplake"),
        "serviceAccounts.worker and serviceAccounts.doctor are both made and both called pcaplake",
    ),
    (
        "an account called as another would be",
        with_values(schedule__by="operator", serviceAccounts__spark__name="pcaplake-scheduler"),
        "serviceAccounts.spark and serviceAccounts.scheduler are both made and both called pcaplake-scheduler",
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
    ("words of cron", with_values(schedule__by="operator", reconcile__schedule="@daily"), "as five fields"),
    (
        "a scheduler of a reconcile that knows no bucket",
        with_values(schedule__by="operator", spark__compact__enabled=False, spark__vacuum__enabled=False),
        "there is no job with a schedule for it",
    ),
    (
        "nothing is kept",
        with_values(schedule__by="operator", schedule__failedJobsHistoryLimit=0),
        "keep one finished job",
    ),
    ("Spark's folder", with_values(spark__conf={"spark.local.dir": "/d"}), "spark.local.dir belongs to the chart"),
    (
        "rights for everybody's account",
        with_values(settings__deletion_cost=True, serviceAccounts__worker__create=False),
        "serviceAccounts.worker: settings.deletion_cost gives it the right to patch pods, and `default` is every pod's",
    ),
    (
        "the lease for everybody's account",
        with_values(schedule__by="operator", serviceAccounts__scheduler__create=False),
        "serviceAccounts.scheduler: schedule.by operator gives it rights on Jobs and a Lease",
    ),
    (
        "a driver as everybody's account",
        with_values(spark__mode="kubeflow", serviceAccounts__spark__create=False),
        "serviceAccounts.spark: an application's driver makes pods",
    ),
    ("a queue's URL", with_values(settings__queue="https://sqs.x.amazonaws.com/1/q"), "no URL and no ARN"),
    ("a FIFO queue", with_values(settings__queue="captures.fifo"), "name of a standard queue"),
    ("no URL for KEDA", with_values(keda__queueURL="arn:aws:sqs:x:1:q"), "keda.queueURL is arn:aws:sqs:x:1:q"),
    ("a lake on a disk", with_values(settings__lake="/data/lake"), "the lake /data/lake is no URI"),
    ("a lake without a bucket", with_values(spark__lakes=["s3:///lake"]), "the lake s3:///lake is no URI"),
    (
        "a route's lake",
        {"settings": {"queue": "q"}, "routes": [{"bucket": "a", "lake": "lakes/b"}]},
        "the lake lakes/b is no URI",
    ),
    ("loopback", with_values(settings__http_host="127.0.0.1"), "probes and Prometheus come from outside"),
    ("loopback of IPv6", with_values(settings__http_host="::1"), "probes and Prometheus come from outside"),
    ("only workers", with_values(settings__role="worker"), "set committer.separate"),
    ("only committers", with_values(settings__role="committer"), "set committer.separate"),
    (
        "labels of selectors",
        with_values(worker__podLabels={"app.kubernetes.io/component": "x"}),
        "worker.podLabels: app.kubernetes.io/component belongs to the chart",
    ),
    (
        "labels of all",
        with_values(commonLabels={"app.kubernetes.io/name": "x"}),
        "commonLabels: app.kubernetes.io/name belongs to the chart",
    ),
    *(
        (
            f"a mount at {place}",
            with_values(
                extraVolumes=[{"name": "a", "emptyDir": {}}], extraVolumeMounts=[{"name": "a", "mountPath": place}]
            ),
            f"the place {place} is taken",
        )
        for place in ("/tmp", "/tmp/", "/etc/pcaplake", "/etc/pcaplake/more", "/scratch", "/app")
    ),
    (
        "a place twice",
        with_values(
            extraVolumes=[{"name": "a", "emptyDir": {}}], extraVolumeMounts=[{"name": "a", "mountPath": "/a"}] * 2
        ),
        "the place /a is taken",
    ),
    ("a scratch above the limit", with_values(scratch="3Gi"), "more than worker.resources.limits.memory"),
    (
        "a scratch above another's",
        with_values(scratch="600M", reconcile__resources={"limits": {"memory": 536870912}}),
        "more than reconcile.resources.limits.memory",
    ),
    (
        "a scratch above the doctor's",
        with_values(scratch="200Mi", tests__resources={"limits": {"memory": "100Mi"}}),
        "more than tests.resources.limits.memory",
    ),
    (
        "a driver above the limit",
        with_values(spark__driverMemory="6g"),
        "spark.driverMemory is 6g, and spark.resources.limits.memory has no room",
    ),
    (
        "a driver as large as the limit",
        with_values(spark__driverMemory="2048m", spark__resources={"limits": {"memory": "2Gi"}}),
        "spark.driverMemory is 2048m",
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
    with pytest.raises(helm_python.HelmError, match=r"give fullnameOverride"):
        manifests(LEAST, release="a.pcaplake")


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(helm_python.HelmError) as raised:
        manifests({"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}})
    for said in ("settings.queue is missing", "no lake", "counted twice"):
        assert said in str(raised.value)
