"""Names of strangers on the way to people: files, interfaces, keys, messages. Nothing in them commands a terminal.

Each case shows hostile names by one command, and everything that comes out is looked at.
"""

from __future__ import annotations

import ast
import io
import json
import logging
import os
import re
import struct
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given as given_any
from hypothesis import strategies as st
from rich.text import Text
from structlog.contextvars import bound_contextvars

from pcaplake.common.plain_text import counted, describe_library_error, shell_word, to_json, visible
from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.worker import console as screen
from pcaplake.worker.admin.dead_letters import DeadLetter
from pcaplake.worker.admin.doctor.doctor import DoctorReport
from pcaplake.worker.admin.doctor.findings import Finding
from pcaplake.worker.admin.status import LakeStatus, Leader, QueueFacts, Status, TableStatus
from pcaplake.worker.cli import doctor, status
from pcaplake.worker.cli import redrive as redrive_command
from pcaplake.worker.cli.replay import make_uri_printer
from pcaplake.worker.rich_console import RichConsole
from pcaplake.worker.service.queue import Delivery
from pcaplake.worker.telemetry import logs
from tests.worker import lakes
from tools import ROOMS

FORGED = "forged: a line of its own"
HOSTILE = (
    f"\x1b[31mred\x1b]0;title\x07\x1b[2J\r\n{FORGED}\n\x9b2J\x85\x7f\u202egnp\u2066\u2028\u2029\u200b[blink]:car:[/]\\ü"
)
"""Escape sequences of 7 and 8 bits, ends of lines, what turns the text around, what nobody sees, rich's markup."""
IN_FILES = HOSTILE.replace("/", "") + "\udcff"
Shown = Callable[[Path, Any], str]
"""Runs a command in a folder -> all that it wrote."""


def raw(text: str) -> set[str]:
    """What of a text a terminal or a reader of a log would not just show."""
    return {one for one in text if unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")} - {
        "\n",
        "\u200c",
        "\u200d",
    }


def check(shown: str) -> None:
    assert "red" in shown, "the name is not shown at all, so that nothing is tested"
    assert not raw(shown), raw(shown)
    assert not any(line.startswith(FORGED) for line in shown.splitlines())
    assert ":car:" in shown, "an emoji instead of what stands there"
    assert "[blink]" in shown, "a name was taken for markup"


def interface(name: str, comment: str) -> bytes:
    """A pcapng file of one interface with a name and a comment, and no packet (draft-ietf-opsawg-pcapng, 4.1 and 4.2)."""
    options = b""
    for code, text in ((1, comment), (2, name), (3, name), (0, "")):
        data = text.encode(errors="replace")
        options += struct.pack("<HH", code, len(data)) + data + bytes(-len(data) % 4)
    section = struct.pack("<IIIHHqI", 0x0A0D0D0A, 28, 0x1A2B3C4D, 1, 0, -1, 28)
    size = 20 + len(options)
    return section + struct.pack("<IIHHI", 1, size, 1, 0, 0) + options + struct.pack("<I", size)


def command(capsys: Any, *arguments: object) -> str:
    _, out, err = lakes.run(capsys, *arguments)
    return out + err


def quarantined(folder: Path, capsys: Any, *more: str) -> str:
    (folder / f"{IN_FILES}.pcap").write_bytes(b"no capture")
    return command(capsys, "ingest", folder / f"{IN_FILES}.pcap", "--lake", folder / "lake", *more)


def quarantined_json(folder: Path, capsys: Any) -> str:
    return quarantined(folder, capsys, "--json")


def not_there(folder: Path, capsys: Any) -> str:
    return command(capsys, "ingest", folder / IN_FILES, "--lake", folder / "lake")


def not_read(folder: Path, capsys: Any) -> str:
    """A file that goes away while it is read."""
    path = folder / f"{IN_FILES}.pcap"
    path.symlink_to(folder / "nothing")
    other = folder / "b.pcap"
    other.write_bytes(b"no capture")
    return command(capsys, "ingest", path, other, "--lake", folder / "lake")


def inspected(folder: Path, capsys: Any) -> str:
    (folder / "a.pcapng").write_bytes(interface(HOSTILE, HOSTILE))
    return command(capsys, "inspect", folder / "a.pcapng")


def inspected_json(folder: Path, capsys: Any) -> str:
    (folder / "a.pcapng").write_bytes(interface(HOSTILE, HOSTILE))
    _, out, err = lakes.run(capsys, "inspect", folder / "a.pcapng", "--json")
    assert json.loads(out)["interfaces"][0]["name"] == HOSTILE
    return out + err


def inspected_no_capture(folder: Path, capsys: Any) -> str:
    (folder / IN_FILES).write_bytes(b"no capture")
    return command(capsys, "inspect", folder / IN_FILES)


def sampled(folder: Path, capsys: Any) -> str:
    return command(capsys, "sample", folder / IN_FILES, "--mix", "charging", "--seconds", "0.1")


def of_a_lake(*arguments: str) -> Shown:
    def shown(folder: Path, capsys: Any) -> str:
        lake = folder / IN_FILES.replace("\udcff", "")
        (folder / "x.pcap").write_bytes(b"no capture")
        lakes.run(capsys, "ingest", folder / "x.pcap", "--lake", lake)
        said = command(capsys, arguments[0], "--lake", lake, *arguments[1:])
        return said + command(capsys, arguments[0], "--lake", f"{lake}-2", *arguments[1:])

    return shown


def arguments(*given: str) -> Shown:
    return lambda folder, capsys: command(capsys, *given)


def settings_file(folder: Path, capsys: Any) -> str:
    (folder / "x.yaml").write_text(f"? {json.dumps(HOSTILE)}\n: 1\n")
    return command(capsys, "status", "--config", folder / "x.yaml")


def profile(folder: Path, capsys: Any) -> str:
    (folder / "a.pcapng").write_bytes(interface("eth0", ""))
    (folder / "x.yaml").write_text(f"? {json.dumps(HOSTILE)}\n: 1\n")
    return command(capsys, "inspect", folder / "a.pcapng", "--profile", folder / "x.yaml")


def routes(folder: Path, capsys: Any) -> str:
    (folder / "routes.yaml").write_text(json.dumps({"routes": [{HOSTILE: HOSTILE}]}))
    (folder / "x.yaml").write_text(f"routes: {folder}/routes.yaml\n")
    return command(capsys, "status", "--config", folder / "x.yaml")


def keys(folder: Path, capsys: Any) -> str:
    make_uri_printer(True)(ObjectRef(uri=f"s3://raw/{HOSTILE}", size=1, explicit=True))
    return str(capsys.readouterr().out)


def dead_letters(folder: Path, capsys: Any) -> str:
    delivery = Delivery(message_id="m", receipt_handle="r", body=HOSTILE, receive_count=1, sent_at=0.0)
    screen.line(redrive_command._describe_letter(DeadLetter(delivery=delivery, uris=(f"s3://raw/{HOSTILE}",))))
    screen.line(redrive_command._describe_letter(DeadLetter(delivery=delivery, uris=())))
    return str(capsys.readouterr().out)


def findings(folder: Path, capsys: Any) -> str:
    finding = Finding(level="error", what=HOSTILE, do=HOSTILE, table=HOSTILE, check="files", lake=HOSTILE)
    doctor._show_report(DoctorReport(findings=[finding], offered=[HOSTILE], done=[HOSTILE]), offer=True)
    return str(capsys.readouterr().out)


def statuses(folder: Path, capsys: Any) -> str:
    queue = QueueFacts(
        name=HOSTILE, visible=1, in_flight=0, delayed=0, visibility_timeout=1, retention=1, not_allowed=HOSTILE
    )
    table = TableStatus(version=1, txn=1, files=1, rows=1, bytes=1, checkpoint=1, checkpoint_age=None, blocked=HOSTILE)
    told: dict[str, Any] = dict(uri=HOSTILE, head=1, last_batch=1, pending=0, not_allowed=(HOSTILE,))
    leader = Leader(owner=HOSTILE, moves=True)
    lake = LakeStatus(**told, held={HOSTILE: HOSTILE}, leader=leader, tables={HOSTILE: table})
    lost = LakeStatus(uri=HOSTILE, problem=HOSTILE)
    for now in (
        Status(queue=queue, queue_problem=None, lakes=(lake, lost)),
        Status(queue=None, queue_problem=HOSTILE, lakes=()),
    ):
        screen.out.print(status.render_status(now))
    return str(capsys.readouterr().out)


def tables(folder: Path, capsys: Any) -> str:
    screen.table(HOSTILE, [HOSTILE, "n"], [(HOSTILE, 1)])
    return str(capsys.readouterr().out)


def logged(format: Any) -> Shown:
    def shown(folder: Path, capsys: Any) -> str:
        stream = io.StringIO()
        with logs.configured_logging(format, stream=stream), bound_contextvars(capture_id=HOSTILE):
            logging.getLogger("x").warning("read %s", HOSTILE, extra={"uri": HOSTILE, "uris": [HOSTILE]})
            try:
                raise ValueError(HOSTILE.replace("\n", " "))
            except ValueError:
                logging.getLogger("x").exception("failed")
        return stream.getvalue()

    return shown


SCRIPT = """
import logging, sys
from pcaplake.worker import console
console.logs()
logging.warning("read %s", sys.argv[1])
try:
    raise ValueError(sys.argv[1].replace(chr(10), " "))
except ValueError:
    logging.exception("failed")
"""


def warnings_of_commands(folder: Path, capsys: Any) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, HOSTILE], capture_output=True, check=True, env={**os.environ, "PYTHONUTF8": "1"}
    )
    return (done.stdout + done.stderr).decode()


def quality_page(folder: Path, capsys: Any) -> str:
    from datetime import UTC, datetime

    from pcaplake.spark_jobs.quality.page import render_page
    from pcaplake.spark_jobs.quality.report import SECTIONS, TOTAL, QualityFinding, QualityReport

    named = dict(vehicle_id=HOSTILE, capture_id=HOSTILE, detail=HOSTILE, table=HOSTILE)
    rows = tuple(
        QualityFinding(section=one, kind=kind, count=2, **named) for one in SECTIONS for kind in (HOSTILE, TOTAL)
    )
    rows += tuple(QualityFinding(section=one, kind=HOSTILE, count=2, vehicle_id=HOSTILE) for one in SECTIONS)
    made = datetime(2026, 1, 1, tzinfo=UTC)
    told: dict[str, Any] = dict(since=None, until=None, late_hours=24, most=5, seconds=1.0, healthy=False)
    return render_page(QualityReport(lake=HOSTILE, made_at=made, rows=rows, **told))


def spark_job(folder: Path, capsys: Any) -> str:
    from dataclasses import dataclass

    import typer

    from pcaplake.spark_jobs.common import job

    @dataclass(frozen=True)
    class Done:
        lake: str

    app = typer.Typer(add_completion=False)

    @app.command()
    def one(name: str) -> None:
        job.write_report(Done(lake=name))
        job.say(f"lake {name}")
        raise ValueError(name.replace("\n", " "))

    job.run(app, [HOSTILE])
    job.run(app, ["--no-such", HOSTILE])
    shown = capsys.readouterr()
    return str(shown.out + shown.err)


def signal_database(folder: Path, capsys: Any) -> str:
    """Names of files and networks; a message's and a signal's are C identifiers in every format but KCD and ARXML."""
    import typer

    from pcaplake.signals import Databases
    from pcaplake.spark_jobs.common import job

    app = typer.Typer(add_completion=False)

    @app.command()
    def one(said: str) -> None:
        Databases.from_mapping(json.loads(said), "x.yaml", folder)

    for said in (
        {"databases": {"a": HOSTILE}},
        {"databases": {"a": "a.dbc"}, "buses": {HOSTILE: HOSTILE}},
        {HOSTILE: 1},
    ):
        (folder / "a.dbc").write_text('VERSION ""\nBU_: A\n')
        job.run(app, [json.dumps(said)])
    shown = capsys.readouterr()
    return str(shown.out + shown.err)


CASES: dict[str, Shown] = {
    "ingest, quarantined": quarantined,
    "ingest --json, quarantined": quarantined_json,
    "ingest, not there": not_there,
    "ingest, not read": not_read,
    "inspect": inspected,
    "inspect --json": inspected_json,
    "inspect, no capture": inspected_no_capture,
    "sample": sampled,
    "tables": of_a_lake("tables"),
    "maintain": of_a_lake("maintain"),
    "doctor": of_a_lake("doctor"),
    "doctor --json": of_a_lake("doctor", "--json"),
    "doctor --repair": of_a_lake("doctor", "--repair", "--yes"),
    "status": of_a_lake("status"),
    "status --json": of_a_lake("status", "--json"),
    "no such command": arguments(HOSTILE),
    "no such option": arguments("ingest", f"--{HOSTILE}"),
    "a column that is none": arguments("ingest", "x", "--lake", "lake", "--partition-by", HOSTILE),
    "a store that is none": arguments("ingest", "x", "--lake", f"{HOSTILE}://x"),
    "replay, not configured": arguments("replay", f"s3://x/{HOSTILE}", "--config", HOSTILE),
    "reconcile, not configured": arguments("reconcile", "--config", HOSTILE),
    "redrive, not configured": arguments("redrive", "--config", HOSTILE),
    "setup, not configured": arguments("setup", "--config", HOSTILE),
    "run, not configured": arguments("run", "--config", HOSTILE),
    "operator, no plan": arguments("operator", "--check", "--jobs", HOSTILE),
    "settings": settings_file,
    "profile": profile,
    "routes": routes,
    "keys of replay and reconcile": keys,
    "dead letters": dead_letters,
    "findings of doctor": findings,
    "one screen of status": statuses,
    "tables and their titles": tables,
    "logs as JSON": logged("json"),
    "logs as text": logged("text"),
    "warnings of commands": warnings_of_commands,
    "the quality page": quality_page,
    "a job of Spark": spark_job,
    "databases of signals": signal_database,
}


@pytest.mark.slow
@pytest.mark.parametrize("shown", CASES.values(), ids=CASES)
def test_hostile_names_are_shown_and_do_nothing(shown: Shown, tmp_path: Path, capsys: Any) -> None:
    check(shown(tmp_path, capsys))


def test_on_a_terminal_only_rich_itself_chooses_colours() -> None:
    """Also where a text goes to rich without `say`: spinners, bars, what is logged above them."""
    stream = io.StringIO()
    console = RichConsole(file=stream, force_terminal=True, color_system="standard", soft_wrap=True, emoji=False)
    console.print(Text(HOSTILE, style="bold"), f"[green]{screen.shown(HOSTILE)}[/]")
    with console.status(screen.shown(HOSTILE)):
        pass
    shown = stream.getvalue()
    assert "\x1b[1m" in shown
    own = re.sub(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)", "", shown)  # colours, cursor, line erased
    assert not raw(own) - {"\r"}, raw(own)
    assert "\\x1b[31mred" in own


SHOWS = {  # who may write to stdout and stderr
    "worker/console.py",
    "common/output_streams.py",
    "common/stderr.py",
    "worker/cli/app.py",  # typer's help
    "worker/__main__.py",  # that this system is not supported, before anything else is imported
    "spark_jobs/__main__.py",
    "worker/config/service_settings.py",  # pages of the documentation, to a file
    "worker/telemetry/metrics.py",
    "spark_jobs/common/job.py",  # reports on stdout
    "spark_jobs/jars.py",
}


@pytest.mark.slow
def test_nobody_else_writes_to_the_terminal() -> None:
    """A new `print` is a new way around the one place that escapes."""
    root = Path(__file__).parents[2]
    found = set()
    for path in (path for room in ROOMS for path in (root / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name in ("print", "typer.echo", "typer.secho", "Console", "sys.stdout.write", "sys.stderr.write"):
                found.add(path.relative_to(root).as_posix())
    assert found <= SHOWS, found - SHOWS


@given_any(text=st.text(st.characters(), max_size=30))
def test_what_is_shown_can_be_seen_and_json_says_what_it_was(text: str) -> None:
    unseen = {one for one in visible(text) if unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp")}
    assert not unseen
    assert visible(visible(text)) == visible(text)
    for ascii_only in (True, False):
        said = to_json([text], ensure_ascii=ascii_only)
        assert visible(said) == said
        assert json.loads(said) == [text]


def test_letters_of_all_scripts_are_left_as_they_are() -> None:
    for text in (
        "Größe 20 °C",
        "می\u200cخواهم",
        "क्\u200dष",
        "日本語",
        "👩\u200d🔧",
        "\u0600١٢٣",
        "a\u00a0b",
        r"C:\new",
    ):
        assert visible(text) == text


@pytest.mark.parametrize("key", [HOSTILE, "a b'c", "a\\x1b", "\x1bd'\\", "\x85f", "plain/key"])
def test_a_key_that_is_shown_can_be_pasted(key: str) -> None:
    """`replay` says where to go on: another key than that would leave captures out."""
    word = shell_word(key)
    assert visible(word) == word
    shell = ["bash", "-c", f"printf %s {word}"]
    done = subprocess.run(shell, capture_output=True, check=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
    assert done.stdout.decode() == key


def test_a_count_agrees_with_its_noun() -> None:
    assert [counted(number, "capture") for number in (0, 1, 1200)] == ["0 captures", "1 capture", "1,200 captures"]
    assert [counted(number, "batch is", "batches are") for number in (1, 2)] == ["1 batch is", "2 batches are"]


def test_errors_of_libraries_have_no_colors_and_no_stack() -> None:
    error = OSError(
        "Kernel error: \x1b[1mno 'id'\x1b[0m\n   0: <unknown>\n  12: start_thread\n             at ./nptl/c:442:8\n"
    )
    assert describe_library_error(error) == "Kernel error: no 'id'"
