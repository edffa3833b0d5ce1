"""The list of all layers and rows that the parser knows. A new protocol adds its module's `LAYERS` and `ROWS` here."""

from __future__ import annotations

from . import can, caneth, containers, control, ethernet, flexray, lin, macsec, packets, someip, tecmp

LAYERS = (
    *containers.LAYERS,
    *ethernet.LAYERS,
    *control.LAYERS,
    *macsec.LAYERS,
    *can.LAYERS,
    *lin.LAYERS,
    *flexray.LAYERS,
    *tecmp.LAYERS,
    *caneth.LAYERS,
    *someip.LAYERS,
)
ROWS = (*packets.ROWS, *can.ROWS, *lin.ROWS, *flexray.ROWS, *tecmp.ROWS, *caneth.ROWS, *someip.ROWS)

# protocols that a profile can assign to a port
PORT_PROTOCOLS = {"someip": someip.SOMEIP}

# keys that a profile can give to another layer: setting -> value -> claims
CAN_IDENTIFIERS = {"big-endian": (), "little-endian": (can.LITTLE_ENDIAN_IDENTIFIERS,)}
