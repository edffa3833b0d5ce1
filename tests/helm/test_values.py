"""Values of the chart: settings are the service's and reach its pods, all is documented, what is broken is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from pcaplake.common import VERSION
from pcaplake.worker.config.environment import PREFIX
from pcaplake.worker.config.routes import Routes, WrongRoutes
from pcaplake.worker.config.s3_prefixes import find_watched_places
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.setting_texts import list_settings
from tools import chart as maker

from . import builtin
from .rendered import CASES, CHART, LEAST, NOTES, case, files_of, manifests, of_kind, planned, pods, texts, with_values

ANY_CASE = pytest.mark.parametrize("name", CASES)


def test_settings_are_exactly_the_fields() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    properties = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]["properties"]
    assert list(values["settings"]) == [name for name, *_ in list_settings()] == list(properties)
    assert set(properties) == set(FleetSettings.model_fields)


def test_what_is_made_is_as_it_would_be_made() -> None:
    """`make docs` makes it."""
    for path, text in maker.generate_chart_files().items():
        assert path.read_text() == text, path.name


def loaded(objects: list[dict[str, Any]], folder: Path, monkeypatch: pytest.MonkeyPatch) -> FleetSettings:
    """The settings as a worker's pod would read them: all files in a folder."""
    template = of_kind(objects, "Deployment", "-worker")["spec"]["template"]
    for path, text in files_of(template).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    spec = template["spec"]
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
        assert found.lake_config.flush_interval == 1.0, "the preset holds: what nobody gave is not in the file"


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


@pytest.mark.slow
@settings(max_examples=40)
@given(st.fixed_dictionaries({}, optional=GIVEN))
def test_a_setting_survives_the_way_into_the_file(given: dict[str, Any]) -> None:
    """YAML, JSON and Helm's numbers lie between."""
    template = of_kind(manifests({"settings": {**LEAST["settings"], **given}}), "Deployment")["spec"]["template"]
    text = files_of(template)["fleet.yaml"]
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


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.lists(st.sampled_from(["raw", "b.c", "rawx", "*", "ra*", "b?c", "[rs]aw", "[!r]aw"]), min_size=1, unique=True)
)
def test_reconcile_runs_where_the_command_would_know_its_buckets(buckets: list[str]) -> None:
    """What a template works out of patterns is what `pcaplake reconcile` works out of them."""
    routes = [{"name": f"r{n}", "bucket": one, "lake": f"s3://lakes/{n}"} for n, one in enumerate(buckets)]
    try:
        find_watched_places(Routes.parse_routes(routes))
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
    return planned(objects) + [one["metadata"]["name"] for one in objects if one["kind"] == "CronJob"]


# -- documentation ----------------------------------------------------------------------------------------------------
def test_every_value_is_documented() -> None:
    text = (CHART / "values.yaml").read_text()
    said = {name for name, _, comment in maker.iterate_documented_values(text) if comment}
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
