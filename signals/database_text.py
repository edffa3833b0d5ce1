"""Decodes the bytes of a database file to text, and finds its encoding."""

from __future__ import annotations

import codecs
import re

_MARKS = (  # longer marks first: UTF-32's begins like UTF-16's
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8"),
)
_XML_ENCODING = re.compile(rb"""\A\s*<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z][A-Za-z0-9._-]*)["']""")


def decode_text(data: bytes, *, xml: bool) -> str:
    """The text of a file. Raises `ValueError` for an unknown encoding, and for bytes that are not text.

    A byte order mark has priority. XML declares its encoding (XML 1.0, appendix F). DBC, SYM and LDF do not: common tools write
    them in UTF-8 or in Windows code page 1252, and one file may mix both. So a line that is valid UTF-8 is read as UTF-8, and
    any other line as 1252; a line with letters beyond ASCII is rarely valid in both.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            data = data if encoding != "utf-8" else data[len(mark) :]
            return _decode_by_line(data) if encoding == "utf-8" else _decode_as_declared(data, encoding)
    if data[:2] and 0 in data[:2]:  # the first letter of a database is ASCII
        return _decode_as_declared(data, "utf-16-be" if data[0] == 0 else "utf-16-le")
    if 0 in data:
        raise ValueError("it contains zero bytes, so it is not text: save it as UTF-8")
    declaration = _XML_ENCODING.match(data) if xml else None
    named = declaration[1].decode().lower() if declaration else "utf-8"
    # a declaration that is readable byte by byte cannot be UTF-16, whatever it declares
    return (
        _decode_by_line(data)
        if named.startswith(("utf-8", "utf8", "utf-16", "utf16"))
        else _decode_as_declared(data, named)
    )


def _decode_by_line(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(map(_decode_line, data.splitlines(keepends=True)))


def _decode_line(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def _decode_as_declared(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except LookupError as error:
        raise ValueError(f"it declares the encoding {encoding}, which is unknown: save it as UTF-8") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"it declares the encoding {encoding}, but is not in it ({error.reason} at byte {error.start}): save it as UTF-8"
        ) from error
