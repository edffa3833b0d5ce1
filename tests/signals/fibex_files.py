"""Writes services as a FIBEX 4 file, each element as public files have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape

from pcaplake.signals.someip.description import Array, BaseType, Bitfield, Member, String, Struct, Type, Union
from tests.signals.described_services import Operation, Service

_HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<fx:FIBEX xmlns:fx="http://www.asam.net/xml/fbx" xmlns:ho='
    '"http://www.asam.net/xml" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
    'xmlns:service="http://www.asam.net/xml/fbx/services" VERSION="4.1.2">\n'
    '<fx:PROJECT ID="P"><ho:SHORT-NAME>P</ho:SHORT-NAME></fx:PROJECT>\n'
)
_ENCODINGS = {"utf-8": "UTF-8", "utf-16": "UTF-16"}


def write_fibex(services: Iterable[Service]) -> str:
    writer = _FibexWriter()
    interfaces = "\n".join(map(writer.interface, services))
    return (
        f"{_HEAD}<fx:ELEMENTS><fx:SERVICE-INTERFACES>{interfaces}</fx:SERVICE-INTERFACES>\n<fx:DATATYPES>"
        f"{''.join(writer.datatypes)}</fx:DATATYPES></fx:ELEMENTS>\n<fx:PROCESSING-INFORMATION><ho:UNIT-SPEC><ho:UNITS>"
        f'<ho:UNIT ID="U_kmh"><ho:SHORT-NAME>kmh</ho:SHORT-NAME><ho:DISPLAY-NAME>km/h</ho:DISPLAY-NAME></ho:UNIT></ho:UNITS>'
        f"</ho:UNIT-SPEC><fx:CODINGS>{''.join(writer.codings)}</fx:CODINGS></fx:PROCESSING-INFORMATION></fx:FIBEX>\n"
    )


class _FibexWriter:
    def __init__(self) -> None:
        self.datatypes: list[str] = []
        self.codings: list[str] = []
        self._count = 0

    def interface(self, service: Service) -> str:
        parts: dict[str, list[str]] = {"METHOD": [], "EVENT": [], "FIELD": []}
        for operation in service.operations:
            kind = {"event": "EVENT", "field": "FIELD"}.get(operation.kind, "METHOD")
            parts[kind].append(self._operation(operation, kind))
        lists = "".join(
            f"<service:{kind}S>{''.join(texts)}</service:{kind}S>" for kind, texts in parts.items() if texts
        )
        return (
            f'<fx:SERVICE-INTERFACE ID="{self._new("I")}" xsi:type="service:SERVICE-INTERFACE-TYPE">{_named(service.name)}'
            f"<fx:SERVICE-IDENTIFIER>{service.id}</fx:SERVICE-IDENTIFIER><service:API-VERSION><service:MAJOR>{service.major}"
            f"</service:MAJOR><service:MINOR>0</service:MINOR></service:API-VERSION>{lists}</fx:SERVICE-INTERFACE>"
        )

    def _operation(self, operation: Operation, kind: str) -> str:
        head = f'<service:{kind} ID="{self._new(kind)}">{_named(operation.name)}'
        if kind == "FIELD":
            (value,) = operation.given.members
            names = ("GETTER", "METHOD"), ("SETTER", "METHOD"), ("NOTIFIER", "NOTIFICATION")
            accesses = "".join(
                f"<service:{access}><service:{what}-IDENTIFIER>{number}</service:{what}-IDENTIFIER></service:{access}>"
                for (access, what), number in zip(names, operation.ids, strict=True)
                if number is not None
            )
            return f"{head}{self._use(value)}{accesses}</service:FIELD>"
        semantic = "" if operation.kind != "call" else "<service:CALL-SEMANTIC>FIRE_AND_FORGET</service:CALL-SEMANTIC>"
        returned = operation.returned.members if operation.kind == "method" else ()
        return (
            f"{head}<service:METHOD-IDENTIFIER>{operation.ids[0]}</service:METHOD-IDENTIFIER>{semantic}"
            f"{''.join(self._parameters('INPUT', operation.given.members))}{''.join(self._parameters('RETURN', returned))}"
            f"</service:{kind}>"
        )

    def _parameters(self, kind: str, members: tuple[Member, ...]) -> Iterator[str]:
        if members:
            name = f"service:{kind}-PARAMETER"
            yield f"<{name}S>"
            for place, member in reversed(list(enumerate(members))):  # positions count, not the order in the file
                yield f'<{name} ID="{self._new("P")}">{_named(member.name)}{self._use(member)}'
                yield f"<service:POSITION>{place}</service:POSITION><service:MANDATORY>true</service:MANDATORY></{name}>"
            yield f"</{name}S>"

    def _use(self, member: Member) -> str:
        """What every use of a data type has: its reference, dimensions and utilization."""
        one = member.type
        dimensions, sizes = "", {}
        if isinstance(one, Array):
            for number, each in enumerate(one.dimensions, 1):
                least = f"<fx:MINIMUM-SIZE>{each.minimum}</fx:MINIMUM-SIZE>" if each.minimum else ""
                dimensions += (
                    f"<fx:ARRAY-DIMENSION><fx:DIMENSION>{number}</fx:DIMENSION>{least}<fx:MAXIMUM-SIZE>{each.maximum}"
                )
                dimensions += (
                    f"</fx:MAXIMUM-SIZE><fx:BIT-ALIGNMENT>{each.alignment}</fx:BIT-ALIGNMENT></fx:ARRAY-DIMENSION>"
                )
            if bits := {each.length_bits for each in one.dimensions} - {0}:
                (sizes["ARRAY-LENGTH-FIELD-SIZE"],) = bits
            dimensions, one = f"<fx:ARRAY-DECLARATION>{dimensions}</fx:ARRAY-DECLARATION>", one.element
            fixed = [each for each in member.type.dimensions if each.minimum == each.maximum]
            if fixed and not fixed[0].length_bits and len(fixed) < len(member.type.dimensions):
                sizes.pop("ARRAY-LENGTH-FIELD-SIZE")  # the default of both
        order = ""
        if isinstance(one, BaseType | Bitfield | String):
            big = one.base.big_endian if isinstance(one, Bitfield) else one.big_endian
            order = f"<fx:IS-HIGH-LOW-BYTE-ORDER>{str(big).lower()}</fx:IS-HIGH-LOW-BYTE-ORDER>"
        if isinstance(one, String | Struct | Union) and one.length_bits:
            sizes |= {"LENGTH-FIELD-SIZE": one.length_bits, "BIT-ALIGNMENT": one.alignment}
        if isinstance(one, Union):
            sizes["TYPE-FIELD-SIZE"] = one.selector_bits
        length = (
            f"<fx:BIT-LENGTH>{8 * one.fixed_length}</fx:BIT-LENGTH>"
            if isinstance(one, String) and one.fixed_length
            else ""
        )
        coding = ""
        datatype = self._datatype(one)
        if isinstance(one, Bitfield):
            datatype, coding = datatype.split("|")
            coding = f'<fx:CODING-REF ID-REF="{coding}"/>'
        said = "".join(f"<fx:{name}>{size}</fx:{name}>" for name, size in sizes.items())
        attributes = f"<fx:SERIALIZATION-ATTRIBUTES>{said}</fx:SERIALIZATION-ATTRIBUTES>" if said else ""
        inside = f"{coding}{length}{order}{attributes}"
        return f'<fx:DATATYPE-REF ID-REF="{datatype}"/>{dimensions}<fx:UTILIZATION>{inside}</fx:UTILIZATION>'

    def _datatype(self, one: Type) -> str:
        identifier = self._new("D")
        if isinstance(one, Struct | Union):
            kind, inside = "COMPLEX", self._members(one)
        elif isinstance(one, BaseType) and one.labels:
            elements = "".join(
                f"<fx:ENUM-ELEMENT><fx:VALUE>{raw}</fx:VALUE><fx:SYNONYM>{escape(text)}</fx:SYNONYM></fx:ENUM-ELEMENT>"
                for raw, text in one.labels
            )
            kind = "ENUM"
            inside = f"{_reference(self._number(one))}<fx:ENUMERATION-ELEMENTS>{elements}</fx:ENUMERATION-ELEMENTS>"
        elif isinstance(one, Bitfield):
            kind, inside = "COMMON", _reference(self._number(one.base))
        else:
            kind, inside = "COMMON", _reference(self._string(one) if isinstance(one, String) else self._number(one))
        self.datatypes.append(
            f'<fx:DATATYPE xsi:type="fx:{kind}-DATATYPE-TYPE" ID="{identifier}">{_named(one.name)}{inside}</fx:DATATYPE>\n'
        )
        return f"{identifier}|{self._bits(one)}" if isinstance(one, Bitfield) else identifier

    def _members(self, one: Struct | Union) -> str:
        texts = []
        places = one.members if isinstance(one, Struct) else one.variants
        for place, each in enumerate(places):
            assert each.type is not None
            member = Member(name=each.name, type=each.type)
            index = "" if isinstance(one, Struct) else f"<fx:INDEX>{each.selector}</fx:INDEX>"
            tag = "" if getattr(each, "data_id", None) is None else f"<fx:DATA-ID>{each.data_id}</fx:DATA-ID>"
            texts.append(
                f'<fx:MEMBER ID="{self._new("M")}">{_named(each.name)}{self._use(member)}<fx:POSITION>{place}'
                f"</fx:POSITION>{index}<fx:MANDATORY>{str(not tag).lower()}</fx:MANDATORY>{tag}</fx:MEMBER>"
            )
        kind = "STRUCTURE" if isinstance(one, Struct) else "UNION"
        return f"<fx:COMPLEX-DATATYPE-CLASS>{kind}</fx:COMPLEX-DATATYPE-CLASS><fx:MEMBERS>{''.join(texts)}</fx:MEMBERS>"

    def _number(self, one: BaseType) -> str:
        size = next(size for size in (8, 16, 32, 64) if size >= one.bits)
        base = {"uint": "A_UINT", "sint": "A_INT", "float": "A_FLOAT"}[one.coding] + str(size)
        scale = one.scale
        unit = '<ho:UNIT-REF ID-REF="U_kmh"/>' if scale.unit else ""
        limits = ""
        if one.minimum is not None:
            limits = f"<ho:PHYS-CONSTRS><ho:SCALE-CONSTR><ho:LOWER-LIMIT>{one.minimum}</ho:LOWER-LIMIT>"
            limits += f"<ho:UPPER-LIMIT>{one.maximum}</ho:UPPER-LIMIT></ho:SCALE-CONSTR></ho:PHYS-CONSTRS>"
        scales = (
            "<ho:COMPU-INTERNAL-TO-PHYS><ho:COMPU-SCALES><ho:COMPU-SCALE><ho:COMPU-RATIONAL-COEFFS><ho:COMPU-NUMERATOR>"
            f"<ho:V>{scale.offset}</ho:V><ho:V>{scale.factor}</ho:V></ho:COMPU-NUMERATOR><ho:COMPU-DENOMINATOR><ho:V>1</ho:V>"
            "</ho:COMPU-DENOMINATOR></ho:COMPU-RATIONAL-COEFFS></ho:COMPU-SCALE></ho:COMPU-SCALES></ho:COMPU-INTERNAL-TO-PHYS>"
        )
        return self._coding(
            f'<ho:CODED-TYPE ho:BASE-DATA-TYPE="{base}" CATEGORY="STANDARD-LENGTH-TYPE"><ho:BIT-LENGTH>{one.bits}</ho:BIT-LENGTH>'
            f"</ho:CODED-TYPE><ho:COMPU-METHODS><ho:COMPU-METHOD>{_named('c')}<ho:CATEGORY>LINEAR</ho:CATEGORY>{unit}{limits}"
            f"{scales}</ho:COMPU-METHOD></ho:COMPU-METHODS>"
        )

    def _bits(self, one: Bitfield) -> str:
        scales = "".join(
            f"<ho:COMPU-SCALE><ho:SHORT-LABEL>{each.name}</ho:SHORT-LABEL><ho:MASK>{(1 << each.bits) - 1 << each.bit}</ho:MASK>"
            f"<ho:LOWER-LIMIT>{raw << each.bit}</ho:LOWER-LIMIT><ho:UPPER-LIMIT>{raw << each.bit}</ho:UPPER-LIMIT>"
            f"<ho:COMPU-CONST><ho:VT>{text}</ho:VT></ho:COMPU-CONST></ho:COMPU-SCALE>"
            for each in one.members
            for raw, text in each.labels
        )
        return self._coding(
            '<ho:PHYSICAL-TYPE ho:BASE-DATA-TYPE="A_BITFIELD"/><ho:CODED-TYPE ho:BASE-DATA-TYPE="A_UINT32" '
            'CATEGORY="STANDARD-LENGTH-TYPE"/><ho:COMPU-METHODS><ho:COMPU-METHOD><ho:SHORT-NAME>b</ho:SHORT-NAME><ho:CATEGORY>'
            "BITFIELD-TEXTTABLE</ho:CATEGORY><ho:COMPU-INTERNAL-TO-PHYS><ho:COMPU-SCALES>"
            f"{scales}</ho:COMPU-SCALES></ho:COMPU-INTERNAL-TO-PHYS></ho:COMPU-METHOD></ho:COMPU-METHODS>"
        )

    def _string(self, one: String) -> str:
        category = "STANDARD-LENGTH-TYPE" if one.fixed_length else "LEADING-LENGTH-INFO-TYPE"
        base = "A_ASCIISTRING" if one.encoding == "ascii" else "A_UNICODE2STRING"
        encoding = f' ENCODING="{_ENCODINGS[one.encoding]}"' if one.encoding != "ascii" else ""
        return self._coding(
            f'<ho:CODED-TYPE ho:BASE-DATA-TYPE="{base}" CATEGORY="{category}"{encoding} TERMINATION="ZERO"/>'
        )

    def _coding(self, inside: str) -> str:
        identifier = self._new("C")
        self.codings.append(f'<fx:CODING ID="{identifier}">{_named(identifier)}{inside}</fx:CODING>\n')
        return identifier

    def _new(self, kind: str) -> str:
        self._count += 1
        return f"{kind}_{self._count}"


def _named(name: str) -> str:
    return f"<ho:SHORT-NAME>{escape(name)}</ho:SHORT-NAME>"


def _reference(coding: str) -> str:
    return f'<fx:CODING-REF ID-REF="{coding}"/>'
