"""Which lake `replace` works on, and with which settings: without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from pcaplake.spark_jobs.common.job import Invocation
from pcaplake.spark_jobs.replace.choose import load_settings
from pcaplake.worker.config.settings import WrongSetting

pytestmark = pytest.mark.unit
ROUTE = "  - {bucket: raw, key: '%s/*', lake: %s, profile: profile.yaml, name: %s}\n"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "profile.yaml").write_text("vehicle_id: '(?P<vehicle_id>[^/]+)/'\n")
    (tmp_path / "routes.yaml").write_text("routes:\n" + ROUTE % ("a", tmp_path / "a", "a"))
    (tmp_path / "fleet.yaml").write_text("routes: routes.yaml\n")
    return tmp_path / "fleet.yaml"


def test_the_routes_name_the_lake_and_the_profiles(config: Path) -> None:
    settings, lake = load_settings(Invocation(config=config), None)
    (route,) = settings.load_routes().routes
    assert lake == route.lake
    assert route.profile.vehicle_id_pattern is not None
    assert load_settings(Invocation(config=config, lake=str(config.parent / "a")), None)[1] == str(config.parent / "a")


def test_one_of_several_lakes_is_named(config: Path, tmp_path: Path) -> None:
    with (tmp_path / "routes.yaml").open("a") as routes:
        routes.write(ROUTE % ("b", tmp_path / "b", "b"))
    with pytest.raises(WrongSetting, match=r"lead to 2 lakes: name one of .*/a.*/b with --lake"):
        load_settings(Invocation(config=config), None)
    settings, lake = load_settings(Invocation(config=config, lake=str(tmp_path / "b")), None)
    assert (lake, len(settings.load_routes().routes)) == (str(tmp_path / "b"), 2)


def test_a_profile_beside_routes_is_refused(config: Path, tmp_path: Path) -> None:
    with pytest.raises(WrongSetting, match=r"--profile: the routes in .* name the profile of each capture"):
        load_settings(Invocation(config=config), tmp_path / "profile.yaml")


def test_one_lake_without_routes(tmp_path: Path) -> None:
    with pytest.raises(WrongSetting, match="no lake"):
        load_settings(Invocation(), None)
    settings, lake = load_settings(Invocation(lake=str(tmp_path)), None)
    assert (settings.lake, lake) == (str(tmp_path), str(tmp_path))
