"""The settings of the service: where they come from, what is refused, and that people are told of each."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from pcaplake.common.meter import SILENT
from pcaplake.ingest.captures.source import Sources
from pcaplake.worker.cli import app as cli
from pcaplake.worker.config import service_settings as fleet_settings
from pcaplake.worker.config.environment import PREFIX
from pcaplake.worker.config.s3_prefixes import find_watched_places, parse_place
from pcaplake.worker.config.service_settings import FleetSettings, read_memory_limit
from pcaplake.worker.config.setting_texts import list_settings
from pcaplake.worker.config.settings import Settings, WrongSetting
from pcaplake.worker.config.unknown_variables import describe_unknown_variables
from pcaplake.worker.service import run as serve
from tools import ROOMS, settings_page
from tools.local.engines import LOOPBACK

ROOT = Path(__file__).parents[3]
MB = 1 << 20
HTTP = f"http://{LOOPBACK}:9"


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No endpoint but those of the test: the local AWS stack of other tests is in this process's environment, too."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ALLOW_HTTP"):
        monkeypatch.delenv(name, raising=False)


def test_the_page_of_settings_is_true() -> None:
    assert (ROOT / "docs/settings.md").read_text() == settings_page.render_markdown(), "make docs"


def test_the_default_of_each_setting_is_declared_once() -> None:
    """As a field or an argument of the same name: LakeConfig, the settings, a command line or a function."""
    declared: dict[str, list[str]] = {name: [] for name in (*FleetSettings.model_fields, *Settings.model_fields)}
    literal = re.compile(rf"\b({'|'.join(declared)}): (?:[^=\n,\[]|\[[^\]\n]*\])+ = (?:Field\(\s*)?[-\d\"]")
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for found in literal.finditer(path.read_text()):
            declared[found[1]].append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in declared.items() if len(places) > 1} == {}
    assert sum(map(len, declared.values())) > 20


def test_every_setting_is_explained_on_the_page_and_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run_command_line(["run", "--help"]) == 0
    shown = "".join(capsys.readouterr().out.split())
    for name, _, _, text in list_settings():
        assert len(text) > 15
        assert f"PCAPLAKE_{name.upper()}" in shown


def test_the_environment_is_above_the_file_and_the_call_above_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "queue: from-file\nthreads: 3\nmax_inflight_bytes: 64MB\nrole: worker\nprofile: p.yaml\nlake: s3://b/l\n"
    )
    monkeypatch.setenv("PCAPLAKE_CONFIG", str(file))
    monkeypatch.setenv("PCAPLAKE_QUEUE", "from-environment")
    settings = FleetSettings.load(role="committer")
    assert (settings.queue, settings.threads, settings.role) == ("from-environment", 3, "committer")
    assert settings.max_inflight_bytes == 64 * MB
    assert settings.profile == tmp_path / "p.yaml", "beside the file that names it"


def test_lists_and_maps_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCAPLAKE_STORAGE_OPTION", '{"allow_http": "true"}')
    monkeypatch.setenv("PCAPLAKE_PARTITION_BY", '["date", "vehicle_id"]')
    settings = FleetSettings.load()
    assert settings.storage_option == {"allow_http": "true"}
    assert settings.partition_by == ("date", "vehicle_id")


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("allow_http=true", {"allow_http": "true"}),
        (" allow_http=true, token=a=b== ,", {"allow_http": "true", "token": "a=b=="}),
        (
            '["allow_http=true", "delta.dataSkippingStatsColumns=ts,date"]',
            {"allow_http": "true", "delta.dataSkippingStatsColumns": "ts,date"},
        ),
        ('{"delta.dataSkippingStatsColumns": "ts,date"}', {"delta.dataSkippingStatsColumns": "ts,date"}),
        ("", {}),
    ],
)
def test_maps_in_the_environment(text: str, read: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORAGE_OPTION", "TABLE_PROPERTY"):
        monkeypatch.setenv(f"PCAPLAKE_{name}", text)
    for settings in (FleetSettings.load(), Settings.load(lake="x")):
        assert settings.storage_option == settings.table_property == read


@pytest.mark.parametrize("text", ["date,vehicle_id", '["date", "vehicle_id"]'])
def test_lists_in_the_environment(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PCAPLAKE_PARTITION_BY", text)
    assert FleetSettings.load().partition_by == Settings.load(lake="x").partition_by == ("date", "vehicle_id")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "STORAGE_OPTION",
            "allow_http=true,secret",
            'part 2 is not KEY=VALUE, .*KEY=VALUE,KEY=VALUE, .*{"KEY": "VALUE"}',
        ),
        ("STORAGE_OPTION", "=secret", "part 1 is not KEY=VALUE"),
        ("STORAGE_OPTION", '{"token": "secret"', 'cannot be read as JSON: write KEY=VALUE,.*{"KEY": "VALUE"}'),
        ("STORAGE_OPTION", '{"token": 3}', "token: must be a valid string; put it in quotes"),
        ("PARTITION_BY", '["date"', 'cannot be read as JSON: write date,vehicle_id, .*"vehicle_id"]'),
        ("THREADS", "0", "must be greater than or equal to 1"),
        ("THREADS", "many", "'many' is not a whole number"),
    ],
)
def test_a_wrong_variable_is_named_with_what_is_right(
    name: str, text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"PCAPLAKE_{name}", text)
    for load in (FleetSettings.load, lambda: Settings.load(lake="x")):
        with pytest.raises(WrongSetting, match=f"^PCAPLAKE_{name}: .*{said}") as error:
            load()
        assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("environment", "options", "needed"),
    [
        ({}, {}, {}),
        ({"AWS_ENDPOINT_URL": HTTP}, {}, {"allow_http": "true", "endpoint": HTTP}),
        ({"AWS_ENDPOINT_URL": "https://x", "AWS_ENDPOINT_URL_S3": HTTP}, {}, {"allow_http": "true", "endpoint": HTTP}),
        ({"AWS_ENDPOINT_URL": HTTP, "AWS_ENDPOINT_URL_S3": "https://x"}, {}, {"endpoint": "https://x"}),
        ({"AWS_ENDPOINT_URL": HTTP}, {"endpoint": "https://x"}, {}),
        ({"AWS_ENDPOINT_URL": "https://x"}, {"AWS_ENDPOINT": HTTP}, {"allow_http": "true"}),
        ({}, {"aws_endpoint_url": HTTP}, {"allow_http": "true"}),
        ({"AWS_ALLOW_HTTP": "true"}, {}, {"allow_http": "true"}),
        ({"AWS_ALLOW_HTTP": "false"}, {}, {}),
        ({"AWS_ENDPOINT_URL": HTTP}, {"AWS_ALLOW_HTTP": "false"}, {"endpoint": HTTP}),
    ],
)
def test_the_endpoint_of_the_environment_is_an_option(
    environment: dict[str, str], options: dict[str, str], needed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    for settings in (FleetSettings.load(storage_option=options), Settings.load(lake="x", storage_option=options)):
        for uri in ("s3://raw/a", "s3a://raw/a"):
            assert settings.storage_options_for(uri) == {**options, **needed}
        assert settings.storage_options_for("gs://raw/a") == settings.storage_options_for("lake") == options


SERVER = "http://azurite:1"
AZURITE = f"{SERVER}/devstoreaccount1"
ACCOUNT = {"account_name": "devstoreaccount1"}


@pytest.mark.parametrize(
    ("options", "needed", "address"),
    [
        (ACCOUNT, {}, None),
        ({**ACCOUNT, "endpoint": AZURITE}, {"allow_http": "true", "use_emulator": "true"}, SERVER),
        (
            {"azure_storage_endpoint": f"{AZURITE}/"},
            {"allow_http": "true", "use_emulator": "true"},
            SERVER,
        ),
        ({**ACCOUNT, "endpoint": AZURITE, "use_emulator": "false"}, {"allow_http": "true"}, None),
        ({**ACCOUNT, "endpoint": SERVER}, {"allow_http": "true"}, None),
        ({**ACCOUNT, "endpoint": "https://devstoreaccount1"}, {}, None),
        ({"account_name": "other", "endpoint": AZURITE}, {"allow_http": "true"}, None),
    ],
)
def test_the_endpoint_of_azurite_is_known_as_such(
    options: dict[str, str], needed: dict[str, str], address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", "")
    monkeypatch.delenv("AZURITE_BLOB_STORAGE_URL")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1")
    for settings in (FleetSettings.load(storage_option=options), Settings.load(lake="x", storage_option=options)):
        for uri in ("az://raw/a", "abfss://raw/a"):
            assert settings.storage_options_for(uri) == {**options, **needed}
        assert settings.storage_options_for("gs://raw/a") == options
    assert os.environ.get("AZURITE_BLOB_STORAGE_URL") == address


@pytest.mark.parametrize("name", ["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"])
def test_the_endpoint_of_azurite_may_be_in_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", "")
    monkeypatch.setenv(name, AZURITE)
    assert Settings.load(lake="x", storage_option=ACCOUNT).storage_options_for("az://raw/a") == {
        **ACCOUNT, "endpoint": AZURITE, "allow_http": "true", "use_emulator": "true"
    }  # fmt: skip
    assert os.environ["AZURITE_BLOB_STORAGE_URL"] == SERVER


def test_every_variable_of_the_project_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    this = Path(__file__).relative_to(ROOT)
    found = subprocess.run(
        ["git", "grep", "-ohE", f"{PREFIX}[A-Z0-9_]+", "--", ".", f":!{this}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert len(set(found)) > 40
    for name in set(found):
        monkeypatch.setenv(name, "x")
    for name in ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_9464_TCP_ADDR"):
        monkeypatch.setenv(f"PCAPLAKE_METRICS_{name}", "x")
    assert describe_unknown_variables() is None


MISSPELT = {
    "PCAPLAKE_QUEUEE": "did you mean 'PCAPLAKE_QUEUE'?",
    "PCAPLAKE_ZZZ": "`pcaplake docs settings` lists all settings",
}


def test_a_misspelt_variable_is_told_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in MISSPELT:
        monkeypatch.setenv(name, "secret")
    line = "unknown environment variables: " + "; ".join(f"{name}: {said}" for name, said in MISSPELT.items())
    assert describe_unknown_variables() == line
    assert cli.run_command_line(["status", "--help"]) == 0
    assert capsys.readouterr().err == f"pcaplake: {line}\n"


@pytest.mark.slow
def test_the_service_logs_misspelt_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import sys, pcaplake.worker.cli.app\nsys.exit(pcaplake.worker.cli.app.run_command_line(['run']))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    given = {"PCAPLAKE_QUEUEE": "secret", "PCAPLAKE_HTTP_PORT": "0", "PCAPLAKE_LAKE": "s3://b/l"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, **given},
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 2, "the queue is missing"
    (line,) = [line for line in done.stderr.splitlines() if "PCAPLAKE_QUEUEE" in line]
    assert "did you mean 'PCAPLAKE_QUEUE'?" in line
    assert '"level": "warning"' in line
    assert "secret" not in done.stderr


@pytest.mark.parametrize("format", ["json", "text"])
def test_the_error_that_ends_the_service_is_logged_once_and_in_the_format(
    format: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PCAPLAKE_LOG_FORMAT", format)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setenv("PCAPLAKE_HTTP_PORT", str(taken.getsockname()[1]))
        assert cli.run_command_line(["run"]) == cli.FATAL
    (line,) = capsys.readouterr().err.splitlines()
    if format == "json":
        logged = json.loads(line)
        assert logged["level"] == "critical"
        line = logged["event"]
    assert "ended by an error: cannot listen on" in line


def test_a_region_of_the_store_goes_before_that_of_the_settings() -> None:
    """Both at once are a duplicate key to obstore, and stores of others know no region."""
    settings = FleetSettings.load(region="eu-central-1", storage_option={"AWS_REGION": "eu-west-1"})
    assert settings.storage_options_for("s3://raw") == {"AWS_REGION": "eu-west-1"}
    sources = Sources(settings.storage_options_for)
    for uri in ("s3://raw/in/a.pcap", "s3a://raw/in/a.pcap"):
        assert sources.open_store(uri)[1] == "in/a.pcap"
    plain = Sources(FleetSettings.load(region="eu-central-1").storage_options_for)
    assert dict(plain.open_store("s3://raw/a")[0].options) == {"region": "eu-central-1"}
    assert dict(plain.open_store("gs://raw/a")[0].options) == {}


async def test_every_part_of_the_service_has_these_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}

    class Part:
        async def close(self) -> None: ...

        async def __aenter__(self) -> Part:
            return self

        async def __aexit__(self, *error: object) -> None: ...

        @classmethod
        async def open(cls, *names: object, **more: object) -> Part:
            return cls()

    class OpenedLake(Part):
        @classmethod
        async def open(cls, *names: object, **more: object) -> Part:
            given[names[0]] = more["storage_options"]
            return cls()

    async def main() -> None:
        option = {"aws_region": "eu-west-1"}
        settings = FleetSettings.load(queue="q", lake="s3://lake/a", region="eu-central-1", storage_option=option)
        async with serve.open_service_parts(settings, SILENT) as parts:
            given["raw"] = dict(parts.sources.open_store("s3://raw/in/a.pcap")[0].options)

    monkeypatch.setattr(serve, "SqsQueue", Part)
    monkeypatch.setattr(serve, "SharedTables", Part)
    monkeypatch.setattr(serve, "Lake", OpenedLake)
    await main()
    assert given == {place: {"aws_region": "eu-west-1"} for place in ("s3://lake/a", "raw")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("threads: none", "fleet.yaml: threads: 'none' is not a whole number"),
        ("thread: 3", "fleet.yaml: thread: unknown setting; did you mean 'threads'?"),
        ("laake: s3://b/l", "did you mean 'lake'?"),
        ("zzz: 3", "`pcaplake docs settings` lists all settings"),
        (
            "storage_option: {allow_http: true}",
            "fleet.yaml: storage_option: allow_http: must be a valid string; put it in",
        ),
        ("storage_option: [x]", "fleet.yaml: storage_option: 'x' is not KEY=VALUE"),
        ("flush_interval: soon", "is not a time"),
        ("role: boss", "worker"),
        ("partition_by: 3", "fleet.yaml: partition_by: 3 is not a list of columns; write for example date,vehicle_id"),
        ("partition_by: [date, 3]", "fleet.yaml: partition_by: ['date', 3] is not a list of columns"),
        ("lake: s3://b/l\nroutes: r.yaml", "either `routes`"),
        ("- a list", "name: value"),
        ("a: [", "cannot read"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_name(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(WrongSetting) as error:
        FleetSettings.load(file)
    assert said in str(error.value)
    assert "--" not in str(error.value), "`run` has no such option"


def test_an_option_that_is_wrong_is_named_as_one() -> None:
    with pytest.raises(WrongSetting, match=r"^--role: must be"):
        FleetSettings.load(role="boss")


@pytest.mark.parametrize("page", ["README.md", "docs/setup.md", "docs/deploy.md", "docs/troubleshooting.md"])
def test_the_commands_that_pages_show_know_their_buckets(page: str) -> None:
    """With README's fleet.yaml: one lake, which says nothing of the bucket that captures come to."""
    shown = (ROOT / "README.md").read_text().partition("# fleet.yaml ")[2].partition("```")[0].partition("\n")[2]
    given = {name: value for name, value in yaml.safe_load(shown).items() if name != "profile"}
    routes = FleetSettings.load(**given).load_routes()
    lines = [line.partition("#")[0].split() for line in (ROOT / page).read_text().splitlines()]
    setups = [line for line in lines if line[:2] == ["pcaplake", "setup"]]
    for line in setups:
        assert find_watched_places(routes, [value for name, value in pairwise(line) if name == "--bucket"]), line
    reconciles = [line for line in lines if line[:2] == ["pcaplake", "reconcile"]]
    for line in reconciles:
        assert parse_place(line[2])
    assert setups or reconciles


def test_nothing_to_read_or_write_says_what_to_set() -> None:
    with pytest.raises(WrongSetting, match="PCAPLAKE_LAKE"):
        FleetSettings.load().load_routes()
    with pytest.raises(WrongSetting, match="PCAPLAKE_QUEUE"):
        FleetSettings.load().require_queue_name()


def test_a_broken_profile_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "profile.yaml").write_text("ports: {udp: {99999999: someip}}")
    with pytest.raises(WrongSetting, match="profile"):
        FleetSettings.load(lake="s3://bucket/lake", profile=tmp_path / "profile.yaml").load_routes()


def test_the_preset_changes_what_was_not_set() -> None:
    plain, quick = FleetSettings.load().lake_config, FleetSettings.load(preset="low_latency").lake_config
    assert quick.flush_interval < plain.flush_interval
    assert quick.max_batch_age < plain.max_batch_age
    assert FleetSettings.load(preset="low_latency", flush_interval=7.0).lake_config.flush_interval == 7.0


def test_memory_is_the_smaller_of_machine_and_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("100000000\n")
    monkeypatch.setattr(fleet_settings, "_MEMORY_LIMITS", (str(limit), str(tmp_path / "none")))
    assert read_memory_limit() == 100_000_000
    assert FleetSettings.load().max_inflight_bytes == 100_000_000 // 3
    limit.write_text("max\n")
    assert read_memory_limit() > 100_000_000


@pytest.mark.slow
def test_one_machine_needs_nothing_of_the_fleet() -> None:
    """The base install has neither boto3 nor aiohttp nor a metrics library."""
    blocked = ("aiobotocore", "boto3", "botocore", "aiohttp", "structlog", "prometheus_client", "opentelemetry")
    hidden = f"import sys\nfor name in {blocked!r}: sys.modules[name] = None"
    each = "sys.exit(any(app.run_command_line([name, '--help']) for name in app.SUMMARIES))"
    code = f"{hidden}\nfrom pcaplake.worker.cli import app\n{each}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "--lake" in done.stdout


def test_only_a_port_that_nobody_set_may_be_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes and Prometheus rely on a port that is set."""
    assert list(FleetSettings.load().http_ports) == list(range(9464, 9474))
    assert list(FleetSettings.load(http_port=9464).http_ports) == [9464]
    monkeypatch.setenv("PCAPLAKE_HTTP_PORT", "0")
    assert list(FleetSettings.load().http_ports) == [0]


def test_all_wrong_settings_are_named_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("quue: captures\nthreads: 0\n")
    monkeypatch.setenv("PCAPLAKE_MAX_BATCH_AGE", "soon")
    with pytest.raises(WrongSetting) as caught:
        FleetSettings.load(file, role="boss")
    text = str(caught.value)
    assert text.startswith("4 settings are wrong: ")
    for said in (f"{file}: quue: unknown setting", f"{file}: threads: ", "PCAPLAKE_MAX_BATCH_AGE: 'soon'", "--role: "):
        assert said in text


def test_a_fleet_needs_a_lake_and_a_queue() -> None:
    with pytest.raises(WrongSetting, match=r"2 settings are wrong: no lake is set: .*; no queue is set: "):
        FleetSettings.load().require_routes_and_queue_name()
    with pytest.raises(WrongSetting, match=r"^no lake is set: "):
        FleetSettings.load(queue="q").require_routes_and_queue_name()
    with pytest.raises(WrongSetting, match=r"^no queue is set: "):
        FleetSettings.load(lake="s3://b/l").require_routes_and_queue_name()
