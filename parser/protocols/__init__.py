"""The explicit list: every layer and every table row that the parser knows. A new protocol is one file and two words here."""

from __future__ import annotations

from . import can, containers, ethernet, packets, someip, tecmp

LAYERS = (*containers.LAYERS, *ethernet.LAYERS, *can.LAYERS, *tecmp.LAYERS, *someip.LAYERS)
ROWS = (*packets.ROWS, *can.ROWS, *tecmp.ROWS, *someip.ROWS)

# what a profile may put on a port
PORT_PROTOCOLS = {"someip": someip.SOMEIP}
