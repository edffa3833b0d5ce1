"""Reads database files: DBC with dbc.py, KCD, SYM and CAN in ARXML with cantools, LDF with ldf.py, FlexRay and PDUs in ARXML
with autosar-data, FIBEX with fibex.

Messages without signals are counted and left out. A signal or message that cannot be decoded is listed with its reason, and
does not affect others. Secured messages of AUTOSAR are authenticated but not encrypted, so their signals are read like all
others.
"""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import dbc
from .assemble import DeclaredSignal, assemble_signals, cycle_time, limit_to_float64, normalize_bound
from .database_cache import load_once
from .database_text import decode_text
from .errors import DatabaseError
from .model import Container, Message, Scale, Signal
from .someip.description import Services
from .someip.wireshark import load_wireshark_tables
from .xml_elements import root_name

DBC, LDF = ".dbc", ".ldf"
CANTOOLS = (".kcd", ".sym", ".arxml")
FIBEX = (".xml", ".fibex")
SUFFIXES = (DBC, *CANTOOLS, LDF, *FIBEX)
_MOST_IDS = 1 << 16  # most ids of one message of a SYM file
_ID_RANGE = re.compile(r"^[ \t]*ID[ \t]*=[ \t]*([0-9A-Fa-f]+)h[ \t]*-[ \t]*([0-9A-Fa-f]+)h", re.MULTILINE)
_EXPORT = "export it again from the program that wrote it, or remove it from the databases"
_cantools_as_it_is = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedDatabase:
    """The messages of a file. `skipped`: reason -> number of messages left out. `lost`: name or line of what cannot be read
    -> why. `services`: of SOME/IP."""

    messages: tuple[Message, ...]
    skipped: Mapping[str, int]
    lost: Mapping[str, str] = field(default_factory=dict)
    services: Services = field(default_factory=Services)


def load_database(path: str | Path, network: str | None = None) -> LoadedDatabase:
    """Read a file, or a folder of Wireshark's tables; `network` selects one of its buses (KCD, ARXML).

    Raises `DatabaseError` with what to do.
    """
    path = Path(path)
    if path.is_dir():
        services = load_wireshark_tables(path)
        return LoadedDatabase(messages=(), skipped={}, lost=services.lost, services=services)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DatabaseError(f"{path} is not a signal database: give a file that ends in {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise DatabaseError(f"the signal database {path} does not exist: give the path of a file")
    try:
        if suffix in FIBEX:
            return load_once(path, lambda file: _load_fibex(file, network), f"FIBEX {network}")
        if suffix == ".arxml":
            return load_once(path, lambda file: _load_arxml(file, network), f"ARXML {network}")
        text = decode_text(path.read_bytes(), xml=suffix == ".kcd")
        with _silence_cantools():
            if suffix == DBC:
                return _load_dbc(path, text, network)
            return _load_ldf(path, text, network) if suffix == LDF else _load_with_cantools(path, text, network)
    except DatabaseError:
        raise
    except ModuleNotFoundError as error:
        raise DatabaseError(
            f"a database of the format {suffix[1:].upper()} needs the extra `signals`: pip install 'pcaplake[signals]' ({error})"
        ) from error
    except Exception as error:  # each parser raises its own exceptions
        error_text = " ".join(str(error).split()) or repr(error)  # their messages have several lines
        raise DatabaseError(f"cannot read the signal database {path}: {error_text}; {_EXPORT}") from error


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


def _load_dbc(path: Path, text: str, network: str | None) -> LoadedDatabase:
    content = dbc.parse_dbc(text, path.name)
    if not content.messages and content.lost:
        (name, reason), *others = content.lost.items()
        more = f", and {len(others):,} more" if others else ""
        raise DatabaseError(
            f"cannot read the signal database {path}: no message of it is readable ({name}: {reason}{more}); {_EXPORT}"
        )
    if network not in (None, content.bus):
        raise DatabaseError(
            f"{path.name} has no messages of the network {network!r}; it has {content.bus or 'no names'}"
        )
    return LoadedDatabase(messages=content.messages, skipped=content.skipped, lost=content.lost)


def _load_ldf(path: Path, text: str, network: str | None) -> LoadedDatabase:
    from .ldf import parse_ldf

    if network is not None:
        raise DatabaseError(f"{path} describes one LIN network: remove `#{network}`")
    messages, others = parse_ldf(text, path.name)
    return LoadedDatabase(messages=messages, skipped={"event triggered": others} if others else {})


# -- FIBEX and ARXML ----------------------------------------------------------------------------------------------------
def _load_fibex(path: Path, network: str | None) -> LoadedDatabase:
    from .fibex.frames import messages_of
    from .fibex.reader import read_fibex
    from .fibex.services import services_of

    if network is not None:
        raise DatabaseError(f"{path}: networks of FIBEX files have no names here: remove `#{network}`")
    if root_name(path) != "FIBEX":
        raise DatabaseError(f"{path} is not a FIBEX file: its outermost element must be FIBEX")
    file = read_fibex(path)
    messages = tuple(messages_of(file))
    services = services_of(file)
    return LoadedDatabase(messages=messages, skipped={}, lost=services.lost, services=services)


def _load_arxml(path: Path, network: str | None) -> LoadedDatabase:
    """CAN messages; without `network`, also FlexRay frames, PDUs and SOME/IP services.

    cantools reads CAN frames, and containers in them with short headers; the other containers are read here.
    """
    from .arxml.document import ArxmlDocument
    from .arxml.frames import KINDS as FRAMES
    from .arxml.frames import can_containers, messages_of
    from .arxml.services import KINDS as SERVICES
    from .arxml.services import services_of

    with _silence_cantools():
        theirs = _parse_with_cantools(path, decode_text(path.read_bytes(), xml=True))
    if network is not None and all(message.signals for message in theirs):  # containers have none
        return convert_messages(theirs, path.name, network)
    try:
        document = ArxmlDocument(path, {*FRAMES, *SERVICES})
    except DatabaseError:
        if network is None:
            raise
        return convert_messages(theirs, path.name, network)  # of AUTOSAR 3, which has no containers with headers
    read = {_place_of(one) for one in theirs if one.is_container}
    containers = {place: one for place, one in can_containers(document, read) if network in (None, place[0])}
    others = [one for one in theirs if _place_of(one) not in containers]
    loaded = LoadedDatabase(messages=(), skipped={})
    if not containers or network in (None, *(one.bus_name for one in others)):
        loaded = convert_messages(others, path.name, network)
    can = (*loaded.messages, *containers.values())
    if network is not None:
        return replace(loaded, messages=can, lost={**loaded.lost, **document.lost})
    messages = (*can, *messages_of(document))
    services = services_of(document)
    return replace(loaded, messages=messages, lost={**loaded.lost, **services.lost}, services=services)


def _place_of(message: Any) -> tuple[str | None, int, bool]:
    """Cluster, id, and whether it is extended."""
    return message.bus_name, message.frame_id, bool(message.is_extended_frame)


# -- CAN --------------------------------------------------------------------------------------------------------------
def _load_with_cantools(path: Path, text: str, network: str | None) -> LoadedDatabase:
    lost: dict[str, str] = {}
    if path.suffix.lower() == ".sym":
        text = _remove_wide_id_ranges(text, path.name, lost)
    loaded = convert_messages(_parse_with_cantools(path, text), path.name, network)
    return replace(loaded, lost={**lost, **loaded.lost})


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
        lost[f"{source}, line {line}"] = f"its message has {count:,} ids, and at most {_MOST_IDS:,} are read"
        return ""

    return _ID_RANGE.sub(remove_if_wide, text)


def convert_messages(cantools_messages: Iterable[Any], source: str, network: str | None = None) -> LoadedDatabase:
    """Convert messages of cantools. Raises `DatabaseError` if `network` is not one of their buses."""
    cantools_messages = list(cantools_messages)
    if network is not None:
        names = sorted({message.bus_name for message in cantools_messages if message.bus_name})
        cantools_messages = [message for message in cantools_messages if message.bus_name == network]
        if not cantools_messages:
            raise DatabaseError(
                f"{source} has no messages of the network {network!r}; it has {', '.join(names) or 'no names'}"
            )
    skipped: Counter[str] = Counter()
    messages = []
    lost: dict[str, str] = {}
    for message in cantools_messages:
        most = 29 if message.is_extended_frame else 11
        if not message.signals and not message.is_container:
            skipped["no signals"] += 1
        elif not 0 <= message.frame_id < 1 << most:
            kind = "an extended" if message.is_extended_frame else "a standard"
            lost[f"{message.name} ({source})"] = f"its id is {message.frame_id}, and {kind} id has {most} bits"
        else:
            plain = _convert_message(message, message, source)
            messages.append(replace(plain, containers=tuple(_convert_containers(message, source, lost))))
    return LoadedDatabase(messages=tuple(messages), skipped=dict(skipped), lost=lost)


def _convert_message(message: Any, frame: Any, source: str) -> Message:
    """A message in a frame, which may be itself."""
    j1939 = message.protocol == "j1939" and bool(frame.is_extended_frame)
    signals, unreadable = assemble_signals(
        "j1939" if j1939 else "can", message.length, map(_declare_signal, message.signals)
    )
    return Message(
        kind="can",
        id=frame.frame_id,
        extended=bool(frame.is_extended_frame),
        name=message.name,
        length=message.length,
        signals=signals,
        unreadable=unreadable,
        database=source,
        cycle_ms=cycle_time(message.cycle_time),
        j1939=j1939,
        contained=message is not frame,
    )


def _convert_containers(message: Any, source: str, lost: dict[str, str]) -> Iterator[Container]:
    """An AUTOSAR container with short headers, which is all that cantools reads."""
    if not message.is_container:
        return
    contained: dict[int, Message] = {}
    for one in message.contained_messages:
        if not 0 < one.header_id < 1 << 24 or one.header_id in contained:
            other = contained.get(one.header_id)
            why = "ids have 24 bits" if other is None else f"{other.name} has it too"
            lost[f"{one.name} ({source})"] = f"its header id in {message.name} is {one.header_id:#x}, and {why}"
        else:
            contained[one.header_id] = _convert_message(one, message, source)
    yield Container(
        name=message.name,
        start=0,
        length=message.length,
        long_header=False,
        big_endian=message.header_byte_order != "little_endian",
        contained=tuple(contained.items()),
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
