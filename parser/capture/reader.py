"""A capture file as Arrow batches: format, sections and interfaces are read here, packets by the decoder.

It reads in chunks and carries the cut last record over, so memory does not grow with the file. Whatever is wrong in the
file becomes a fault with its offset; only bytes that are no capture at all raise `CaptureError`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import kernels as k
from . import protocols
from .batch import Formatter
from .decoder import Decoder
from .errors import CaptureError
from .memory import SLACK
from .pcapng import Blocks, Interface, Steps
from .profile import Profile
from .program import Program
from .protocols import containers
from .protocols.ethernet import TCP_PORT, UDP_PORT
from .stream import Stream, require
from .tables import TABLES

CHUNK = 8 << 20
Batches = Iterator[tuple[str, pa.RecordBatch]]
PCAP_MAGICS = {  # as the first four bytes -> byte order, units of ns, record layers
    b"\xd4\xc3\xb2\xa1": ("<", 1000, containers.PCAP),
    b"\xa1\xb2\xc3\xd4": (">", 1000, containers.PCAP),
    b"\x4d\x3c\xb2\xa1": ("<", 1, containers.PCAP),
    b"\xa1\xb2\x3c\x4d": (">", 1, containers.PCAP),
    b"\x34\xcd\xb2\xa1": ("<", 1000, containers.MODIFIED_PCAP),
    b"\xa1\xb2\xcd\x34": (">", 1000, containers.MODIFIED_PCAP),
}
PCAPNG_MAGIC = b"\x0a\x0d\x0d\x0a"
# tables that packets give; `captures` and `quarantine` are written by whoever reads the capture
DECODED = tuple(name for name in TABLES if name not in ("captures", "quarantine"))
RAW = "raw"
RAW_BYTES, MAX_REGIONS = 4096, 64  # of an unreadable region; of a capture


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Bytes that could not be read: offset and length in the unpacked capture (-1: to its end), the first 4 KB."""

    offset: int
    length: int
    raw: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a capture was, once it has been read; times in ns since 1970, sizes in bytes."""

    format: str
    compression: str | None
    sections: int
    interfaces: tuple[Interface, ...]
    link_types: tuple[int, ...]
    packets: int
    bytes: int
    first_ts_ns: int | None
    last_ts_ns: int | None
    truncated: bool
    faults: Mapping[str, int]
    rows: Mapping[str, int]
    regions: tuple[Region, ...]


_PROGRAMS: dict[Any, Program] = {}


def program_for(profile: Profile, tables: Sequence[str], *, raw: bool) -> Program:
    """The compiled program of a profile and a choice of tables; compiled once and kept."""
    key = (tuple(sorted(profile.udp_ports.items())), tuple(sorted(profile.tcp_ports.items())), tuple(tables), raw)
    if key not in _PROGRAMS:
        claims = [
            (space[port], protocols.PORT_PROTOCOLS[name])
            for space, ports in ((UDP_PORT, profile.udp_ports), (TCP_PORT, profile.tcp_ports))
            for port, name in ports.items()
        ]
        rows = [r for r in protocols.ROWS if r.table in tables]
        if len(_PROGRAMS) > 64:
            _PROGRAMS.clear()
        _PROGRAMS[key] = Program(protocols.LAYERS, rows, claims=claims)
    return _PROGRAMS[key]


class Capture:
    """One capture, read once. Iterate `batches()`; `summary` is there when they have ended."""

    def __init__(
        self,
        file: BinaryIO,
        *,
        tables: Sequence[str],
        columns: Sequence[str] | None,
        profile: Profile,
        start_ns: int | None,
        end_ns: int | None,
        capture_id: str,
        vehicle_id: str | None,
        raw: bool,
        chunk_bytes: int,
        batch_rows: int,
    ) -> None:
        self._file, self.profile = file, profile
        self._range = (start_ns, end_ns)
        self._chunk = max(chunk_bytes, 2 * k.LONGEST)
        wanted = {name: _wanted(name, columns, timed=self._range != (None, None), raw=raw) for name in tables}
        self._columns = columns
        program = program_for(profile, [t for t in tables if t != "faults"], raw=raw)
        formatters: dict[str, Formatter] = {
            "interface": lambda high, low: self.interfaces[low].bus or "",
            "interface_names": lambda high, low: self.interfaces[low].name or str(self.interfaces[low].id),
            "tecmp": lambda high, low: profile.tecmp_buses.get(low, str(low)),
        }
        names = {"capture_id": capture_id, "vehicle_id": vehicle_id}
        self.decoder = Decoder(program, wanted, names, formatters, batch_rows=batch_rows)
        self.interfaces: list[Interface] = []
        self.regions: list[Region] = []
        self.truncated = False
        self.base = 0  # offset of the buffer in the unpacked capture
        self.summary: Summary | None = None
        self._stream = Stream(file)
        self._head = bytearray(24)
        n = self._stream.fill(memoryview(self._head))
        self._head = self._head[:n]
        self._open()

    def _open(self) -> None:
        head = bytes(self._head)
        require(head)
        magic = head[:4]
        if magic == PCAPNG_MAGIC:
            self.format = "pcapng"
            if len(head) < 12:
                raise CaptureError("truncated", f"a pcapng section header needs 28 bytes, {len(head)} are there")
            return
        if magic not in PCAP_MAGICS:
            hint = self._stream.broken or "pcap, pcapng, or one of them as gzip, zstd or lz4, is needed"
            raise CaptureError("unknown_format", f"it starts with {magic.hex() or 'nothing'}; {hint}")
        if len(head) < 24:
            raise CaptureError("truncated", f"a pcap header needs 24 bytes, {len(head)} are there")
        self.format = "pcap"
        order, unit, layers = PCAP_MAGICS[magic]
        snaplen, network = struct.unpack(order + "II", head[16:24])
        link_type = network & 0xFFFF
        # draft-ietf-opsawg-pcap: bit 26 says that the top four bits hold the FCS length
        fcs = network >> 28 if network >> 26 & 1 else 0
        resolution = 6 if unit == 1000 else 9
        interface = Interface(
            id=0, name=None, link_type=link_type, resolution=resolution, snaplen=snaplen, fcs=fcs, bus=None
        )
        self.interfaces.append(interface)
        d = self.decoder
        d.clocks[0] = interface.clock(number=-1, mode=k.SECONDS_AND_PARTS, factor=unit)
        d.state[k.INTERFACES] = 1
        d.claim_interface(0, link_type)
        self._root = layers[order]

    # -- reading --------------------------------------------------------------------------------------------------
    def batches(self) -> Batches:
        """(table, batch) as they fill up: in the order of the capture within each table."""
        if self.summary is not None or self._stream is None:
            raise ValueError("a capture is read once: open it again")
        blocks = Blocks(self) if self.format == "pcapng" else None
        stream, buffer = self._stream, np.empty(self._chunk + SLACK, np.uint8)
        view = memoryview(buffer.data).cast("B")
        held = len(self._head) if blocks is not None else 0
        self.base = 0 if blocks is not None else 24
        buffer[:held] = np.frombuffer(bytes(self._head[:held]), np.uint8)
        ended = False
        while not ended:
            end = held + stream.fill(view[held : self._chunk])
            ended = end < self._chunk
            if blocks is not None:
                position = yield from self._select(blocks.decode(buffer, end, ended))
            else:
                position = yield from self._select(self._records(buffer, end, ended))
                ended = ended or position < 0
            position = end if position < 0 else position
            held = end - position
            buffer[:held] = buffer[position:end].copy()
            self.base += position
        if stream.broken is not None:
            self.truncated = True
            self.decoder.fault("capture", "broken_compression", self.base + held)
        yield from self._select(self.decoder.finish())
        self.summary = self._summarise(blocks.sections if blocks is not None else 1)

    def _records(self, buffer: Any, end: int, ended: bool) -> Steps:
        """pcap: nothing marks the next record, so after a lie about a length the rest is not guessed at."""
        d = self.decoder
        yield from d.feed(buffer, 0, end, self._root, self.base)
        at = d.position
        if d.status == k.BROKEN:
            self.lost_region(self.base + at, -1, buffer[at : min(at + RAW_BYTES, end)].tobytes())
            return -1
        if ended and at < end:
            self.cut_off(at, end)
        return at

    def cut_off(self, at: int, end: int) -> None:
        """The file ends inside the record at `at`."""
        self.truncated = True
        self.decoder.fault("capture", "truncated", self.base + at, have=end - at)

    def lost_region(self, offset: int, length: int, raw: bytes) -> None:
        """A region of the file cannot be read (length -1: all the rest); one fault, its first bytes for the quarantine."""
        self.decoder.fault("capture", "unreadable", offset, have=length)
        if len(self.regions) < MAX_REGIONS:
            self.regions.append(Region(offset=offset, length=length, raw=raw))

    def _select(self, batches: Steps | Batches) -> Generator[tuple[str, pa.RecordBatch], None, Any]:
        """The rows of the wanted time range, the wanted columns."""
        start, end = self._range
        while True:
            try:
                table, batch = next(batches)
            except StopIteration as stop:
                return stop.value
            if start is not None or end is not None:
                times = batch.column("ts_ns")
                mask = pc.is_valid(times)
                if start is not None:
                    mask = pc.and_(mask, pc.greater_equal(times, start))
                if end is not None:
                    mask = pc.and_(mask, pc.less(times, end))
                batch = batch.filter(mask)
                if "ts_ns" not in (self._columns or ("ts_ns",)):
                    batch = batch.drop_columns(["ts_ns"])
            if batch.num_rows:
                yield table, batch
            del batch  # its memory is the next one's

    def _summarise(self, sections: int) -> Summary:
        d = self.decoder
        return Summary(
            format=self.format,
            compression=self._stream.compression,
            sections=sections,
            interfaces=tuple(self.interfaces),
            link_types=tuple(sorted({i.link_type for i in self.interfaces})),
            packets=d.packets,
            bytes=d.bytes,
            first_ts_ns=d.first_ns,
            last_ts_ns=d.last_ns,
            truncated=self.truncated,
            faults=dict(d.faults),
            rows=dict(d.rows),
            regions=tuple(self.regions),
        )

    def reader(self) -> pa.RecordBatchReader:
        """All batches of the one chosen table as a `pa.RecordBatchReader` (plain strings, one schema)."""
        if len(self.decoder.tables) != 1:
            raise ValueError(
                f"choose one table: open_capture(..., table=...); there are {', '.join(self.decoder.tables)}"
            )
        ((name, wanted),) = self.decoder.tables.items()
        chosen = [c for c in wanted if self._columns is None or c in self._columns]
        schema = pa.schema([TABLES[name].schema.field(c) for c in chosen])
        return pa.RecordBatchReader.from_batches(schema, (batch.cast(schema) for _, batch in self.batches()))

    def read(self) -> pa.Table:
        """All rows of the one chosen table."""
        return self.reader().read_all()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _wanted(table: str, columns: Sequence[str] | None, *, timed: bool, raw: bool) -> list[str]:
    known = TABLES[table].columns
    if columns is None:
        return [c for c in known if c != RAW or raw]
    if unknown := [c for c in columns if c not in known]:
        raise ValueError(f"{table} has no column {unknown[0]!r}; it has {', '.join(known)}")
    return [c for c in known if c in columns or (timed and c == "ts_ns")]


def is_capture(file: BinaryIO) -> bool:
    """Whether the first bytes (of what is inside, when they are packed) are those of a pcap or pcapng capture."""
    head = bytearray(4)
    Stream(file).fill(memoryview(head))
    return bytes(head) in (PCAPNG_MAGIC, *PCAP_MAGICS)


def open_capture(
    source: str | Path | BinaryIO,
    table: str | None = None,
    *,
    tables: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    profile: Profile | str | Path | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    capture_id: str | None = None,
    vehicle_id: str | None = None,
    uri: str | None = None,
    raw: bool = False,
    chunk_bytes: int = CHUNK,
    batch_rows: int = 131_072,
) -> Capture:
    """Open a pcap or pcapng capture (also gzip, zstd or lz4 of one) for reading as Arrow batches.

    source      a path, or a binary file object that is read from its position on
    table       one table of `parser.tables.TABLES`, or `tables` for several; all decoded tables without either
    columns     the wanted columns of the one table; all but `raw` by default, `raw=True` adds the packets' bytes
    profile     a `Profile`, or the path of a YAML file: ports, bus names, vehicle id
    start_ns, end_ns   only rows with start_ns <= ts_ns < end_ns
    capture_id, vehicle_id, uri   what the key columns say; by default from the path and the profile

    Raises `CaptureError` when the bytes are no capture, `ProfileError` for a wrong profile, `OSError` as `open` does.
    """
    names = [table] if table is not None else list(tables) if tables is not None else list(DECODED)
    for name in names:
        if name not in DECODED:
            raise ValueError(f"there is no table {name!r} in a capture; choose from {', '.join(DECODED)}")
    if columns is not None and len(names) != 1:
        raise ValueError("columns are chosen of one table: give table=...")
    if not isinstance(profile, Profile):
        profile = Profile.default() if profile is None else Profile.load(profile)
    file: BinaryIO
    if isinstance(source, (str, Path)):
        uri = uri or f"file://{Path(source).resolve()}"
        file = Path(source).open("rb", buffering=0)  # noqa: SIM115 - the capture closes it
    else:
        file = source
    try:
        return Capture(
            file,
            tables=names,
            columns=columns,
            profile=profile,
            start_ns=start_ns,
            end_ns=end_ns,
            capture_id=capture_id or hashlib.blake2b((uri or "").encode(), digest_size=16).hexdigest(),
            vehicle_id=vehicle_id or (profile.vehicle_id_of(uri) if uri else None),
            raw=raw,
            chunk_bytes=chunk_bytes,
            batch_rows=batch_rows,
        )
    except BaseException:
        if isinstance(source, (str, Path)):
            file.close()
        raise
