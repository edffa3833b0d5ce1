"""Reads chosen elements of an XML file one at a time, so that memory does not grow with the file.

Names are without their namespace prefix: tools differ in the prefixes, and in the namespaces of elements that mean the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self
from xml.parsers import expat

from .errors import DatabaseError

_CHUNK = 1 << 20
_DEEPEST = 256  # most elements around an element; databases have about 20


class XmlElement:
    """An element: `name` and names of `attributes` without prefix, `text` without surrounding space, `line` in the file."""

    __slots__ = ()
    name: str
    line: int

    @property
    def attributes(self) -> Mapping[str, str]:
        raise NotImplementedError

    @property
    def text(self) -> str:
        raise NotImplementedError

    @property
    def children(self) -> Sequence[Self]:
        raise NotImplementedError

    def child(self, path: str) -> Self | None:
        """The first element at a path of names, `A/B`."""
        found: Self | None = self
        for name in path.split("/"):
            found = next((child for child in found.children if child.name == name), None) if found is not None else None
        return found

    def children_at(self, path: str) -> Iterator[Self]:
        """All elements at a path of names, `A/B`."""
        name, _, rest = path.partition("/")
        for child in self.children:
            if child.name == name:
                if rest:
                    yield from child.children_at(rest)
                else:
                    yield child

    def text_at(self, path: str) -> str | None:
        """The text of the first element at a path; None if there is none, or if it is empty."""
        found = self.child(path)
        return (found.text or None) if found is not None else None

    def reference(self, path: str) -> str | None:
        """The attribute ID-REF of the first element at a path."""
        found = self.child(path)
        return found.attributes.get("ID-REF") if found is not None else None


class ParsedElement(XmlElement):
    """An element that was read with everything in it."""

    __slots__ = ("inside", "line", "name", "parts", "said")

    def __init__(self, name: str, attributes: dict[str, str], line: int) -> None:
        self.name, self.said, self.line = name, attributes, line
        self.inside: list[Self] = []
        self.parts: list[str] = []

    @property
    def attributes(self) -> Mapping[str, str]:
        return self.said

    @property
    def text(self) -> str:
        return "".join(self.parts).strip()

    @property
    def children(self) -> Sequence[Self]:
        return self.inside


def read_elements(path: Path, wanted: Collection[str]) -> Iterator[ParsedElement]:
    """The elements of `path` with the names `wanted` in their order, each with all that is in it, but not those inside another.

    Raises `DatabaseError` with line and column for a file that is not XML, declares entities or is nested too deeply.
    """
    reader = _ElementReader(path, frozenset(wanted))
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            reader.feed(chunk, final=False)
            yield from reader.take_finished_elements()
        reader.feed(b"", final=True)
    yield from reader.take_finished_elements()


def read_root(path: Path) -> tuple[str | None, str | None]:
    """The name of the outermost element and its namespace; None if the file does not begin like XML, or without a namespace."""
    roots: list[str] = []
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = lambda name, _: roots.append(name)
    try:
        with path.open("rb") as file:
            while not roots and (chunk := file.read(1 << 16)):
                parser.Parse(chunk, False)
    except expat.ExpatError:
        pass
    if not roots:
        return None, None
    namespace, _, name = roots[0].rpartition(" ")
    return name, namespace or None


def _local(name: str) -> str:
    return name.rpartition(":")[2]


class _ElementReader:
    def __init__(self, path: Path, wanted: frozenset[str]) -> None:
        self._path, self._wanted = path, wanted
        self._open: list[ParsedElement] = []
        self._ready: list[ParsedElement] = []
        self._names: dict[str, str] = {}
        self._depth = 0
        self._parser = expat.ParserCreate()
        self._parser.buffer_text = True
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text
        self._parser.EntityDeclHandler = self._refuse_entity  # a few of them can stand for gigabytes

    def feed(self, data: bytes, *, final: bool) -> None:
        try:
            self._parser.Parse(data, final)
        except expat.ExpatError as error:
            raise DatabaseError(
                f"cannot read {self._path}: line {error.lineno}, column {error.offset}: {expat.ErrorString(error.code)}"
                f"{self._where()}; export it again from the program that wrote it"
            ) from error

    def take_finished_elements(self) -> list[ParsedElement]:
        ready, self._ready = self._ready, []
        return ready

    def _where(self) -> str:
        return f", inside <{self._open[-1].name}> of line {self._open[-1].line}" if self._open else ""

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise DatabaseError(
                f"cannot read {self._path}: line {self._parser.CurrentLineNumber}: its elements are nested more than "
                f"{_DEEPEST} deep; export it again from the program that wrote it"
            )
        local = self._names.get(name) or self._names.setdefault(name, _local(name))
        if not self._open and local not in self._wanted:
            return
        plain = {_local(key): value for key, value in attributes.items()} if attributes else {}
        element = ParsedElement(local, plain, self._parser.CurrentLineNumber)
        if self._open:
            self._open[-1].inside.append(element)
        self._open.append(element)

    def _end(self, name: str) -> None:
        self._depth -= 1
        if self._open:
            element = self._open.pop()
            if not self._open:
                self._ready.append(element)

    def _text(self, text: str) -> None:
        if self._open:
            self._open[-1].parts.append(text)

    def _refuse_entity(self, name: str, *_: object) -> None:
        raise DatabaseError(
            f"cannot read {self._path}: line {self._parser.CurrentLineNumber} declares the entity {name!r}, and entities "
            "are not read: remove its document type declaration"
        )
