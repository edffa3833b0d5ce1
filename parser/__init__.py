"""Vehicle captures -> Arrow. Pure: no network, no environment, no clock.

from parser import open_capture
with open_capture("drive.pcapng", "can_frames") as capture:
    table = capture.read()
"""

from __future__ import annotations

from .capture import Capture, Region, Summary, is_capture, open_capture
from .errors import CannotCompile, CaptureError, ParserError, ProfileError
from .profile import Profile
from .tables import TABLES, TableSpec

__all__ = [
    "TABLES",
    "CannotCompile",
    "Capture",
    "CaptureError",
    "ParserError",
    "Profile",
    "ProfileError",
    "Region",
    "Summary",
    "TableSpec",
    "is_capture",
    "open_capture",
]
