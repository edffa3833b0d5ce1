"""What the repository says and does not say: pinned with hashes, no registry host, no path of a machine."""

from __future__ import annotations

import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from pcaplake.common import VERSION
from tools import release

ROOT = Path(__file__).parents[2]
REGISTRY = re.compile(
    r"--(?:extra-)?index-url|--find-links|--trusted-host|files\.pythonhosted|"
    r"\bpypi\.[a-z]+\b|registry\.npmjs|proxy\.golang"
)
MACHINE = re.compile(r"(?<![\w.{}/])/(?:work|root|opt|Users|mnt)/\w|(?<![\w.{}/])/home/\w")
ADDRESS = re.compile(r"https?://(?:\d{1,3}\.){3}\d{1,3}|https?://[\w-]+(?::\d+)?/")
THIS = Path(__file__).relative_to(ROOT).as_posix()


def _tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.splitlines() if name != THIS and (ROOT / name).is_file()]


def _text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8", errors="replace")


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [REGISTRY, MACHINE, ADDRESS], ids=["registry", "machine path", "local address"])
def test_nothing_of_a_machine(pattern: re.Pattern[str]) -> None:
    found = {name: match[0] for name in _tracked() if (match := pattern.search(_text(name)))}
    assert not found


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (REGISTRY, "--index-url x"),
        (REGISTRY, "registry.npmjs.example"),
        (MACHINE, "see /opt/captures"),
        (MACHINE, "'/home/me'"),
        (ADDRESS, "http://10.0.0.1:80/x"),
    ],
)
def test_the_patterns_find_what_they_are_for(pattern: re.Pattern[str], text: str) -> None:
    assert pattern.search(text)


def test_every_requirement_is_pinned_and_hashed() -> None:
    entries = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip())
    assert len(entries) > 50
    for entry in entries:
        assert re.match(r"[a-z0-9][a-z0-9._-]*(?:\[[a-z,]+\])?==\S+", entry), entry[:80]
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry[:80]


def test_extras_that_locked_packages_require_are_locked() -> None:
    """pip looks for the newest release of `name[extra]` if the lock file has only `name==...`, and then finds no hash for it."""
    lock = (ROOT / "requirements.lock").read_text()
    locked = {
        name: set(filter(None, (extras or "").split(",")))
        for name, extras in re.findall(r"^([a-z0-9._-]+)(?:\[([a-z,]+)\])?==", lock, re.MULTILINE)
    }
    required = [
        Requirement(one)
        for name in locked
        if _is_installed(name)
        for one in metadata.requires(name) or ()
        if "[" in one
    ]
    applying = [one for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    assert {"coverage", "urllib3"} <= {one.name for one in applying}, "the check would see nothing"
    for one in applying:
        assert one.extras <= locked[re.sub(r"[-_.]+", "-", one.name).lower()], f"{one}: run `make lock`"


def _is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:  # its marker excludes this Python
        return False


def test_lock_covers_what_the_project_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    locked = {
        re.split(r"[=\[]", line)[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line
    }
    needed = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.split(r"[\s<>=;\[]", one)[0].lower().replace("_", "-") for one in needed}
    assert names <= locked


def test_one_version_everywhere() -> None:
    """The build takes it from `worker`; formats that must repeat it, and the tags of the images, state the same."""
    assert metadata.version("pcaplake") == VERSION
    stated = release.stated_versions()
    unreleased = stated.pop(next(place for place in stated if place.startswith("CHANGELOG")))
    assert set(stated.values()) == {VERSION}
    assert unreleased in (VERSION, "none")
    images = subprocess.run(["make", "-n", "images"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"--tag pcaplake(?:-spark)?:(\S*)", images)) == {VERSION}


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert "make test" in script.read_text()


def test_ci_runs_every_python_that_is_stated() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    stated = [one.rpartition(" :: ")[2] for one in project["classifiers"] if ":: Python :: 3." in one]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    assert workflow["jobs"]["check"]["strategy"]["matrix"]["python"] == stated
    *first, last = stated
    assert f"on Linux with Python {', '.join(first)} or {last} " in (ROOT / "README.md").read_text()
    assert project["requires-python"] == f">={stated[0]}"
