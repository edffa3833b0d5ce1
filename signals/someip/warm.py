"""Decodes two payloads, so that each kernel is compiled for the types that it gets."""

from __future__ import annotations

import numpy as np

from .description import Array, BaseType, Dimension, EndToEnd, Member, PayloadMessage, Struct
from .payloads import PayloadDecoder

_ELEMENTS = 1500  # more than the first table of instances holds


def compile_payload_kernels() -> None:
    """Call every kernel of SOME/IP payloads. Compiling takes some seconds; loading from disk takes a moment."""
    number = BaseType(name="number", coding="uint", bits=8)
    element = Struct(name="element", members=(Member(name="number", type=number),))
    numbers = Array(name="numbers", element=element, dimensions=(Dimension(length_bits=16),))
    message = PayloadMessage(
        service_id=1,
        method_id=1,
        message_type=2,
        interface_version=1,
        service="warm",
        method="warm",
        parameters=Struct(name="parameters", members=(Member(name="numbers", type=numbers),)),
        e2e=EndToEnd(profile=4),
    )
    payload = bytes(12) + _ELEMENTS.to_bytes(2, "big") + bytes(_ELEMENTS)
    data = np.frombuffer(payload, np.uint8)
    PayloadDecoder(message).decode_payloads(
        data, np.zeros(1, np.int64), np.array([len(data)], np.int64), np.zeros((1, 8), np.uint8)
    )
