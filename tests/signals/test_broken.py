"""Databases with broken lines, giant numbers and mixed encodings: only what cannot be read is lost, and listed. No JVM."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pcaplake.signals import Databases, Message, load_database
from pcaplake.signals.cantools_reader import convert_messages
from pcaplake.signals.compiled import CompiledMessage
from pcaplake.signals.dbc import MOST_IDS, MOST_IDS_OF_FILE, parse_dbc, split_statements
from pcaplake.signals.errors import DatabaseError
from tests.signals.cantools_files import databases
from tests.signals.databases import LETTERS_DBC, LETTERS_KCD, LETTERS_LDF, LETTERS_SYM

GOOD = 'VERSION ""\nBU_: A\nBO_ 256 Good: 8 A\n SG_ Fine : 0|8@1+ (1,0) [0|0] "" A\n'
KCD = LETTERS_KCD % "utf-8"
SECOND_KCD = KCD.replace(
    "</Bus>", '<Message id="0x7" length="8" name="Good"><Signal name="Fine" offset="0"/></Message></Bus>'
)
SECOND_SYM = f"{LETTERS_SYM}\n[Good]\nID=007h\nLen=8\nSig=S 0\n"
GIANT = "4000000000"
BROKEN: dict[str, tuple[str, str, str, str]] = {  # file, text, what is listed, why
    "long message": (
        "a.dbc",
        f'{GOOD}BO_ 1 M: {GIANT} A\n SG_ S : 0|8@1+ (1,0) [0|0] "" A\n',
        "M.S",
        "4,000,000,000 bytes",
    ),
    "long signal": ("a.dbc", f'{GOOD}BO_ 1 M: 8 A\n SG_ S : 0|{GIANT}@1+ (1,0) [0|0] "" A\n', "M.S", "ends in byte"),
    "far signal": ("a.dbc", f'{GOOD}BO_ 1 M: 8 A\n SG_ S : {GIANT}|8@0+ (1,0) [0|0] "" A\n', "M.S", "ends in byte"),
    "range of a multiplexer": (
        "a.dbc",
        f'{GOOD}BO_ 1 M: 8 A\n SG_ X M : 0|8@1+ (1,0) [0|0] "" A\n SG_ S m0 : 8|8@1+ (1,0) [0|0] "" A\n'
        f"SG_MUL_VAL_ 1 S X 0-1, 7-{GIANT};\n",
        "M.S",
        "line 8: it lists 3,999,999,996 multiplexer values",
    ),
    "no multiplexer": (
        "a.dbc",
        f'{GOOD}BO_ 1 M: 8 A\n SG_ S m1 : 0|8@1+ (1,0) [0|0] "" A\n',
        "M.S",
        "it is multiplexed (m1), and the file does not name its multiplexer",
    ),
    "several multiplexers, and none is named": (
        "a.dbc",
        f'{GOOD}BO_ 1 M: 8 A\n SG_ X M : 0|8@1+ (1,0) [0|0] "" A\n SG_ Y M : 8|8@1+ (1,0) [0|0] "" A\n'
        ' SG_ S m1 : 16|8@1+ (1,0) [0|0] "" A\n',
        "M.S",
        "it is multiplexed (m1)",
    ),
    "a multiplexer that is lost": (
        "a.dbc",
        f'{GOOD}BO_ 1 M: 8 A\n SG_ X M : 0|8@1+ (1;0) [0|0] "" A\n SG_ S m1 : 16|8@1+ (1,0) [0|0] "" A\n',
        "M.S",
        "it is multiplexed (m1)",
    ),
    "id of 32 bits": (
        "a.dbc",
        f'{GOOD}BO_ 4294967295 M: 8 A\n SG_ S : 0|8@1+ (1,0) [0|0] "" A\n',
        "a.dbc, line 5",
        "29 bits",
    ),
    "id of 33 bits": (
        "a.dbc",
        f'{GOOD}BO_ 8589934593 M: 8 A\n SG_ S : 0|8@1+ (1,0) [0|0] "" A\n',
        "a.dbc, line 5",
        "the id of M",
    ),
    "standard id of 12 bits": ("a.dbc", f"{GOOD}BO_ 4095 M: 8 A\n", "a.dbc, line 5", "a standard id has 11 bits"),
    "value table of nothing": (
        "a.dbc",
        f'{GOOD}VAL_ 99 S 1 "a" ;\n',
        "a.dbc, line 5",
        "S of message 99, which does not exist",
    ),
    "broken value table": ("a.dbc", f'{GOOD}VAL_ 256 Fine 1.5 "a" ;\n', "a.dbc, line 5", "1.5"),
    "float type of nothing": ("a.dbc", f"{GOOD}SIG_VALTYPE_ 256 S : 1;\n", "a.dbc, line 5", "which does not exist"),
    "broken float type": (
        "a.dbc",
        f'{GOOD}BO_ 1 M: 8 A\n SG_ S : 0|32@1+ (1,0) [0|0] "" A\nSIG_VALTYPE_ 1 S : x;\n',
        "M.S",
        "line 7: 'SIG_VALTYPE_ 1 S : x;' is not a valid SIG_VALTYPE_ statement",
    ),
    "broken signal": (
        "a.dbc",
        f"{GOOD} SG_ S : 0|8@1+ (1,0 [0|0] A\n",
        "Good.S (a.dbc, line 5)",
        "is not a valid SG_ statement",
    ),
    "broken message": (
        "a.dbc",
        f'{GOOD}BO_ x M: 8 A\n SG_ S : 0|8@1+ (1,0) [0|0] "" A\n',
        "a.dbc, line 5",
        "is not a valid BO_ statement",
    ),
    "a line of nothing": ("a.dbc", f"{GOOD}%% what is this\n", "a.dbc, line 5", "belongs to no statement"),
    "a comment without its end": (
        "a.dbc",
        f'{GOOD}CM_ "a ;\nBO_ 1 M: 8 A\n SG_ S : 0|8@1+ (1,0) [0|0] "" A\nCM_ "b";\n',
        "a.dbc, line 5",
        "extends over lines 6 to 8",
    ),
    "KCD: long message": (
        "a.kcd",
        SECOND_KCD.replace('length="8" name="M"', f'length="{GIANT}" name="M"'),
        "M.S",
        "4,000,000,000 bytes",
    ),
    "KCD: long signal": (
        "a.kcd",
        SECOND_KCD.replace('offset="0" length="8"', f'offset="0" length="{GIANT}"'),
        "M.S",
        "ends in byte",
    ),
    "KCD: id": ("a.kcd", SECOND_KCD.replace('"0x100"', '"0xFFFFFFFFFF"'), "M (a.kcd)", "a standard id has 11 bits"),
    "SYM: long message": ("a.sym", SECOND_SYM.replace("Len=8", f"Len={GIANT}", 1), "M.S", "4,000,000,000 bytes"),
    "SYM: range of ids": (
        "a.sym",
        SECOND_SYM.replace("ID=100h", "Type=Extended\nID=00000000h-1FFFFFFFh"),
        "a.sym, line 10",
        "536,870,912 ids",
    ),
    "two messages of one id": (
        "a.dbc",
        f'{GOOD}BO_ 1 M: 8 A\n SG_ S : 0|8@1+ (1,0) [0|0] "" A\nBO_ 1 N: 8 A\n SG_ T : 0|8@1+ (1,0) [0|0] "" A\n',
        "a.dbc, line 5 and line 7",
        "M and N have the same id 0x1",
    ),
    "two signals of one name": (
        "a.dbc",
        f'{GOOD}BO_ 1 M: 8 A\n SG_ T : 0|8@1+ (1,0) [0|0] "" A\n SG_ T : 8|8@1+ (1,0) [0|0] "" A\n',
        "M.T",
        "a later signal of the message has its name",
    ),
    "below two multiplexers": (
        "a.dbc",
        f'{GOOD}BO_ 1 M: 8 A\n SG_ X M : 0|8@1+ (1,0) [0|0] "" A\n SG_ Y m0M : 8|8@1+ (1,0) [0|0] "" A\n'
        ' SG_ S m1 : 16|8@1+ (1,0) [0|0] "" A\nSG_MUL_VAL_ 1 Y X 0-0;\nSG_MUL_VAL_ 1 S X 1-1;\nSG_MUL_VAL_ 1 S Y 5-5;\n',
        "M.S",
        "it is below several multiplexers (X, Y)",
    ),
    "a marker without a value": (
        "a.dbc",
        f'{GOOD}BO_ 1 M: 8 A\n SG_ X M : 0|8@1+ (1,0) [0|0] "" A\n SG_ S m : 16|8@1+ (1,0) [0|0] "" A\n',
        "M.S",
        "it is multiplexed (m)",
    ),
    "a marker with a giant value": (
        "a.dbc",
        f'{GOOD}BO_ 1 M: 8 A\n SG_ X M : 0|8@1+ (1,0) [0|0] "" A\n SG_ S m{"9" * 5000} : 16|8@1+ (1,0) [0|0] "" A\n',
        "M.S (a.dbc, line 7)",
        "is not a valid SG_ statement",
    ),
    "a text for half a value": (
        "a.dbc",
        f'{GOOD}VAL_ 256 Fine 0.5 "half" ;\n',
        "a.dbc, line 5",
        "raw values are whole numbers",
    ),
    "an extended id without bit 31": (
        "a.dbc",
        f'{GOOD}BO_ 217056256 M: 8 A\n SG_ S : 0|8@1+ (1,0) [0|0] "" A\n',
        "a.dbc, line 5",
        "add 2147483648 to it",
    ),
    "LDF: long id": ("a.ldf", LETTERS_LDF.replace("Cmd: 1,", "Cmd: 64,"), "a.ldf, line 13", "6 bits"),
    "LDF: one id twice": (
        "a.ldf",
        LETTERS_LDF.replace("Stat: 2,", "Third: 1, LSM, 1 { Mode, 0; }\n  Stat: 2,"),
        "a.ldf, line 13 and line 14",
        "Cmd and Third have the same id 0x1",
    ),
    "LDF: one id twice, in one line": (
        "a.ldf",
        LETTERS_LDF.replace("Cmd: 1,", "Third: 1, LSM, 1 { Mode, 0; } Cmd: 1,").replace("\n  Stat: 2,", " Stat: 2,"),
        "a.ldf, line 13",
        "Third and Cmd have the same id 0x1",
    ),
    "LDF: an unknown signal": (
        "a.ldf",
        LETTERS_LDF.replace("Cmd: 1, CEM, 2 { Level", "Cmd: 1, CEM, 2 { Nowhere"),
        "Cmd.Nowhere",
        "does not declare it",
    ),
    "LDF: an unknown encoding": (
        "a.ldf",
        LETTERS_LDF.replace("LevelEnc: Level", "Nothing: Level"),
        "Cmd.Level",
        "its encoding Nothing",
    ),
    "LDF: long frame": (
        "a.ldf",
        LETTERS_LDF.replace("Cmd: 1, CEM, 2", f"Cmd: 1, CEM, {GIANT}"),
        "a.ldf, line 13",
        "4,000,000,000 bytes",
    ),
    "LDF: a frame of 9 bytes": (
        "a.ldf",
        LETTERS_LDF.replace("Cmd: 1, CEM, 2", "Cmd: 1, CEM, 9"),
        "a.ldf, line 13",
        "Cmd has 9 bytes, and a frame of LIN has 1 to 8",
    ),
    "LDF: a signal twice": (
        "a.ldf",
        LETTERS_LDF.replace("Mode: 2,", "Level: 8, 0, CEM, LSM ;\n  Mode: 2,"),
        "Cmd.Level",
        "declares it twice",
    ),
    "LDF: an encoding twice": (
        "a.ldf",
        LETTERS_LDF.replace("  ModeEnc", "  LevelEnc { physical_value, 0, 1000, 2, 0 ; }\n  ModeEnc"),
        "Cmd.Level",
        "declares its encoding LevelEnc twice",
    ),
    "LDF: two encodings of a signal": (
        "a.ldf",
        LETTERS_LDF.replace("ModeEnc: Mode ;", "ModeEnc: Mode, Level ;"),
        "Cmd.Level",
        "gives it two encodings",
    ),
}
_BOUNDED = """
import json, resource, sys, traceback
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from pcaplake.signals import Databases
for name in sys.argv[1:]:
    try:
        found = Databases.from_file(name)
        signals = {message.name: [one.name for one in message.signals] for _, message in found}
        print(json.dumps([found.unreadable_declarations, signals]), flush=True)
    except Exception:
        print(json.dumps([traceback.format_exc()]), flush=True)
"""


def read_apart(program: str, paths: dict[str, Path], seconds: float = 120) -> dict[str, list[Any]]:
    """What `program` prints of each path, one after the other in one process; of the case that ends it or hangs, only that.

    The next process goes on with the case after it.
    """
    found: dict[str, list[Any]] = {}
    while left := [case for case in paths if case not in found]:
        command = [sys.executable, "-c", program, *(str(paths[case]) for case in left)]
        try:
            done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
            out, end = done.stdout, f"its process ended with {done.returncode}: {done.stderr[-2000:].decode()}"
        except subprocess.TimeoutExpired as error:
            out, end = error.stdout or b"", f"its process took more than {seconds} s"
        read = [json.loads(line) for line in out.splitlines(keepends=True) if line.endswith(b"\n")]
        found |= zip(left, read, strict=False)
        if len(read) < len(left):
            found[left[len(read)]] = [end]
    return found


@pytest.fixture(scope="module")
def read_in_little_memory(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """All of BROKEN: what is listed, and the signals by message."""
    folder = tmp_path_factory.mktemp("broken")
    paths = {}
    for number, (case, (name, text, _, _)) in enumerate(BROKEN.items()):
        (folder / str(number)).mkdir()
        paths[case] = folder / str(number) / name
        paths[case].write_text(text)
    return read_apart(_BOUNDED, paths)


@pytest.mark.slow
def test_a_case_that_ends_its_process_is_named() -> None:
    """And the cases before and after it have their results."""
    program = """
import os, sys, time
for name in sys.argv[1:]:
    if name == "killed":
        os.kill(os.getpid(), 9)
    if name == "hangs":
        time.sleep(60)
    print(f'["{name}", 0]', flush=True)
"""
    paths = {f"case {name}": Path(name) for name in ("first", "killed", "hangs", "last")}
    found = read_apart(program, paths, seconds=5)
    assert found["case first"] == ["first", 0]
    assert found["case killed"] == ["its process ended with -9: "]
    assert found["case hangs"] == ["its process took more than 5 s"]
    assert found["case last"] == ["last", 0]


@pytest.mark.parametrize("case", BROKEN)
def test_what_cannot_be_read_is_listed_and_costs_nothing_else(
    read_in_little_memory: dict[str, list[Any]], case: str
) -> None:
    """A giant number costs neither memory nor time."""
    name, _, listed, why = BROKEN[case]
    found = read_in_little_memory[case]
    assert len(found) == 2, found[0]
    unreadable, messages = found
    assert why in unreadable[listed]
    good, signal = ("Stat", "Serial") if name.endswith("ldf") else ("Good", "S" if name.endswith("sym") else "Fine")
    assert signal in messages[good]
    assert "S" not in messages.get("M", [])


def test_multiplexers_have_a_budget() -> None:
    """A range that a multiplexer of 16 bits can have is read, and not any number of them."""
    lines = [' SG_ X M : 0|16@1+ (1,0) [0|0] "" A']
    count = MOST_IDS_OF_FILE // MOST_IDS + 1
    lines += [f' SG_ S{one} m0 : 16|8@1+ (1,0) [0|0] "" A' for one in range(count)]
    lines += [f"SG_MUL_VAL_ 256 S{one} X 0-{MOST_IDS - 1};" for one in range(count)]
    (message,) = parse_dbc("BO_ 256 M: 8 A\n" + "\n".join(lines) + "\n", "a.dbc").messages
    assert len(message.signals) == count  # X, and all but the last
    assert len(message.signals[1].parents[0].ids) == MOST_IDS
    ((last, reason),) = [(one.signal.name, one.reason) for one in message.unreadable]
    assert (last, "2,000,000" in reason) == (f"S{count - 1}", True)


@pytest.mark.slow
def test_many_signals_of_one_message_and_deep_multiplexers() -> None:
    """Neither time nor memory that grows with the square of them."""
    count = 4000
    signals = [f' SG_ S{one} m0M : 0|8@1+ (1,0) [0|0] "" A' for one in range(count)]
    above = [f"SG_MUL_VAL_ 256 S{one} S{one - 1} 0-0;" for one in range(1, count)]
    root = ' SG_ S0 M : 0|8@1+ (1,0) [0|0] "" A'
    tracemalloc.start()
    try:
        (message,) = parse_dbc("\n".join(["BO_ 256 M: 8 A", root, *signals[1:], *above, ""]), "a.dbc").messages
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert [len(one.parents) for one in message.signals] == list(range(65))
    assert {one.reason for one in message.unreadable} == {"it is nested below more than 64 multiplexers"}
    assert peak < 100 << 20


@pytest.mark.parametrize("text", ["", 'VERSION ""\nBU_: A\n'])
def test_a_dbc_file_without_messages_is_refused(text: str, tmp_path: Path) -> None:
    """It may be a broken copy, and `signals` would remove the rows of all messages that it had."""
    (tmp_path / "a.dbc").write_text(text)
    with pytest.raises(DatabaseError, match="has no message"):
        load_database(tmp_path / "a.dbc")


def test_a_file_that_says_nothing_is_refused_with_its_line(tmp_path: Path) -> None:
    for name, text, said in (
        ("a.dbc", "\n<html>404</html>\n", r"line 2: '<html>404</html>' belongs to no statement\); export it again"),
        ("a.sym", f"{LETTERS_SYM}\n%%%\n", r"at line \d+, column \d.*export it again"),
        ("a.kcd", f"{KCD}\n<", r"line \d+, column \d+.*export it again"),
        ("a.ldf", LETTERS_LDF.replace("Frames", "%"), r"line \d+.*export it again"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(DatabaseError, match=rf"(?s)cannot read the signal database .*{name}: .*{said}"):
            load_database(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.kcd", KCD.replace('"0x100"', '"x12"'), "M: 'x12' is no number"),
        ("a.kcd", KCD.replace('id="0x100" ', ""), "a part of it is missing"),
        ("a.kcd", KCD.replace('offset="0"', 'offset="q"'), r"M\.S: 'q' is no number"),
        ("a.kcd", KCD.replace(' value="1"', ""), r"M\.S: value, which it needs, is not there"),
        ("a.sym", LETTERS_SYM.replace("Sig=S 0", "Sig=T 0"), r"M\.T: T, which it needs, is not there"),
        ("a.sym", LETTERS_SYM.replace("/e:E", "/e:F"), r"S\.F: Enum 'F' is not defined"),
    ],
)
def test_an_entry_that_cantools_cannot_read_is_named(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(
        DatabaseError, match=rf"{name}: {said}.*; export it again from the program that wrote it, correct it"
    ) as found:
        load_database(tmp_path / name)
    assert not re.search(r"KeyError|NoneType|invalid literal|unsupported operand|KCD:|SYM:", str(found.value))


def test_what_an_ldf_declares_twice_alike_is_read(tmp_path: Path) -> None:
    twice = LETTERS_LDF.replace("Mode: 2,", "Level: 10, 0, CEM, LSM ;\n  Mode: 2,")
    found = []
    for name, text in (("a.ldf", LETTERS_LDF), ("b.ldf", twice)):
        (tmp_path / name).write_text(text, encoding="utf-8")
        found.append([message.signals for message in load_database(tmp_path / name).messages])
    assert found[0] == found[1]


@pytest.mark.parametrize("piece", ["9" * 200_000, " " * 200_000, '"\\"1' * 50_000, "m1" * 100_000])
@pytest.mark.parametrize(
    "line", ["BO_ 1 %s", " SG_ S : 0|%s", " SG_ S : 0|8@1+ (%s", "VAL_ 256 Fine 1 %s", "SG_MUL_VAL_ 1 S X %s", "CM_ %s"]
)
def test_long_lines_are_looked_at_once(line: str, piece: str) -> None:
    """Time that grows with the square of a line's length would be minutes here."""
    found = parse_dbc(f'{GOOD}{line % piece}\nBO_ 9 Last: 8 A\n SG_ S : 0|8@1+ (1,0) [0|0] "" A\n', "a.dbc")
    assert [one.name for one in found.messages] in (["Good", "Last"], ["Good"])


def test_statements_have_their_lines() -> None:
    text = (
        'VERSION "a\nBO_ b";\r\nNS_ :\n\tCM_\nBO_ 1 M: 8 A\n SG_ S\n  : 0\n\nCM_ "x\n\ny" ;\nVAL_ 1 S 0 "a"\n 1 "b" ;'
    )
    assert [(line, kind) for line, kind, _ in split_statements(text) if kind.endswith("_")] == [
        (3, "NS_"),
        (4, "CM_"),
        (5, "BO_"),
        (6, "SG_"),
        (9, "CM_"),
        (12, "VAL_"),
    ]


# -- one broken line --------------------------------------------------------------------------------------------------
NAMES = ("Alpha", "Beta", "Gamma")


def whole() -> list[str]:
    """Lines about three messages, whose names or ids are in each line that is about one."""
    lines = ['VERSION ""', "BU_: A"]
    for number, name in enumerate(NAMES, 101):
        lines += [
            f"BO_ {number} {name}: 8 A",
            f' SG_ {name}_X M : 0|8@1+ (1,0) [0|0] "" A',
            f' SG_ {name}_S m1 : 8|8@1- (0.5,-3) [0|9] "km/h" A',
            f' SG_ {name}_F m2 : 32|32@1- (1,0) [0|0] "" A',
        ]
    for number, name in enumerate(NAMES, 101):
        lines += [
            f'CM_ SG_ {number} {name}_S "a text";',
            f'VAL_ {number} {name}_X 0 "none" 1 "one" ;',
            f"SIG_VALTYPE_ {number} {name}_F : 1;",
            f"SG_MUL_VAL_ {number} {name}_S {name}_X 1-1, 5-9;",
            f'BA_ "SystemSignalLongSymbol" SG_ {number} {name}_F "{name}_a_longer_name";',
        ]
    return lines


WHOLE = whole()
LETTERS = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), max_size=12)


@pytest.mark.slow
@given(
    at=st.integers(2, len(WHOLE) - 1),
    cut=st.integers(0, 60),
    length=st.integers(0, 20),
    put=st.one_of(LETTERS, st.sampled_from(['"', "\\", "9" * 30, "-", "M", "m1", "BO_", ";", "1e999", "9" * 5000])),
)
@example(at=21, cut=13, length=0, put="9" * 5000)
@settings(max_examples=800, deadline=None)
def test_one_broken_line_costs_only_what_it_names(at: int, cut: int, length: int, put: str) -> None:
    line = WHOLE[at]
    cut = min(cut, len(line))
    broken = line[:cut] + put + line[cut + length :]
    about = next(name for number, name in enumerate(NAMES, 101) if f"{number} " in line or f"{name}_" in line)
    text = "\n".join([*WHOLE[:at], broken, *WHOLE[at + 1 :]]) + "\n"
    assume(broken.partition("//")[0].strip())  # nobody can see that a line was there
    expected = {one.name: one for one in parse_dbc("\n".join(WHOLE), "a.dbc").messages}
    found = parse_dbc(text, "a.dbc")
    others = {one.name: one for one in found.messages if one.name in NAMES and one.name != about}
    for name in set(NAMES) - {about}:
        if "CM_" in line and found.lost:
            continue  # a text that does not end may go on over the next lines, and that is said
        if f"{101 + NAMES.index(name)} " in broken or f"{name}" in broken:
            continue  # it is about another message now
        if line.startswith("BO_") and name == _before(about):
            assert _without(others[name], about) == expected[name]  # signals of a lost message are not another's
            continue
        assert others[name] == expected[name]


def _before(name: str) -> str | None:
    place = NAMES.index(name)
    return NAMES[place - 1] if place else None


def _without(message: Message, name: str) -> Message:
    assert not [one for one in message.signals if one.name.startswith(name)]
    return message


@pytest.mark.slow
def test_dbc_files_are_read_as_cantools_reads_them() -> None:
    """Over all of its own: the same messages with the same hashes, so that nothing is decoded again."""
    import cantools

    compared = 0
    for path in databases():
        if path.suffix.lower() != ".dbc":
            continue
        text = path.read_bytes()
        try:
            text.decode()
            encoding = "utf-8-sig"
        except UnicodeDecodeError:
            encoding = "cp1252"
        try:
            theirs = cantools.database.load_file(path, strict=False, encoding=encoding)
        except cantools.database.UnsupportedDatabaseFormatError:
            continue  # for one line
        wanted = convert_messages(theirs.messages, path.name)
        if not wanted.messages:
            with pytest.raises(DatabaseError, match="has no message"):
                load_database(path)
            continue
        found = load_database(path)
        assert [(one.name, one.definition_hash) for one in found.messages] == [
            (one.name, one.definition_hash) for one in wanted.messages
        ]
        assert (found.skipped, found.lost) == (wanted.skipped, {}), path.name
        compared += 1
    assert compared > 70


# -- encodings --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "mixed"])
@pytest.mark.parametrize(("name", "text"), [("a.dbc", LETTERS_DBC), ("a.sym", LETTERS_SYM), ("a.ldf", LETTERS_LDF)])
def test_letters_in_every_encoding(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    text = text.lstrip()
    lines = text.splitlines(keepends=True)
    coded = [one.encode("cp1252" if "ü" in one else "utf-8") for one in lines]
    (tmp_path / name).write_bytes(b"".join(coded) if encoding == "mixed" else text.encode(encoding))
    signals = [one for message in load_database(tmp_path / name).messages for one in message.signals]
    assert "°C" in {scale.unit for one in signals for scale in one.scales}
    assert "über" in {label for one in signals for _, label in one.choices}


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [("utf-16", "utf-8"), ("UTF-8", "cp1252"), ("utf-8", "utf-16"), ("iso-8859-1", "iso-8859-1")],
)
def test_xml_that_declares_another_encoding(tmp_path: Path, declared: str, encoding: str) -> None:
    (tmp_path / "a.kcd").write_bytes((LETTERS_KCD % declared).encode(encoding))
    (message,) = load_database(tmp_path / "a.kcd").messages
    assert (message.signals[0].scales[0].unit, message.signals[0].choices) == ("°C", ((1, "über"),))


def test_encodings_that_nobody_knows(tmp_path: Path) -> None:
    for name, data, said in (
        (
            "a.kcd",
            (LETTERS_KCD % "klingon").encode(),
            "declares the encoding klingon, which is unknown: save it as UTF-8",
        ),
        ("a.dbc", LETTERS_DBC.lstrip().encode() + b"\0\0", "zero bytes, so it is not text: save it as UTF-8"),
        ("a.dbc", b"\xff\xfeB\0O\0_", "declares the encoding utf-16, but is not in it"),
    ):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DatabaseError, match=said):
            Databases.from_file(tmp_path / name)


def test_what_is_plain_is_read() -> None:
    """`.25`, a whole number with a fraction of zero, and values of one multiplexer in two lines."""
    text = (
        'BO_ 1 M: 8 A\n SG_ X M : 0|8@1+ (1,0) [0|0] "" A\n SG_ S m : 8|8@1+ (.25,0) [0|0] "" A\n'
        'SG_MUL_VAL_ 1 S X 1-1;\nSG_MUL_VAL_ 1 S X 3-4;\nVAL_ 1 X 1.0 "one" 2 "two" ;\n'
    )
    content = parse_dbc(text, "a.dbc")
    (message,) = content.messages
    assert not content.lost
    x, s = message.signals
    assert x.choices == ((1, "one"), (2, "two"))
    assert (s.scales[0].factor, s.parents[0].ids) == (0.25, {1, 3, 4})


@pytest.mark.parametrize("length", [1023, 1024, 1025, 14280])
@pytest.mark.parametrize("sign", "+-")
def test_an_integer_of_any_length_is_decoded(length: int, sign: str) -> None:
    """Messages of J1939 have up to 1,785 bytes. Beyond float64 a value is infinite and not valid."""
    text = (
        f'BO_ 2566844672 M: 1785 A\n SG_ S : 0|{length}@1{sign} (1,0) [0|0] "" A\n'
        'BA_DEF_ BO_ "VFrameFormat" ENUM "StandardCAN","ExtendedCAN","r","J1939PG";\nBA_ "VFrameFormat" BO_ 2566844672 3;\n'
    )
    (message,) = parse_dbc(text, "a.dbc").messages
    assert message.j1939
    payloads = np.zeros((3, 1785), np.uint8)
    payloads[1, 0] = 7
    payloads[2] = 255
    (decoded,) = CompiledMessage(message).decode_frames(payloads, np.full(3, 1785))
    most = -1.0 if sign == "-" else (2.0**1023 if length == 1023 else np.inf)
    assert decoded.value.tolist() == [0, 7, most]
    assert message.definition_hash
    if length > 1024:
        assert decoded.valid is not None
        assert decoded.valid.tolist() == [True, True, sign == "-"]
