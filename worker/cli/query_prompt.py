"""The prompt of `pcaplake query`: SQL over several lines, with history, and completion of tables and columns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

from pcaplake.common.errors import PcaplakeError, WrongUsage
from pcaplake.lake.tables import SCHEMAS
from pcaplake.worker import console as screen
from pcaplake.worker.config.environment import state_folder
from pcaplake.worker.query.connection import CURRENT_CAPTURES, LakeDatabase
from pcaplake.worker.query.statements import read_statements

GREETING = "SQL ends with a semicolon. DESCRIBE table; shows columns. Tab completes names. Ctrl-D ends."
PROMPT, CONTINUED = "pcaplake> ", "        . "
END = ("quit", "exit", "quit;", "exit;", ".quit", ".exit")
WORDS = (
    "SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "USING", "SEMI JOIN", "BETWEEN", "DESCRIBE", "SUMMARIZE",
    "EXPLAIN", "count(*)", "epoch_ns(", "hex(", "DATE", "TIMESTAMP",
)  # fmt: skip


def run_prompt(database: LakeDatabase, show: Callable[[str], None]) -> None:
    """Read statements until Ctrl-D, and show the result of each. An error or Ctrl-C ends one statement only."""
    session = PromptSession[str](
        history=_history(),
        completer=NameCompleter([*database.tables, CURRENT_CAPTURES]),
        complete_while_typing=False,
        multiline=True,
        key_bindings=_keys(),
        prompt_continuation=CONTINUED,
    )
    screen.say(GREETING)
    while True:
        try:
            text = session.prompt(PROMPT).strip()
            if text.lower() in END:
                return
            for statement in read_statements(database, text):
                show(statement)
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        except (PcaplakeError, WrongUsage) as error:
            screen.say(f"pcaplake: {error}")


class NameCompleter(Completer):
    """Tables, the columns of those tables that the statement names, else of all, and words of SQL."""

    def __init__(self, tables: list[str]) -> None:
        self._tables = tables

    def get_completions(self, document: Document, complete_event: object) -> Iterator[Completion]:
        begun = document.get_word_before_cursor()
        named = [table for table in SCHEMAS if table in document.text] or list(SCHEMAS)
        columns = sorted({column for table in named for column in SCHEMAS[table].names})
        for word in (*self._tables, *columns, *WORDS):
            if begun and word.lower().startswith(begun.lower()):
                yield Completion(word, start_position=-len(begun))


def _keys() -> KeyBindings:
    """Enter ends a statement after its semicolon, and else begins a line."""
    keys = KeyBindings()

    @keys.add("enter")
    def end_or_continue(event: KeyPressEvent) -> None:
        text = event.current_buffer.text.strip()
        if not text or text.endswith(";") or text.lower() in END:
            event.current_buffer.validate_and_handle()
        else:
            event.current_buffer.newline()

    return keys


def _history() -> History:
    """In the user's state folder; for this prompt only if that cannot be written."""
    with contextlib.suppress(OSError, RuntimeError):
        folder = state_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = folder / "query_history"
        path.touch(mode=0o600)
        return FileHistory(path)
    return InMemoryHistory()
