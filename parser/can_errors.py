"""What a CAN error frame says: its columns `error_class` and `payload` (linux/can/error.h)."""

from __future__ import annotations

from dataclasses import dataclass

CLASSES = (
    "transmit_timeout",
    "lost_arbitration",
    "controller",
    "protocol",
    "transceiver",
    "no_acknowledgment",
    "bus_off",
    "bus_error",
    "restarted",
    "counters",
)
_LOST_ARBITRATION, _CONTROLLER, _PROTOCOL, _TRANSCEIVER, _COUNTERS = 0x02, 0x04, 0x08, 0x10, 0x200
CONTROLLER = (
    "receive_overflow",
    "transmit_overflow",
    "receive_warning",
    "transmit_warning",
    "receive_passive",
    "transmit_passive",
    "active",
)
PROTOCOL = ("bit", "form", "stuff", "dominant_bit", "recessive_bit", "overload", "active", "transmission")
LOCATIONS = {
    0x02: "id_28_to_21",
    0x03: "start_of_frame",
    0x04: "substitute_rtr",
    0x05: "identifier_extension",
    0x06: "id_20_to_18",
    0x07: "id_17_to_13",
    0x08: "crc_sequence",
    0x09: "reserved_bit_0",
    0x0A: "data",
    0x0B: "data_length_code",
    0x0C: "rtr",
    0x0D: "reserved_bit_1",
    0x0E: "id_4_to_0",
    0x0F: "id_12_to_5",
    0x12: "intermission",
    0x18: "crc_delimiter",
    0x19: "acknowledgment_slot",
    0x1A: "end_of_frame",
    0x1B: "acknowledgment_delimiter",
}
_WIRE = {4: "no_wire", 5: "short_to_battery", 6: "short_to_vcc", 7: "short_to_ground"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CanError:
    """The parts of a CAN error frame; a part whose class is not set is empty or None.

    classes                  names of `CLASSES`, whose bit n is name n
    lost_arbitration_bit     number of the bit, 0 if the controller does not know it
    controller, protocol     names of `CONTROLLER` and `PROTOCOL`
    location                 part of the frame that has the protocol error, one of `LOCATIONS`
    can_high, can_low        state of each wire: `no_wire`, `short_to_battery`, `short_to_vcc`, `short_to_ground` or, of
                             can_low, `short_to_can_high`
    transmit_errors, receive_errors   error counters of the controller
    """

    classes: tuple[str, ...]
    lost_arbitration_bit: int | None = None
    controller: tuple[str, ...] = ()
    protocol: tuple[str, ...] = ()
    location: str | None = None
    can_high: str | None = None
    can_low: str | None = None
    transmit_errors: int | None = None
    receive_errors: int | None = None


def decode_can_error(error_class: int, payload: bytes) -> CanError:
    """The error that a row of `can_frames` with `error` true reports. Bytes that `payload` lacks count as 0."""
    data = payload[:8].ljust(8, b"\0")
    has_protocol, has_transceiver = error_class & _PROTOCOL, error_class & _TRANSCEIVER
    has_counters = error_class & _COUNTERS
    high, low = data[4] & 15, data[4] >> 4
    return CanError(
        classes=_names(CLASSES, error_class),
        lost_arbitration_bit=data[0] if error_class & _LOST_ARBITRATION else None,
        controller=_names(CONTROLLER, data[1]) if error_class & _CONTROLLER else (),
        protocol=_names(PROTOCOL, data[2]) if has_protocol else (),
        location=LOCATIONS.get(data[3]) if has_protocol else None,
        can_high=_WIRE.get(high) if has_transceiver else None,
        can_low=(_WIRE.get(low) if low != 8 else "short_to_can_high") if has_transceiver else None,
        transmit_errors=data[6] if has_counters else None,
        receive_errors=data[7] if has_counters else None,
    )


def _names(names: tuple[str, ...], bits: int) -> tuple[str, ...]:
    return tuple(name for n, name in enumerate(names) if bits >> n & 1)
