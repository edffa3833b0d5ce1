"""Finds CAN identifiers that carry diagnostics (ISO-TP), XCP, network management, J1939 or CANopen.

ISO-TP (ISO 15765-2): all frames of an identifier have legal protocol control information, and responses (service id plus 0x40, or
0x7F) follow requests of the same service on another identifier. Identifiers of 29 bits such as 0x18DAxxxx say it themselves.
XCP (ASAM MCD-1 XCP, part 3): an identifier with commands only, among them CONNECT, and another one that answers them.
Network management (AUTOSAR SWS CANNetworkManagement): several identifiers that are the sum of one base and of the source node,
which is in the first or second byte of their frames.
J1939 (SAE J1939-71): identifiers of 29 bits with several of the groups that nearly every truck sends, and frames of 8 bytes.
CANopen (CiA 301): heartbeats, which are one byte with a state, name the nodes, and these the other identifiers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST_FRAMES = 1 << 20  # of a capture that are examined
LEAST_FRAMES, LEAST_SHARE = 3, 0.95
FD_SIZES = np.array(
    [8, 12, 16, 20, 24, 32, 48, 64]
)  # of frames of CAN FD; ISO 15765-2: a message has the least that fits
ANSWER_NS = 2_000_000_000  # a response is not later
EXTENDED = 1 << 31
FUNCTIONAL = 0x7DF  # ISO 15765-4: a request to all control units, to which none may have to respond
SERVICES = (*range(0x01, 0x0B), *range(0x10, 0x3F), *range(0x83, 0x89), 0xBA)  # service ids of requests
XCP_SHARE, MOST_BETWEEN = 0.8, 8  # commands that have an answer; answers of others between a command and its own
NEGATIVE, CONNECT, COMMAND, ANSWERS = 0x7F, 0xFF, 0xC0, (0xFF, 0xFE)
FIXED, FIXED_GROUP = (
    0x98DA,
    0x98DB,
)  # upper half of identifiers that contain the addresses, with the bit of extended ones
_RESERVED_CONTROL = 0x86
# groups of 8 bytes: ETC1, EEC2, EEC1, engine hours, CCVS1, ET1, ambient conditions, vehicle electrical power; the header of a BAM
J1939_GROUPS = (0xF002, 0xF003, 0xF004, 0xFEE5, 0xFEF1, 0xFEEE, 0xFEF5, 0xFEF7, 0xECFF)
LEAST_GROUPS, J1939_TRANSPORT = 3, (0xEB, 0xEC)  # PDU formats of its packets and of what announces them
NMT_STATES = (0x00, 0x04, 0x05, 0x7F)
CANOPEN_FUNCTIONS = (
    0x080,
    *range(0x180, 0x580, 0x80),
    0x580,
    0x600,
    0x700,
)  # of identifiers that are their sum with a node
HEARTBEATS = range(0x701, 0x780)
_IS_SERVICE = np.isin(np.arange(256), SERVICES)


@dataclass(slots=True)
class CanProposals:
    """What a profile could say.

    isotp       entry of `can.isotp` -> number of messages that tell
    protocols   identifier and protocol -> number of frames
    j1939       number of frames of groups of J1939
    """

    isotp: Counter[tuple[tuple[str, Any], ...]] = field(default_factory=Counter)
    protocols: Counter[tuple[int, str]] = field(default_factory=Counter)
    j1939: int = 0


class CanCandidates:
    """Keeps the first bytes of the frames of a capture."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Any]] = []
        self._frames = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows of the table `can_frames`."""
        if self._frames >= MOST_FRAMES:
            return
        wanted = pc.and_(pc.is_valid(batch.column("can_id")), pc.invert(batch.column("error")))
        wanted = pc.and_(wanted, pc.invert(pc.fill_null(batch.column("rtr"), False)))
        batch = batch.select(["ts_ns", "can_id", "extended", "bus", "payload"]).filter(pc.fill_null(wanted, False))
        payload = batch.column("payload")
        sizes = pc.binary_length(payload).to_numpy(zero_copy_only=False).astype(np.int64)
        _, offsets, values = payload.buffers()
        starts = np.frombuffer(offsets, np.int32)[payload.offset : payload.offset + len(payload)].astype(np.int64)
        data = np.frombuffer(values, np.uint8) if values and values.size else np.zeros(1, np.uint8)
        heads = [np.where(sizes > i, data[np.minimum(starts + i, len(data) - 1)], 0).astype(np.int64) for i in range(3)]
        extended = batch.column("extended").to_numpy(zero_copy_only=False).astype(np.int64)
        ids = batch.column("can_id").cast(pa.int64()).to_numpy(zero_copy_only=False) | extended * EXTENDED
        times = pc.fill_null(batch.column("ts_ns"), 0).to_numpy(zero_copy_only=False)
        self._frames += len(ids)
        self._parts.append({"id": ids, "size": sizes, "time": times, "heads": np.array(heads)})

    def find(self) -> CanProposals:
        """What the frames so far look like."""
        found = self.find_fieldbus()
        if self._frames:
            self._find_isotp(found)
            self._find_xcp(found)
            self._find_network_management(found)
        return found

    def find_fieldbus(self) -> CanProposals:
        """What the frames so far look like, of J1939 and CANopen alone."""
        found = CanProposals()
        if self._frames:
            self._ids, self._sizes, self._times = (
                np.concatenate([part[name] for part in self._parts]) for name in ("id", "size", "time")
            )
            self._heads = np.concatenate([part["heads"] for part in self._parts], axis=1)
            known, self._code = np.unique(self._ids, return_inverse=True)
            self._known = known
            self._count = np.bincount(self._code)
            found.j1939 = self._count_j1939()
            self._find_canopen(found)
        return found

    def _ids_where(self, holds: Any, share: float = LEAST_SHARE) -> Any:
        """The codes of identifiers of which this share of frames holds."""
        fits = np.bincount(self._code, holds, len(self._known))
        return np.flatnonzero((fits >= share * self._count) & (self._count > 0))

    # -- ISO-TP -------------------------------------------------------------------------------------------------------
    def _find_isotp(self, found: CanProposals) -> None:
        first, second, third = self._heads
        low, kind = first & 15, first >> 4
        single = (kind == 0) & (low >= 1) & (low <= 7) & (self._sizes > low)
        fitting = FD_SIZES[np.minimum(np.searchsorted(FD_SIZES, second + 2), len(FD_SIZES) - 1)]
        long_single = (first == 0) & (second > 6) & (self._sizes == fitting)
        beginning = (kind == 1) & ((low << 8 | second) >= 8) & (self._sizes >= 8)
        escaped = (first == 0x10) & (second == 0) & (third == 0) & (self._sizes >= 8)  # the length has 32 bits
        legal = (
            single | long_single | beginning | escaped | (kind == 2) | ((kind == 3) & (low <= 2) & (self._sizes >= 3))
        )
        service = np.where(single, second, np.where(long_single | beginning, third, -1))
        # packets of transport protocol of J1939 are numbered from 1, as the lengths of single frames are
        legal &= (self._ids < EXTENDED) | ~np.isin(self._ids >> 16 & 0xFF, J1939_TRANSPORT)
        able = np.isin(self._code, self._ids_where(legal))
        says = able & (service >= 0)
        asks = says & _IS_SERVICE[np.maximum(service, 0)]
        answers = says & ((service == NEGATIVE) | (_IS_SERVICE[np.maximum(service - 0x40, 0)] & (service >= 0x40)))
        pairs: Counter[tuple[int, int]] = Counter()
        open_: dict[int, tuple[int, int]] = {}  # service -> identifier of the last request and its time
        for i in np.flatnonzero(asks | answers).tolist():
            identifier, time = int(self._ids[i]), int(self._times[i])
            if asks[i]:
                open_[int(service[i])] = identifier, time
                continue
            asked = int(third[i]) if service[i] == NEGATIVE else int(service[i]) - 0x40
            request = open_.get(asked)
            if request is not None and request[0] != identifier and 0 <= time - request[1] <= ANSWER_NS:
                pairs[request[0], identifier] += 1
        self._propose_pairs(pairs, found)
        group = (("request", FUNCTIONAL),)
        if pairs and group not in found.isotp and (count := int((asks & (self._ids == FUNCTIONAL)).sum())):
            found.isotp[group] += count

    @staticmethod
    def _propose_pairs(pairs: Counter[tuple[int, int]], found: CanProposals) -> None:
        """An identifier whose requests several others answer is that of a group. All others have one response."""
        best: dict[int, tuple[int, int]] = {}  # response -> count and request
        answered: dict[int, set[int]] = defaultdict(set)
        for request, response in pairs:
            answered[request].add(response)
        groups = {request for request, responses in answered.items() if len(responses) > 1}
        for (request, response), count in sorted(pairs.items()):
            if _is_fixed_pair(request, response):
                found.isotp[("addressing", "normal_fixed"), ("tester", request & 0xFF)] += count
            elif request not in groups and request >> 16 != FIXED_GROUP:
                best[response] = max(best.get(response, (0, 0)), (count, request))
        for response, (count, request) in best.items():
            found.isotp[("request", request), ("response", response)] += count
        for group in groups:
            if group >> 16 != FIXED_GROUP:
                found.isotp[(("request", group),)] += sum(n for (request, _), n in pairs.items() if request == group)

    # -- XCP ----------------------------------------------------------------------------------------------------------
    def _find_xcp(self, found: CanProposals) -> None:
        first, second, _ = self._heads
        connects = (first == CONNECT) & (second <= 1) & (self._sizes >= 2)
        masters = set(self._ids_where(first >= COMMAND, 1.0).tolist()) & set(self._code[connects].tolist())
        answering = np.flatnonzero(np.isin(first, ANSWERS))
        for code in masters:
            asked = np.flatnonzero(self._code == code)
            slaves: Counter[int] = Counter()
            for i in asked.tolist():
                for j in answering[np.searchsorted(answering, i) :][:MOST_BETWEEN].tolist():
                    if self._code[j] != code and 0 <= self._times[j] - self._times[i] <= ANSWER_NS:
                        slaves[int(self._code[j])] += 1
                        break
            if not slaves:
                continue
            slave, answered = slaves.most_common(1)[0]
            # each command has one answer, so identifiers with bytes that only look like answers have too many, or too few
            answers = int((self._code[answering] == slave).sum())
            if min(answered, answers) >= XCP_SHARE * len(asked) and XCP_SHARE * answers <= len(asked) >= LEAST_FRAMES:
                found.protocols[int(self._known[code]), "xcp_master"] += len(asked)
                found.protocols[int(self._known[slave]), "xcp_slave"] += int(self._count[slave])

    # -- network management -------------------------------------------------------------------------------------------
    def _find_network_management(self, found: CanProposals) -> None:
        """Identifiers that are the sum of a base, which they share, and of their node."""
        for name, place in (("nm", 1), ("nm_node_first", 0)):
            node, control = self._heads[place], self._heads[1 - place]
            bases = (self._ids - node).astype(np.int64)
            first = np.zeros(len(self._known), np.int64)
            first[self._code[::-1]] = bases[::-1]  # of each identifier the base in its first frame
            fits = (
                (bases == first[self._code])
                & (bases & 0xF == 0)
                & (control & _RESERVED_CONTROL == 0)
                & (self._sizes >= 2)
            )
            by_base: dict[int, list[int]] = defaultdict(list)
            for code in self._ids_where(fits, 1.0).tolist():
                if self._count[code] >= LEAST_FRAMES:
                    by_base[int(first[code])].append(code)
            for codes in by_base.values():
                for code in codes if len(codes) > 1 else ():
                    found.protocols[int(self._known[code]), name] += int(self._count[code])

    # -- J1939 --------------------------------------------------------------------------------------------------------
    def _count_j1939(self) -> int:
        """Frames of well-known groups, if there are several of these. Data page 0, of any priority."""
        known, groups = self._known.astype(np.int64), self._known >> 8 & 0xFFFF
        told = (known >= EXTENDED) & (known >> 24 & 3 == 0) & np.isin(groups, J1939_GROUPS)
        told &= np.bincount(self._code, self._sizes == 8) == self._count
        return int(self._count[told].sum()) if len(np.unique(groups[told])) >= LEAST_GROUPS else 0

    # -- CANopen ------------------------------------------------------------------------------------------------------
    def _find_canopen(self, found: CanProposals) -> None:
        beats = (self._sizes == 1) & np.isin(self._heads[0], NMT_STATES)
        count = dict(zip(self._known.tolist(), self._count.tolist(), strict=True))
        for code in self._ids_where(beats, 1.0).tolist():
            identifier = int(self._known[code])
            if identifier not in HEARTBEATS or count[identifier] < LEAST_FRAMES:
                continue
            for function in CANOPEN_FUNCTIONS:
                other = function + identifier - 0x700
                if other in count:
                    found.protocols[other, "canopen"] = count[other]


def identifier_text(word: int) -> str:
    """An identifier as profiles have it."""
    return f"0x{word & ~EXTENDED:08X}" if word & EXTENDED else f"0x{word:03X}"


def _is_fixed_pair(request: int, response: int) -> bool:
    """Whether both contain the same two addresses, the other way round; or the request is one to a group."""
    if response >> 16 != FIXED or request >> 16 not in (FIXED, FIXED_GROUP) or request & 0xFF != response >> 8 & 0xFF:
        return False
    return request >> 16 == FIXED_GROUP or request >> 8 & 0xFF == response & 0xFF
