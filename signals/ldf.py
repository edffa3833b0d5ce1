"""Reads LDF files of LIN with ldfparser."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

from .assemble import DeclaredSignal, assemble_signals
from .model import Message, Scale, Signal


def parse_ldf(text: str, source: str) -> tuple[tuple[Message, ...], int]:
    """The messages of a file, and the number of its event-triggered frames. Raises what ldfparser raises."""
    import ldfparser

    with tempfile.NamedTemporaryFile("w", suffix=".ldf", encoding="utf-8") as plain:  # ldfparser reads files only
        plain.write(text)
        plain.flush()
        ldf = ldfparser.parse_ldf(plain.name, encoding="utf-8")
    messages = tuple(
        _convert_lin_message(frame, source) for frame in ldf.get_unconditional_frames() if frame.signal_map
    )
    return messages, len(ldf.get_event_triggered_frames())


def _convert_lin_message(frame: Any, source: str) -> Message:
    signals, unreadable = assemble_signals(
        "lin", frame.length, (DeclaredSignal(signal=_convert_lin_signal(*entry)) for entry in frame.signal_map)
    )
    return Message(
        kind="lin",
        id=frame.frame_id,
        extended=False,
        name=frame.name,
        length=frame.length,
        signals=signals,
        unreadable=unreadable,
        database=source,
    )


def _convert_lin_signal(start: int, lin_signal: Any) -> Signal:
    """LIN 2.1, section 9.2.6.1: an encoding is a list of converters, and the first that fits applies."""
    from ldfparser.encoding import ASCIIValue, BCDValue, LogicalValue, PhysicalValue

    scales: list[Scale] = []
    choices: dict[int, str] = {}
    plain = Signal(name=lin_signal.name, start=start, length=lin_signal.width)
    for converter in lin_signal.encoding_type.get_converters() if lin_signal.encoding_type is not None else ():
        if isinstance(converter, BCDValue):
            return replace(plain, coding="bcd")
        if isinstance(converter, ASCIIValue):
            return replace(plain, coding="ascii")
        if isinstance(converter, LogicalValue):
            choices.setdefault(converter.phy_value, converter.info or str(converter.phy_value))
        elif isinstance(converter, PhysicalValue):
            scales.append(
                Scale(
                    factor=converter.scale,
                    offset=converter.offset,
                    unit=converter.unit or None,
                    low=int(converter.phy_min),
                    high=int(converter.phy_max),
                )
            )
    return replace(plain, scales=tuple(scales) or (Scale(),), choices=tuple(sorted(choices.items())))
