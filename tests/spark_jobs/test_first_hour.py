"""The commands of docs/getting-started.md, in environments that have only the wheel and what its extras need.

The user has an empty home, and works in a folder of their own. `pip install` is done with the wheel of this tree, without
a package index. The times of `--torture` go to the page by hand: they are printed at the end of each test.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import wheels
from tests.aws import Aws

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "getting-started.md").read_text(encoding="utf-8")
pytestmark = pytest.mark.slow


def commands_of(heading: str) -> list[str]:
    """The commands of one section, a line each."""
    section = PAGE.split(f"## {heading}", 1)[1].split("\n## ", 1)[0]
    return [line for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]


def test_the_page_counts_its_commands() -> None:
    engineer, spark, platform = (len(commands_of(name)) for name in ("An engineer", "A Spark user", "A platform team"))
    counts = re.findall(r"^\| the first .*? \| (\d+)", PAGE, re.MULTILINE)
    assert counts == [str(engineer), str(spark - 1), "1", str(platform)]


@dataclass(kw_only=True)
class Newcomer:
    """A user in a folder, with a virtual environment."""

    wheel: Path
    here: Path
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def venv(self) -> Path:
        return self.here / "venv"

    def type_command(self, command: str) -> str:
        """Run a line in the shell -> what it prints. `pip install` links what the extras need."""
        if (install := re.fullmatch(r"pip install '?pcaplake(?:\[(.*)\])?'?", command)) is not None:
            if not self.venv.exists():
                wheels.install(self.wheel, self.venv)
            linked = {path.name for path in wheels.site_packages(self.venv).glob("*.dist-info")}
            extras = (install[1] or "").split(",") if install[1] else []
            wheels.link(self.venv, [name for name in wheels.locked(*extras) if not is_linked(name, linked)])
            return ""
        done = subprocess.run(
            command, shell=True, cwd=self.here, env=self.variables, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout

    @property
    def variables(self) -> dict[str, str]:
        home = self.here / "home"
        home.mkdir(exist_ok=True)
        return {
            "PATH": f"{self.venv / 'bin'}:{os.defpath}:/usr/local/bin",
            "HOME": os.fspath(home),
            "LANG": "C.UTF-8",
            **self.environment,
        }


def is_linked(name: str, linked: set[str]) -> bool:
    normal = re.sub(r"[-_.]+", "_", name).lower()
    return any(re.sub(r"[-_.]+", "_", one).lower().startswith(f"{normal}_") for one in linked)


@pytest.fixture(scope="module")
def newcomer(wheel: Path, spark_conf_dir: str | None, tmp_path_factory: pytest.TempPathFactory) -> Newcomer:
    """`make torture` leaves Spark as it is, as users have it."""
    made = Newcomer(wheel=wheel, here=tmp_path_factory.mktemp("newcomer"))
    if spark_conf_dir is not None:
        made.environment["SPARK_CONF_DIR"] = spark_conf_dir
    return made


def rows_of(newcomer: Newcomer, table: str) -> int:
    code = f"from deltalake import DeltaTable; print(DeltaTable('lake/{table}').count())"
    return int(newcomer.type_command(f'python -c "{code}"'))


def test_an_engineer_gets_rows(newcomer: Newcomer) -> None:
    started, row = time.monotonic(), ""
    for command in commands_of("An engineer"):
        row = newcomer.type_command(command)
    print(f"first row: {time.monotonic() - started:.0f} s")
    assert "| can_id " in row
    assert rows_of(newcomer, "can_frames") > 50_000


def test_a_spark_user_gets_signals(newcomer: Newcomer) -> None:
    """In the lake of the engineer. The jars come from where `make test` put them."""
    started = time.monotonic()
    newcomer.environment["PCAPLAKE_SPARK_JARS"] = jars()
    for command in commands_of("A Spark user"):
        report = newcomer.type_command(command)
        print(f"{command[:60]}: {time.monotonic() - started:.0f} s")
        if "signals" in command:
            assert rows_of(newcomer, "signals") == 2_000, report
    assert json.loads(report)["files_after"] >= 0, report


def jars() -> str:
    return subprocess.run(
        [sys.executable, "-m", "pcaplake.spark_jobs.jars"], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_platform_team_gets_a_fleet(newcomer: Newcomer, aws: Aws) -> None:
    """On the local services, with names that only this test uses."""
    raw, lakes, queue = aws.bucket("raw"), aws.bucket("lakes"), aws.name("captures")
    names = {"s3://lakes/": f"s3://{lakes}/", "--bucket raw": f"--bucket {raw}", "'raw'": f"'{raw}'"}
    names["eu-central-1"] = aws.region
    names |= {
        "queue: captures": f"queue: {queue}\\nledger_table: {queue}\\nlock_table: {queue}-locks\\nmax_batch_age: 0.2"
    }
    newcomer.environment = {**aws.environment, "AWS_ALLOW_HTTP": "true", "PCAPLAKE_HTTP_PORT": "0"}
    started, worker = time.monotonic(), None
    try:
        for command in commands_of("A platform team"):
            for old, new in names.items():
                command = command.replace(old, new)
            if command.endswith(" &"):
                with (newcomer.here / "worker.log").open("w") as log:
                    worker = subprocess.Popen(
                        command.removesuffix(" &").split(), cwd=newcomer.here, env=newcomer.variables, stderr=log
                    )
                continue
            said = newcomer.type_command(command)
        assert worker is not None
        options = {"AWS_ENDPOINT_URL": aws.s3, "AWS_ALLOW_HTTP": "true"}
        rows = f"DeltaTable('s3://{lakes}/drives/captures', storage_options={options}).count()"
        count = f'python -c "from deltalake import DeltaTable; print({rows})"'
        while newcomer.type_command(count).strip() != "1":
            assert worker.poll() is None, (newcomer.here / "worker.log").read_text()
            time.sleep(0.2)
        print(f"first row of a fleet: {time.monotonic() - started:.0f} s")
        assert queue in said, said
    finally:
        if worker is not None:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(60) == 0, (newcomer.here / "worker.log").read_text()
