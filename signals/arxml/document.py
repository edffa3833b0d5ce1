"""An ARXML file: its named elements by kind and path. Files of a gigabyte are parsed by autosar-data, outside of Python.

Only what is asked for becomes Python objects (`element.py`). Lines are unknown after parsing, so reasons name the AUTOSAR path.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from pcaplake.signals.errors import DatabaseError

from .element import ArxmlElement, autosar_data

_OTHER_RELEASE = "is not allowed in AUTOSAR"  # read all the same


class ArxmlDocument:
    """Raises `DatabaseError` with the line of a file that is not ARXML."""

    def __init__(self, path: Path, kinds: Collection[str]) -> None:
        """`kinds`: names of the elements that `all_of` finds."""
        self.name = path.name
        self.lost: dict[str, str] = {}
        self._model = autosar_data().AutosarModel()
        try:
            _, warnings = self._model.load_file(str(path), strict=False)
        except autosar_data().AutosarDataError as error:
            text = " ".join(str(error).split())
            raise DatabaseError(
                f"cannot read {path}: {text}; export it again from the program that wrote it"
            ) from error
        for warning in warnings:
            if _OTHER_RELEASE not in warning:
                line = warning.removeprefix(f"Failed to parse {path}:")
                self.lose(f"line {line.partition(':')[0]}", line.partition(":")[2].strip())
        self._elements: dict[str, ArxmlElement] = {}
        self._by_kind: dict[str, list[str]] = {kind: [] for kind in kinds}
        self._bases: dict[tuple[str, str | None], str] = {}
        for place, element in self._model.identifiable_elements:
            if element is None:
                continue
            name = element.element_name
            if (paths := self._by_kind.get(name)) is not None:
                paths.append(place)
            elif name == "AR-PACKAGE" and (bases := element.get_sub_element("REFERENCE-BASES")) is not None:
                self._add_bases(place, ArxmlElement(bases, {}))

    def _add_bases(self, package: str, bases: ArxmlElement) -> None:
        for base in bases.children:
            path, label = base.text_at("PACKAGE-REF"), base.text_at("SHORT-LABEL")
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
        """The element at an AUTOSAR path; None if there is none."""
        if path not in self._elements:
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
        self.lost[f"{self.name}, {place}"] = reason


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
