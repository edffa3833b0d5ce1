"""The settings of the service: where they come from, what is refused, and that people are told of each."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from worker import cli, fleet_settings, serve
from worker.fleet_settings import FleetSettings, listed, markdown, memory_limit
from worker.meter import SILENT
from worker.settings import WrongSetting
from worker.source import Sources

ROOT = Path(__file__).parents[2]
MB = 1 << 20


def test_the_page_of_settings_is_true() -> None:
    assert (ROOT / "docs/settings.md").read_text() == markdown(), "python -m worker.fleet_settings > docs/settings.md"


def test_every_setting_is_explained_on_the_page_and_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["run", "--help"]) == 0
    shown = "".join(capsys.readouterr().out.split())
    for name, _, _, text in listed():
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


def test_a_region_of_the_store_goes_before_that_of_the_settings() -> None:
    """Both at once are a duplicate key to obstore, and stores of others know no region."""
    settings = FleetSettings.load(region="eu-central-1", storage_option={"AWS_REGION": "eu-west-1"})
    assert settings.storage("s3://raw") == {"AWS_REGION": "eu-west-1"}
    sources = Sources(settings.storage)
    for uri in ("s3://raw/in/a.pcap", "s3a://raw/in/a.pcap"):
        assert sources.store(uri)[1] == "in/a.pcap"
    plain = Sources(FleetSettings.load(region="eu-central-1").storage)
    assert dict(plain.store("s3://raw/a")[0].options) == {"region": "eu-central-1"}
    assert dict(plain.store("gs://raw/a")[0].options) == {}


def test_every_part_of_the_service_has_these_options(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}

    class Part:
        async def close(self) -> None: ...

        async def __aenter__(self) -> Part:
            return self

        async def __aexit__(self, *error: object) -> None: ...

        @classmethod
        async def open(cls, *names: object, **more: object) -> Part:
            return cls()

    async def open_lake(uri: str, services: object, **more: object) -> Part:
        given[uri] = more["options"]
        return Part()

    async def main() -> None:
        option = {"aws_region": "eu-west-1"}
        settings = FleetSettings.load(queue="q", lake="s3://lake/a", region="eu-central-1", storage_option=option)
        async with serve.opened(settings, SILENT) as parts:
            given["raw"] = dict(parts.sources.store("s3://raw/in/a.pcap")[0].options)

    monkeypatch.setattr(serve, "SqsQueue", Part)
    monkeypatch.setattr(serve, "Services", Part)
    monkeypatch.setattr(serve, "open_lake", open_lake)
    asyncio.run(main())
    assert given == {place: {"aws_region": "eu-west-1"} for place in ("s3://lake/a", "raw")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("threads: none", "--threads"),
        ("thread: 3", "--thread: "),
        ("flush_interval: soon", "no time"),
        ("role: boss", "worker"),
        ("partition_by: 3", "--partition-by: 3 names no columns; write for example date,vehicle_id"),
        ("partition_by: [date, 3]", "--partition-by: ['date', 3] names no columns"),
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


def test_nothing_to_read_or_write_says_what_to_set() -> None:
    with pytest.raises(WrongSetting, match="PCAPLAKE_LAKE"):
        FleetSettings.load().load_routes()
    with pytest.raises(WrongSetting, match="PCAPLAKE_QUEUE"):
        FleetSettings.load().the_queue()


def test_a_broken_profile_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "profile.yaml").write_text("ports: {udp: {99999999: someip}}")
    with pytest.raises(WrongSetting, match="profile"):
        FleetSettings.load(lake="s3://bucket/lake", profile=tmp_path / "profile.yaml").load_routes()


def test_the_preset_changes_what_was_not_set() -> None:
    plain, quick = FleetSettings.load().knobs, FleetSettings.load(preset="low_latency").knobs
    assert quick.flush_interval < plain.flush_interval
    assert quick.max_batch_age < plain.max_batch_age
    assert FleetSettings.load(preset="low_latency", flush_interval=7.0).knobs.flush_interval == 7.0


def test_memory_is_the_smaller_of_machine_and_control_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("100000000\n")
    monkeypatch.setattr(fleet_settings, "_MEMORY_LIMITS", (str(limit), str(tmp_path / "none")))
    assert memory_limit() == 100_000_000
    assert FleetSettings.load().max_inflight_bytes == 100_000_000 // 3
    limit.write_text("max\n")
    assert memory_limit() > 100_000_000


def test_one_machine_needs_nothing_of_the_fleet() -> None:
    """The base install has neither boto3 nor aiohttp nor a metrics library."""
    blocked = ("aiobotocore", "boto3", "botocore", "aiohttp", "structlog", "prometheus_client", "opentelemetry")
    code = (
        f"import sys\nfor name in {blocked!r}: sys.modules[name] = None\nimport worker.cli\nworker.cli.run(['--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "ingest" in done.stdout
