"""What FIBEX and ARXML say with the same elements: computation methods (factors, texts, bit masks), limits, arrays of arrays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from .errors import DatabaseError
from .model import Scale
from .someip.types import Array, Bits, Dimension, Type
from .xml_elements import XmlElement

Labels: TypeAlias = tuple[tuple[int, str], ...]
BITFIELDS: Final = ("BITFIELD-TEXTTABLE", "BITFIELD_TEXTTABLE")
"""Categories of computation methods whose texts are of single bits."""
_SEVERAL: Final = "it has several linear scales"
_MOST_DIMENSIONS: Final = 8
_MOST_LABELS: Final = 1 << 10  # values of a range that has one text


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputationScale:
    """One COMPU-SCALE for raw values from `low` to `high`: a `text`, or value = raw * factor + offset.

    `low`, `high`: of integers; `float_low`, `float_high`: of floats, which differ if a limit is open. `mask`: of a bitfield;
    `label`: the name of its bits.
    """

    low: float | None
    high: float | None
    float_low: float | None = None
    float_high: float | None = None
    text: str | None = None
    offset: float = 0
    factor: float = 1
    mask: int | None = None
    label: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Computation:
    """All scales of a COMPU-METHOD. `problems`: what of it is not read."""

    category: str | None = None
    scales: tuple[ComputationScale, ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def is_bitfield(self) -> bool:
        return self.category in BITFIELDS


def read_computation(methods: Iterable[XmlElement]) -> Computation:
    """The scales of COMPU-METHOD elements."""
    scales, problems, category = [], [], None
    for method in methods:
        category = category or method.text_at("CATEGORY")
        if method.child("COMPU-INTERNAL-TO-PHYS") is None and method.child("COMPU-PHYS-TO-INTERNAL") is not None:
            problems.append("it says only COMPU-PHYS-TO-INTERNAL, and COMPU-INTERNAL-TO-PHYS is read")
        for scale in method.children_at("COMPU-INTERNAL-TO-PHYS/COMPU-SCALES/COMPU-SCALE"):
            try:
                scales.append(_read_scale(scale))
            except DatabaseError as error:
                problems.append(str(error))
    return Computation(category=category, scales=tuple(scales), problems=tuple(problems))


def _read_scale(element: XmlElement) -> ComputationScale:
    low, high = read_limit(element, "LOWER-LIMIT"), read_limit(element, "UPPER-LIMIT")
    float_low, float_high = (read_limit(element, name, floats=True) for name in ("LOWER-LIMIT", "UPPER-LIMIT"))
    if (found := element.child("COMPU-CONST/VT")) is not None:
        mask = element.text_at("MASK")
        return ComputationScale(
            low=low,
            high=high,
            text=found.text,
            mask=None if mask is None else whole_number(mask, "MASK"),
            label=element.text_at("SHORT-LABEL"),
        )
    if element.child("COMPU-CONST") is not None:
        raise DatabaseError("one of its scales is a constant number, and only texts are read as constants")
    if element.child("COMPU-GENERIC-MATH") is not None:
        raise DatabaseError("one of its scales is a formula, and only linear ones are read")
    above = [decimal_number(v.text, "V") for v in element.children_at("COMPU-RATIONAL-COEFFS/COMPU-NUMERATOR/V")]
    below = [decimal_number(v.text, "V") for v in element.children_at("COMPU-RATIONAL-COEFFS/COMPU-DENOMINATOR/V")]
    below = below or [1.0]
    if any(above[2:]) or any(below[1:]) or below[0] == 0:
        raise DatabaseError("one of its scales is not linear, and only linear ones are read")
    if len(above) == 1:
        raise DatabaseError("one of its scales has an offset and no factor: write both as V of its numerator")
    offset, factor = above[:2] if above else (0.0, 1.0)
    return ComputationScale(
        low=low,
        high=high,
        float_low=float_low,
        float_high=float_high,
        offset=offset / below[0],
        factor=factor / below[0],
    )


def physical_values(computation: Computation, unit: str | None) -> tuple[Scale, Labels, list[str]]:
    """Factor, offset and unit; texts; what of it is not read: values are raw, without a unit, if the scale is not."""
    problems = list(computation.problems)
    labels: dict[int, str] = {}
    for scale in computation.scales:
        if scale.text is not None and scale.mask is None:
            try:
                labels |= dict.fromkeys(_values_of(scale), scale.text)
            except DatabaseError as error:
                problems.append(f"text {scale.text!r}: {error}")
    texts = tuple(sorted(labels.items()))
    linear = [scale for scale in computation.scales if scale.text is None]
    if len({(scale.factor, scale.offset) for scale in linear}) > 1:
        problems.append(f"{_SEVERAL}, and at most one is read: its values are raw")
        linear = []
    elif computation.problems:
        linear = []
    elif not linear:
        return Scale(unit=unit), texts, problems
    if not linear:
        return Scale(), texts, problems
    return Scale(factor=linear[0].factor, offset=linear[0].offset, unit=unit), texts, problems


def signal_values(
    computation: Computation, unit: str | None, *, floats: bool = False
) -> tuple[tuple[Scale, ...], Labels, list[str]]:
    """As `physical_values`, for signals of frames, which may have a scale for each range of raw values.

    `floats`: raw values are floats.
    """
    linear = [scale for scale in computation.scales if scale.text is None]
    one, labels, problems = physical_values(computation, unit)
    if computation.is_bitfield:
        problems.append("its texts are of single bits, and those of signals in frames are read of whole values only")
    if len(linear) < 2 or computation.problems:
        return (one,), labels, problems
    scales = []
    for each in linear:
        if floats:
            low, high = each.float_low, each.float_high
        else:
            low = None if each.low is None else math.ceil(each.low)
            high = None if each.high is None else math.floor(each.high)
        scales.append(Scale(factor=each.factor, offset=each.offset, unit=unit, low=low, high=high))
    return tuple(scales), labels, [problem for problem in problems if not problem.startswith(_SEVERAL)]


def _values_of(scale: ComputationScale) -> Sequence[int]:
    low = scale.high if scale.low is None else scale.low
    high = low if scale.high is None else scale.high
    if low is None or high is None or not float(low).is_integer() or not float(high).is_integer() or high < low:
        raise DatabaseError("its limits are not a range of whole numbers")
    if high - low >= _MOST_LABELS:
        raise DatabaseError(f"it stands for {int(high - low) + 1:,} values, and at most {_MOST_LABELS:,} are read")
    return range(int(low), int(high) + 1)


def bits_of(computation: Computation) -> tuple[Bits, ...]:
    """The bits that texts name: by a mask, or by a value with one bit (FIBEX before 4.2). Raises `DatabaseError`."""
    masks: dict[int, tuple[str, dict[int, str]]] = {}
    for scale in computation.scales:
        if scale.text is None:
            continue
        value = _values_of(scale)[0]
        if scale.mask is not None:
            label, texts = masks.setdefault(scale.mask, (scale.label or scale.text, {}))
            texts[value] = scale.text
        elif value.bit_count() == 1:
            masks[value] = scale.text, {}
    members = []
    for mask, (label, texts) in sorted(masks.items()):
        first, size = (mask & -mask).bit_length() - 1, mask.bit_count()
        if mask <= 0 or mask >> first != (1 << size) - 1:
            raise DatabaseError(f"the mask {mask:#x} of {label} is not one run of bits")
        shifted = tuple(sorted((value >> first, text) for value, text in texts.items()))
        members.append(Bits(name=label, bit=first, bits=size, labels=shifted))
    return tuple(members)


def array_of(name: str, element: Type, dimensions: tuple[Dimension, ...]) -> Array:
    """An array; of arrays, it is one array with the dimensions of both, which has the same bytes."""
    if isinstance(element, Array) and len(dimensions) + len(element.dimensions) <= _MOST_DIMENSIONS:
        dimensions += element.dimensions
        element = element.element
    return Array(name=name, element=element, dimensions=dimensions)


# -- numbers ----------------------------------------------------------------------------------------------------------
def whole_number(text: str, what: str) -> int:
    """A decimal or hexadecimal number, also one written as `3.0`. Raises `DatabaseError`."""
    try:
        return int(text, 0) if text.lower().startswith(("0x", "0b")) else int(text)
    except ValueError:
        number = decimal_number(text, what)
    if not number.is_integer():
        raise DatabaseError(f"its {what} is {text!r}: write a whole number")
    return int(number)


def decimal_number(text: str, what: str) -> float:
    """Raises `DatabaseError` for anything that is not a finite number."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DatabaseError(f"its {what} is {text!r}: write a number")
    return number


def read_limit(element: XmlElement, name: str, *, floats: bool = False) -> float | None:
    """LOWER-LIMIT or UPPER-LIMIT of raw values as an inclusive bound: an open one is one further in, or the next float.

    Exact for integers.
    """
    number, inwards = _read_interval(element, name)
    if number is None or not inwards:
        return number
    if floats:
        return math.nextafter(number, inwards * math.inf)
    return number + inwards if isinstance(number, int) else number


def read_physical_limit(element: XmlElement, name: str, scales: Sequence[Scale], *, floats: bool) -> float | None:
    """The same of physical values with these scales: an open one is one step further in, if it is the value of an integer."""
    number, inwards = _read_interval(element, name)
    if number is None or not inwards:
        return number
    if floats or len(scales) != 1 or scales[0].factor == 0:
        return math.nextafter(number, inwards * math.inf)
    steps = (number - scales[0].offset) / scales[0].factor
    is_value = math.isclose(steps, round(steps), rel_tol=0, abs_tol=1e-6)
    return number + inwards * abs(scales[0].factor) if is_value else number


def _read_interval(element: XmlElement, name: str) -> tuple[float | None, int]:
    """A limit, or None without one; and the direction of what is inside if it is open, else 0."""
    found = element.child(name)
    if found is None or not found.text or found.attributes.get("INTERVAL-TYPE") == "INFINITE":
        return None, 0
    if found.text in ("-INF", "INF"):
        return None, 0
    number = decimal_number(found.text, name)
    if number.is_integer():
        number = whole_number(found.text, name)
    is_open = found.attributes.get("INTERVAL-TYPE") == "OPEN"
    return number, (1 if name == "LOWER-LIMIT" else -1) if is_open else 0
