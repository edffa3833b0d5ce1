"""The signals of an ARXML PDU: position, coding, factor, texts, limits and invalid value of each.

Layout: AUTOSAR TPS_SystemTemplate R22-11.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pcaplake.signals.computations import Computation, read_physical_limit, signal_values, whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.model import Scale, Signal, limit_to_float64
from pcaplake.signals.pdus import SignalInPdu

from .document import ArxmlDocument, path_of, short_name
from .element import ArxmlElement
from .meaning import Meaning, computation_of, constraint_of, meaning_of, number_of, unit_of

_REPRESENTATION: Final = "NETWORK-REPRESENTATION-PROPS/SW-DATA-DEF-PROPS-VARIANTS/SW-DATA-DEF-PROPS-CONDITIONAL"
_PHYSICAL: Final = "PHYSICAL-PROPS/SW-DATA-DEF-PROPS-VARIANTS/SW-DATA-DEF-PROPS-CONDITIONAL"


def signal_in_pdu(
    document: ArxmlDocument, mapping: ArxmlElement, signal: ArxmlElement, group_bit: int | None
) -> SignalInPdu:
    """The signal of a mapping; with the reason if it cannot be decoded. `group_bit`: the update bit of its signal group."""
    order, update, reason = mapping.text_at("PACKING-BYTE-ORDER"), group_bit, None
    plain = Signal(name=short_name(signal), start=0, length=0, big_endian=order == "MOST-SIGNIFICANT-BYTE-FIRST")
    try:
        start, own = number_at(mapping, "START-POSITION"), number_at(mapping, "UPDATE-INDICATION-BIT-POSITION")
        plain = replace(plain, start=start or 0, length=number_at(signal, "LENGTH") or 0)
        update = own if own is not None else group_bit
        if order == "OPAQUE":
            raise DatabaseError("it is an array of bytes (OPAQUE), which has no value")
        if start is None:
            raise DatabaseError(f"{path_of(mapping)} has no START-POSITION: add one")
        plain = _coded(document, plain, signal)
    except DatabaseError as error:
        reason = str(error)
    return SignalInPdu(signal=plain, update_bit=update, reason=reason)


def _coded(document: ArxmlDocument, plain: Signal, signal: ArxmlElement) -> Signal:
    system = document.target(signal, "SYSTEM-SIGNAL-REF")
    meaning = meaning_of(signal, _REPRESENTATION)
    if system is not None:
        meaning = meaning.over(meaning_of(system, _PHYSICAL))
    kind = "uint"
    if meaning.base is not None:
        number = number_of(document, Meaning(base=meaning.base), plain.name)
        if number.encoding is not None:
            return replace(plain, coding="ascii")
        kind = number.coding
    computation = computation_of(document, meaning)
    floats = kind == "float"
    scales, choices, problems = signal_values(computation, unit_of(document, meaning), floats=floats)
    for problem in problems:
        document.lose(meaning.computation or plain.name, problem)
    low, high = _limits(document, meaning, scales, floats) or _limits_of(computation, floats)
    return replace(
        plain,
        signed=kind == "sint",
        coding="float" if floats else "integer",
        scales=scales,
        choices=choices,
        minimum=low,
        maximum=high,
        invalid=_invalid(document, signal),
    )


def _invalid(document: ArxmlDocument, signal: ArxmlElement) -> float | None:
    """The raw value that means invalid."""
    try:
        invalid = number_at(signal, f"{_REPRESENTATION}/INVALID-VALUE/NUMERICAL-VALUE-SPECIFICATION/VALUE")
    except DatabaseError as error:
        document.lose(path_of(signal), str(error))
        return None
    return None if invalid is None else limit_to_float64(invalid)


def _limits(
    document: ArxmlDocument, meaning: Meaning, scales: tuple[Scale, ...], floats: bool
) -> tuple[float | None, float | None] | None:
    constraint = constraint_of(document, meaning)
    if constraint is not None:
        for physical in constraint.children_at("DATA-CONSTR-RULES/DATA-CONSTR-RULE/PHYS-CONSTRS"):
            low, high = (
                read_physical_limit(physical, name, scales, floats=floats) for name in ("LOWER-LIMIT", "UPPER-LIMIT")
            )
            return low, high
    return None


def _limits_of(computation: Computation, floats: bool) -> tuple[float | None, float | None]:
    """The physical values of the limits of its only linear scale; with several, they choose the scale."""
    linear = [scale for scale in computation.scales if scale.text is None]
    if len(linear) != 1 or computation.problems:
        return None, None
    (scale,) = linear
    limits = (scale.float_low, scale.float_high) if floats else (scale.low, scale.high)
    bounds = [None if limit is None else limit * scale.factor + scale.offset for limit in limits]
    return (bounds[1], bounds[0]) if scale.factor < 0 else (bounds[0], bounds[1])


def number_at(element: ArxmlElement, path: str) -> int | None:
    """The number in an element at a path; None without it. Raises `DatabaseError`."""
    text = element.text_at(path)
    return None if text is None else arxml_number(text, path)


def arxml_number(text: str, what: str) -> int:
    """A whole number as AUTOSAR writes it: one that begins with 0 is octal, as in C. Raises `DatabaseError`."""
    octal = len(text) > 1 and text[0] == "0" and set(text) <= set("01234567")
    return int(text, 8) if octal else whole_number(text, what)
