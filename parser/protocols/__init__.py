"""The list of all layers and rows that the parser knows. A new protocol adds its module's `LAYERS` and `ROWS` here."""

from __future__ import annotations

from . import can, containers, ethernet, packets, someip, tecmp

LAYERS = (*containers.LAYERS, *ethernet.LAYERS, *can.LAYERS, *tecmp.LAYERS, *someip.LAYERS)
ROWS = (*packets.ROWS, *can.ROWS, *tecmp.ROWS, *someip.ROWS)

# protocols that a profile can assign to a port
PORT_PROTOCOLS = {"someip": someip.SOMEIP}
