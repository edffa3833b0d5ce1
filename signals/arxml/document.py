"""An ARXML file: its named elements by kind and path. Files of a gigabyte are parsed by autosar-data, outside of Python.

Only the elements that are asked for become Python objects. Lines are unknown after parsing, so reasons name the AUTOSAR path.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.xml_elements import XmlElement

PATH = "AUTOSAR-PATH"
"""The attribute of each named element that holds its path."""


_OTHER_RELEASE = "is not allowed in AUTOSAR"  # read all the same


class ArxmlDocument:
    """Raises `DatabaseError` with the line of a file that is not ARXML."""

    def __init__(self, path: Path, kinds: Collection[str]) -> None:
        """`kinds`: names of the elements that `all_of` finds."""
        import autosar_data

        self.name = path.name
        self.lost: dict[str, str] = {}
        self._model = autosar_data.AutosarModel()
        try:
            _, warnings = self._model.load_file(str(path), strict=False)
        except autosar_data.AutosarDataError as error:
            text = " ".join(str(error).split())
            raise DatabaseError(
                f"cannot read {path}: {text}; export it again from the program that wrote it"
            ) from error
        for warning in warnings:
            if _OTHER_RELEASE not in warning:
                line = warning.removeprefix(f"Failed to parse {path}:")
                self.lose(f"line {line.partition(':')[0]}", line.partition(":")[2].strip())
        self._elements: dict[str, XmlElement] = {}
        self._by_kind: dict[str, list[str]] = {kind: [] for kind in kinds}
        self._bases: dict[tuple[str, str | None], str] = {}
        """Package and name of a reference base (None: the default one) -> path."""
        for place, element in self._model.identifiable_elements:
            if element is None:
                continue
            name = element.element_name
            if (paths := self._by_kind.get(name)) is not None:
                paths.append(place)
            elif name == "AR-PACKAGE" and (bases := element.get_sub_element("REFERENCE-BASES")) is not None:
                self._add_bases(place, self._convert(bases, place))

    def _add_bases(self, package: str, bases: XmlElement) -> None:
        for base in bases.children:
            path, label = base.text_at("PACKAGE-REF"), base.text_at("SHORT-LABEL")
            if path is not None and label is not None:
                self._bases[package, label] = path
                if base.text_at("IS-DEFAULT") == "true":
                    self._bases[package, None] = path

    def all_of(self, kind: str) -> Iterator[XmlElement]:
        """All named elements of a kind, with everything in them."""
        for path in self._by_kind[kind]:
            if (found := self.find(path)) is not None:
                yield found

    def find(self, path: str) -> XmlElement | None:
        """The element at an AUTOSAR path; None if there is none."""
        if path not in self._elements:
            element = self._model.get_element_by_path(path)
            if element is None:
                return None
            self._elements[path] = self._convert(element, path.rpartition("/")[0])
        return self._elements[path]

    def target(self, element: XmlElement, reference: str) -> XmlElement | None:
        """What a reference in `element` refers to; None without the reference. Raises `DatabaseError` if it is missing."""
        path = element.text_at(reference)
        if path is None:
            return None
        found = self.find(path)
        if found is None:
            raise DatabaseError(f"{reference} of {name_of(element)} refers to {path}, which is not in the file")
        return found

    def required_target(self, element: XmlElement, reference: str) -> XmlElement:
        """As `target`. Raises `DatabaseError` without the reference too."""
        found = self.target(element, reference)
        if found is None:
            raise DatabaseError(f"{name_of(element)} has no {reference}: add one")
        return found

    def _convert(self, element: Any, owner: str) -> XmlElement:
        """An element of autosar-data with everything in it. `owner`: the path of the named element around it."""
        attributes = {each.attrname: str(each.content) for each in element.attributes}
        if element.is_identifiable:
            owner = f"{owner}/{element.item_name}"
            attributes[PATH] = owner
        converted = XmlElement(element.element_name, attributes, 0)
        mixed = element.content_type == _mixed()
        content = (
            [each for each in element.content if isinstance(each, str | int | float)]
            if mixed
            else [element.character_data]
        )
        converted.parts += [str(each) for each in content if each is not None]
        if "DEST" in attributes and not converted.text.startswith("/"):
            converted.parts = [self._absolute(converted.text, attributes.get("BASE"), owner)]
        converted.children = [self._convert(child, owner) for child in element.sub_elements]
        return converted

    def _absolute(self, path: str, base: str | None, owner: str) -> str:
        """A relative reference from the reference base of the closest package that has one; itself without."""
        while owner:
            if (found := self._bases.get((owner, base))) is not None:
                return f"{found}/{path}"
            owner = owner.rpartition("/")[0]
        return path

    def lose(self, place: str, reason: str) -> None:
        self.lost[f"{self.name}, {place}"] = reason


def path_of(element: XmlElement) -> str:
    """The AUTOSAR path of a named element."""
    return element.attributes.get(PATH, "")


def name_of(element: XmlElement) -> str:
    """What reasons call an element: its path, or its kind."""
    return path_of(element) or element.name


def short_name(element: XmlElement) -> str:
    name = element.text_at("SHORT-NAME")
    if name is None:
        raise DatabaseError(f"{element.name} has no SHORT-NAME: add one")
    return name


@functools.cache
def _mixed() -> Any:
    import autosar_data

    return autosar_data.ContentType.Mixed
