"""Decodes captures of vehicle networks to Arrow. Uses no network, no environment and no clock.

from pcaplake.parser import open_capture
with open_capture("drive.pcapng", "can_frames") as capture:
    table = capture.read()
"""

from __future__ import annotations

from pcaplake.parser.capture.reader import Capture, ReadOptions, Summary, is_capture, open_capture
from pcaplake.parser.capture.state import Interface, Region

from .errors import CannotCompile, CaptureError, ParserError, ProfileError
from .profile import Profile
from .schemas import TABLES, TableSpec

__all__ = [
    "TABLES",
    "CannotCompile",
    "Capture",
    "CaptureError",
    "Interface",
    "ParserError",
    "Profile",
    "ProfileError",
    "ReadOptions",
    "Region",
    "Summary",
    "TableSpec",
    "is_capture",
    "open_capture",
]
