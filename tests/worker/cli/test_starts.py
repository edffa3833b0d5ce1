"""What a command imports: each only what it needs, because imports are most of the time of a short command."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pcaplake.worker.cli.app import SUMMARIES
from tests.worker import lakes
from tests.worker.fleets import can_capture

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


def imported_by(*arguments: str | Path) -> set[str]:
    """The packages that a command in a process of its own has imported when it ends."""
    code = (
        "import sys\n"
        "from pcaplake.worker.cli.app import run_command_line\n"
        f"code = run_command_line({list(map(str, arguments))!r})\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stderr.split()}


def test_the_help_of_pcaplake_imports_no_command() -> None:
    assert not imported_by("--help") & {"asyncio", "dpkt", "numba", "numpy", "pyarrow", "pydantic", "rich"}


def test_a_command_that_decodes_nothing_imports_no_decoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pcap").write_bytes(can_capture(3))
    assert lakes.run(capsys, "ingest", tmp_path / "a.pcap", "--lake", tmp_path / "lake")[0] == 0
    for arguments in (["tables", "--lake", tmp_path / "lake", "--json"], ["docs", "settings"]):
        assert not imported_by(*arguments) & {"dpkt", "numba", "boto3", "botocore", "kubernetes"}


def test_each_command_is_found_in_the_module_of_its_name() -> None:
    modules = {path.stem for path in (ROOT / "worker" / "cli").glob("*.py")}
    assert set(SUMMARIES) <= modules
