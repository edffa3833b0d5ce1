"""Capture files as Arrow batches.

A capture is read in chunks, so memory does not grow with the file; a record that a chunk cuts is read with the next one.
Damage inside a capture becomes a row of the table `faults`, with its offset. `CaptureError` is raised only if the bytes are
not a capture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from pcaplake.parser.engine.decoder import REASSEMBLY_BYTES, Decoder
from pcaplake.parser.engine.kernels import encoding
from pcaplake.parser.engine.kernels.raw_memory import SLACK
from pcaplake.parser.engine.open_batches import OpenBatches
from pcaplake.parser.profile import Profile
from pcaplake.parser.schemas import TABLES

from . import file_headers, pcap, pcapng
from .compression import DecompressedStream
from .programs import compiled_program
from .recognition import reason_not_a_capture
from .state import CaptureState, Interface, Region, SectionHeader, Steps

Batches = Iterator[tuple[str, pa.RecordBatch]]
NOT_DECODED = ("captures", "quarantine", "sightings")  # tables that the worker writes, not from packets
DECODED = tuple(name for name in TABLES if name not in NOT_DECODED)
RAW = "raw"
EPOCH = date(1970, 1, 1).toordinal()


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What was in a capture; known when all of it has been read.

    compression            "gzip", "zstd", "lz4" or None
    bytes                  total captured length of all packets
    first_ts_ns, last_ts_ns   earliest and latest time of a packet, ns since 1970; None if no packet has a time
    first_date             UTC day of the first packet that has a time; None if no packet has one
    truncated              the file ends inside a record, a block or a compressed stream
    faults, rows           number of faults by reason, of rows by table
    regions                the first 64 regions that cannot be read
    section_headers        what the first 64 sections of a pcapng file say of their origin
    """

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
    section_headers: tuple[SectionHeader, ...] = ()
    first_date: date | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to name a capture in its rows, and how much of it to read at once.

    uri                  URI of the capture; by default that of the path
    capture_id           value of the key column; by default a hash of the URI
    vehicle_id           value of the key column; by default what the profile finds in the URI
    chunk_bytes          bytes to read at once, at least 1 MiB
    batch_rows           rows of a batch
    reassembly_bytes     memory for messages that are put together from several packets and of which pieces are missing
    number_interfaces    the column `interface` has the interface's number in the capture instead of its name
    batches              batches that several captures share, without a time range. Rows that fill no batch stay in them
                         until `OpenBatches.finish`; after an error, all their rows are to be discarded
    """

    uri: str | None = None
    capture_id: str | None = None
    vehicle_id: str | None = None
    chunk_bytes: int = 8 << 20
    batch_rows: int = 131_072
    reassembly_bytes: int = REASSEMBLY_BYTES
    number_interfaces: bool = False
    batches: OpenBatches | None = None


DEFAULT_OPTIONS = ReadOptions()


class Capture:
    """One capture, read once from start to end as Arrow batches. Created by `open_capture`.

    format       "pcap" or "pcapng"
    interfaces   the interfaces found so far
    summary      what was in the capture; None until `batches()` has ended
    """

    def __init__(
        self,
        file: BinaryIO,
        *,
        tables: Sequence[str],
        columns: Sequence[str] | None,
        profile: Profile,
        start_ns: int | None,
        end_ns: int | None,
        raw: bool,
        options: ReadOptions,
    ) -> None:
        self._file, self._columns, self._range = file, columns, (start_ns, end_ns)
        self._chunk_bytes = max(options.chunk_bytes, 2 * encoding.LONGEST_BLOCK)
        self.summary: Summary | None = None
        self.interfaces: list[Interface] = []
        columns_by_table = {
            name: _columns_to_decode(name, columns, timed=self._range != (None, None), raw=raw) for name in tables
        }
        program = compiled_program(profile, tables)
        names = {"capture_id": options.capture_id, "vehicle_id": options.vehicle_id}
        batches = options.batches or OpenBatches()
        batches.begin_capture(program, columns_by_table, batch_rows=options.batch_rows, names_by_id=profile.names_by_id)
        self.decoder = Decoder(
            program,
            columns_by_table,
            names,
            batches,
            shared=options.batches is not None,
            learns=profile.service_discovery,
            reassembly_bytes=options.reassembly_bytes,
        )
        self._state = CaptureState(
            self.decoder, self.interfaces, profile.interface_buses, number_interfaces=options.number_interfaces
        )
        self._stream = DecompressedStream(file)
        head = bytearray(file_headers.HEADER)
        self._head = bytes(head[: self._stream.fill_buffer(memoryview(head))])
        reader = self._create_format_reader(self._head, 0)
        if reader is None:
            raise reason_not_a_capture(self._head, self._stream)
        self._reader, self._sections = reader, 0  # of the files before, which were joined
        self.format = reader.format

    def _create_format_reader(self, head: bytes, offset: int) -> pcap.PcapReader | pcapng.PcapngReader | None:
        """The reader of the format whose files begin with `head`, which is at `offset` in the capture; None: there is none."""
        if head[:4] == file_headers.SECTION_MAGIC:
            return pcapng.PcapngReader(self._state, head, offset)
        return pcap.PcapReader(self._state, head, offset) if head[:4] in file_headers.MAGICS else None

    # -- reading --------------------------------------------------------------------------------------------------
    def batches(self) -> Batches:
        """Yield (table, batch) for each full batch; the rows of each table are in the order of the capture.

        String columns are dictionary<int32, string>. Raises `ValueError` at the second call, and `OSError` if reading the
        file fails.
        """
        if self.summary is not None:
            raise ValueError("a capture can be read once; open it again")
        stream, state, reader = self._stream, self._state, self._reader
        buffer = np.empty(self._chunk_bytes + SLACK, np.uint8)
        view = memoryview(buffer.data).cast("B")
        head = self._head[reader.header_size :]
        buffer[: len(head)] = np.frombuffer(head, np.uint8)
        state.base, held, ended = reader.header_size, len(head), False
        while not ended:
            end = held + stream.fill_buffer(view[held : self._chunk_bytes])
            ended = end < self._chunk_bytes
            buffer[end : end + SLACK] = 0  # no row depends on what the memory held before
            begin = 0  # of what has not been decoded
            while True:
                steps = self._reader.decode_buffer(buffer[begin:], end - begin, ended)
                position = yield from self._select_rows_and_columns(steps)
                if not self._reader.meets_other_format:
                    break
                skipped = self._begin_other_format(buffer[begin + position : end], state.base + position)
                begin, state.base, position = begin + position + skipped, state.base + position + skipped, 0
                if not ended and end - begin < 2 * encoding.LONGEST_BLOCK:
                    break  # more bytes decide what is there
            if position < 0:  # the rest cannot be read
                position, ended = end - begin, True
            held = end - begin - position
            buffer[:held] = buffer[begin + position : end].copy()
            state.base += position
        if stream.broken is not None:
            state.truncated = True
            self.decoder.record_file_fault("capture", "broken_compression", state.base + held)
        yield from self._select_rows_and_columns(self.decoder.finish_capture())
        self.summary = self._summarize_capture()

    def _begin_other_format(self, rest: Any, offset: int) -> int:
        """A file of the other format follows, at `offset` in the capture; return how many of its bytes are read."""
        self._sections += self._reader.sections
        reader = self._create_format_reader(rest[: file_headers.HEADER].tobytes(), offset)
        assert reader is not None
        self._reader = reader
        return reader.header_size

    def _select_rows_and_columns(self, batches: Steps | Batches) -> Generator[tuple[str, pa.RecordBatch], None, Any]:
        """The rows of the chosen time range and the chosen columns; returns what `batches` returns."""
        start, end = self._range
        while True:
            try:
                table, batch = next(batches)
            except StopIteration as stop:
                return stop.value
            if start is not None or end is not None:
                import pyarrow.compute as pc

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
            del batch  # the next batch may use its memory

    def _summarize_capture(self) -> Summary:
        decoder = self.decoder
        return Summary(
            format=self.format,
            compression=self._stream.compression,
            sections=self._sections + self._reader.sections,
            interfaces=tuple(self.interfaces),
            link_types=tuple(sorted({interface.link_type for interface in self.interfaces})),
            packets=decoder.packets,
            bytes=decoder.times.bytes,
            first_ts_ns=decoder.times.first_ns,
            last_ts_ns=decoder.times.last_ns,
            truncated=self._state.truncated,
            faults=dict(decoder.faults.by_reason),
            rows=dict(decoder.rows),
            regions=tuple(self._state.regions),
            section_headers=tuple(self._state.section_headers),
            first_date=date.fromordinal(EPOCH + decoder.times.dates[0]) if decoder.times.dates else None,
        )

    def reader(self) -> pa.RecordBatchReader:
        """The batches of the one chosen table as a `pa.RecordBatchReader`, with plain strings and the schema of the table.

        Raises `ValueError` if several tables were chosen.
        """
        if len(self.decoder.tables) != 1:
            tables = ", ".join(self.decoder.tables)
            raise ValueError(f"choose one table: open_capture(..., tables=...), one of {tables}")
        ((name, column_names),) = self.decoder.tables.items()
        chosen = [column for column in column_names if self._columns is None or column in self._columns]
        schema = pa.schema([TABLES[name].schema.field(column) for column in chosen])
        return pa.RecordBatchReader.from_batches(schema, (batch.cast(schema) for _, batch in self.batches()))

    def read(self) -> pa.Table:
        """All rows of the one chosen table. Raises what `reader` raises."""
        return self.reader().read_all()

    def close(self) -> None:
        """Close the file. The context manager does this, too."""
        self._file.close()

    def __enter__(self) -> Capture:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _columns_to_decode(table: str, columns: Sequence[str] | None, *, timed: bool, raw: bool) -> list[str]:
    """The columns to decode: the chosen ones, and `ts_ns` where a time range needs it."""
    known = TABLES[table].columns
    if columns is None:
        return [column for column in known if column != RAW or raw]
    if unknown := [column for column in columns if column not in known]:
        raise ValueError(f"{table} has no column {unknown[0]!r}; it has {', '.join(known)}")
    return [column for column in known if column in columns or (timed and column == "ts_ns")]


def open_capture(
    source: str | Path | BinaryIO,
    tables: str | Sequence[str] = DECODED,
    *,
    columns: Sequence[str] | None = None,
    profile: Profile | str | Path | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    raw: bool = False,
    options: ReadOptions = DEFAULT_OPTIONS,
) -> Capture:
    """Open a pcap or pcapng capture, optionally compressed with gzip, zstd or LZ4, to read it as Arrow batches.

    source               a path, or a binary file object, which is read forward from its current position
    tables               one table of `pcaplake.parser.TABLES`, or several; by default all that come from packets
    columns              the columns to read, of one table; by default all but `raw`
    profile              a `Profile`, or the path of its YAML file: ports, names of buses, vehicle id
    start_ns, end_ns     ns since 1970 (UTC): only rows with start_ns <= ts_ns < end_ns
    raw                  also read the column `raw` of `packets`, the bytes of each packet
    options              the capture's URI and key columns; sizes of chunks and batches

    Raises `CaptureError` if the bytes are not a capture, `ProfileError` if the profile is wrong, `ValueError` for an
    unknown table or column, and `OSError` as `open` does.
    """
    tables = [tables] if isinstance(tables, str) else list(tables)
    for name in tables:
        if name not in DECODED:
            raise ValueError(f"a capture has no table {name!r}; it has {', '.join(DECODED)}")
    if options.batches is not None and (start_ns is not None or end_ns is not None):
        raise ValueError("captures that share batches are read without a time range")
    if columns is not None and len(tables) != 1:
        raise ValueError("columns belong to one table: choose it with tables=...")
    if not isinstance(profile, Profile):
        profile = Profile.default() if profile is None else Profile.load(profile)
    uri = options.uri or (f"file://{Path(source).resolve()}" if isinstance(source, (str, Path)) else None)
    options = replace(
        options,
        uri=uri,
        capture_id=options.capture_id
        or hashlib.blake2b((uri or "").encode(errors="surrogateescape"), digest_size=16).hexdigest(),
        vehicle_id=options.vehicle_id or (profile.vehicle_id_of(uri) if uri else None),
    )
    file: BinaryIO
    if isinstance(source, (str, Path)):
        file = Path(source).open("rb", buffering=0)  # noqa: SIM115 - the capture closes it
    else:
        file = source
    try:
        return Capture(
            file,
            tables=tables,
            columns=columns,
            profile=profile,
            start_ns=start_ns,
            end_ns=end_ns,
            raw=raw,
            options=options,
        )
    except BaseException:
        if isinstance(source, (str, Path)):
            file.close()
        raise
