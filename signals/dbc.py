"""Reads DBC files statement by statement. An unreadable statement affects only what it names.

    lines > statements > messages, signals, value tables, float types, multiplexer values, long names

Layout: Vector, "DBC File Format Documentation" 1.0.1, as cantools (`database/can/formats/dbc`) reads it; a test compares
with cantools on its own files. Comments, nodes and attributes that do not change a value are skipped.

No number of the file is trusted: `assemble_signals` says what a frame can hold, and the values of multiplexers are counted
before they are listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from .assemble import DeclaredSignal, assemble_signals, cycle_time, normalize_bound
from .dbc_formats import FrameFormats
from .errors import add_reason
from .loaded import drop_conflicting
from .model import Message, Scale, Signal, limit_to_float64

MOST_IDS: Final = 1 << 16  # values of its multiplexer for which a frame holds a signal
MOST_IDS_OF_FILE: Final = 2_000_000
_SHOWN = 60  # characters of a line that cannot be read

_KINDS = (
    "BA_|BA_DEF_|BA_DEF_DEF_|BA_DEF_DEF_REL_|BA_DEF_REL_|BA_DEF_SGTYPE_|BA_REL_|BA_SGTYPE_|BO_|BO_TX_BU_|BS_|BU_|BU_BO_REL_|"
    "BU_EV_REL_|BU_SG_REL_|CAT_|CAT_DEF_|CM_|ENVVAR_DATA_|EV_|EV_DATA_|FILTER|NS_|NS_DESC_|SG_|SG_MUL_VAL_|SGTYPE_|"
    "SGTYPE_VAL_|SIG_GROUP_|SIG_TYPE_REF_|SIG_VALTYPE_|SIGTYPE_VALTYPE_|VAL_|VAL_TABLE_|VERSION"
)
_BEGINS = re.compile(rf'\s*({_KINDS})(?=[\s:;"]|$)')
_OVER_LINES = ("CM_", "BA_", "BA_DEF_", "BA_DEF_DEF_", "VERSION")  # statements whose texts may have several lines
_TEXT_ENDS = re.compile(r'(?<!\\)"\s*;\s*$')
_QUOTE = re.compile(r'(?<!\\)"')
_COMMENT = re.compile(r'("(?:\\"|[^"])*+")|//[^\n]*')
_NAME = r"[^\W\d]\w*"
_NUMBER = r"[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?"  # possessive, so that a long number is tried only once
_TEXT = r'"((?:\\"|[^"])*+)"'
_PAIR = re.compile(rf"({_NUMBER})\s*{_TEXT}")
_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)")
_MESSAGE = re.compile(rf"BO_\s+(\d+)\s+({_NAME})\s*:\s*(\d+)(?:[ \t]+\w+)?")
_SIGNAL = re.compile(
    rf"SG_\s+({_NAME})(?:\s+(M|m\d{{0,20}}M?))?\s*:\s*(-?\d+)\s*\|\s*(-?\d+)\s*@\s*([01])\s*([-+])"
    rf"\s*\(\s*({_NUMBER})\s*,\s*({_NUMBER})\s*\)\s*\[\s*({_NUMBER})\s*\|\s*({_NUMBER})\s*\]\s*{_TEXT}[\w, \t]*"
)
_LABELS = re.compile(rf'VAL_\s+(?:(\d+)\s+)?({_NAME})((?:\s*{_NUMBER}\s*"(?:\\"|[^"])*+")*)\s*;?')
_FLOAT = re.compile(rf"SIG_VALTYPE_\s+(\d+)\s+({_NAME})\s*:?\s*(\d+)\s*;?")
_MULTIPLEXED = re.compile(
    rf"SG_MUL_VAL_\s+(\d+)\s+({_NAME})\s+({_NAME})\s+(\d+\s*-\s*\d+(?:\s*,\s*\d+\s*-\s*\d+)*)\s*;?"
)
_LONG_SIGNAL = re.compile(rf'BA_\s+"SystemSignalLongSymbol"\s+SG_\s+(\d+)\s+({_NAME})\s+{_TEXT}\s*;?')
_LONG_MESSAGE = re.compile(rf'BA_\s+"SystemMessageLongSymbol"\s+BO_\s+(\d+)\s+{_TEXT}\s*;?')
_CYCLE = re.compile(rf'BA_\s+"GenMsgCycleTime"\s+BO_\s+(\d+)\s+({_NUMBER})\s*;?')
_USUAL_CYCLE = re.compile(rf'BA_DEF_DEF_\s+"GenMsgCycleTime"\s+({_NUMBER})\s*;?')
_BUS = re.compile(rf'BA_\s+"DBName"\s+{_TEXT}\s*;?')
_NAMED = re.compile(r"BA_\s+\"(SystemSignalLongSymbol|SystemMessageLongSymbol|DBName)\"")
_OF_SIGNAL = re.compile(rf"\w+\s+(\d{{1,10}})\s+({_NAME})")  # names the signal that a broken line describes
_LIKE_A_SIGNAL = re.compile(r"SG_\b|@[01][-+]")
_SWALLOWS = "text over statements"
_NO_MESSAGE = "VECTOR__INDEPENDENT_SIG_MSG"  # holds the signals outside messages


@dataclass(frozen=True, slots=True, kw_only=True)
class DbcContent:
    """`lost`: declarations that cannot be read, with their lines -> why. `bus`: the name that the file gives the bus."""

    messages: tuple[Message, ...]
    skipped: Mapping[str, int]
    lost: Mapping[str, str]
    bus: str | None


def parse_dbc(text: str, source: str) -> DbcContent:
    """Read the messages of a DBC. `source`: the name of the file."""
    reader = _DbcParser(source)
    for line, kind, statement in split_statements(text):
        reader.parse_statement(line, kind, statement)
    return reader.build_content()


def split_statements(text: str) -> Iterator[tuple[int, str, str]]:
    """(number of its first line, keyword, text) of each statement; the keyword is empty for lines outside of statements.

    A missing quotation mark may extend a text over other statements; those lines are reported too.
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    ends = [0] * (len(lines) + 1)  # the next line that ends a text, at or below each
    ends[-1] = len(lines)
    for at in range(len(lines) - 1, -1, -1):
        ends[at] = at if _TEXT_ENDS.search(lines[at]) else ends[at + 1]
    at = 0
    while at < len(lines):
        first, begins = at, _BEGINS.match(lines[at])
        at += 1
        if begins is None:
            if lines[first].strip():
                yield first + 1, "", lines[first]
            continue
        kind = begins[1]
        if kind in _OVER_LINES and len(_QUOTE.findall(lines[first])) % 2 and ends[at] < len(lines):
            end = ends[at] + 1
            if any(map(_BEGINS.match, lines[at:end])):
                yield first + 1, _SWALLOWS, f"lines {at + 1} to {end}"
            at = end
        while at < len(lines) and not _BEGINS.match(lines[at]):
            at += 1
        yield first + 1, kind, "\n".join(lines[first:at])


@dataclass(slots=True, kw_only=True)
class _MessageDraft:
    """A message while its signals are collected: marker and declaration of each."""

    id: int
    name: str
    length: int
    line: int = 0
    signals: list[tuple[str | None, Signal]] = field(default_factory=list)


class _DbcParser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._messages: list[_MessageDraft] = []
        self._current_message: _MessageDraft | None = None  # the message that the next signals belong to
        self._labels: dict[tuple[int, str], tuple[int, tuple[tuple[int, str], ...]]] = {}
        self._floats: dict[tuple[int, str], tuple[int, bool]] = {}
        self._multiplexers: dict[tuple[int, str], dict[str, list[frozenset[int]]]] = {}
        self._long_names: dict[tuple[int, str], str] = {}
        self._reasons: dict[tuple[int, str], str] = {}
        self._bus: str | None = None
        self._cycles: dict[int, float] = {}
        self._usual_cycle = 0.0
        self._formats = FrameFormats()
        self._ids = 0
        self._same_ids: dict[str, frozenset[int]] = {}
        self._lost: dict[str, str] = {}

    def parse_statement(self, line: int, kind: str, statement: str) -> None:
        """Take one statement; if it cannot be read, it is recorded as lost, together with the signal that it describes."""
        take = {
            "": self._record_stray_line,
            _SWALLOWS: self._report_swallowed_lines,
            "BO_": self._parse_message,
            "SG_": self._parse_signal,
            "VAL_": self._parse_value_table,
            "SIG_VALTYPE_": self._parse_float_type,
            "SG_MUL_VAL_": self._parse_multiplexing,
            "BA_": self._parse_attribute,
            "BA_DEF_": self._parse_definition,
            "BA_DEF_DEF_": self._parse_default,
        }.get(kind)
        bare = _COMMENT.sub(lambda found: found[1] or "", statement).strip()
        if kind not in ("", "BO_", "SG_"):
            self._current_message = None  # signals follow their message directly
        if take is None or not bare or (bare == kind and kind not in ("BO_", "SG_")):  # or a keyword in the list NS_
            return
        head, *strays = bare.split("\n")
        try:
            try:
                take(line, bare)
                strays = []
            except ValueError:
                if not strays:
                    raise
                take(line, head.strip())  # the statement is followed by stray lines
        except ValueError as error:
            self._record_broken_statement(
                line, kind, head, str(error) or f"{_shorten_for_display(head)} is not a valid {kind} statement"
            )
        for number, stray in enumerate(strays, line + 1):
            if stray.strip():
                self._record_stray_line(number, stray)

    def _record_lost(self, name: str, reason: str) -> None:
        add_reason(self._lost, f"{self._source}, {name}", reason)

    def _record_broken_statement(self, line: int, kind: str, statement: str, reason: str) -> None:
        if kind == "BO_":
            self._discard_following_signals()
        elif kind == "SG_" and self._current_message is not None:
            if self._current_message.id >= 0:  # otherwise its message is lost, which is already reported
                name = statement.split()[1:2]
                signal = ".".join([self._current_message.name, *name])
                add_reason(self._lost, f"{signal} ({self._source}, line {line})", reason)
            return
        elif kind in ("SIG_VALTYPE_", "SG_MUL_VAL_") and (about := _OF_SIGNAL.match(statement)):
            self._reasons[int(about[1]), about[2]] = f"line {line}: {reason}"
            return
        self._record_lost(f"line {line}", reason)

    def _record_stray_line(self, line: int, stray_text: str) -> None:
        """Record a line outside of statements. It may be the start of a message; then the signals after it do not belong to
        the message before it.
        """
        if not _LIKE_A_SIGNAL.search(stray_text):
            self._discard_following_signals()
        self._record_lost(f"line {line}", f"{_shorten_for_display(stray_text)} belongs to no statement")

    def _discard_following_signals(self) -> None:
        """Assign the signals that follow to a message that is lost."""
        self._current_message = _MessageDraft(id=-1, name="", length=0)
        self._messages.append(self._current_message)

    # -- statements -----------------------------------------------------------------------------------------------
    def _report_swallowed_lines(self, line: int, swallowed_lines: str) -> None:
        raise ValueError(
            f"its text extends over {swallowed_lines}, which look like statements and are not read: fix its quotation marks"
        )

    def _parse_message(self, line: int, statement: str) -> None:
        match = _require_match(_MESSAGE, statement)
        number = int(match[1])
        name = match[2]
        if name != _NO_MESSAGE:
            bits, most = (number & 0x7FFFFFFF, 29) if number >> 31 == 1 else (number, 11)
            if bits.bit_length() > most:
                kind = "an extended" if most == 29 else "a standard"
                advice = f": add {1 << 31} to it if it is an extended id" if most == 11 and number < 1 << 29 else ""
                raise ValueError(f"the id of {name} is {number}, and {kind} id has {most} bits{advice}")
        self._current_message = _MessageDraft(id=number, name=name, length=int(match[3]), line=line)
        self._messages.append(self._current_message)

    def _parse_signal(self, line: int, statement: str) -> None:
        match = _require_match(_SIGNAL, statement)
        if self._current_message is None:
            raise ValueError(f"the signal {match[1]} is outside a message")
        bounds = (None, None) if match[9] == match[10] == "0" else (_parse_number(match[9]), _parse_number(match[10]))
        signal = Signal(
            name=match[1],
            start=int(match[3]),
            length=int(match[4]),
            big_endian=match[5] == "0",
            signed=match[6] == "-",
            scales=(
                Scale(
                    factor=_parse_number(match[7]),
                    offset=_parse_number(match[8]),
                    unit=_unescape_quotes(match[11]) or None,
                ),
            ),
            minimum=normalize_bound(bounds[0]),
            maximum=normalize_bound(bounds[1]),
        )
        self._current_message.signals.append((match[2], signal))

    def _parse_value_table(self, line: int, statement: str) -> None:
        match = _require_match(_LABELS, statement)
        if match[1] is None:
            return  # labels of an environment variable
        labels = {_parse_whole(number): _unescape_quotes(text) for number, text in _PAIR.findall(match[3])}
        if labels:
            self._labels[int(match[1]), match[2]] = line, tuple(sorted(labels.items()))

    def _parse_float_type(self, line: int, statement: str) -> None:
        match = _require_match(_FLOAT, statement)
        self._floats[int(match[1]), match[2]] = line, int(match[3]) in (1, 2)

    def _parse_multiplexing(self, line: int, statement: str) -> None:
        match = _require_match(_MULTIPLEXED, statement)
        ranges = [(int(low), int(high)) for low, high in _RANGE.findall(match[4])]
        count = sum(max(0, high - low + 1) for low, high in ranges)
        if count > MOST_IDS:
            raise ValueError(f"it lists {count:,} multiplexer values, and at most {MOST_IDS:,} are read")
        self._ids += count
        if self._ids > MOST_IDS_OF_FILE:
            raise ValueError(f"the file lists more than {MOST_IDS_OF_FILE:,} multiplexer values up to here")
        ids = self._same_ids.setdefault(
            match[4], frozenset(multiplexer_value for low, high in ranges for multiplexer_value in range(low, high + 1))
        )
        self._multiplexers.setdefault((int(match[1]), match[2]), {}).setdefault(match[3], []).append(ids)

    def _parse_default(self, line: int, statement: str) -> None:
        if match := _USUAL_CYCLE.fullmatch(statement):
            self._usual_cycle = _parse_number(match[1])
        self._formats.parse_default(statement)

    def _parse_definition(self, line: int, statement: str) -> None:
        self._formats.parse_definition(statement)

    def _parse_attribute(self, line: int, statement: str) -> None:
        if match := _CYCLE.fullmatch(statement):
            self._cycles[int(match[1])] = _parse_number(match[2])
        self._formats.parse_attribute(statement)
        if not _NAMED.match(statement):
            return
        if match := _LONG_SIGNAL.fullmatch(statement):
            self._long_names[int(match[1]), match[2]] = _unescape_quotes(match[3])
        elif match := _LONG_MESSAGE.fullmatch(statement):
            self._long_names[int(match[1]), ""] = _unescape_quotes(match[2])
        else:
            self._bus = _unescape_quotes(_require_match(_BUS, statement)[1]) or None

    # -- messages -------------------------------------------------------------------------------------------------
    def build_content(self) -> DbcContent:
        messages: list[tuple[Message, str]] = []
        empty = 0
        known: set[tuple[int, str]] = set()
        for draft in self._messages:
            known |= {(draft.id, signal.name) for _, signal in draft.signals}
            if draft.id < 0 or draft.name == _NO_MESSAGE:
                continue
            if not draft.signals:
                empty += 1
                continue
            j1939 = self._formats.is_j1939(draft.id)
            signals, unreadable = assemble_signals(
                "j1939" if j1939 else "can", draft.length, self._declare_signals(draft)
            )
            message = Message(
                kind="can",
                id=draft.id & 0x7FFFFFFF,
                extended=bool(draft.id >> 31),
                name=self._long_names.get((draft.id, ""), draft.name),
                length=draft.length,
                signals=signals,
                unreadable=unreadable,
                database=self._source,
                cycle_ms=cycle_time(self._cycles.get(draft.id, self._usual_cycle)),
                j1939=j1939,
            )
            messages.append((message, f"line {draft.line}"))
        for statement, declarations in (("VAL_", self._labels), ("SIG_VALTYPE_", self._floats)):
            for (number, name), (line, _) in declarations.items():
                if (number, name) not in known:
                    self._record_lost(
                        f"line {line}", f"{statement} is about {name} of message {number}, which does not exist"
                    )
        skipped = {"no signals": empty} if empty else {}
        readable = drop_conflicting(messages, self._record_lost)
        return DbcContent(messages=readable, skipped=skipped, lost=self._lost, bus=self._bus)

    def _declare_signals(self, message: _MessageDraft) -> Iterator[DeclaredSignal]:
        """The signals of a message with their float types, labels, multiplexers and long names."""
        roots = [signal.name for marker, signal in message.signals if marker is not None and marker.endswith("M")]
        root = roots[0] if len(roots) == 1 else None
        for marker, signal in message.signals:
            key = (message.id, signal.name)
            _, is_float = self._floats.get(key, (0, False))
            _, choices = self._labels.get(key, (0, ()))
            multiplexer: str | None = None
            ids: frozenset[int] = frozenset()
            reason = self._reasons.get(key)
            if marker is not None and (marker != "M" or root is None):
                named = dict(self._multiplexers.get(key, {}))
                if root not in (None, signal.name):
                    own = [frozenset({int(marker[1:])})] if marker[1:].isdigit() else []
                    named[root] = named.get(root, []) + own
                if len(named) == 1:
                    ((multiplexer, values),) = named.items()
                    ids = frozenset().union(*values) if len(values) > 1 else values[0] if values else ids
                if reason is None and len(named) > 1:
                    reason = f"it is below several multiplexers ({', '.join(named)}), and signals below one are read"
                elif reason is None and marker != "M" and (multiplexer is None or not ids):
                    reason = f"it is multiplexed ({marker}), and the file does not name its multiplexer and value"
            yield DeclaredSignal(
                signal=replace(
                    signal,
                    name=self._long_names.get(key, signal.name),
                    coding="float" if is_float else "integer",
                    choices=choices,
                ),
                multiplexer=None
                if multiplexer is None
                else self._long_names.get((message.id, multiplexer), multiplexer),
                ids=ids if multiplexer is not None else None,
                reason=reason,
            )


def _require_match(pattern: re.Pattern[str], statement: str) -> re.Match[str]:
    match = pattern.fullmatch(statement)
    if match is None:
        raise ValueError
    return match


def _unescape_quotes(text: str) -> str:
    return text.replace('\\"', '"')


def _shorten_for_display(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _SHOWN else f"{line[:_SHOWN]}...")


def _parse_whole(text: str) -> int:
    """A whole number, also one written as `3.0`."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not number.is_integer():
        raise ValueError(f"it has a text for {text}, and raw values are whole numbers")
    return int(number)


def _parse_number(text: str) -> float:
    """A number from text; an integer stays an integer, or becomes infinite beyond float64."""
    try:
        return limit_to_float64(int(text))
    except ValueError:
        return float(text)
