"""The data types of an ARXML file as types of SOME/IP payloads: implementation data types of both platforms, application types.

Layout: AUTOSAR SWS_SOMEIPTransformer R22-11, section "Serialization": an array of variable size is a structure with a size
indicator, which is not sent; a union is a structure of its selector and the union; the first member has the selector 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pcaplake.signals.computations import array_of, whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.someip.types import Dimension, Member, String, Struct, Type, Union, Variant

from .document import ArxmlDocument, name_of, path_of, short_name
from .element import ArxmlElement
from .meaning import Meaning, meaning_of, number_of, properties_of, value_type
from .sizes import Properties, Sizes

_DEFAULT_BITS: Final = 32
_DEEPEST: Final = 64
_NOTHING: Final = Meaning()
_SUB_ELEMENTS: Final = (
    "SUB-ELEMENTS/IMPLEMENTATION-DATA-TYPE-ELEMENT",
    "SUB-ELEMENTS/CPP-IMPLEMENTATION-DATA-TYPE-ELEMENT",
)
_VALUES: Final = ("VALUE", "BOOLEAN", "ENUMERATION", "BIT")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What the use of a type adds to it. `application`: the path of the application type that it implements."""

    properties: Properties
    sizes: Sizes
    meaning: Meaning = _NOTHING
    application: str | None = None


class TypeBuilder:
    """Builds each type once for each way in which it is used."""

    def __init__(self, document: ArxmlDocument) -> None:
        self._document = document
        self._built: dict[tuple[str, _Context], Type] = {}
        self._open: list[str] = []
        self._implementations: dict[str, str] = {}
        for mapping in document.all_of("DATA-TYPE-MAPPING-SET"):
            for each in mapping.children_at("DATA-TYPE-MAPS/DATA-TYPE-MAP"):
                application, implementation = (
                    each.text_at(f"{kind}-DATA-TYPE-REF") for kind in ("APPLICATION", "IMPLEMENTATION")
                )
                if application is not None and implementation is not None:
                    self._implementations.setdefault(application, implementation)

    def member_of(self, prototype: ArxmlElement, properties: Properties) -> Member:
        """An event, field or argument. Raises `DatabaseError`."""
        path = path_of(prototype)
        context = _Context(properties=properties, sizes=properties.sizes_at(path, properties.sizes))
        return Member(
            name=short_name(prototype),
            type=self._typed(prototype, "TYPE-TREF", context),
            data_id=properties.data_id_at(path),
        )

    def _typed(self, element: ArxmlElement, reference: str, context: _Context) -> Type:
        """The type that an element refers to; its own properties say more about the values."""
        meaning = meaning_of(element).over(context.meaning)
        return self._build(self._document.required_target(element, reference), replace(context, meaning=meaning))

    def _build(self, element: ArxmlElement, context: _Context) -> Type:
        path = path_of(element)
        key = path, context
        if key in self._built:
            return self._built[key]
        if path in self._open or len(self._open) >= _DEEPEST:
            raise DatabaseError(f"{path} contains itself, or is nested more than {_DEEPEST} deep")
        self._open.append(path)
        try:
            built = self._build_kind(element, context)
        finally:
            self._open.pop()
        self._built[key] = built
        return built

    def _build_kind(self, element: ArxmlElement, context: _Context) -> Type:
        context = replace(context, meaning=context.meaning.over(meaning_of(element)))
        if element.name.startswith("APPLICATION-"):
            return self._build_application(element, context)
        category = (element.text_at("CATEGORY") or "VALUE").upper().replace("-", "_")
        if category in _VALUES:
            return self._build_value(element, context)
        if category == "TYPE_REFERENCE":
            return self._build(self._referred_type(element), context)
        if category == "STRUCTURE":
            return self._build_structure(element, context)
        if category == "ARRAY" and element.child("TEMPLATE-ARGUMENTS") is None:
            return self._build_array(element, context)
        arguments = [
            self._document.required_target(each, "TEMPLATE-TYPE-REF")
            for each in element.children_at("TEMPLATE-ARGUMENTS/CPP-TEMPLATE-ARGUMENT")
        ]
        if category == "STRING":
            return self._build_string(element, context, None)
        if category in ("ARRAY", "VECTOR") and arguments:
            size = element.text_at("ARRAY-SIZE")
            inner = replace(context, meaning=_NOTHING, application=None)
            dimension = _dimension(context.sizes, size, fixed=category == "ARRAY")
            return array_of(short_name(element), self._build(arguments[0], inner), (dimension,))
        if category == "ASSOCIATIVE_MAP" and len(arguments) >= 2:
            return self._build_map(element, context, arguments)
        if category == "VARIANT" and arguments:
            names = _distinct([short_name(argument) for argument in arguments])
            return self._build_union(element, context, list(zip(names, arguments, strict=True)), None)
        raise DatabaseError(f"{name_of(element)} has the category {category}, which is not read")

    # -- application types ----------------------------------------------------------------------------------------
    def _build_application(self, element: ArxmlElement, context: _Context) -> Type:
        implementation = self._implementations.get(path_of(element))
        if implementation is not None:
            found = self._document.find(implementation)
            if found is None:
                raise DatabaseError(f"{path_of(element)} is mapped to {implementation}, which is not in the file")
            return self._build(found, replace(context, application=path_of(element)))
        if element.name == "APPLICATION-RECORD-DATA-TYPE":
            members = [
                (each, self._typed(each, "TYPE-TREF", self._inside(each, context)))
                for each in element.children_at("ELEMENTS/APPLICATION-RECORD-ELEMENT")
            ]
            return self._struct(element, context, members)
        if element.name == "APPLICATION-ARRAY-DATA-TYPE" and (inner := element.child("ELEMENT")) is not None:
            fixed = inner.text_at("ARRAY-SIZE-SEMANTICS") != "VARIABLE-SIZE"
            dimension = _dimension(context.sizes, inner.text_at("MAX-NUMBER-OF-ELEMENTS"), fixed=fixed)
            return array_of(
                short_name(element), self._typed(inner, "TYPE-TREF", self._inside(inner, context)), (dimension,)
            )
        if context.meaning.base is None:
            raise DatabaseError(f"{path_of(element)} is in no DATA-TYPE-MAP, so its size is unknown: add one")
        return self._build_value(element, context)

    def _inside(self, member: ArxmlElement, context: _Context, application: str | None = None) -> _Context:
        """The context of a member. `application`: the path of its application type."""
        sizes = context.properties.sizes_at(path_of(member), context.sizes)
        return replace(context, sizes=sizes, meaning=_NOTHING, application=application)

    def _application_member(self, context: _Context, name: str, place: int) -> ArxmlElement | None:
        """The element of the application type that a member implements: by name, or by place."""
        application = self._document.find(context.application) if context.application is not None else None
        if application is None:
            return None
        members = list(application.children_at("ELEMENTS/APPLICATION-RECORD-ELEMENT"))
        if application.name == "APPLICATION-ARRAY-DATA-TYPE":
            members = list(application.children_at("ELEMENT"))
            return members[0] if members else None
        named = [each for each in members if each.text_at("SHORT-NAME") == name]
        return named[0] if named else members[place] if place < len(members) else None

    # -- values and structures ------------------------------------------------------------------------------------
    def _build_value(self, element: ArxmlElement, context: _Context) -> Type:
        number = number_of(self._document, context.meaning, short_name(element))
        big_endian = context.sizes.big_endian is not False
        return value_type(self._document, short_name(element), number, context.meaning, big_endian)

    def _referred_type(self, element: ArxmlElement) -> ArxmlElement:
        properties = properties_of(element)
        if properties is not None and properties.text_at("IMPLEMENTATION-DATA-TYPE-REF") is not None:
            return self._document.required_target(properties, "IMPLEMENTATION-DATA-TYPE-REF")
        inner = element.child("TYPE-REFERENCE")
        return self._document.required_target(element if inner is None else inner, "TYPE-REFERENCE-REF")

    def _members(self, element: ArxmlElement, context: _Context) -> Iterator[tuple[ArxmlElement, Type]]:
        for place, each in enumerate(_sub_elements(element)):
            mirrored = self._application_member(context, short_name(each), place)
            inside = self._inside(each, context)
            if mirrored is not None:
                path = mirrored.text_at("TYPE-TREF")
                application = self._document.find(path) if path is not None else None
                meaning = meaning_of(mirrored)
                if application is not None:
                    meaning = meaning.over(meaning_of(application))
                inside = replace(inside, meaning=meaning, application=path)
            yield each, self._member_type(each, inside)

    def _member_type(self, element: ArxmlElement, context: _Context) -> Type:
        if element.child("TYPE-REFERENCE") is not None and element.child("SUB-ELEMENTS") is None:
            meaning = context.meaning.over(meaning_of(element))
            return self._build(self._referred_type(element), replace(context, meaning=meaning))
        return self._build(element, context)

    def _build_structure(self, element: ArxmlElement, context: _Context) -> Type:
        members = _sub_elements(element)
        if element.text_at("DYNAMIC-ARRAY-SIZE-PROFILE") is not None:  # the others are size indicators
            array = next((each for each in members if _category(each) == "ARRAY"), None)
            if array is None:
                raise DatabaseError(
                    f"{name_of(element)} has a DYNAMIC-ARRAY-SIZE-PROFILE, and no member that is an array"
                )
            return self._build(array, replace(context, meaning=_NOTHING))
        if len(members) == 2 and (union := self._resolved(members[1])).text_at("CATEGORY") == "UNION":
            selector = number_of(self._document, meaning_of(self._resolved(members[0])), short_name(members[0]))
            variants = [(short_name(each), each) for each in _sub_elements(union)]
            return self._build_union(element, context, variants, selector.bits)
        return self._struct(element, context, list(self._members(element, context)))

    def _resolved(self, element: ArxmlElement) -> ArxmlElement:
        """The type behind type references."""
        for _ in range(_DEEPEST):
            if _category(element) != "TYPE_REFERENCE":
                break
            element = self._referred_type(element)
        return element

    def _struct(self, element: ArxmlElement, context: _Context, typed: Sequence[tuple[ArxmlElement, Type]]) -> Struct:
        members = []
        for place, (each, one) in enumerate(typed):
            mirrored = self._application_member(context, short_name(each), place)
            paths = [path_of(each)] + ([path_of(mirrored)] if mirrored is not None else [])
            data_id = next(
                (found for path in paths if (found := context.properties.data_id_at(path)) is not None), None
            )
            if each.text_at("IS-OPTIONAL") == "true" and data_id is None:
                raise DatabaseError(f"{path_of(each)} is optional and has no data id: add a TLV-DATA-ID-DEFINITION")
            members.append(Member(name=short_name(each), type=one, data_id=data_id))
        length = context.sizes.structs or 0
        return Struct(
            name=short_name(element),
            members=tuple(members),
            length_bits=length,
            length_big_endian=context.sizes.big_endian is not False or not length,
            alignment=(context.sizes.alignment or 0) if length else 0,
            tagged=any(member.data_id is not None for member in members),
        )

    def _build_union(
        self,
        element: ArxmlElement,
        context: _Context,
        variants: Sequence[tuple[str, ArxmlElement]],
        selector: int | None,
    ) -> Union:
        length = _DEFAULT_BITS if context.sizes.unions is None else context.sizes.unions
        order = context.sizes.big_endian is not False
        return Union(
            name=short_name(element),
            variants=tuple(
                Variant(selector=place, name=name, type=self._member_type(each, self._inside(each, context)))
                for place, (name, each) in enumerate(variants, 1)
            ),
            selector_bits=selector or context.sizes.selectors or _DEFAULT_BITS,
            length_bits=length,
            length_big_endian=order,
            selector_big_endian=order,
            alignment=(context.sizes.alignment or 0) if length else 0,
        )

    def _build_map(self, element: ArxmlElement, context: _Context, arguments: Sequence[ArxmlElement]) -> Type:
        inner = replace(context, meaning=_NOTHING, application=None)
        pair = Struct(
            name=short_name(element),
            members=tuple(
                Member(name=name, type=self._build(each, inner))
                for name, each in zip(("key", "value"), arguments, strict=False)
            ),
            length_bits=context.sizes.structs or 0,
            length_big_endian=context.sizes.big_endian is not False or not context.sizes.structs,
        )
        return array_of(short_name(element), pair, (_dimension(context.sizes, None, fixed=False),))

    # -- arrays and strings ---------------------------------------------------------------------------------------
    def _build_array(self, element: ArxmlElement, context: _Context) -> Type:
        inside = _sub_elements(element)
        if len(inside) != 1:
            raise DatabaseError(f"{name_of(element)} is an array, which has one element, and not {len(inside)}")
        (inner,) = inside
        fixed = inner.text_at("ARRAY-SIZE-SEMANTICS") != "VARIABLE-SIZE"
        size = inner.text_at("ARRAY-SIZE")
        base = self._resolved(inner)
        meaning = meaning_of(inner).over(meaning_of(base))
        if _category(base) in _VALUES and meaning.base is not None:
            number = number_of(self._document, Meaning(base=meaning.base), short_name(inner))
            if number.encoding is not None or self._is_text(context):
                length = None if not fixed else _count(size, element) * number.bits // 8
                return self._build_string(element, context, length, number.encoding)
        typed = self._element_type(inner, context)
        return array_of(short_name(element), typed, (_dimension(context.sizes, size, fixed=fixed),))

    def _element_type(self, inner: ArxmlElement, context: _Context) -> Type:
        mirrored = self._application_member(context, "", 0)
        inside = self._inside(inner, context)
        if mirrored is not None:
            inside = replace(inside, meaning=meaning_of(mirrored), application=mirrored.text_at("TYPE-TREF"))
        return self._build(inner, inside)

    def _is_text(self, context: _Context) -> bool:
        application = self._document.find(context.application) if context.application is not None else None
        return application is not None and application.text_at("CATEGORY") == "STRING"

    def _build_string(
        self, element: ArxmlElement, context: _Context, length: int | None, encoding: str | None = None
    ) -> String:
        sizes = context.sizes
        known = encoding or sizes.encoding
        if known is None and context.meaning.base is not None:
            known = number_of(self._document, context.meaning, short_name(element)).encoding
        order = sizes.big_endian is not False
        base = String(name=short_name(element), encoding=known or "utf-8", fixed_length=1, big_endian=order)  # type: ignore[arg-type]
        if length is not None:
            return replace(base, fixed_length=length)
        bits = sizes.strings or _DEFAULT_BITS
        return replace(base, fixed_length=0, length_bits=bits, length_big_endian=order, alignment=sizes.alignment or 0)


def _sub_elements(element: ArxmlElement) -> list[ArxmlElement]:
    return [each for path in _SUB_ELEMENTS for each in element.children_at(path)]


def _category(element: ArxmlElement) -> str:
    return (element.text_at("CATEGORY") or "").upper().replace("-", "_")


def _count(size: str | None, element: ArxmlElement) -> int:
    if size is None:
        raise DatabaseError(f"{name_of(element)} has no ARRAY-SIZE: add one")
    return whole_number(size, "ARRAY-SIZE")


def _dimension(sizes: Sizes, size: str | None, *, fixed: bool) -> Dimension:
    most = None if size is None else whole_number(size, "ARRAY-SIZE")
    bits = (sizes.arrays or 0) if fixed else (sizes.arrays or _DEFAULT_BITS)
    return Dimension(
        minimum=(most or 0) if fixed else 0,
        maximum=most,
        length_bits=bits,
        length_big_endian=sizes.big_endian is not False or not bits,
        alignment=(sizes.alignment or 0) if bits else 0,
    )


def _distinct(names: Sequence[str]) -> list[str]:
    """Names of the alternatives of a variant, which has none of its own: those of the types, with a number if they repeat."""
    return [name if names.count(name) == 1 else f"{name}_{place}" for place, name in enumerate(names, 1)]
