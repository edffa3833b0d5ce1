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
    assert not imported_by("--help") & {"asyncio", "dpkt", "numpy", "pyarrow", "pydantic", "rich"}


NOT_FOR_SHORT_COMMANDS = {
    "boto3",
    "botocore",
    "kubernetes",
    "pcaplake.worker.admin.doctor",
    "pcaplake.ingest.reread",
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
        assert not used(imported_by(*arguments), {*NOT_FOR_SHORT_COMMANDS, "dpkt", "pcaplake.core"})
    assert not imported_by("docs", "settings") & {"boto3", "botocore", "dpkt", "kubernetes", "pcaplake.core"}


def test_a_small_ingest_imports_only_what_it_uses(tmp_path: Path) -> None:
    """deltalake and pyarrow.compute are for lakes that have something already, and nobody asks for SOME/IP payloads."""
    (tmp_path / "a.pcap").write_bytes(can_capture(3)[:-4])  # rows of the table `faults`, too
    imported = imported_by("ingest", tmp_path / "a.pcap", "--lake", tmp_path / "lake")
    assert "dpkt" in imported
    assert not used(
        imported,
        {
            *NOT_FOR_SHORT_COMMANDS,
            "deltalake",
            "importlib.metadata",  # what pydantic looks for plugins with
            "numpy.ma",
            "pcaplake.core.someip",
            "pyarrow.compute",
        },
    )


def test_protocols_of_dpkt_that_nobody_reads_are_empty_modules() -> None:
    """dpkt imports all of its protocols with the first one. Its own classes for those that are read stay complete."""
    code = (
        "import sys\n"
        "from pcaplake.worker.__main__ import HiddenPackages\n"
        "sys.meta_path.insert(0, HiddenPackages())\n"
        "import dpkt\n"
        "from pcaplake.parser import protocols\n"
        "assert protocols.LAYERS\n"
        "assert not [name for name in vars(dpkt.smb) if not name.startswith('__')]\n"
        "frame = bytes(12) + b'\\x08\\x00' + bytes(dpkt.ip.IP(p=17, data=dpkt.udp.UDP(sport=1, dport=2)))\n"
        "assert dpkt.ethernet.Ethernet(frame).ip.udp.dport == 2"
    )
    modules_after(code)


def test_a_program_loads_the_kernels_that_it_needs(tmp_path: Path) -> None:
    """Reading a capture loads the decoder's kernels and not those of the Parquet writer; importing loads none."""
    (tmp_path / "a.pcap").write_bytes(can_capture(3))
    code = (
        "import sys\n"
        "from pcaplake import open_capture\n"
        "import pcaplake.lake.parquet\n"
        "assert 'pcaplake.core' not in sys.modules\n"
        f"with open_capture({str(tmp_path / 'a.pcap')!r}, 'can_frames') as capture:\n"
        "    assert capture.read().num_rows == 3\n"
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    kernels = {name for name in modules_after(code) if name.startswith("pcaplake.core.")}
    assert kernels == {"pcaplake.core.engine"}


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
