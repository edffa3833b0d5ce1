"""An ARXML file: its named elements by kind and path. Files of a gigabyte are parsed by autosar-data, outside of Python.

Only what is asked for becomes Python objects (`element.py`). Lines are unknown after parsing, so reasons name the AUTOSAR path.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path

from pcaplake.signals.database_text import decode_text
from pcaplake.signals.errors import DatabaseError, add_reason

from .element import ArxmlElement, autosar_data
from .unknown import without_unknown

# read all the same: an element of another release, and a name such as `1Hz`
_READ = re.compile(r"is not allowed in AUTOSAR|is not matched by the validation regex (/\?)?\[a-zA-Z\]")
_HEADER = "header"  # in the errors for what a file begins with
# in the errors for what `without_unknown` takes out of the file
_UNKNOWN = re.compile("is not a known Autosar element|unexpected child element|enum item|overlaps with the existing")
_PACKAGE = "AR-PACKAGE"
_DECLARATION = re.compile(r"\A\s*<\?xml[^>]*>")
_UTF_8 = '<?xml version="1.0" encoding="utf-8"?>'
_BEGIN = '`<AUTOSAR xmlns="http://autosar.org/schema/r4.0" xsi:schemaLocation="...">`'


class ArxmlDocument:
    """Raises `DatabaseError` with the line of a file that is not ARXML."""

    def __init__(self, path: Path, kinds: Collection[str]) -> None:
        """`kinds`: names of the elements that `all_of` finds."""
        self.name = path.name
        self.lost: dict[str, str] = {}  # place -> why something there is not read
        self._model = autosar_data().AutosarModel()
        for warning in self._load(path):
            if not _READ.search(warning):
                line = warning.removeprefix(f"Failed to parse {path}:")
                self.lose(f"line {line.partition(':')[0]}", line.partition(":")[2].strip())
        self._elements: dict[str, ArxmlElement] = {}
        self._by_kind: dict[str, list[str]] = {kind: [] for kind in kinds}
        self._bases: dict[tuple[str, str | None], str] = {}
        named = 0
        for place, element in self._model.identifiable_elements:
            named += 1
            if element is None:
                continue
            name = element.element_name
            if (paths := self._by_kind.get(name)) is not None:
                paths.append(place)
            elif name == _PACKAGE and (bases := element.get_sub_element("REFERENCE-BASES")) is not None:
                self._add_bases(place, ArxmlElement(bases, {}))
        self._repeated: dict[str, list[str]] = {}  # path -> kinds of the elements that have it
        if sum(element.element_name == "SHORT-NAME" for _, element in self._model.elements_dfs) > named:
            self._repeated = self._find_repeated_paths()

    def _load(self, path: Path) -> list[str]:
        """What is wrong in the file. autosar-data reads UTF-8 only, which others are converted to."""
        try:
            return list(self._model.load_file(str(path), strict=False)[1])
        except autosar_data().AutosarDataError as error:
            if _HEADER not in str(error) and not _UNKNOWN.search(str(error)):
                raise _cannot_read(path, error, "") from error
        try:
            return self._load_text(path, _UTF_8 + _DECLARATION.sub("", decode_text(path.read_bytes(), xml=True)))
        except ValueError as error:
            raise _cannot_read(path, error, "") from error
        except autosar_data().AutosarDataError as error:
            advice = f" (a file of AUTOSAR 4 begins with {_BEGIN})" if _HEADER in str(error) else ""
            raise _cannot_read(path, error, advice) from error

    def _load_text(self, path: Path, text: str) -> list[str]:
        try:
            return list(self._model.load_buffer(text, str(path), strict=False)[1])
        except autosar_data().AutosarDataError as error:
            if not _UNKNOWN.search(str(error)):
                raise
        known, unknown = without_unknown(text)
        for place, reason in unknown:
            self.lose(place, reason)
        return list(self._model.load_buffer(known, str(path), strict=False)[1])

    def _find_repeated_paths(self) -> dict[str, list[str]]:
        """Without packages: one in several parts is nothing wrong."""
        kinds: dict[str, list[str]] = {}
        for _, element in self._model.elements_dfs:
            if element.is_identifiable and element.element_name != _PACKAGE:
                kinds.setdefault(element.path, []).append(element.element_name)
        return {path: names for path, names in kinds.items() if len(names) > 1}

    def _add_bases(self, package: str, bases: ArxmlElement) -> None:
        for base in bases.children:
            this_one = base.text_at("BASE-IS-THIS-PACKAGE") == "true"
            path, label = package if this_one else base.text_at("PACKAGE-REF"), base.text_at("SHORT-LABEL")
            if path is not None and label is not None:
                self._bases[package, label] = path
                if base.text_at("IS-DEFAULT") == "true":
                    self._bases[package, None] = path

    def all_of(self, kind: str) -> Iterator[ArxmlElement]:
        """All named elements of a kind, with everything in them."""
        for path in self._by_kind[kind]:
            if (found := self.find(path)) is not None:
                yield found

    def find(self, path: str) -> ArxmlElement | None:
        """The element at an AUTOSAR path; None if there is none. If there are several, the first, and the path is listed."""
        if path not in self._elements:
            if (kinds := self._repeated.get(path)) is not None:
                found = f"{len(kinds)} elements have this path ({', '.join(kinds[:4])})"
                self.lose(path, f"{found}, and the first is read: give each a name of its own")
            element = self._model.get_element_by_path(path)
            if element is None:
                return None
            self._elements[path] = ArxmlElement(element, self._bases)
        return self._elements[path]

    def target(self, element: ArxmlElement, reference: str) -> ArxmlElement | None:
        """What a reference in `element` refers to; None without the reference. Raises `DatabaseError` if it is missing."""
        path = element.text_at(reference)
        if path is None:
            return None
        found = self.find(path)
        if found is None:
            raise DatabaseError(f"{reference} of {name_of(element)} refers to {path}, which is not in the file")
        return found

    def required_target(self, element: ArxmlElement, reference: str) -> ArxmlElement:
        """As `target`. Raises `DatabaseError` without the reference too."""
        found = self.target(element, reference)
        if found is None:
            raise DatabaseError(f"{name_of(element)} has no {reference}: add one")
        return found

    def lose(self, place: str, reason: str) -> None:
        add_reason(self.lost, f"{self.name}, {place}", reason)


def _cannot_read(path: Path, error: Exception, advice: str) -> DatabaseError:
    text = re.sub(
        rf"^Failed to \w+ {re.escape(str(path))}(?::| on line )(\d+)", r"line \1", " ".join(str(error).split())
    )
    return DatabaseError(f"cannot read {path}: {text}{advice}; export it again from the program that wrote it")


def path_of(element: ArxmlElement) -> str:
    """The AUTOSAR path of a named element."""
    return element.path or ""


def name_of(element: ArxmlElement) -> str:
    """What reasons call an element: its path, or its kind."""
    return path_of(element) or element.name


def short_name(element: ArxmlElement) -> str:
    name = element.text_at("SHORT-NAME")
    if name is None:
        raise DatabaseError(f"{element.name} has no SHORT-NAME: add one")
    return name
