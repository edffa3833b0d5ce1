"""Reads LDF files of LIN with ldfparser's grammar. A frame or signal that is not as LIN has them affects no other.

Layout: LIN Specification Package 2.2A, LIN Configuration Language, sections 9.2.3 (signals), 9.2.4 (frames) and 9.2.6
(encodings). A name that is declared twice, and otherwise the second time, means nothing.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from .assemble import DeclaredSignal, assemble_signals
from .errors import DatabaseError, add_reason
from .loaded import LoadedDatabase, drop_conflicting
from .model import Message, Scale, Signal

_MOST_ID = 0x3F
_MOST_BYTES = 8
_BYTES_BY_ID = (2, 2, 4, 8)  # of a frame of LIN 1.3 without a length, by the two upper bits of its id


def parse_ldf(text: str, source: str) -> LoadedDatabase:
    """The messages of a file. Raises what ldfparser raises for a text that its grammar does not have."""
    import ldfparser

    with tempfile.NamedTemporaryFile("w", suffix=".ldf", encoding="utf-8") as plain:  # ldfparser reads files only
        plain.write(text)
        plain.flush()
        content = ldfparser.parse_ldf_to_dict(plain.name, encoding="utf-8")
    lost: dict[str, str] = {}

    def lose(place: str, reason: str) -> None:
        add_reason(lost, f"{source}, {place}", reason)

    signals = _SignalsOfFile(content)
    messages: list[tuple[Message, str]] = []
    if not content.get("frames"):
        raise DatabaseError(f"{source} has no section Frames with a frame: give a complete LDF file")
    for frame in content["frames"]:
        if not frame["signals"]:
            continue
        place = _find_place(text, frame["name"])
        try:
            messages.append((_convert_frame(frame, signals, content, source), place))
        except DatabaseError as error:
            lose(place, str(error))
    readable = drop_conflicting(messages, lose)
    events = len(content.get("event_triggered_frames") or ())
    return LoadedDatabase(messages=readable, skipped={"event triggered": events} if events else {}, lost=lost)


def _find_place(text: str, frame: str) -> str:
    section = re.search(r"^\s*Frames\b", text, re.MULTILINE)
    at = section.start() if section else 0
    found = re.compile(rf"\b{re.escape(frame)}\s*:").search(text, at)
    line = text.count("\n", 0, found.start()) + 1 if found else 0
    return f"line {line}" if line else f"frame {frame}"


def _convert_frame(
    frame: Mapping[str, Any], signals: _SignalsOfFile, content: Mapping[str, Any], source: str
) -> Message:
    name, number, length = frame["name"], frame["frame_id"], frame["length"]
    if not 0 <= number <= _MOST_ID:
        raise DatabaseError(f"the id of {name} is {number:#x}, and an id of LIN has 6 bits")
    if length is None:
        if _is_above_2_0(content.get("language_version", "")):
            raise DatabaseError(f"{name} has no length, which a frame may lack in LIN 2.0 and below only")
        length = _BYTES_BY_ID[number >> 4]
    if not 1 <= length <= _MOST_BYTES:
        raise DatabaseError(f"{name} has {length:,} bytes, and a frame of LIN has 1 to {_MOST_BYTES}")
    readable, unreadable = assemble_signals("lin", length, signals.of_frame(frame))
    return Message(
        kind="lin",
        id=number,
        extended=False,
        name=name,
        length=length,
        signals=readable,
        unreadable=unreadable,
        database=source,
    )


def _is_above_2_0(version: str) -> bool:
    from ldfparser.lin import LIN_VERSION_2_0, parse_lin_version

    try:
        return bool(parse_lin_version(version) > LIN_VERSION_2_0)
    except ValueError:
        return True


class _Declared(dict[str, Any]):
    """The declarations of a section by name. `contradicted`: names of which two differ."""

    def __init__(self, declarations: Iterable[tuple[str, Any]]) -> None:
        super().__init__()
        self.contradicted = {name for name, content in declarations if self.setdefault(name, content) != content}


class _SignalsOfFile:
    """The signals of a file by name, each with its encoding."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        represented = content.get("signal_representations") or ()
        self._widths = _Declared((signal["name"], signal["width"]) for signal in content.get("signals") or ())
        self._encodings = _Declared((one["name"], one["values"]) for one in content.get("signal_encoding_types") or ())
        self._represented = _Declared((signal, one["encoding"]) for one in represented for signal in one["signals"])

    def of_frame(self, frame: Mapping[str, Any]) -> Iterator[DeclaredSignal]:
        for entry in frame["signals"]:
            name = entry["signal"]
            plain = Signal(name=name, start=entry["offset"], length=self._widths.get(name, 1))
            encoding = self._represented.get(name)
            if name not in self._widths:
                yield DeclaredSignal(signal=plain, reason="the file does not declare it in Signals")
            elif name in self._widths.contradicted:
                yield DeclaredSignal(signal=plain, reason="Signals declares it twice, with other widths: remove one")
            elif name in self._represented.contradicted:
                reason = "Signal_representation gives it two encodings: remove one"
                yield DeclaredSignal(signal=plain, reason=reason)
            elif encoding is not None and encoding in self._encodings.contradicted:
                reason = (
                    f"Signal_encoding_types declares its encoding {encoding} twice, otherwise each time: remove one"
                )
                yield DeclaredSignal(signal=plain, reason=reason)
            elif encoding is not None and encoding not in self._encodings:
                yield DeclaredSignal(signal=plain, reason=f"its encoding {encoding} is not in Signal_encoding_types")
            else:
                yield DeclaredSignal(signal=_encode(plain, self._encodings[encoding] if encoding else ()))


def _encode(plain: Signal, values: Any) -> Signal:
    """The first value of an encoding that contains a raw value applies."""
    scales: list[Scale] = []
    choices: dict[int, str] = {}
    for value in values:
        match value["type"]:
            case "bcd" | "ascii" as coding:
                return replace(plain, coding=coding)
            case "logical":
                choices.setdefault(value["value"], value["text"] or str(value["value"]))
            case "physical":
                scales.append(
                    Scale(
                        factor=value["scale"],
                        offset=value["offset"],
                        unit=value["unit"] or None,
                        low=int(value["min"]),
                        high=int(value["max"]),
                    )
                )
    return replace(plain, scales=tuple(scales) or (Scale(),), choices=tuple(sorted(choices.items())))
