"""A user's own `parser.py`, `worker/` and `spark_jobs/` on the path of driver and executors do no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pcaplake.worker import sample
from tests.spark_jobs.conftest import SMALL

CODE = """
import sys
from pcaplake.spark_jobs.common.session import open_session
from pcaplake.spark_jobs.pcap.source import register
from pcaplake.worker.config.service_settings import FleetSettings

spark = open_session(app="user", settings=FleetSettings(), lakes=[], master="local[1]", conf={conf!r})
register(spark)
path = spark.sparkContext.parallelize([0]).map(lambda _: sys.path).first()
assert {folder!r} in path, path
print(spark.read.format("pcap").option("table", "can_frames").load([{captures!r}]).count())
"""


@pytest.mark.slow
def test_executors_import_ours(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "parser.py").write_text("raise ImportError('a parser of somebody else')\n")
    for name in ("worker", "spark_jobs"):
        (theirs / name).mkdir()
        (theirs / name / "__init__.py").write_text(f"raise ImportError('a {name} of somebody else')\n")
    sample.write_sample_captures(tmp_path / "drive", "drive", 0.1, seed=5)
    code = CODE.format(conf=SMALL, folder=str(theirs), captures=str(tmp_path / "drive"))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=theirs,
        env={**os.environ, "PYTHONPATH": str(theirs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 100
