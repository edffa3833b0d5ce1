"""Takes out of an ARXML file what no release of AUTOSAR has, for which autosar-data refuses the whole file.

An unknown element goes with everything in it. A wrong keyword takes the named element around it too, because what the keyword
says is unknown, and a default in its place would give wrong values. A DEST is left out alone, because it is not read. Of two
elements of different kinds with one path, the second is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from xml.parsers import expat

from .element import autosar_data

_TAG: Final = re.compile(rb"""<(?:[^"'>]|"[^"]*"|'[^']*')*>""")
_DESTINATION: Final = re.compile(rb"""\sDEST\s*=\s*(?:"[^"]*"|'[^']*')""")
_PACKAGE: Final = "AR-PACKAGE"


@dataclass(slots=True)
class _Open:
    """An element that has not ended. `kind`: None if it is unknown, or in such an element; `reason`: why it is left out."""

    name: str
    kind: _Kind | None
    start: int
    line: int
    path: str
    reason: str | None = None
    text: list[str] = field(default_factory=list)


class _Kind:
    """What AUTOSAR has in an element, which may have several types: that of each release."""

    def __init__(self, types: Mapping[str, Any], known: dict[tuple[str, ...], _Kind]) -> None:
        self._known = known
        self._inside: dict[str, dict[str, Any]] = {}
        for one in types.values():
            for spec in one.sub_elements_spec:
                self._inside.setdefault(spec.element_name, {})[repr(spec.element_type)] = spec.element_type
        self.keywords = _keywords([one.chardata_spec for one in types.values()])
        specs: dict[str, list[Any]] = {}
        for one in types.values():
            for spec in one.attributes_spec:
                specs.setdefault(spec.attribute_name, []).append(spec.value_spec)
        self.attributes = {name: found for name, values in specs.items() if (found := _keywords(values)) is not None}
        self.is_named = any(one.is_named for one in types.values())

    def kind_of(self, name: str) -> _Kind | None:
        """The kind of an element inside this kind; None if AUTOSAR has no element of this name there."""
        types = self._inside.get(name)
        if types is None:
            return None
        key = tuple(sorted(types))
        if key not in self._known:
            self._known[key] = _Kind(types, self._known)
        return self._known[key]


def _keywords(specs: Sequence[Any]) -> frozenset[str] | None:
    """The keywords that a text may be; None if it may be another text."""
    if not specs or not all(isinstance(spec, autosar_data().CharacterDataTypeEnum) for spec in specs):
        return None
    return frozenset(value for spec in specs for value in spec.values)


def without_unknown(text: str) -> tuple[str, list[tuple[str, str]]]:
    """The text without what AUTOSAR does not have, and place and reason of each; lines keep their numbers.

    Raises `ValueError` for a text that is not XML.
    """
    cleaner = _Cleaner(text.encode())
    try:
        return cleaner.clean(), cleaner.lost
    except expat.ExpatError as error:
        raise ValueError(f"line {error.lineno}: {expat.ErrorString(error.code)}") from error


class _Cleaner:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._open: list[_Open] = []
        self._cuts: list[tuple[int, int]] = []
        self._named: dict[str, str] = {}  # path -> name of the element that has it first
        self.lost: list[tuple[str, str]] = []
        self._root = _Kind({"AUTOSAR": autosar_data().AutosarModel().root_element.element_type}, {})
        self._parser = expat.ParserCreate("utf-8")
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text

    def clean(self) -> str:
        self._parser.Parse(self._data, True)
        parts, at = [], 0
        for start, end in sorted(self._cuts):
            if start >= at:  # else it is inside of another
                parts += [self._data[at:start], b"\n" * self._data.count(b"\n", start, end)]
            at = max(at, end)
        return b"".join([*parts, self._data[at:]]).decode()

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        above = self._open[-1] if self._open else None
        here = _Open(
            name=name,
            kind=self._root if above is None else None,
            start=self._parser.CurrentByteIndex,
            line=self._parser.CurrentLineNumber,
            path=above.path if above is not None else "",
        )
        self._open.append(here)
        if above is not None and above.kind is not None:
            here.kind = above.kind.kind_of(name)
            if here.kind is None:
                here.reason = f"AUTOSAR has no element {name} in {above.name}"
        if here.kind is not None:
            for attribute, keywords in here.kind.attributes.items():
                if (value := attributes.get(attribute)) is not None and value not in keywords:
                    self._wrong_attribute(here, attribute, value)

    def _wrong_attribute(self, here: _Open, attribute: str, value: str) -> None:
        reason = f"{here.name} has {attribute} {value}, which AUTOSAR does not have"
        if attribute != "DEST":
            self._leave_out_around(reason)
            return
        tag = _TAG.match(self._data, here.start)
        if tag is not None and (found := _DESTINATION.search(self._data, *tag.span())):
            self._cuts.append(found.span())
            self.lost.append((f"line {here.line}, {here.path}", f"{reason}: the reference is read without it"))

    def _leave_out_around(self, reason: str) -> None:
        """Leave out the closest element with a name; without one below packages, the innermost."""
        named = [one for one in self._open if one.kind is not None and one.kind.is_named]
        around = named[-1] if named and named[-1].name != _PACKAGE else self._open[-1]
        around.reason = around.reason or reason

    def _text(self, text: str) -> None:
        here = self._open[-1]
        if here.name == "SHORT-NAME" or (here.kind is not None and here.kind.keywords is not None):
            here.text.append(text)

    def _end(self, name: str) -> None:
        here = self._open[-1]
        text = "".join(here.text).strip()
        if name == "SHORT-NAME" and len(self._open) > 1:
            self._name(self._open[-2], text)
        elif here.kind is not None and here.kind.keywords is not None and text and text not in here.kind.keywords:
            self._leave_out_around(f"{name} is {text}, which AUTOSAR does not have")
        self._open.pop()
        if here.reason is not None:
            self._cuts.append((here.start, self._end_of(here)))
            self.lost.append((f"line {here.line}, {here.path or name}", f"{here.reason}; {name} is left out"))

    def _name(self, named: _Open, name: str) -> None:
        named.path += f"/{name}"
        if named.name == _PACKAGE or any(one.reason is not None for one in self._open):
            return
        other = self._named.setdefault(named.path, named.name)
        if other != named.name:
            named.reason = f"{other} has this path too: give each a name of its own"

    def _end_of(self, here: _Open) -> int:
        tag = _TAG.match(self._data, here.start)
        if tag is None or not tag[0].endswith(b"/>"):
            tag = _TAG.match(self._data, self._parser.CurrentByteIndex)
        return tag.end() if tag is not None else here.start
