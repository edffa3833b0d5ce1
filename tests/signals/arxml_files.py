"""Writes services as an ARXML file of the adaptive platform, with implementation data types."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

from pcaplake.signals.someip.description import Array, BaseType, Bitfield, Member, String, Struct, Type, Union
from tests.signals.described_services import Operation, Service, Sizes

_ENCODINGS = {"uint": "NONE", "sint": "2C", "float": "IEEE754"}
_TEXTS = {"ascii": "US-ASCII", "utf-8": "UTF-8", "utf-16": "UTF-16"}
_ELEMENT = "IMPLEMENTATION-DATA-TYPE-ELEMENT"


def package(*elements: str) -> str:
    """A file with one package `/P`."""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n<AUTOSAR xmlns="http://autosar.org/schema/r4.0" '
        'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
        'xsi:schemaLocation="http://autosar.org/schema/r4.0 AUTOSAR_00049.xsd"><AR-PACKAGES><AR-PACKAGE>'
        "<SHORT-NAME>P</SHORT-NAME>"
        f"<ELEMENTS>{''.join(elements)}</ELEMENTS></AR-PACKAGE></AR-PACKAGES></AUTOSAR>\n"
    )


def tag(name: str, inside: object, **attributes: str) -> str:
    said = "".join(f' {key}="{value}"' for key, value in attributes.items())
    return f"<{name}{said}>{inside}</{name}>"


def named(name: str, text: str, *inside: str) -> str:
    return tag(name, tag("SHORT-NAME", text) + "".join(inside))


def reference(name: str, kind: str, path: str) -> str:
    return tag(name, path, DEST=kind)


def data_properties(inside: str) -> str:
    conditional = tag("SW-DATA-DEF-PROPS-CONDITIONAL", inside)
    return tag("SW-DATA-DEF-PROPS", tag("SW-DATA-DEF-PROPS-VARIANTS", conditional))


def write_arxml(services: Iterable[Service]) -> str:
    writer = _ArxmlWriter()
    for service in services:
        writer.add(service)
    return package(*writer.elements)


class _ArxmlWriter:
    def __init__(self) -> None:
        unit = named("UNIT", "kmh", tag("DISPLAY-NAME", "km/h"))
        self.elements: list[str] = [unit]
        self._count = 0

    def add(self, service: Service) -> None:
        events, methods, fields, deployed, mappings = [], [], [], [], []
        root = f"/P/{service.name}"
        properties = self._properties(service.sizes)
        ids: dict[str, int] = {}
        for operation in service.operations:
            path = f"{root}/{operation.name}"
            if operation.kind == "event":
                (member,) = operation.given.members
                events.append(self._prototype("VARIABLE-DATA-PROTOTYPE", member, service.sizes, ids))
            elif operation.kind == "field":
                (member,) = operation.given.members
                fields.append(self._field(operation, member, service.sizes, ids))
            else:
                methods.append(self._operation(operation, service.sizes, ids))
            mappings.append((operation.kind, path))
            deployed.append((operation, path))
        lists = "".join(
            tag(name, "".join(texts))
            for name, texts in (("EVENTS", events), ("FIELDS", fields), ("METHODS", methods))
            if texts
        )
        self.elements.append(named("SERVICE-INTERFACE", service.name, lists))
        self.elements.append(self._deployment(service, deployed))
        definitions = "".join(
            tag(
                "TLV-DATA-ID-DEFINITION",
                tag("ID", number) + reference("TLV-IMPLEMENTATION-DATA-TYPE-ELEMENT-REF", _ELEMENT, path),
            )
            for path, number in ids.items()
        )
        self.elements.append(
            named("TLV-DATA-ID-DEFINITION-SET", f"{service.name}Ids", tag("TLV-DATA-ID-DEFINITIONS", definitions))
        )
        kinds = {"event": ("EVENT", "VARIABLE-DATA-PROTOTYPE"), "field": ("FIELD", "FIELD")}
        mapped = "".join(
            named(
                "TRANSFORMATION-PROPS-TO-SERVICE-INTERFACE-ELEMENT-MAPPING",
                f"M{place}",
                self._refs(*kinds.get(kind, ("METHOD", "CLIENT-SERVER-OPERATION")), path),
                tag(
                    "TLV-DATA-ID-DEFINITION-REFS",
                    reference("TLV-DATA-ID-DEFINITION-REF", "TLV-DATA-ID-DEFINITION-SET", f"/P/{service.name}Ids"),
                ),
                reference("TRANSFORMATION-PROPS-REF", "AP-SOMEIP-TRANSFORMATION-PROPS", properties),
            )
            for place, (kind, path) in enumerate(mappings)
        )
        self.elements.append(
            named(
                "TRANSFORMATION-PROPS-TO-SERVICE-INTERFACE-ELEMENT-MAPPING-SET",
                f"{service.name}Mapping",
                tag("MAPPINGS", mapped),
            )
        )

    @staticmethod
    def _refs(name: str, kind: str, path: str) -> str:
        return tag(f"{name}-REFS", reference(f"{name}-REF", kind, path))

    def _properties(self, sizes: Sizes) -> str:
        name = self._new("Props")
        order = "MOST-SIGNIFICANT-BYTE-FIRST" if sizes.big_endian else "MOST-SIGNIFICANT-BYTE-LAST"
        arrays = sizes.fixed_arrays // 8
        said = {
            "ALIGNMENT": sizes.alignment,
            "BYTE-ORDER": order,
            "SIZE-OF-ARRAY-LENGTH-FIELD": arrays,
            "SIZE-OF-STRING-LENGTH-FIELD": sizes.strings // 8,
            "SIZE-OF-STRUCT-LENGTH-FIELD": sizes.structs // 8,
            "SIZE-OF-UNION-LENGTH-FIELD": sizes.unions // 8,
        }
        inside = "".join(tag(key, value) for key, value in said.items())
        self.elements.append(
            named(
                "TRANSFORMATION-PROPS-SET",
                f"{name}Set",
                tag("TRANSFORMATION-PROPSS", named("AP-SOMEIP-TRANSFORMATION-PROPS", name, inside)),
            )
        )
        return f"/P/{name}Set/{name}"

    def _deployment(self, service: Service, operations: list[tuple[Operation, str]]) -> str:
        lists: dict[str, list[str]] = {"EVENT": [], "FIELD": [], "METHOD": []}
        for operation, path in operations:
            name = self._new("D")
            if operation.kind == "event":
                inside = reference("EVENT-REF", "VARIABLE-DATA-PROTOTYPE", path) + tag("EVENT-ID", operation.ids[0])
                lists["EVENT"].append(named("SOMEIP-EVENT-DEPLOYMENT", name, inside))
            elif operation.kind == "field":
                getter, setter, notifier = operation.ids
                inside = reference("FIELD-REF", "FIELD", path)
                for access, number, what in (
                    ("GET", getter, "METHOD"),
                    ("NOTIFIER", notifier, "EVENT"),
                    ("SET", setter, "METHOD"),
                ):
                    if number is not None:
                        inside += named(access, access.lower(), tag(f"{what}-ID", number))
                lists["FIELD"].append(named("SOMEIP-FIELD-DEPLOYMENT", name, inside))
            else:
                inside = reference("METHOD-REF", "CLIENT-SERVER-OPERATION", path) + tag("METHOD-ID", operation.ids[0])
                lists["METHOD"].append(named("SOMEIP-METHOD-DEPLOYMENT", name, inside))
        said = "".join(tag(f"{kind}-DEPLOYMENTS", "".join(texts)) for kind, texts in lists.items() if texts)
        version = tag("MAJOR-VERSION", service.major) + tag("MINOR-VERSION", 0)
        return named(
            "SOMEIP-SERVICE-INTERFACE-DEPLOYMENT",
            f"{service.name}Deployment",
            said,
            reference("SERVICE-INTERFACE-REF", "SERVICE-INTERFACE", f"/P/{service.name}"),
            tag("SERVICE-INTERFACE-ID", service.id),
            tag("SERVICE-INTERFACE-VERSION", version),
        )

    def _prototype(self, kind: str, member: Member, sizes: Sizes, ids: dict[str, int], more: str = "") -> str:
        path = self._type(member.type, sizes, ids)
        return named(kind, member.name, reference("TYPE-TREF", "IMPLEMENTATION-DATA-TYPE", path), more)

    def _field(self, operation: Operation, member: Member, sizes: Sizes, ids: dict[str, int]) -> str:
        has = "".join(
            tag(f"HAS-{access}", str(number is not None).lower())
            for access, number in zip(
                ("GETTER", "NOTIFIER", "SETTER"), (operation.ids[0], operation.ids[2], operation.ids[1]), strict=True
            )
        )
        return self._prototype("FIELD", member, sizes, ids, has)

    def _operation(self, operation: Operation, sizes: Sizes, ids: dict[str, int]) -> str:
        arguments = [
            self._prototype("ARGUMENT-DATA-PROTOTYPE", member, sizes, ids, tag("DIRECTION", direction))
            for direction, struct in (("IN", operation.given), ("OUT", operation.returned))
            for member in struct.members
            if direction == "IN" or operation.kind == "method"
        ]
        silent = tag("FIRE-AND-FORGET", "true") if operation.kind == "call" else ""
        inside = tag("ARGUMENTS", "".join(arguments)) if arguments else ""
        return named("CLIENT-SERVER-OPERATION", operation.name, inside, silent)

    # -- types ----------------------------------------------------------------------------------------------------
    def _type(self, one: Type, sizes: Sizes, ids: dict[str, int]) -> str:
        """Writes a type, and returns its path."""
        name = self._new("T")
        path = f"/P/{name}"
        category, inside = self._inside(one, path, sizes, ids)
        self.elements.append(named("IMPLEMENTATION-DATA-TYPE", name, tag("CATEGORY", category), inside))
        return path

    def _inside(self, one: Type, path: str, sizes: Sizes, ids: dict[str, int]) -> tuple[str, str]:
        if isinstance(one, BaseType | Bitfield):
            return "VALUE", data_properties(self._value(one))
        if isinstance(one, Struct):
            members = ""
            for member in one.members:
                members += self._element(member.name, member.type, sizes, ids, optional=member.data_id is not None)
                if member.data_id is not None:
                    ids[f"{path}/{member.name}"] = member.data_id
            return "STRUCTURE", tag("SUB-ELEMENTS", members)
        if isinstance(one, Union):
            selector = BaseType(name="s", coding="uint", bits=one.selector_bits, big_endian=one.selector_big_endian)
            variants = "".join(self._element(each.name, each.type, sizes, ids) for each in one.variants if each.type)
            union = named(_ELEMENT, "union", tag("CATEGORY", "UNION"), tag("SUB-ELEMENTS", variants))
            return "STRUCTURE", tag("SUB-ELEMENTS", self._element("selector", selector, sizes, ids) + union)
        if isinstance(one, String):
            bits = 16 if one.encoding == "utf-16" else 8
            base = self._base(_TEXTS[one.encoding], bits)
            size = one.fixed_length * 8 // bits or 99
            semantics = "FIXED-SIZE" if one.fixed_length else "VARIABLE-SIZE"
            character = data_properties(reference("BASE-TYPE-REF", "SW-BASE-TYPE", base))
            return self._array("VALUE", character, size, semantics)
        assert isinstance(one, Array)
        first, *others = one.dimensions
        semantics = "FIXED-SIZE" if first.minimum == first.maximum else "VARIABLE-SIZE"
        assert first.maximum is not None
        inner = Array(name=one.name, element=one.element, dimensions=tuple(others)) if others else one.element
        referred = self._type(inner, sizes, ids)
        properties = data_properties(reference("IMPLEMENTATION-DATA-TYPE-REF", "IMPLEMENTATION-DATA-TYPE", referred))
        return self._array("TYPE_REFERENCE", properties, first.maximum, semantics)

    @staticmethod
    def _array(category: str, properties: str, size: int, semantics: str) -> tuple[str, str]:
        """Of variable size: a structure of a size indicator and the array, as on the classic platform."""
        sized = tag("ARRAY-SIZE", size) + tag("ARRAY-SIZE-SEMANTICS", semantics)
        element = tag("SUB-ELEMENTS", named(_ELEMENT, "e", tag("CATEGORY", category), sized, properties))
        if semantics == "FIXED-SIZE":
            return "ARRAY", element
        indicator = named(_ELEMENT, "size", tag("CATEGORY", "VALUE"))
        array = named(_ELEMENT, "payload", tag("CATEGORY", "ARRAY"), element)
        return "STRUCTURE", tag("DYNAMIC-ARRAY-SIZE-PROFILE", "VSA_LINEAR") + tag("SUB-ELEMENTS", indicator + array)

    def _element(self, name: str, one: Type, sizes: Sizes, ids: dict[str, int], *, optional: bool = False) -> str:
        referred = self._type(one, sizes, ids)
        properties = data_properties(reference("IMPLEMENTATION-DATA-TYPE-REF", "IMPLEMENTATION-DATA-TYPE", referred))
        more = tag("IS-OPTIONAL", "true") if optional else ""
        return named(_ELEMENT, name, tag("CATEGORY", "TYPE_REFERENCE"), more, properties)

    def _base(self, encoding: str, bits: int) -> str:
        name = self._new("B")
        inside = tag("BASE-TYPE-SIZE", bits) + tag("BASE-TYPE-ENCODING", encoding)
        self.elements.append(named("SW-BASE-TYPE", name, inside))
        return f"/P/{name}"

    def _value(self, one: BaseType | Bitfield) -> str:
        base = one.base if isinstance(one, Bitfield) else one
        text = reference("BASE-TYPE-REF", "SW-BASE-TYPE", self._base(_ENCODINGS[base.coding], base.bits))
        method = self._new("C")
        if isinstance(one, Bitfield):
            scales = "".join(
                self._text_scale(raw << each.bit, label, (1 << each.bits) - 1 << each.bit, each.name)
                for each in one.members
                for raw, label in each.labels
            )
            category, unit = "BITFIELD_TEXTTABLE", ""
        elif one.labels:
            scales = "".join(self._text_scale(raw, label) for raw, label in one.labels)
            category, unit = "TEXTTABLE", ""
        else:
            numerator = tag("COMPU-NUMERATOR", tag("V", one.scale.offset) + tag("V", one.scale.factor))
            coefficients = tag("COMPU-RATIONAL-COEFFS", numerator + tag("COMPU-DENOMINATOR", tag("V", 1)))
            scales, category = tag("COMPU-SCALE", coefficients), "LINEAR"
            unit = reference("UNIT-REF", "UNIT", "/P/kmh") if one.scale.unit else ""
        scales = tag("COMPU-INTERNAL-TO-PHYS", tag("COMPU-SCALES", scales))
        self.elements.append(named("COMPU-METHOD", method, tag("CATEGORY", category), unit, scales))
        text += reference("COMPU-METHOD-REF", "COMPU-METHOD", f"/P/{method}")
        if isinstance(one, BaseType) and one.minimum is not None:
            limits = tag("LOWER-LIMIT", one.minimum) + tag("UPPER-LIMIT", one.maximum)
            rule = tag("DATA-CONSTR-RULES", tag("DATA-CONSTR-RULE", tag("PHYS-CONSTRS", limits)))
            self.elements.append(named("DATA-CONSTR", f"{method}L", rule))
            text += reference("DATA-CONSTR-REF", "DATA-CONSTR", f"/P/{method}L")
        return text

    @staticmethod
    def _text_scale(raw: int, text: str, mask: int | None = None, name: str | None = None) -> str:
        label = "" if name is None else tag("SHORT-LABEL", name)
        masked = "" if mask is None else tag("MASK", mask)
        limits = tag("LOWER-LIMIT", raw, **{"INTERVAL-TYPE": "CLOSED"}) + tag("UPPER-LIMIT", raw)
        return tag("COMPU-SCALE", label + masked + limits + tag("COMPU-CONST", tag("VT", escape(text))))

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"


def classic_service() -> list[str]:
    """Elements of a service of the classic platform: one event of a PDU that two transformers write."""
    chain = ("Someip", "Protect")
    description = tag("ALIGNMENT", 8) + tag("BYTE-ORDER", "MOST-SIGNIFICANT-BYTE-LAST") + tag("INTERFACE-VERSION", 3)
    protection = tag("OFFSET", 64) + tag("PROFILE-NAME", "PROFILE_04") + tag("UPPER-HEADER-BITS-TO-SHIFT", 64)
    technologies = "".join(
        named("TRANSFORMATION-TECHNOLOGY", name, tag("TRANSFORMATION-DESCRIPTIONS", tag(kind, inside)))
        for name, kind, inside in (
            ("Someip", "SOMEIP-TRANSFORMATION-DESCRIPTION", description),
            ("Protect", "END-TO-END-TRANSFORMATION-DESCRIPTION", protection),
        )
    )
    chained = "".join(
        reference("TRANSFORMER-CHAIN-REF", "TRANSFORMATION-TECHNOLOGY", f"/P/Chains/{name}") for name in chain
    )
    transformation = named("DATA-TRANSFORMATION", "Both", tag("TRANSFORMER-CHAIN-REFS", chained))
    sent = variants("END-TO-END-TRANSFORMATION-I-SIGNAL-PROPS", tag("DATA-IDS", tag("DATA-ID", 77)))
    sent += variants("SOMEIP-TRANSFORMATION-I-SIGNAL-PROPS", tag("MESSAGE-TYPE", "NOTIFICATION"))
    chosen = reference("DATA-TRANSFORMATION-REF", "DATA-TRANSFORMATION", "/P/Chains/Both")
    signal = named(
        "I-SIGNAL",
        "Signal",
        tag("DATA-TRANSFORMATIONS", tag("DATA-TRANSFORMATION-REF-CONDITIONAL", chosen)),
        tag("LENGTH", 0),
        reference("SYSTEM-SIGNAL-REF", "SYSTEM-SIGNAL", "/P/SystemSignal"),
        tag("TRANSFORMATION-I-SIGNAL-PROPSS", sent),
    )
    mapping = named("I-SIGNAL-TO-I-PDU-MAPPING", "M", reference("I-SIGNAL-REF", "I-SIGNAL", "/P/Signal"))
    pdu = named("I-SIGNAL-I-PDU", "Pdu", tag("LENGTH", 10), tag("I-SIGNAL-TO-PDU-MAPPINGS", mapping))
    triggering = named("PDU-TRIGGERING", "Trigger", reference("I-PDU-REF", "I-SIGNAL-I-PDU", "/P/Pdu"))
    path = "/P/Cluster/Channel/Trigger"
    identifier = tag("HEADER-ID", 0x12348001) + reference("PDU-TRIGGERING-REF", "PDU-TRIGGERING", path)
    bundle = named("SOCKET-CONNECTION-BUNDLE", "B", tag("PDUS", tag("SOCKET-CONNECTION-IPDU-IDENTIFIER", identifier)))
    instance = named("PROVIDED-SERVICE-INSTANCE", "Doors", tag("SERVICE-IDENTIFIER", 0x1234))
    endpoint = named("APPLICATION-ENDPOINT", "End", tag("PROVIDED-SERVICE-INSTANCES", instance))
    configuration = tag(
        "SO-AD-CONFIG",
        tag("CONNECTION-BUNDLES", bundle) + tag("SOCKET-ADDRESSS", named("SOCKET-ADDRESS", "A", endpoint)),
    )
    channel = named("ETHERNET-PHYSICAL-CHANNEL", "Channel", tag("PDU-TRIGGERINGS", triggering), configuration)
    cluster = tag("ETHERNET-CLUSTER-VARIANTS", tag("ETHERNET-CLUSTER-CONDITIONAL", tag("PHYSICAL-CHANNELS", channel)))
    element = named("VARIABLE-DATA-PROTOTYPE", "State", reference("TYPE-TREF", "IMPLEMENTATION-DATA-TYPE", "/P/Level"))
    target = tag("DATA-ELEMENT-IREF", reference("TARGET-DATA-PROTOTYPE-REF", "VARIABLE-DATA-PROTOTYPE", "/P/If/State"))
    data = tag(
        "SENDER-RECEIVER-TO-SIGNAL-MAPPING", target + reference("SYSTEM-SIGNAL-REF", "SYSTEM-SIGNAL", "/P/SystemSignal")
    )
    return [
        named("SYSTEM", "Sys", tag("MAPPINGS", named("SYSTEM-MAPPING", "Map", tag("DATA-MAPPINGS", data)))),
        named("SYSTEM-SIGNAL", "SystemSignal"),
        named("SENDER-RECEIVER-INTERFACE", "If", tag("DATA-ELEMENTS", element)),
        named("SW-BASE-TYPE", "s16", tag("BASE-TYPE-SIZE", 16) + tag("BASE-TYPE-ENCODING", "2C")),
        named(
            "IMPLEMENTATION-DATA-TYPE",
            "Level",
            tag("CATEGORY", "VALUE"),
            data_properties(reference("BASE-TYPE-REF", "SW-BASE-TYPE", "/P/s16")),
        ),
        named(
            "DATA-TRANSFORMATION-SET",
            "Chains",
            tag("DATA-TRANSFORMATIONS", transformation),
            tag("TRANSFORMATION-TECHNOLOGYS", technologies),
        ),
        signal,
        pdu,
        named("ETHERNET-CLUSTER", "Cluster", cluster),
    ]


def variants(name: str, inside: str) -> str:
    return tag(name, tag(f"{name}-VARIANTS", tag(f"{name}-CONDITIONAL", inside)))
