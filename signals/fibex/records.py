"""What the elements of a FIBEX file say: one record each, before references between them are followed.

Layout: ASAM MCD-2 NET 4.1.2 (fibex.xsd, fibex4services.xsd, harmonizedObjects.xsd), as public files and their readers show it.
A file of hundreds of megabytes gives a few megabytes of records. All sizes are bits. `line`: of the file.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pcaplake.signals.computations import Computation
from pcaplake.signals.errors import add_reason

from .frame_elements import FrameElements


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """SERIALIZATION-ATTRIBUTES; None: not said. `passed_on`: they also apply to what is inside."""

    length_bits: int | None = None
    type_bits: int | None = None
    array_length_bits: int | None = None
    alignment: int | None = None
    passed_on: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayDimension:
    """`number`: 1 is the outermost."""

    number: int
    minimum: int
    maximum: int | None
    alignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Where a data type is used: a parameter, a field, or a member of a data type.

    `index`: the selector of a member of a union. `coding`, `bit_length`, `big_endian`: of its UTILIZATION.
    """

    name: str
    line: int
    datatype: str
    position: int = 0
    index: int | None = None
    data_id: int | None = None
    mandatory: bool = True
    dimensions: tuple[ArrayDimension, ...] = ()
    attributes: Attributes = Attributes()
    big_endian: bool | None = None
    coding: str | None = None
    signal: str | None = None
    bit_length: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Datatype:
    """`kind`: COMMON, ENUM, STRUCTURE, UNION or TYPEDEF, or what else the file says."""

    name: str
    line: int
    kind: str
    coding: str | None
    labels: tuple[tuple[int, str], ...]
    members: tuple[Use, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """`base`: A_UINT8 and so on; `physical`: the base type of the physical value. `low`, `high`: physical limits."""

    name: str
    line: int
    base: str
    physical: str | None
    category: str | None
    encoding: str | None
    bit_length: int | None
    minimum_length: int | None
    computation: Computation
    unit: str | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A method or an event. `answered`: it has a response."""

    name: str
    line: int
    id: int
    answered: bool
    given: tuple[Use, ...]
    returned: tuple[Use, ...]
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldIds:
    """A field of a service and the ids of its three messages; None: it has none."""

    value: Use
    getter: int | None
    setter: int | None
    notifier: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    name: str
    line: int
    id: int
    major: int | None
    methods: tuple[Operation, ...]
    events: tuple[Operation, ...]
    fields: tuple[FieldIds, ...]


@dataclass(slots=True, kw_only=True)
class FibexFile:
    """Records by ID. `signals`: the coding of each signal. `units`: names. `lost`: what is not read -> why."""

    name: str
    interfaces: list[Interface] = field(default_factory=list)
    datatypes: dict[str, Datatype] = field(default_factory=dict)
    codings: dict[str, Coding] = field(default_factory=dict)
    signals: dict[str, str] = field(default_factory=dict)
    signal_names: dict[str, str] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    frames: FrameElements = field(default_factory=FrameElements)
    lost: dict[str, str] = field(default_factory=dict)

    def lose(self, line: int, what: str, reason: str) -> None:
        add_reason(self.lost, f"{self.name}, line {line}: {what}", reason)

    def unit_of(self, coding: Coding) -> str | None:
        return self.units.get(coding.unit, coding.unit) if coding.unit is not None else None
