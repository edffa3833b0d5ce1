"""The values of payloads, as the compiled decoder and the plain reference find them, in a shape that can be compared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pcaplake.signals.someip.description import PayloadMessage
from pcaplake.signals.someip.kernels import encoding
from pcaplake.signals.someip.payloads import DecodedPayloads, PayloadDecoder
from tests.signals.someip.reference import Payload, decode


def decode_all(message: PayloadMessage, payloads: list[bytes]) -> list[tuple[dict[str, tuple[Any, ...]], int]]:
    """path -> raw, value, label, valid, numbers; and the flags, of each payload, by the compiled decoder."""
    data = np.frombuffer(b"\xee" + b"".join(payloads), np.uint8)
    ends = 1 + np.cumsum([len(payload) for payload in payloads], dtype=np.int64)
    starts = np.concatenate([[1], ends[:-1]])
    headers = np.zeros((len(payloads), 8), np.uint8)
    decoded, flags = PayloadDecoder(message).decode_payloads(data, starts, ends, headers)
    found: list[tuple[dict[str, tuple[Any, ...]], int]] = [({}, int(flag)) for flag in flags]
    for part in decoded:
        collect(part, found)
    return found


def collect(part: DecodedPayloads, found: list[tuple[dict[str, tuple[Any, ...]], int]]) -> None:
    decoded, lists = part.values.decoded, part.values.lists
    for place, row in enumerate(part.rows.tolist()):
        path = part.paths[0 if part.path_of is None else part.path_of[place]]
        if path.startswith("E2E."):
            continue
        known = decoded.known is None or bool(decoded.known[place])
        label = decoded.labels[place] if decoded.labels is not None else -1
        value = (
            None if decoded.raw is None else int(decoded.raw[place]),
            plain(float(decoded.value[place])) if known else None,
            decoded.names[label] if label >= 0 else None,
            decoded.valid is None or bool(decoded.valid[place]),
            None if lists is None else tuple(map(plain, lists[1][lists[0][place] : lists[0][place + 1]].tolist())),
        )
        assert path not in found[row][0], "a payload has a value twice"
        found[row][0][path] = value


def plain(number: float) -> float | str:
    return "NaN" if math.isnan(number) else number


def by_reference(message: PayloadMessage, content: bytes) -> tuple[dict[str, tuple[Any, ...]], int]:
    payload = decode(message, content)
    return {
        value.path: (
            value.raw,
            None if value.number is None else plain(value.number),
            value.label,
            value.valid,
            None if value.numbers is None else tuple(map(plain, value.numbers)),
        )
        for value in payload.values
    }, flags_of(payload)


def flags_of(payload: Payload) -> int:
    return (
        encoding.SHORT * payload.short
        | encoding.LONG * payload.long
        | encoding.DAMAGED * payload.damaged
        | encoding.UNKNOWN * payload.unknown
    )
