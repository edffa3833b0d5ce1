"""End-to-end protection of AUTOSAR as headers of SOME/IP payloads."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from pcaplake.signals.computations import whole_number
from pcaplake.signals.errors import DatabaseError
from pcaplake.signals.someip.description import DataIdMode, EndToEnd

from .element import ArxmlElement

Profile: TypeAlias = Literal[1, 2, 4, 5, 6, 7]
_NUMBERS: Final[tuple[Profile, ...]] = (1, 2, 4, 5, 6, 7)
_PROFILES: Final = {f"PROFILE_{number:02}": number for number in _NUMBERS}
_MODES: Final[dict[str, DataIdMode]] = {
    "ALL-16-BIT": "both",
    "ALTERNATING-8-BIT": "alternating",
    "LOWER-8-BIT": "low",
    "LOWER-12-BIT": "nibble",
}
_HEADER: Final = 64  # bits of the SOME/IP header that are protected


def end_to_end(description: ArxmlElement, identifiers: ArxmlElement) -> EndToEnd:
    """`description`: PROFILE-NAME, DATA-ID-MODE, offsets (bits). `identifiers`: DATA-IDS. Raises `DatabaseError`.

    Layout: AUTOSAR PRS_E2EProtocol and TPS_SystemTemplate R22-11. The adaptive platform always protects the last 8 bytes of
    the SOME/IP header as well; a transformer does so if it shifts them before the E2E header, whose offset counts from them.
    """
    name = (description.text_at("PROFILE-NAME") or "").upper().removesuffix("M")
    if name not in _PROFILES:
        raise DatabaseError(f"its end-to-end profile is {name or 'not named'}: {', '.join(_PROFILES)} are read")
    profile = _PROFILES[name]
    ids = tuple(whole_number(each.text, "DATA-ID") for each in identifiers.children_at("DATA-IDS/DATA-ID"))
    shift = _bits(description, "UPPER-HEADER-BITS-TO-SHIFT", 0)
    if description.name == "E-2-E-PROFILE-CONFIGURATION":
        shift = _HEADER
    offset = _bits(description, "OFFSET", shift)
    return EndToEnd(
        profile=profile,
        offset=max(0, offset - shift) // 8,
        data_ids=ids if len(ids) == (16 if profile == 2 else 1) else (),
        data_id_mode=_MODES.get(description.text_at("DATA-ID-MODE") or "", "both"),
        covers_header=shift > 0,
    )


def _bits(element: ArxmlElement, name: str, otherwise: int) -> int:
    text = element.text_at(name)
    return otherwise if text is None else whole_number(text, name)
