"""Draws histories, as lists of steps (story.py)."""

from __future__ import annotations

from random import Random
from typing import Final

from .contents import BROKEN, DATABASES, NAMES, PROFILES, WIDE
from .statements import FRAMES, SIGNALS, STATEMENTS

_VERSIONS: Final = 6
_MOST_WRITES: Final = {"ingest": 60, "signals": 16, "maintain": 20}
_KINDS: Final = {  # how often
    "write": 6,
    "remove": 1,
    "ingest": 6,
    "signals": 6,
    "maintain": 0.4,
    "kill": 4,
    "beside": 2,
    "sql": 4,
    "derived": 2,
    "restore": 2,
    "drop": 0.4,
    "broken": 0.3,
    "undo": 2,
    "move": 0.7,
}


class Draw:
    """`signals`: whether there are any; `foreign`: whether other programs change rows."""

    def __init__(self, seed: int, *, signals: bool = True, foreign: bool = True, reread: bool = True) -> None:
        self.rng = Random(seed)
        self.signals, self.foreign, self.reread = signals, foreign, reread

    def history(self, length: int) -> list[str]:
        steps = [self._write() for _ in range(self.rng.randrange(1, 4))] + [self._ingest(), *self._often_signals()]
        weights = dict(_KINDS)
        if not self.signals:
            weights |= {"signals": 0, "derived": 0}
        if not self.foreign:
            weights |= {"sql": 0, "derived": 0, "restore": 0, "undo": 0, "drop": 0}
        for kind in self.rng.choices(list(weights), list(weights.values()), k=length):
            steps += getattr(self, f"_{kind}s")()
        return steps

    # -- each kind: one or several steps ----------------------------------------------------------------------------
    def _writes(self) -> list[str]:
        return [self._write(), self._ingest()] if self.rng.random() < 0.5 else [self._write()]

    def _removes(self) -> list[str]:
        return [f"remove {self.rng.choice(NAMES)}"]

    def _ingests(self) -> list[str]:
        return [self._ingest()]

    def _signalss(self) -> list[str]:
        return [self._signals()]

    def _maintains(self) -> list[str]:
        return ["maintain"]

    def _kills(self) -> list[str]:
        command = self._command()
        return [self._write(), f"kill {self._writes_of(command)}: {command}"]

    def _besides(self) -> list[str]:
        one, other = self._command(), self._command()
        if self.foreign and self.rng.random() < 0.5:
            other = self.rng.choice((self._sqls, self._restores, self._deriveds, self._drops))()[0]
        return [self._write(), f"beside {self._writes_of(one)}: {one} | {other}"]

    def _sqls(self) -> list[str]:
        more = [self._write(), self._ingest()] if self.rng.random() < 0.3 else []
        return [*more, f"sql {self._frames()} {self.rng.choice(list(STATEMENTS))}", *self._often_signals()]

    def _deriveds(self) -> list[str]:
        """Changes a table that is made from others."""
        table = self.rng.choice((SIGNALS[0], *SIGNALS))
        restored = f"restore {table} {self.rng.randrange(1, 4)}"
        return [self.rng.choice((restored, *(f"sql {table} {one}" for one in (*STATEMENTS, "drop"))))]

    def _restores(self) -> list[str]:
        table, count = self._frames(), self.rng.randrange(1, 4)
        between = [self._ingest()] if self.rng.random() < 0.3 else self._often_signals()
        back = [f"undo {table}", *self._often_signals()] if self.rng.random() < 0.6 else [f"forget {table}"]
        return [f"restore {table} {count}", *between, *back]

    def _frames(self) -> str:
        """A table of frames; most often the one that has rows with every profile."""
        return self.rng.choice((FRAMES[0], *FRAMES))

    def _often_signals(self) -> list[str]:
        """So that what was done before is not mixed with what comes."""
        return [self._signals()] if self.signals and self.rng.random() < 0.6 else []

    def _drops(self) -> list[str]:
        return [f"sql {self.rng.choice((*FRAMES, 'quarantine'))} drop"]

    def _brokens(self) -> list[str]:
        return [f"write {BROKEN} 0", self._ingest()]

    def _undos(self) -> list[str]:
        return [f"undo {self.rng.choice((*FRAMES, *SIGNALS))}"]

    def _moves(self) -> list[str]:
        return [self.rng.choice(("move", "copy"))]

    # -- one step ---------------------------------------------------------------------------------------------------
    def _write(self) -> str:
        return f"write {self.rng.choice(NAMES)} {self.rng.randrange(_VERSIONS)}"

    def _command(self) -> str:
        drawn = self.rng.random()
        if drawn < 0.05:
            return "maintain"
        return self._signals() if self.signals and drawn < 0.5 else self._ingest()

    def _ingest(self) -> str:
        words = ["ingest"]
        if self.rng.random() < 0.15:
            words += sorted(self.rng.sample(NAMES, self.rng.randrange(1, 3)))
        words += ["--profile", self.rng.choice((PROFILES[0], *PROFILES))]
        how = self.rng.random()
        if how < 0.1:
            return " ".join([*words, "--mode overwrite"])
        if how < 0.4:
            words.append("--replace-changed")
        if self.reread and self.rng.random() < 0.3:
            words.append("--reread")
        return " ".join(words)

    def _signals(self) -> str:
        words = ["signals", "--databases", self.rng.choice((DATABASES[0], *DATABASES))]
        if self.rng.random() < 0.4:
            words += ["--batch-size", "1"]
        for message in WIDE:
            if self.rng.random() < 0.4:
                words += ["--wide", message]
        return " ".join(words)

    def _writes_of(self, command: str) -> int:
        """Before which write of a command something happens."""
        return self.rng.randrange(1, _MOST_WRITES[command.split()[0]])
