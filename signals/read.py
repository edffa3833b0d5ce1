"""`read_signals`: the signals of one capture as an Arrow table, without a lake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import pyarrow as pa

from pcaplake.parser import Profile, open_capture
from pcaplake.parser.arrow_types import convert_batch
from pcaplake.parser.schemas import TABLES
from pcaplake.suggestions import suggest_name

from .choice import Choice
from .database import Databases
from .errors import DatabaseError
from .frames import FrameDecoder
from .model import Kind
from .someip.choice import PathChoice
from .someip.decoder import INPUT as PAYLOAD_INPUT
from .someip.decoder import SomeipDecoder
from .someip.members import list_paths
from .tables import INPUT, SIGNALS_SCHEMA, SOURCES
from .time_base import spread_over_time

SOMEIP: Final = "someip_messages"
_J1939: Final = "can: {protocols: {extended: j1939}}"
Files: TypeAlias = str | Path | Sequence[str | Path] | Databases


def read_signals(
    source: str | Path | BinaryIO,
    databases: Files,
    signals: str | Sequence[str] | None = None,
    *,
    wide: bool = False,
    every: float | None = None,
    profile: Profile | str | Path | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
) -> pa.Table:
    """The signals of a capture: a row for each value, or with `wide` a column for each signal.

    source               as in `open_capture`
    databases            a database file (DBC, KCD, SYM, ARXML, LDF), a folder of Wireshark's SOME/IP tables, or several of
                         them, the YAML file that assigns databases to buses, or `Databases`
    signals              names as `EngineSpeed`, `Engine.EngineSpeed`, `Wheel*` or `State.wheels[0].speed`, case-sensitive; by
                         default all
    wide                 rows are times (`ts_ns`, `ts`), columns are signals, float64: the last value at that time. Null
                         before the first value, and while the last value is not valid. A signal that several messages or
                         buses have is named `Message.Signal` or `bus.Message.Signal`
    every                seconds between the rows of a wide table; by default a row for each time at which one of the
                         signals was sent
    profile, start_ns, end_ns   as in `open_capture`; without a profile, CAN identifiers of 29 bits are those of J1939 if the
                         databases have its messages

    The columns of the long table are those of the table `signals` of a lake; the rows of one signal are in the order of
    the capture. Memory grows with the chosen signals, not with the capture.

    Raises `DatabaseError` if a database cannot be used or no signal has one of the names, `ValueError` for `every` that is
    not above zero or without `wide`, and what `open_capture` raises.
    """
    if every is not None and (not wide or not every > 0):
        raise ValueError("every: give seconds above zero, with wide=True")
    known = _load_databases(databases)
    chosen = None if signals is None else _choose(known, [signals] if isinstance(signals, str) else list(signals))
    rows = _decode_capture(source, known, chosen, profile, start_ns, end_ns)
    if not wide:
        return pa.Table.from_batches(rows, SIGNALS_SCHEMA)
    return spread_over_time(rows, [] if chosen is None else chosen.names(known), every)


@dataclass(frozen=True, slots=True)
class _Chosen:
    """The chosen signals of frames and of SOME/IP messages."""

    frames: Choice
    payloads: PathChoice

    def names(self, databases: Databases) -> list[tuple[str, str]]:
        """(message, signal) of those that are known before they are decoded: not the elements of arrays."""
        names = [
            (part.name, part.signals[place].name)
            for _, message in databases
            for part in message.parts
            for place in sorted(self.frames.get(part.definition_hash, ()))
        ]
        return names + [
            (message.name, path)
            for message in databases.services
            for path in list_paths(message)
            if "{}" not in path and self.payloads.takes(message, path)
        ]


def _choose(databases: Databases, patterns: Sequence[str]) -> _Chosen:
    """The signals that these patterns name. Raises `DatabaseError` for a pattern that names none."""
    frames, unknown = choose_signals(databases, patterns)
    payloads = PathChoice(databases.services, patterns)
    for pattern in unknown:
        if pattern in payloads.unknown:
            known = {signal.name for _, message in databases for part in message.parts for signal in part.signals}
            known |= {path for message in databases.services for path in list_paths(message)}
            for message, each in databases.unreadable_signals():
                name = f"{message}.{each.signal.name}"
                if fnmatchcase(each.signal.name, pattern) or fnmatchcase(name, pattern):
                    raise DatabaseError(f"the signal {name} cannot be decoded: {each.reason}")
            which = suggest_name(pattern, sorted(known)) if known else "they have no signals"
            raise DatabaseError(f"the databases have no signal {pattern!r}; {which}")
    return _Chosen(frames, payloads)


def choose_signals(databases: Databases, patterns: Iterable[str]) -> tuple[Choice, list[str]]:
    """The signals of frames that these patterns name, and the patterns that name none."""
    names = {
        (part.definition_hash, place): (signal.name, f"{part.name}.{signal.name}")
        for _, message in databases
        for part in message.parts
        for place, signal in enumerate(part.signals)
    }
    chosen: dict[str, set[int]] = {}
    unknown = []
    for pattern in patterns:
        matching = [key for key, spelled in names.items() if any(fnmatchcase(one, pattern) for one in spelled)]
        if not matching:
            unknown.append(pattern)
        for definition, place in matching:
            chosen.setdefault(definition, set()).add(place)
    return {definition: frozenset(places) for definition, places in chosen.items()}, unknown


def _load_databases(databases: Files) -> Databases:
    if isinstance(databases, Databases):
        return databases
    if isinstance(databases, str | Path):
        return Databases.from_file(databases)
    return Databases.from_database_files([str(file) for file in databases])


def _decode_capture(
    source: str | Path | BinaryIO,
    databases: Databases,
    chosen: _Chosen | None,
    profile: Profile | str | Path | None,
    start_ns: int | None,
    end_ns: int | None,
) -> Iterator[pa.RecordBatch]:
    kinds: Mapping[str, Kind] = {
        SOURCES[kind]: kind
        for _, message in databases
        for kind in message.carriers
        if chosen is None or any(part.definition_hash in chosen.frames for part in message.parts)
    }
    services = databases.services
    tables = list(kinds)
    if any(chosen is None or chosen.payloads.takes_any_of(message) for message in services):
        tables.append(SOMEIP)
    if not tables:
        return
    frames = FrameDecoder(databases, None if chosen is None else chosen.frames)
    payloads = SomeipDecoder(services, None if chosen is None else chosen.payloads)
    if profile is None and SOURCES["j1939"] in tables:
        profile = Profile.parse(_J1939)
    with open_capture(source, tables, profile=profile, start_ns=start_ns, end_ns=end_ns) as capture:
        for table, batch in capture.batches():
            if table == SOMEIP:
                rows = payloads.decode_signals(_with_plain_strings(table, PAYLOAD_INPUT, batch))
            else:
                rows = frames.decode_signals(kinds[table], with_plain_strings(kinds[table], batch))
            del batch  # the next batch may use its memory
            yield from rows.to_batches()


def with_plain_strings(kind: Kind, frames: Any) -> Any:
    """The columns of frames that are decoded, as a lake has them: the strings of a capture are dictionaries."""
    return _with_plain_strings(SOURCES[kind], INPUT[kind], frames)


def _with_plain_strings(table: str, columns: Sequence[str], frames: Any) -> Any:
    schema = TABLES[table].schema
    return convert_batch(frames, pa.schema([schema.field(name) for name in columns]))
