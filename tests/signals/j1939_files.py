"""DBC files of J1939 messages."""

from __future__ import annotations

ANY, ENGINE, TRANSMISSION, TO_ONE = 0x18FEF1FE, 0x0CF00400, 0x0CF00403, 0x0C00FEFE
FORMATS = '"StandardCAN","ExtendedCAN","reserved","J1939PG"'


def dbc(*messages: tuple[str, int], more: str = "", formats: bool = True) -> str:
    attributes = (
        f'BA_DEF_ BO_ "VFrameFormat" ENUM {FORMATS};\nBA_DEF_DEF_ "VFrameFormat" "J1939PG";\n' if formats else ""
    )
    body = "".join(
        f'BO_ {0x80000000 | can_id} {name}: 8 Vector__XXX\n SG_ {name}Value : 0|16@1+ (0.5,-10) [0|0] "rpm" Vector__XXX\n'
        for name, can_id in messages
    )
    return f'VERSION ""\nBU_:\n{body}{attributes}{more}'
