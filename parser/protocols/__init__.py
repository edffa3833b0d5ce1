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

# what is put together from several packets; a kind comes after those that carry its pieces
REASSEMBLIES = (*ethernet.REASSEMBLIES, *someip.REASSEMBLIES)

# protocols that a profile can assign to a port, and the layer that finds them there
UDP_PROTOCOLS = {"someip": someip.SOMEIP}
TCP_PROTOCOLS = {"someip": someip.SOMEIP_TCP_SEGMENT}

# keys that a profile can give to another layer: setting -> value -> claims
CAN_IDENTIFIERS = {"big-endian": (), "little-endian": (can.LITTLE_ENDIAN_IDENTIFIERS,)}
