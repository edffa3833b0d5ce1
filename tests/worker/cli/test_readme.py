"""README.md shows what its commands print, its snippets run, and the commands that pages show have these options."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.core import TyperCommand
from typer.main import get_command

from docs.examples import plot_signal, query
from pcaplake.spark_jobs.__main__ import build_command_line
from pcaplake.worker.cli import app as cli
from tests.worker import lakes
from tests.worker.opened_files import opened

ROOT = Path(__file__).resolve().parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = ["README.md", *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
COMMAND = r" *(?:(?:[A-Z_]+=\S+ +)*|kubectl .* -- |.* \| )(pcaplake|pcaplake-spark)(?= |$)(.*)"
MEASURED = (  # times and rates
    (r"in [\d.]+ s \([\d.]+ s of CPU\): [\d,]+ rows/s", "in SECONDS: RATE"),
    (r"in \d+ batch(es)?, [\d.]+ s; version \d+", "in BATCHES, SECONDS; VERSION"),
)


def block_after(start: str) -> str:
    """The first code block of README after `start`."""
    return re.split(r"^```.*\n", README.partition(start)[2], flags=re.MULTILINE)[1]


def mask(text: str) -> list[str]:
    """The lines that are not empty, with single spaces, without what is measured."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    for pattern, masked in MEASURED:
        lines = [re.sub(pattern, masked, line) for line in lines]
    return lines


SIZES = re.compile(r"^(\w+ [\d,]+) [1-9]\d* ([\d,]+) [1-9]\d*$")


def without_sizes(lines: Iterable[str]) -> list[str]:
    """Tables and their rows: files, bytes and version depend on which captures share a batch."""
    return [SIZES.sub(r"\1", line) for line in lines]


def large_tables(lines: Iterable[str]) -> dict[str, int]:
    """The bytes of tables of which a few files more or less make no difference."""
    found = [match for line in lines if (match := SIZES.match(line)) is not None]
    sizes = {match[1].split()[0]: int(match[2].replace(",", "")) for match in found}
    return {name: size for name, size in sizes.items() if size > 1_000_000}


def find_commands(page: str) -> Iterator[tuple[str, list[str]]]:
    """Program and arguments of every command of pcaplake in the code blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for language, code in re.findall(r"^ *```(\w*)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
        for line in code.replace("\\\n", " ").splitlines() if language in ("", "sh", "bash", "console") else ():
            if (shown := re.match(COMMAND, line)) is not None:
                words = shlex.shlex(shown[2], posix=True, punctuation_chars="|&>")
                words.whitespace_split = True
                yield shown[1], re.split(r"\n[|&>]", "\n".join(words))[0].split("\n")


def test_commands_that_pages_show_have_these_options() -> None:
    programs: dict[str, Any] = {"pcaplake": get_command(cli.app), "pcaplake-spark": get_command(build_command_line())}
    checked = 0
    for page in PAGES:
        for program, (name, *arguments) in find_commands(page):
            if not name:  # the program alone
                continue
            assert name in programs[program].commands, f"{page}: {program} {name}"
            command: TyperCommand = programs[program].commands[name]
            parser = command.make_parser(command.context_class(command, info_name=name))
            _, extra, _ = parser.parse_args(arguments)  # raises for options that the command does not have
            assert not extra, f"{page}: {program} {name} {extra}"
            checked += 1
    assert checked > 80


@pytest.mark.slow
def test_the_demo_prints_what_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    commands = re.findall(r"\$\(BIN\)/pcaplake (.*)", recipe[1].replace("$(DEMO_SECONDS)", "60"))
    assert [command.split()[0] for command in commands] == ["sample", "ingest", "signals", "tables"]
    printed = []
    for command in commands:
        code, out, err = lakes.run(capsys, *command.split())
        assert code == 0, err
        printed += [] if command.startswith("sample") else mask(err) + mask(out)
    with opened(Path("demo/lake/can_frames")) as files:
        query.main("demo/lake")
    assert {file.parts[0] for file in files} == {"date=2026-09-22"}
    printed += [line for line in mask(capsys.readouterr().out) if line[0] in "┌│├└"]
    plot_signal.main("demo/lake", "VehicleSpeed")
    printed += mask(capsys.readouterr().out)
    with opened(Path("demo/lake/signals")) as files:
        plot_signal.main("demo/lake", "VehicleSpeed", "vehicle-002", "2026-09-22")
    assert "VehicleSpeed of vehicle-002" in capsys.readouterr().out
    assert {file.parts[0] for file in files} == {"date=2026-09-22"}
    shown = mask(block_after("`make demo` prints"))
    assert without_sizes(shown) == without_sizes(printed)
    for name, size in large_tables(shown).items():
        # on a busy machine an ingest closes its files earlier, and rows of other files stand beside each other
        assert large_tables(printed)[name] == pytest.approx(size, rel=0.1), name

    Path("lake").symlink_to("demo/lake")
    command = shlex.split(block_after("### Query it").splitlines()[1], comments=True)
    code, out, err = lakes.run(capsys, *command[1:])
    assert (code, err, "powertrain" in out) == (0, "", True)
    with lakes.connect() as connection, opened(Path("demo/lake")) as files:
        statement = block_after("the result of one query\n```").replace("INSTALL delta; LOAD delta;", "")
        assert {row[0] for row in connection.sql(statement).fetchall()} == {"vehicle-001", "vehicle-002"}
    assert {file.parts[:2] for file in files} == {("can_frames", "date=2026-09-21")}
    imports, polars = block_after("ORDER BY frames DESC;\n```").strip().rsplit("\n", 1)
    namespace: dict[str, Any] = {}
    with opened(Path("demo/lake")) as files:
        exec(imports, namespace)
        assert len(eval(polars, namespace)) > 0
    assert {file.parts[:2] for file in files} == {("someip_messages", "date=2026-09-21")}
    shutil.copy(next(Path("demo/drive").rglob("*-1.pcapng")), "drive.pcapng")
    shutil.copy("demo/drive/profile.yaml", "profile.yaml")
    exec(block_after("### From Python"), namespace)
    assert namespace["frames"].num_rows > 0
