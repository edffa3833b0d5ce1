"""One history: a folder of captures, a lake, and steps as texts, which can be given again (`python -m tests.worker.histories`).

write a 3                                   capture `a` gets its third content
remove a
ingest --profile p1 --reread                of the whole folder; `ingest a b ...` of these names
signals --databases d1 --wide Speed
maintain
kill 7: ingest --profile p1                 before its seventh write
beside 7: ingest --profile p1 | maintain    the second one runs while the first one waits before its seventh write;
                                                instead of it any other step, such as `sql signals delete`
sql can_frames delete                       a statement of another program; `sql signals drop`
restore can_frames 2                        to two versions before; `undo can_frames` goes back, but not after
                                                `forget can_frames`
move, copy                                  to another folder, with `doctor --repair --adopt --yes`
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from deltalake.exceptions import DeltaError

from pcaplake.parser.schemas import TABLES
from pcaplake.signals import Databases

from . import commands, statements
from .contents import BROKEN, DATABASES, NAMES, WIDE, capture, write_settings
from .oracle import SignalOracle, compare_lakes
from .statements import FRAMES

COMMANDS: Final = ("ingest", "signals", "maintain")
QUARANTINED, BLOCKED = 1, 3  # exit codes
_ROUNDS: Final = 4  # of the commands that the doctor advises


class Wrong(AssertionError):
    """A step ends otherwise than it must, or a table holds other rows."""


class Story:
    """What a user knows. `changed`: frames are other ones than the captures have. `blocked`: a table may refuse batches.

    `back`: table -> the version before a RESTORE, and the version that it made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.captures, self.lake = folder, folder / "in", folder / "lake"
        self.log = folder / "log"
        self.captures.mkdir(parents=True)
        write_settings(folder)
        self.contents: dict[str, int] = {}  # as they are in the folder, or were before they were removed
        self.ingested: set[str] = set()  # names of which the lake may have rows
        self.profile, self.databases = "p0", ""
        self.wide: set[str] = set()
        self.changed = self.blocked = False
        self.back: dict[str, tuple[int, int]] = {}
        self.places = 0
        self._oracles: dict[str, SignalOracle] = {}

    def last_output(self) -> str:
        """What the last commands printed, without what is right."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return "\n".join(line for line in lines[-60:] if line.strip() and not line.startswith("  ok"))[-1500:]

    def _run(self, arguments: Sequence[str]) -> int:
        return commands.run(arguments, self.log)

    # -- steps ----------------------------------------------------------------------------------------------------
    def run(self, step: str) -> None:
        name, _, rest = step.partition(" ")
        if name in COMMANDS:
            self._command(step)
        elif name in ("kill", "beside"):
            getattr(self, f"_{name}")(rest)
        else:
            getattr(self, f"_{name}")(*rest.split())

    def _write(self, name: str, version: str) -> None:
        (self.captures / f"{name}.pcap").write_bytes(capture(name, int(version)))
        self.contents[name] = int(version)

    def _remove(self, name: str) -> None:
        (self.captures / f"{name}.pcap").unlink(missing_ok=True)
        if name not in self.ingested:
            self.contents.pop(name, None)

    def _arguments(self, step: str) -> list[str]:
        name, *words = step.split()
        files = self._named(words) if set(words) & set(NAMES) else []
        words = [word for word in words if word not in NAMES]
        for word in words:
            if (self.folder / f"{word}.yaml").exists():
                words[words.index(word)] = str(self.folder / f"{word}.yaml")
            elif word in DATABASES:
                words[words.index(word)] = str(self.folder / word / "buses.yaml")
        named = [str(self.captures / f"{name}.pcap") for name in files] or [str(self.captures)]
        given = [*named, "--yes"] if name == "ingest" else []
        threads = [] if name == "maintain" else ["--threads", "1"]
        return [name, *given, *words, "--lake", str(self.lake), *threads]

    def _note(self, step: str) -> None:
        """What a command that has begun may have done."""
        name, *words = step.split()
        if name == "ingest":
            there = {path.stem for path in self.captures.iterdir()}
            files = there & ({word for word in words if word in NAMES} or there)
            self.profile = words[words.index("--profile") + 1]
            self.ingested |= files
        elif name == "signals":
            self.databases = words[words.index("--databases") + 1]
            self.wide |= {word for word in words if word in WIDE}

    def _command(self, step: str) -> None:
        name, *words = step.split()
        if not self._is_possible(step):
            return
        self._note(step)
        code = self._run(self._arguments(step))
        if code not in self._allowed(name):
            raise Wrong(f"exit code {code}")
        if code in (0, QUARANTINED) and name == "ingest" and "overwrite" in words:
            self._overwritten(words)
        if code == 0 and name == "signals":
            self._check_signals(words)

    def _allowed(self, name: str) -> set[int]:
        """Exit codes of a command."""
        quarantined = {QUARANTINED} if name == "ingest" and BROKEN in self.ingested else set()
        return {0} | quarantined | ({BLOCKED} if self.blocked else set())

    def _is_possible(self, step: str) -> bool:
        """Whether there is a capture to ingest, or a lake."""
        name, *words = step.split()
        return bool(self._named(words)) if name == "ingest" else self.lake.exists()

    def _named(self, words: Sequence[str]) -> list[str]:
        names = [word for word in words if word in NAMES] or list(NAMES)
        return [name for name in names if (self.captures / f"{name}.pcap").exists()]

    def _overwritten(self, words: Sequence[str]) -> None:
        whole = not set(words) & set(NAMES)
        self.ingested = {*self._named(words), *(BROKEN for path in self.captures.glob(f"{BROKEN}.*") if whole)}
        self.contents = {
            name: version
            for name, version in self.contents.items()
            if name in self.ingested or (self.captures / f"{name}.pcap").exists()
        }
        self.changed = self.blocked = False
        self.back.clear()

    def _check_signals(self, words: Sequence[str]) -> None:
        if any(statements.open_table(self.lake, name) is None for name in FRAMES):
            return  # as long as it may be restored, its signals stay
        wide = [word for word in words if word in WIDE]
        if self.databases not in self._oracles:
            known = Databases.from_file(self.folder / self.databases / "buses.yaml")
            self._oracles[self.databases] = SignalOracle(known)
        if wrong := self._oracles[self.databases].compare(self.lake, wide):
            raise Wrong("not the signals of the frames that are there: " + "; ".join(wrong))

    def _kill(self, text: str) -> None:
        number, _, command = text.partition(": ")
        if not self._is_possible(command):
            return
        self._note(command)
        code = commands.run_killed(self._arguments(command), self.log, int(number))
        if code not in (*self._allowed(command.split()[0]), -signal.SIGKILL):
            raise Wrong(f"exit code {code}")

    def _beside(self, text: str) -> None:
        """Either command may end with an error because of the other one."""
        number, _, both = text.partition(": ")
        command, _, other = both.partition(" | ")
        if not self.lake.exists() or not self._is_possible(command):
            return
        self._note(command)

        def act() -> None:
            if other.split()[0] not in COMMANDS:
                self.run(other)
            elif self._is_possible(other):
                self._note(other)
                self._run(self._arguments(other))

        commands.run_beside(self._arguments(command), self.log, int(number), act)

    # -- other programs -------------------------------------------------------------------------------------------
    def _sql(self, name: str, statement: str) -> None:
        if statement == "drop":
            statements.drop(self.lake, name)
            self.back.pop(name, None)
            self.changed = self.changed or name in TABLES
            self.blocked = self.blocked or name in TABLES
            return
        table = statements.open_table(self.lake, name)
        if table is None:
            return
        statements.STATEMENTS[statement](table)
        if name in FRAMES and statement not in statements.HARMLESS:
            self.changed = True
            self.blocked = self.blocked or statement == "truncate"
            self.back.pop(name, None)

    def _restore(self, name: str, count: str) -> None:
        table = statements.open_table(self.lake, name)
        if table is None or not table.version():
            return
        now = table.version()
        try:
            table.restore(max(0, now - int(count)))
        except DeltaError:  # its files are gone
            return
        self.back.setdefault(name, (now, now + 1))
        if name in TABLES:
            self.blocked = True

    def _forget(self, name: str) -> None:
        """The user does not go back, but has the captures read again."""
        if self.back.pop(name, None):
            self.changed = self.changed or name in TABLES

    def _undo(self, name: str) -> bool:
        """Whether the table is as before the RESTORE."""
        before, after = self.back.pop(name, (0, 0))
        table = statements.open_table(self.lake, name)
        if table is None or not after or table.version() < after:
            return False
        if statements.written_by_pcaplake(self.lake, name, after):
            return False  # that would take out what came since
        try:
            table.restore(before)
        except DeltaError:  # its files are gone
            return False
        return True

    # -- places ---------------------------------------------------------------------------------------------------
    def _move(self) -> None:
        self._settle_at_another_place(shutil.move)

    def _copy(self) -> None:
        self._settle_at_another_place(shutil.copytree)

    def _settle_at_another_place(self, how: Callable[[Path, Path], object]) -> None:
        if not self.lake.exists():
            return
        self.places += 1
        new = self.folder / f"lake-{self.places}"
        how(self.lake, new)
        self.lake = new
        code = self._run(["doctor", "--lake", str(new), "--repair", "--adopt", "--yes"])
        if code not in (0, 1):
            raise Wrong(f"adoption: exit code {code}")

    # -- the end --------------------------------------------------------------------------------------------------
    def finish(self) -> None:
        """What a user does to have everything right, and the comparison with a lake made from nothing."""
        if not self.lake.exists():
            return
        for name in [name for name in self.back if name in TABLES]:
            self.changed = not self._undo(name) or self.changed
        for name in self.ingested:  # a user restores them from the archive
            self._write(name, str(self.contents[name]))
        if not list(self.captures.iterdir()):
            return
        # with another profile each capture is read again, also if other programs changed its rows, which no count tells
        profile = self._repair("final" if self.changed else self.profile)
        databases = self.databases or DATABASES[0]
        wide = [word for message in sorted(self.wide) for word in ("--wide", message)]
        last = " ".join(("signals", "--databases", databases, *wide))
        self._command(last)
        self._require_healthy()
        right = self.folder / "right"
        mine, self.lake = self.lake, right
        for command in (f"ingest --profile {profile}", last):
            code = self._run(self._arguments(command))
            if code not in (0, QUARANTINED):
                raise Wrong(f"{command} of a lake made from nothing: exit code {code}")
        self.lake = mine
        if wrong := compare_lakes(mine, right, sorted(self.wide)):
            raise Wrong("not as a lake made from nothing: " + "; ".join(wrong))

    def _repair(self, profile: str) -> str:
        """Read again what is needed, and give up rows of contents that are gone -> the profile of all captures."""
        doctor = ["doctor", "--lake", str(self.lake), "--repair", "--yes"]
        for attempt in range(_ROUNDS):
            code = self._run(self._arguments(f"ingest --replace-changed --reread --profile {profile}"))
            if code in (0, QUARANTINED) and not self.blocked:
                return profile
            if code in (0, QUARANTINED):  # rows of removed contents may have come back, which the doctor would tell
                self.blocked = False
                continue
            self._run(doctor)
            if (
                attempt
            ):  # then each capture is read again with another profile, because no other count tells what it lacks
                profile = "final"
                for table in (*FRAMES, "quarantine"):
                    self._run([*doctor, "--accept-loss", table])
        raise Wrong(f"the last ingest ends with exit code {code}")

    def _require_healthy(self) -> None:
        doctor = ["doctor", "--lake", str(self.lake)]
        if self._run(doctor):
            self._run([*doctor, "--repair", "--yes"])
            if code := self._run(doctor):
                raise Wrong(f"doctor: exit code {code}")
