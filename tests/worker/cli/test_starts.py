"""What a command imports: each only what it needs, because imports are most of the time of a short command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pcaplake.worker import warm
from pcaplake.worker.cli.app import SUMMARIES
from tests.worker import lakes
from tests.worker.fleets import can_capture

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


def imported_by(*arguments: str | Path) -> set[str]:
    """The modules that a command in a process of its own has imported when it ends."""
    code = (
        "import os, sys\n"
        f"sys.argv[1:] = {list(map(str, arguments))!r}\n"
        "leave = os._exit\n"
        "os._exit = lambda code: (print(*sys.modules, sep='\\n', file=sys.stderr), sys.stderr.flush(), leave(code))\n"
        "from pcaplake.worker.__main__ import main\n"
        "main()"
    )
    return modules_after(code)


def modules_after(code: str) -> set[str]:
    """The modules that this code, which prints them on stderr at its end, has imported."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def used(imported: set[str], names: set[str]) -> list[str]:
    """Those of the names that are imported."""
    return sorted(imported & names)


def test_the_help_of_pcaplake_imports_no_command() -> None:
    assert not imported_by("--help") & {"asyncio", "dpkt", "numba", "numpy", "pyarrow", "pydantic", "rich", "llvmlite"}


images = pytest.mark.skipif(os.uname().machine != "x86_64", reason="kernels have images on x86_64")
NOT_FOR_SHORT_COMMANDS = {
    "boto3",
    "botocore",
    "kubernetes",
    "numba",
    "pcaplake.worker.admin.doctor",
    "pcaplake.worker.ingest.reread",
    "pcaplake.worker.sample",
    "pydantic_settings",
    "rich",
    "typer._adapters",  # builds a validator of pydantic for each option
    "yaml",
}


def test_a_command_that_decodes_nothing_imports_no_decoder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.pcap").write_bytes(can_capture(3))
    assert lakes.run(capsys, "ingest", tmp_path / "a.pcap", "--lake", tmp_path / "lake")[0] == 0
    for arguments in (["tables", "--lake", tmp_path / "lake"], ["tables", "--lake", tmp_path / "lake", "--json"]):
        assert not used(imported_by(*arguments), {*NOT_FOR_SHORT_COMMANDS, "dpkt", "llvmlite"})
    assert not imported_by("docs", "settings") & {"boto3", "botocore", "dpkt", "kubernetes", "llvmlite", "numba"}


@images
def test_a_small_ingest_imports_only_what_it_uses(tmp_path: Path) -> None:
    """The kernels are called without numba and LLVM; deltalake and pyarrow.compute are for lakes that have something already."""
    warm.main()
    (tmp_path / "a.pcap").write_bytes(can_capture(3))
    imported = imported_by("ingest", tmp_path / "a.pcap", "--lake", tmp_path / "lake")
    assert "dpkt" in imported
    assert not used(imported, {*NOT_FOR_SHORT_COMMANDS, "deltalake", "llvmlite.binding", "numpy.ma", "pyarrow.compute"})


@images
def test_a_program_loads_the_kernels_that_it_needs(tmp_path: Path) -> None:
    """Reading a capture loads the decoder's kernels and not those of the Parquet writer; importing loads none."""
    warm.main()
    (tmp_path / "a.pcap").write_bytes(can_capture(3))
    code = (
        "import sys\n"
        "from pcaplake import open_capture\n"
        "from pcaplake.parser.engine import kernel_image\n"
        "import pcaplake.worker.lake.parquet\n"
        "assert kernel_image.load.cache_info().currsize == 0\n"
        "assert 'llvmlite' not in sys.modules\n"
        f"with open_capture({str(tmp_path / 'a.pcap')!r}, 'can_frames') as capture:\n"
        "    assert capture.read().num_rows == 3\n"
        "assert kernel_image.load.cache_info().currsize == 1\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    assert "numba" not in modules_after(code)


def test_each_command_is_found_in_the_module_of_its_name() -> None:
    modules = {path.stem for path in (ROOT / "worker" / "cli").glob("*.py")}
    assert set(SUMMARIES) <= modules


def test_numpy_starts_no_threads() -> None:
    """Its linear algebra would, and threads that wait for work that never comes spin."""
    code = (
        "import os\n"
        "from pcaplake.worker.config.environment import limit_numpy_threads\n"
        "limit_numpy_threads()\n"
        "import numpy\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "1\n"
