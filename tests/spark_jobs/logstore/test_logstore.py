"""The log stores' own tests, which Maven runs: steps, deaths, lost answers and races against a lock table in memory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from pcaplake.spark_jobs.jars import LOG_STORE


@pytest.mark.slow
def test_junit(tmp_path: Path) -> None:
    folder = tmp_path / "logstore"
    shutil.copytree(LOG_STORE, folder, ignore=shutil.ignore_patterns("target"))
    done = subprocess.run(
        ["mvn", "-B", "-q", "-f", str(folder / "pom.xml"), "test"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    suites = [ElementTree.parse(path).getroot() for path in (folder / "target" / "surefire-reports").glob("TEST-*.xml")]
    assert sum(int(suite.attrib["tests"]) for suite in suites) >= 50
    assert sum(int(suite.attrib["skipped"]) for suite in suites) == 0
