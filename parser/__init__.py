"""Decodes captures of vehicle networks to Arrow. Uses no network, no environment and no clock.

from pcaplake.parser import open_capture
with open_capture("drive.pcapng", "can_frames") as capture:
    table = capture.read()

Names are imported on first use, because the decoder takes half a second to load and what only needs a schema does not need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pcaplake.lazy_names import import_on_use

if TYPE_CHECKING:
    from pcaplake.parser.capture.reader import Capture, ReadOptions, Summary, open_capture
    from pcaplake.parser.capture.recognition import is_capture
    from pcaplake.parser.capture.state import Interface, Region, SectionHeader

    from .can_errors import CanError, decode_can_error
    from .errors import CannotCompile, CaptureError, ParserError, ProfileError
    from .profile import Profile
    from .schemas import TABLES
    from .table_spec import TableSpec

_MODULES = {
    "TABLES": "schemas",
    "CanError": "can_errors",
    "CannotCompile": "errors",
    "Capture": "capture.reader",
    "CaptureError": "errors",
    "Interface": "capture.state",
    "ParserError": "errors",
    "Profile": "profile",
    "ProfileError": "errors",
    "ReadOptions": "capture.reader",
    "Region": "capture.state",
    "SectionHeader": "capture.state",
    "Summary": "capture.reader",
    "TableSpec": "table_spec",
    "decode_can_error": "can_errors",
    "is_capture": "capture.recognition",
    "open_capture": "capture.reader",
}
__all__ = [
    "TABLES",
    "CanError",
    "CannotCompile",
    "Capture",
    "CaptureError",
    "Interface",
    "ParserError",
    "Profile",
    "ProfileError",
    "ReadOptions",
    "Region",
    "SectionHeader",
    "Summary",
    "TableSpec",
    "decode_can_error",
    "is_capture",
    "open_capture",
]

__getattr__ = import_on_use(__name__, _MODULES)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
