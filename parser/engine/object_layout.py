"""Lays out the object file of an image, so that its code runs wherever it is copied to.

The sections of the file are placed one behind the other. What they say of each other depends only on their distance, so it is
resolved here. What the process must provide is read from a table in front of them, as in a shared library.

Layout: ELF-64 Object File Format 1.5; System V ABI, AMD64 Architecture Processor Supplement 1.0, 4.4 (relocation).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

ADDRESS = struct.Struct("<Q")
_DISTANCE = struct.Struct("<i")
_HEADER, _SECTION, _SYMBOL, _RELOCATION = (struct.Struct(f) for f in ("<40xQ10x3H", "<2I4Q2I2Q", "<I2BH2Q", "<2Qq"))
_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_WRITABLE, _ALLOCATED, _NO_BITS, _RELOCATIONS, _SYMBOLS = 1, 2, 8, 4, 2  # SHF_; SHT_NOBITS, SHT_RELA, SHT_SYMTAB
_RELOCATED = ".data.rel.ro"  # constants with addresses, which are filled in before anything runs
_FROM_HERE = (2, 4)  # R_X86_64_PC32, R_X86_64_PLT32
_CALL = 4  # R_X86_64_PLT32
_IMPORTED = (9, 41, 42)  # R_X86_64_GOTPCREL, R_X86_64_GOTPCRELX, R_X86_64_REX_GOTPCRELX
_POINTER = 1  # R_X86_64_64
_JUMP = b"\xff\x25"  # jmp to the address that is stored at the distance that follows
_STUB = 8  # bytes of such a jump, with two that are not used


class CannotLayOut(Exception):
    """The object file has what this module does not know."""


class Code(NamedTuple):
    """Machine code that runs wherever it is copied to, when its addresses are filled in.

    content   begins with room for the address of each import
    imports   the names of what the process provides, in this order
    pointers  where an address in the content itself is, as the distance from its start
    symbols   where the functions and data of the file are
    """

    content: bytes
    imports: list[str]
    pointers: list[int]
    symbols: dict[str, int]


class _Section(NamedTuple):
    name: str
    kind: int
    flags: int
    body: bytes
    link: int
    info: int
    align: int


class _Symbol(NamedTuple):
    name: str
    section: int  # 0: the process provides it
    value: int


def lay_out(file: bytes) -> Code:
    """Lay out an object file (ELF, x86-64, position-independent, small code model). Raises CannotLayOut."""
    sections = _read_sections(file)
    symbols = _read_symbols(sections)
    imports = [symbol.name for symbol in symbols if symbol.name and not symbol.section]
    content = _make_jumps(len(imports))
    starts: dict[int, int] = {}
    for number, section in enumerate(sections):
        # kernels raise no exceptions through their frames, so nobody unwinds these
        if section.flags & _ALLOCATED and section.body and not section.name.startswith(".eh_frame"):
            if section.flags & _WRITABLE and not section.name.startswith(_RELOCATED):
                raise CannotLayOut(f"{section.name} is writable, and memory with code is not")
            content += bytes(-len(content) % max(section.align, 1))
            starts[number] = len(content)
            content += section.body
    pointers = []
    for section in sections:
        if section.kind != _RELOCATIONS or section.info not in starts:
            continue
        for offset, info, addend in _RELOCATION.iter_unpack(section.body):
            at, symbol, kind = starts[section.info] + offset, symbols[info >> 32], info & 0xFFFFFFFF
            if symbol.section in starts and kind in _FROM_HERE:
                target = starts[symbol.section] + symbol.value
            elif symbol.section in starts and kind == _POINTER:
                pointers.append(at)
                ADDRESS.pack_into(content, at, starts[symbol.section] + symbol.value + addend)
                continue
            elif not symbol.section and kind in _IMPORTED:
                target = imports.index(symbol.name) * ADDRESS.size
            elif not symbol.section and kind == _CALL:
                target = len(imports) * ADDRESS.size + imports.index(symbol.name) * _STUB
            else:
                raise CannotLayOut(f"relocation {kind} of {symbol.name or 'a section'}")
            _DISTANCE.pack_into(content, at, target + addend - at)
    places = {s.name: starts[s.section] + s.value for s in symbols if s.name and s.section in starts}
    return Code(bytes(content), imports, pointers, places)


def _make_jumps(count: int) -> bytearray:
    """Room for this many addresses, then for each of them a jump to it, which calls can reach."""
    content = bytearray(count * (ADDRESS.size + _STUB))
    for i in range(count):
        at = count * ADDRESS.size + i * _STUB
        content[at : at + len(_JUMP)] = _JUMP
        after = at + len(_JUMP) + _DISTANCE.size
        _DISTANCE.pack_into(content, at + len(_JUMP), i * ADDRESS.size - after)
    return content


def _read_sections(file: bytes) -> list[_Section]:
    if file[: len(_MAGIC)] != _MAGIC:
        raise CannotLayOut("it is not an ELF file of 64 bits")
    first, size, count, names_in = _HEADER.unpack_from(file)
    if size != _SECTION.size:
        raise CannotLayOut(f"section headers of {size} bytes")
    headers = [_SECTION.unpack_from(file, first + i * size) for i in range(count)]
    names = file[headers[names_in][4] :]
    return [
        _Section(
            _name_at(names, name),
            kind,
            flags,
            bytes(length) if kind == _NO_BITS else file[offset : offset + length],
            link,
            info,
            align,
        )
        for name, kind, flags, _, offset, length, link, info, align, _ in headers
    ]


def _read_symbols(sections: Sequence[_Section]) -> list[_Symbol]:
    (table,) = (section for section in sections if section.kind == _SYMBOLS)
    names = sections[table.link].body
    return [
        _Symbol(_name_at(names, name), section, value)
        for name, _, _, section, value, _ in _SYMBOL.iter_unpack(table.body)
    ]


def _name_at(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()
