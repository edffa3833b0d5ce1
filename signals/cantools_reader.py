"""Messages of CAN in files that cantools reads: KCD, SYM, and ARXML of AUTOSAR 3 or with the configuration of a control unit."""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from traceback import walk_tb
from typing import Any
from xml.etree.ElementTree import Element

from .assemble import DeclaredSignal, assemble_signals, cycle_time, normalize_bound
from .database_text import decode_text
from .errors import DatabaseError, add_reason
from .loaded import DatabaseNetworks, LoadedDatabase, drop_conflicting
from .model import Message, Scale, Signal, limit_to_float64

_MOST_IDS = 1 << 16  # most ids of one message of a SYM file
_ID_RANGE = re.compile(r"^[ \t]*ID[ \t]*=[ \t]*([0-9A-Fa-f]+)h[ \t]*-[ \t]*([0-9A-Fa-f]+)h", re.MULTILINE)
_cantools_as_it_is = threading.Lock()
_ENTRIES = (
    "message_tokens",
    "message",
    "name",
    "tokens",
    "signal",
    "can_frame_triggering",
    "i_signal",
)  # locals of cantools
_NO_TEXT = (AttributeError, TypeError, IndexError, AssertionError)  # whose texts speak of cantools, not of the file


def read_with_cantools(path: Path) -> DatabaseNetworks:
    """The messages of a file. Raises `DatabaseError`, and what cantools raises."""
    suffix = path.suffix.lower()
    text = decode_text(path.read_bytes(), xml=suffix != ".sym")
    lost: dict[str, str] = {}
    if suffix == ".sym":
        text = _remove_wide_id_ranges(text, path.name, lost)
    by_bus: dict[str | None, list[Any]] = {}
    with _silence_cantools():
        for message in _parse_with_cantools(path, text):
            by_bus.setdefault(message.bus_name or None, []).append(message)
    networks = {name: convert_messages(messages, path.name) for name, messages in by_bus.items()}
    return DatabaseNetworks(source=path.name, networks=networks, lost=lost)


def describe_error(error: Exception) -> str:
    """What is wrong with a file, by an exception of cantools or of what it calls: the entry that was read, and why it is none."""
    own = (getattr(error, f"e_{kind}", None) for kind in ("arxml", "kcd", "sym"))  # cantools puts them into another one
    error = next((one for one in own if isinstance(one, Exception)), error)
    text = " ".join(str(error).split())  # its messages have several lines
    names: list[str] = []
    for frame, _ in walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).startswith("cantools.database.can.formats"):
            names += filter(None, (_name_of_entry(frame.f_locals.get(key)) for key in _ENTRIES))
    if isinstance(error, KeyError):
        text = f"{error.args[0] if error.args else 'something'}, which it needs, is not there"
    elif isinstance(error, _NO_TEXT) or not text:
        text = "a part of it is missing, or is not as cantools expects it"
    elif isinstance(error, ValueError) and (
        number := re.fullmatch(r"(?:invalid literal for|could not convert) .*: (.*)", text)
    ):
        text = f"{number[1]} is no number"
    return f"{'.'.join(dict.fromkeys(names))}: {text}" if names else text or type(error).__name__


def _name_of_entry(entry: Any) -> str | None:
    """The name of an XML element, of a section of SYM, or the name itself."""
    if isinstance(entry, Element):
        entry = entry.get("name") or next((one.text for one in entry if one.tag.endswith("}SHORT-NAME")), None)
    elif isinstance(entry, list):
        entry = next((one for one in entry[1:3] if isinstance(one, str) and one != "="), None)
    return entry if isinstance(entry, str) and re.fullmatch(r"[\w./ -]{1,200}", entry) else None


@contextmanager
def _silence_cantools() -> Any:
    """Silence cantools, which logs messages that share a name or id; they are looked up differently here."""
    log = logging.getLogger("cantools")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(before)


def _parse_with_cantools(path: Path, text: str) -> list[Any]:
    """The messages of a file, as cantools has them."""
    import cantools

    with _accept_declared_messages():
        database = cantools.database.load_string(text, path.suffix[1:].lower(), strict=False, sort_signals=None)
    if not hasattr(database, "messages"):
        raise DatabaseError(f"{path} describes diagnostics, not messages: give a file with messages")
    return list(database.messages)


@contextmanager
def _accept_declared_messages() -> Iterator[None]:
    """Make cantools accept messages as declared while the body runs; `convert_messages` checks ids and lengths.

    Otherwise cantools refuses a whole file for one bad id, and builds codecs, unused here, as large as a length declares.
    """
    from cantools.database.can.message import Message as Theirs

    begin, refresh = Theirs.__init__, Theirs.refresh

    def initialize_as_declared(self: Any, frame_id: int, *given: Any, **more: Any) -> None:
        begin(self, 0, *given, **more)
        self.frame_id = frame_id

    with _cantools_as_it_is:
        Theirs.__init__, Theirs.refresh = initialize_as_declared, lambda self, strict=None: None
        try:
            yield
        finally:
            Theirs.__init__, Theirs.refresh = begin, refresh


def _remove_wide_id_ranges(text: str, source: str, lost: dict[str, str]) -> str:
    """Remove wide id ranges: cantools creates a message for every id of a range."""

    def remove_if_wide(id_range: re.Match[str]) -> str:
        count = int(id_range[2], 16) - int(id_range[1], 16) + 1
        if count <= _MOST_IDS:
            return id_range[0]
        line = text.count("\n", 0, id_range.start()) + 1
        add_reason(lost, f"{source}, line {line}", f"its message has {count:,} ids, and at most {_MOST_IDS:,} are read")
        return ""

    return _ID_RANGE.sub(remove_if_wide, text)


def convert_messages(cantools_messages: Iterable[Any], source: str) -> LoadedDatabase:
    """Convert messages of cantools."""
    skipped: Counter[str] = Counter()
    messages: list[tuple[Message, str]] = []
    lost: dict[str, str] = {}
    for message in cantools_messages:
        most = 29 if message.is_extended_frame else 11
        if not message.signals:
            skipped["no signals"] += 1
        elif not 0 <= message.frame_id < 1 << most:
            kind = "an extended" if message.is_extended_frame else "a standard"
            reason = f"its id is {message.frame_id}, and {kind} id has {most} bits"
            add_reason(lost, f"{message.name} ({source})", reason)
        else:
            messages.append((_convert_message(message, source), f"{message.name} ({source})"))
    readable = drop_conflicting(messages, partial(add_reason, lost))
    return LoadedDatabase(messages=readable, skipped=dict(skipped), lost=lost)


def _convert_message(message: Any, source: str) -> Message:
    j1939 = message.protocol == "j1939" and bool(message.is_extended_frame)
    signals, unreadable = assemble_signals(
        "j1939" if j1939 else "can", message.length, map(_declare_signal, message.signals)
    )
    return Message(
        kind="can",
        id=message.frame_id,
        extended=bool(message.is_extended_frame),
        name=message.name,
        length=message.length,
        signals=signals,
        unreadable=unreadable,
        database=source,
        cycle_ms=cycle_time(message.cycle_time),
        j1939=j1939,
    )


def _declare_signal(cantools_signal: Any) -> DeclaredSignal:
    choices = cantools_signal.conversion.choices or {}
    signal = Signal(
        name=cantools_signal.name,
        start=cantools_signal.start,
        length=cantools_signal.length,
        big_endian=cantools_signal.byte_order == "big_endian",
        signed=bool(cantools_signal.is_signed),
        coding="float" if cantools_signal.conversion.is_float else "integer",
        scales=(
            Scale(
                factor=limit_to_float64(cantools_signal.conversion.scale),
                offset=limit_to_float64(cantools_signal.conversion.offset),
                unit=cantools_signal.unit or None,
            ),
        ),
        minimum=normalize_bound(cantools_signal.minimum),
        maximum=normalize_bound(cantools_signal.maximum),
        invalid=None if cantools_signal.raw_invalid is None else limit_to_float64(cantools_signal.raw_invalid),
        choices=tuple(sorted((int(raw), str(label)) for raw, label in choices.items())),
    )
    ids = None if cantools_signal.multiplexer_ids is None else frozenset(cantools_signal.multiplexer_ids)
    return DeclaredSignal(signal=signal, multiplexer=cantools_signal.multiplexer_signal, ids=ids)
