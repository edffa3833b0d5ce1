"""The headers of end-to-end protection: their fields as members of a message, and whether the CRC is right.

Layout: AUTOSAR PRS_E2EProtocol R22-11, profiles 1, 2, 4, 5, 6 and 7; checksums: SWS_CRCLibrary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pcaplake.signals.compiled_signal import Bools, Bytes, Ints, Words

from .description import E2E_PATH, BaseType, Bitfield, Bits, EndToEnd
from .kernels.checksums import compute_checksums
from .program import FixedMember, Leaf


@dataclass(frozen=True, slots=True)
class _Checksum:
    """A CRC as catalogues of CRCs describe it; `at`: its byte in the header; `little`: its byte order."""

    bits: int
    polynomial: int
    initial: int
    final: int
    reflected: bool
    at: int
    little: bool = False

    @property
    def table(self) -> Words:
        return np.array([self._entry(byte) for byte in range(256)], np.uint64)

    def _entry(self, byte: int) -> int:
        if self.reflected:
            polynomial = int(f"{self.polynomial:0{self.bits}b}"[::-1], 2)
            for _ in range(8):
                byte = byte >> 1 ^ (polynomial if byte & 1 else 0)
            return byte
        byte <<= 56
        for _ in range(8):
            byte = (byte << 1 ^ (self.polynomial << 64 - self.bits if byte >> 63 else 0)) & (1 << 64) - 1
        return byte

    @property
    def shift(self) -> int:
        """Where the lowest bit is while it is computed."""
        return 0 if self.reflected else 64 - self.bits


_CHECKSUMS: Final = {
    1: _Checksum(8, 0x1D, 0x00, 0x00, False, at=0),
    2: _Checksum(8, 0x2F, 0xFF, 0xFF, False, at=0),
    4: _Checksum(32, 0xF4ACFB13, 0xFFFFFFFF, 0xFFFFFFFF, True, at=8),
    5: _Checksum(16, 0x1021, 0xFFFF, 0x0000, False, at=0, little=True),
    6: _Checksum(16, 0x1021, 0xFFFF, 0x0000, False, at=0),
    7: _Checksum(64, 0x42F0E1EBA9EA3693, (1 << 64) - 1, (1 << 64) - 1, True, at=0),
}
_FIELDS: Final = {  # name, byte, bits; the CRC is above, counters of 4 bits below
    1: (),
    2: (),
    4: (("length", 0, 16), ("counter", 2, 16), ("data_id", 4, 32)),
    5: (("counter", 2, 8),),
    6: (("length", 2, 16), ("counter", 4, 8)),
    7: (("length", 8, 32), ("counter", 12, 32), ("data_id", 16, 32)),
}


def find_header_members(e2e: EndToEnd) -> list[FixedMember]:
    """The fields of the header; the CRC is the first."""
    checksum = _CHECKSUMS[e2e.profile]
    number = BaseType(name="crc", coding="uint", bits=checksum.bits, big_endian=not checksum.little)
    members = [FixedMember(Leaf(f"{E2E_PATH}.crc", number), (), e2e.offset + checksum.at)]
    for name, at, bits in _FIELDS[e2e.profile]:
        field = BaseType(name=name, coding="uint", bits=bits)
        members.append(FixedMember(Leaf(f"{E2E_PATH}.{name}", field), (), e2e.offset + at))
    if e2e.profile in (1, 2):
        parts = [Bits(name="counter", bit=0, bits=4)]
        if e2e.profile == 1 and e2e.data_id_mode == "nibble":
            parts.append(Bits(name="data_id_nibble", bit=4, bits=4))
        byte = BaseType(name="counter", coding="uint", bits=8)
        leaf = Leaf(E2E_PATH, Bitfield(name=E2E_PATH, base=byte, members=tuple(parts)))
        members.append(FixedMember(leaf, (), e2e.offset + 1))
    return members


def check_checksums(e2e: EndToEnd, data: Bytes, starts: Ints, ends: Ints, headers: Bytes) -> Bools | None:
    """Whether the CRC of each payload is right; None if it cannot be known without data ids.

    `data`: all payloads; each has the whole CRC. `headers`: uint8 of shape (payloads, 8), the SOME/IP header from
    the client id on.
    """
    profile = e2e.profile
    if not e2e.data_ids and profile not in (4, 7):  # these two carry their data id
        return None
    checksum = _CHECKSUMS[profile]
    covered = headers if e2e.covers_header else headers[:, :0]
    before, after = covered, headers[:, :0]
    counters: Bytes = data[np.minimum(starts + e2e.offset + 1, ends - 1)] & np.uint8(15)
    if profile == 1:
        before = np.hstack([_data_id_of_profile_1(e2e, counters), covered])
    elif profile == 2:
        after = np.array(e2e.data_ids, np.uint8)[counters][:, None]
    elif profile in (5, 6):
        low_high = [e2e.data_ids[0] & 255, e2e.data_ids[0] >> 8]
        after = np.tile(np.array(low_high if profile == 5 else low_high[::-1], np.uint8), (len(starts), 1))
    found: NDArray[np.uint64] = np.empty(len(starts), np.uint64)
    size = checksum.bits // 8
    compute_checksums(
        data,
        starts,
        ends,
        np.ascontiguousarray(before),
        np.ascontiguousarray(after),
        e2e.offset + checksum.at,
        size,
        checksum.table,
        checksum.reflected,
        np.array([checksum.initial << checksum.shift], np.uint64),
        found,
    )
    found = (found >> np.uint64(checksum.shift)) ^ np.uint64(checksum.final)
    at = starts + e2e.offset + checksum.at
    right: Bools = np.ones(len(starts), np.bool_)
    for place in range(size):
        shift = 8 * (place if checksum.little else size - 1 - place)
        right &= data[at + place] == ((found >> np.uint64(shift)) & np.uint64(255))
    # rule: the data id in the header is that of the message
    if e2e.data_ids and profile in (4, 7):
        at = starts + e2e.offset + {4: 4, 7: 16}[profile]
        for place in range(4):
            right &= data[np.minimum(at + place, ends - 1)] == (e2e.data_ids[0] >> 8 * (3 - place) & 255)
    return right


def _data_id_of_profile_1(e2e: EndToEnd, counters: NDArray[np.uint8]) -> Bytes:
    low, high = np.uint8(e2e.data_ids[0] & 255), np.uint8(e2e.data_ids[0] >> 8)
    if e2e.data_id_mode == "both":
        return np.tile(np.array([low, high], np.uint8), (len(counters), 1))
    if e2e.data_id_mode == "alternating":
        return np.where(counters % 2 == 0, low, high).astype(np.uint8)[:, None]
    if e2e.data_id_mode == "low":
        return np.full((len(counters), 1), low, np.uint8)
    return np.tile(np.array([low, 0], np.uint8), (len(counters), 1))  # the high nibble is in the header
