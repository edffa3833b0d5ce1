"""What the codings of a FIBEX file make of raw values: base types, strings, bitfields, factors, texts."""

from __future__ import annotations

from typing import Final

from pcaplake.signals.computations import Labels, physical_values
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.model import Scale
from pcaplake.signals.someip.types import Array, BaseType, Dimension, Encoding, String
from pcaplake.signals.someip.types import Coding as BaseCoding

from .records import Coding, FibexFile

_NUMBERS: Final[dict[str, tuple[BaseCoding, int]]] = {
    **{f"A_UINT{bits}": ("uint", bits) for bits in (8, 16, 32, 64)},
    **{f"A_INT{bits}": ("sint", bits) for bits in (8, 16, 32, 64)},
    **{f"A_FLOAT{bits}": ("float", bits) for bits in (32, 64)},
}
_PLAIN: Final = (None, "SIGNED", "UNSIGNED", "2C", "BIT", "IEEE-FLOATING-TYPE")
_ENCODINGS: Final[dict[str | None, Encoding]] = {"UTF-8": "utf-8", "UTF-16": "utf-16", "UCS-2": "utf-16"}
_DYNAMIC: Final = ("LEADING-LENGTH-INFO-TYPE", "MIN-MAX-LENGTH-TYPE", "END-OF-PDU")


def is_text(coding: Coding) -> bool:
    return coding.base in ("A_ASCIISTRING", "A_UNICODE2STRING")


def is_bitfield(coding: Coding | None) -> bool:
    return coding is not None and ("A_BITFIELD" in (coding.base, coding.physical) or coding.computation.is_bitfield)


def number_of(coding: Coding) -> tuple[BaseCoding, int]:
    """The kind and the bits of a number. Raises `DatabaseError` for a coding that is none."""
    if coding.encoding not in _PLAIN:
        raise DatabaseError(f"its coding {coding.name} has numbers encoded as {coding.encoding}, which are not read")
    if coding.base in _NUMBERS:
        kind, bits = _NUMBERS[coding.base]
        return kind, bits if coding.bit_length is None else coding.bit_length
    if coding.base in ("A_BITFIELD", "OTHER") and coding.bit_length:
        return "sint" if coding.encoding == "SIGNED" else "uint", coding.bit_length
    raise DatabaseError(f"its coding {coding.name} has the base type {coding.base or 'none'}, which is not read")


def base_type(
    file: FibexFile, name: str, coding: Coding, meaning: Coding, labels: Labels, bits: int | None, big_endian: bool
) -> BaseType:
    """A number of `coding`, whose values mean what `meaning` says; `labels` of the data type come before its texts."""
    kind, usual = number_of(coding)
    scale, texts = physical_scale(file, meaning)
    return BaseType(
        name=name,
        coding=kind,
        bits=usual if bits is None else bits,
        big_endian=big_endian,
        labels=labels or texts,
        scale=scale,
        minimum=meaning.low,
        maximum=meaning.high,
    )


def physical_scale(file: FibexFile, coding: Coding) -> tuple[Scale, Labels]:
    """Factor, offset and unit, and the texts. What cannot be said so is listed."""
    scale, labels, problems = physical_values(coding.computation, file.unit_of(coding))
    for problem in problems:
        file.lose(coding.line, f"CODING {coding.name}", problem)
    return scale, labels


def string(
    name: str, coding: Coding, bits: int | None, length_bits: int | None, alignment: int, big_endian: bool
) -> String:
    """A text: of a fixed length if the use or the coding gives one."""
    encoding = _ENCODINGS.get(coding.encoding)
    if encoding is None:
        if coding.encoding is not None or coding.base != "A_ASCIISTRING":
            raise DatabaseError(
                f"its coding {coding.name} is encoded as {coding.encoding}: ASCII, UTF-8 and UTF-16 are read"
            )
        encoding = "ascii"
    fixed = bits
    if fixed is None and coding.category not in _DYNAMIC:
        fixed = coding.bit_length or coding.minimum_length
    if fixed is None or (bits is None and coding.category in _DYNAMIC):
        size = 32 if length_bits is None else length_bits
        return String(name=name, encoding=encoding, length_bits=size, big_endian=big_endian, alignment=alignment)
    if fixed % 8:
        raise DatabaseError(f"it has {fixed} bits, which are not whole bytes")
    return String(name=name, encoding=encoding, fixed_length=fixed // 8, big_endian=big_endian)


def bytes_of(name: str, coding: Coding, bits: int | None, length_bits: int | None, alignment: int) -> Array:
    """A_BYTEFIELD: an array of bytes."""
    size = bits if bits is not None else coding.bit_length
    if coding.category in _DYNAMIC or size is None:
        dimension = Dimension(length_bits=32 if length_bits is None else length_bits, alignment=alignment)
    else:
        dimension = Dimension(minimum=size // 8, maximum=size // 8)
    return Array(name=name, element=BaseType(name="uint8", coding="uint", bits=8), dimensions=(dimension,))
