"""The wheel with the extra `spark` alone: Spark runs our functions on its executors.

A user's own `parser.py`, `worker/` and `spark_jobs/` on the path of driver and executors do no harm.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pcaplake.worker import sample
from tests import wheels
from tests.spark_jobs.conftest import SMALL

CODE = """
import sys
from pcaplake.spark_jobs.common.session import open_session
from pcaplake.spark_jobs.pcap.source import decode, register
from pcaplake.worker.config.service_settings import FleetSettings

spark = open_session(app="user", settings=FleetSettings(), lakes=[], master="local[1]", conf={conf!r})
register(spark)
path = spark.sparkContext.parallelize([0]).map(lambda _: sys.path).first()
assert {folder!r} in path, path
read = spark.read.format("pcap").option("table", "can_frames").load([{captures!r}]).count()
paths = spark.createDataFrame([(one,) for one in {paths!r}], "path string")
print(read, decode(paths, "can_frames").count())
"""


@pytest.mark.slow
def test_executors_import_ours(wheel: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "parser.py").write_text("raise ImportError('a parser of somebody else')\n")
    for name in ("worker", "spark_jobs"):
        (theirs / name).mkdir()
        (theirs / name / "__init__.py").write_text(f"raise ImportError('a {name} of somebody else')\n")
    planted = tmp_path / "uploads"  # the working directory of the driver, where Spark starts Python for its executors
    planted.mkdir()
    for name in ("json", "struct", "socket", "pyspark", "numpy"):
        (planted / f"{name}.py").write_text("raise ImportError('a file among the captures')\n")
    written = sample.write_sample_captures(tmp_path / "drive", "drive", 0.1, seed=5)
    paths = [str(path) for path in written if path.suffix != ".yaml"]
    code = CODE.format(conf=SMALL, folder=str(theirs), captures=str(tmp_path / "drive"), paths=paths)
    venv = wheels.install(wheel, tmp_path / "venv")
    wheels.link(venv, wheels.locked("spark"))
    done = subprocess.run(
        [venv / "bin" / "python", "-P", "-c", code],
        cwd=planted,
        env={**os.environ, "PYTHONPATH": str(theirs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    read, decoded = map(int, done.stdout.split()[-2:])
    assert read == decoded > 100
