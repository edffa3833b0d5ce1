"""Elements of an ARXML file. Their content stays with autosar-data until it is asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypeAlias

from pcaplake.signals.xml_elements import XmlElement

ReferenceBases: TypeAlias = Mapping[tuple[str, str | None], str]
"""Package and name of a reference base (None: the default one) -> path."""


@functools.cache
def autosar_data() -> Any:
    """The library, which not every installation has."""
    import autosar_data as library

    return library


class ArxmlElement(XmlElement):
    """An element of autosar-data. The `text` of a reference is an absolute path."""

    __slots__ = ("_bases", "_element", "name")
    line = 0  # unknown after parsing

    def __init__(self, element: Any, bases: ReferenceBases) -> None:
        self.name: str = element.element_name
        self._element, self._bases = element, bases

    @property
    def path(self) -> str | None:
        """The AUTOSAR path; None if it has no name."""
        return self._element.path if self._element.is_identifiable else None

    @property
    def attributes(self) -> Mapping[str, str]:
        return {each.attrname: str(each.content) for each in self._element.attributes}

    @property
    def text(self) -> str:
        data = self._element.character_data
        if data is None and self._element.content_type == autosar_data().ContentType.Mixed:
            data = "".join(str(each) for each in self._element.content if isinstance(each, str | int | float))
        text = "" if data is None else str(data).strip()
        if text and text[0] != "/" and self._element.is_reference:
            return self._absolute(text)
        return text

    @property
    def children(self) -> Sequence[Self]:
        return [type(self)(each, self._bases) for each in self._element.sub_elements]

    def child(self, path: str) -> Self | None:
        found = self._element
        try:
            for name in path.split("/"):
                found = found.get_sub_element(name)
                if found is None:
                    return None
        except autosar_data().AutosarDataError:  # a name that no release has
            return None
        return type(self)(found, self._bases)

    def descendants(self, name: str) -> Iterator[Self]:
        """All elements of this name in it, in the order of the file."""
        for _, each in self._element.elements_dfs:
            if each.element_name == name:
                yield type(self)(each, self._bases)

    def _absolute(self, path: str) -> str:
        """A relative reference from the reference base of the closest package that has one; itself without."""
        base = self.attributes.get("BASE")
        above = self._element.named_parent
        owner = "" if above is None else above.path
        while owner:
            if (found := self._bases.get((owner, base))) is not None:
                return f"{found}/{path}"
            owner = owner.rpartition("/")[0]
        return path
