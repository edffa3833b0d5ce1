"""Workflows, hooks and the pages for contributors name targets, files and programs that are there."""

from __future__ import annotations

import fnmatch
import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PAGES = ["CONTRIBUTING.md", "SECURITY.md", ".github/PULL_REQUEST_TEMPLATE.md"]


def steps(workflow: Path) -> list[tuple[dict[str, Any], str]]:
    """Each command of each job, once for each value of its matrix."""
    found = []
    for job in yaml.safe_load(workflow.read_text())["jobs"].values():
        matrix = (job.get("strategy") or {"matrix": {}})["matrix"]
        for values in itertools.product(*matrix.values()):
            for step in job["steps"]:
                command = step.get("run", "")
                for name, value in zip(matrix, values, strict=True):
                    command = command.replace(f"${{{{ matrix.{name} }}}}", value)
                assert "matrix." not in command
                found.append((job, command))
    return [(job, command) for job, command in found if command]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_runs_what_people_run(workflow: Path) -> None:
    commands = [command for _, command in steps(workflow)]
    assert commands
    for command in commands:
        if command == ".ci/run":
            continue
        assert (target := re.match(r"make ([a-z0-9-]+)( [A-Z]+=\S+)*$", command)), command
        assert target[1] in TARGETS, command


def test_every_python_that_is_claimed_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    tested = jobs["check"]["strategy"]["matrix"]["python"]
    claimed = [one.rpartition(" ")[2] for one in project["classifiers"] if re.search(r"Python :: 3\.\d+$", one)]
    assert tested == claimed
    assert project["requires-python"] == f">={tested[0]}"


def test_tests_of_older_versions_have_the_history() -> None:
    for workflow in WORKFLOWS:
        for job in yaml.safe_load(workflow.read_text())["jobs"].values():
            (checkout,) = [step for step in job["steps"] if step.get("uses", "").startswith("actions/checkout@")]
            assert checkout["with"]["fetch-depth"] == 0


def test_hooks_run_programs_of_the_environment() -> None:
    for repository in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]:
        assert repository["repo"] == "local"
        for hook in repository["hooks"]:
            program = hook["entry"].split()[0]
            assert program.startswith(".venv/bin/")
            assert Path(sys.executable).with_name(Path(program).name).exists(), program


@pytest.mark.parametrize("page", [*PAGES, "README.md", "docs/releasing.md", "docs/testing.md"])
def test_a_page_names_targets_of_the_makefile(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"`make ([a-z0-9-]+)|^ *make ([a-z0-9-]+)", text, re.MULTILINE):
        assert "".join(target) in TARGETS, target


@pytest.mark.parametrize("page", PAGES)
def test_a_page_names_what_there_is(page: str) -> None:
    text = (ROOT / page).read_text()
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    paths = re.findall(r"(?:`|\(|pytest )((?:[\w.-]+/)+[\w.-]*|[A-Z]+\.md)", text)
    for path in paths:
        assert any(name == path.rstrip("/") or name.startswith(f"{path.rstrip('/')}/") for name in tracked), path


def test_the_modules_and_files_that_architecture_names_exist() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    names = {Path(path).name for path in tracked}
    named = re.findall(r"`([\w/*.-]+\.(?:py|tpl|yaml|json|xml))`", (ROOT / "ARCHITECTURE.md").read_text())
    assert len(named) > 100
    assert not [name for name in named if not fnmatch.filter(names, Path(name).name)]


def test_a_file_with_the_name_of_a_target_hides_no_target() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert set(phony.split()) == TARGETS


def test_forms_can_be_read() -> None:
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        read = yaml.safe_load(form.read_text())
        assert read["name"]
        assert read["description"]
        assert {part["type"] for part in read["body"]} <= {"markdown", "textarea", "input"}
