"""Which messages of a DBC file are parameter groups of J1939.

Vector's attributes say so: VFrameFormat of a message (by default, and by its place in the list of values), or ProtocolType of the
file for messages without a frame format.
"""

from __future__ import annotations

import re
from typing import Final

_TEXT: Final = r'"((?:\\"|[^"])*+)"'
_VALUE: Final = rf"(\d++(?:\.\d*+)?|{_TEXT})"
_OF_MESSAGE = re.compile(rf'BA_\s+"VFrameFormat"\s+BO_\s+(\d+)\s+{_VALUE}\s*;?')
_USUAL = re.compile(rf'BA_DEF_DEF_\s+"VFrameFormat"\s+{_VALUE}\s*;?')
_VALUES = re.compile(r'BA_DEF_\s+BO_\s+"VFrameFormat"\s+ENUM\s+(.*?);?\s*', re.DOTALL)
_PROTOCOL = re.compile(rf'BA_(DEF_DEF_)?\s+"ProtocolType"\s+{_TEXT}\s*;?')
_ONE_TEXT = re.compile(_TEXT)
_FORMAT, _NAME = "J1939PG", "J1939"
_USUAL_VALUES: Final = ("StandardCAN", "ExtendedCAN", "reserved", "J1939PG")


class FrameFormats:
    """Takes the statements of attributes, in any order."""

    def __init__(self) -> None:
        self._values: list[str] = []
        self._formats: dict[int, str] = {}
        self._usual: str | None = None
        self._protocol: dict[bool, str] = {}  # by whether it is the default

    def parse_definition(self, statement: str) -> None:
        if match := _VALUES.fullmatch(statement):
            self._values = _ONE_TEXT.findall(match[1])

    def parse_default(self, statement: str) -> None:
        if match := _USUAL.fullmatch(statement):
            self._usual = match[1]
        self._parse_protocol(statement)

    def parse_attribute(self, statement: str) -> None:
        if match := _OF_MESSAGE.fullmatch(statement):
            self._formats[int(match[1])] = match[2]
        self._parse_protocol(statement)

    def _parse_protocol(self, statement: str) -> None:
        if match := _PROTOCOL.fullmatch(statement):
            self._protocol[match[1] is not None] = match[2]

    def is_j1939(self, number: int) -> bool:
        """Whether the message with this number in the file is a parameter group."""
        if not number >> 31:  # an identifier of 11 bits
            return False
        given = self._formats.get(number, self._usual)
        if given is None:
            return self._protocol.get(False, self._protocol.get(True)) == _NAME
        if given.startswith('"'):
            return given.strip('"') == _FORMAT
        place = int(float(given))
        values = self._values or _USUAL_VALUES  # an attribute that is a number has the same values
        return place < len(values) and values[place] == _FORMAT
