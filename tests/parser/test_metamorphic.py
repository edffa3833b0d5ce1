"""The same bytes give the same rows, however they are read: other chunks, morsels and batches, packed, by several threads.

Each seed draws a capture with what depends on the order of its packets (messages in pieces, some of them lost; open requests;
announced ports) and with what a reader meets between packets (zeros, another file, garbage, comments, lost packets). In front of
it are so many bytes that the first chunk ends inside.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import lz4.frame
import pytest
import zstandard

from pcaplake.parser import ReadOptions, Summary, open_capture
from pcaplake.parser.capture import reader as capture
from pcaplake.parser.engine.decoder import Decoder
from pcaplake.parser.engine.kernels.encoding import LONGEST_BLOCK
from pcaplake.parser.engine.open_batches import OpenBatches
from tests.parser import conversations, frames
from tests.parser.captures import T0, Section, pcap_header, pcap_record
from tests.parser.compare import PROFILE, Rows, decoded, difference, read
from tests.seeds import some_seeds

CHUNK = 2 * LONGEST_BLOCK  # bytes, the least
PACKERS = gzip.compress, lz4.frame.compress, zstandard.ZstdCompressor().compress


def drawn_frames(r: Random) -> list[bytes]:
    made = conversations.conversation(r, 8)
    made += [frames.spoil(r, f) if r.random() < 0.3 else f for f in (frames.ethernet(r) for _ in range(40))]
    r.shuffle(made)
    return [frame[:3000] for frame in made]


def joined_files(r: Random) -> bytes:
    """pcap files with zeros between packets; the last one may end anywhere."""
    data = b""
    for _ in range(r.choice((1, 2, 3))):
        order, magic = r.choice("<>"), r.choice(("us", "ns", "modified"))
        data += pcap_header(1, order=order, magic=magic)
        for i, frame in enumerate(drawn_frames(r)):
            if r.random() < 0.05:
                data += bytes((24 if magic == "modified" else 16) * r.choice((1, 2, 700)))
            data += pcap_record(frame, T0 + i, order=order, magic=magic)
    return data + r.choice((b"", bytes(5), bytes(5000), pcap_record(b"", captured=2**31) + r.randbytes(9000)))


def sections(r: Random) -> bytes:
    """pcapng sections with comments, lost packets, statistics and garbage."""
    data = b""
    for _ in range(r.choice((1, 2))):
        s = Section(r.choice("<>"))
        data += s.header() + s.interface(1, name="eth0") + s.interface(1)
        for i, frame in enumerate(drawn_frames(r)):
            options = b""
            if r.random() < 0.1:
                options += s.option(1, b"seen \xff twice") + s.option(1, b"again")
            if r.random() < 0.1:
                options += s.option(4, r.choice((bytes(8), bytes(range(8)))))
            data += s.enhanced(frame, (T0 + i) * 10**6, interface=r.choice((0, 1, 1, 2)), more=options)
            if r.random() < 0.05:
                data += r.choice((b"garbage!" * r.choice((1, 900)), s.statistics(r.choice((0, 1, 2)), received=i)))
    return data + r.choice((b"", b"garbage!" * 900, s.enhanced(b"abc")[:-1]))


def led_in(r: Random, data: bytes) -> bytes:
    """So many packets or blocks before the capture that a chunk ends inside it, wherever the seed wants."""
    left = CHUNK - r.randrange(len(data))
    if data[:4] == b"\n\r\r\n":
        s = Section()
        return s.header() + s.block(10, bytes(left // 2 & -4)) * 2 + data
    head, lead = pcap_header(1), b""
    while len(lead) < left:
        lead += pcap_record(bytes(min(left - len(lead), 262_144)), T0)
    return head + lead + data


def drawn(r: Random) -> bytes:
    parts = r.choice([(joined_files,), (sections,), (joined_files, sections), (sections, joined_files)])
    return led_in(r, b"".join(part(r) for part in parts))


def facts(summary: Summary) -> dict[str, Any]:
    return {name: getattr(summary, name) for name in Summary.__slots__ if name not in ("compression", "rows")}


def shared(data: bytes, room: int) -> tuple[Rows, Summary]:
    """Read into batches that captures share, after another capture."""
    batches, found = OpenBatches(), []
    for bytes_ in (led_in(Random(0), sections(Random(0))), data):
        options = ReadOptions(reassembly_bytes=room, batches=batches, capture_id=str(len(bytes_)), vehicle_id="v")
        with open_capture(io.BytesIO(bytes_), profile=PROFILE, raw=True, options=options) as opened:
            found += opened.batches()
    found += batches.finish()
    own = [(table, batch.filter(_is(batch, str(len(data))))) for table, batch in found]
    assert opened.summary is not None
    return decoded((table, batch) for table, batch in own if batch.num_rows), opened.summary


def _is(batch: Any, capture_id: str) -> Any:
    import pyarrow.compute as pc

    return pc.equal(batch.column("capture_id").cast("string"), capture_id)


def ways(r: Random, data: bytes, room: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Rows, Summary]]:
    chunk = CHUNK + r.randrange(len(data))
    yield f"chunk {chunk}", *read(data, reassembly_bytes=room, chunk_bytes=chunk)
    yield "one chunk", *read(data, reassembly_bytes=room, chunk_bytes=len(data) + 1)
    for size in (1, r.randrange(2, 40)):

        class SmallMorsels(Decoder):
            def __init__(self, *arguments: Any, rows: int = size, **options: Any) -> None:
                super().__init__(*arguments, **options, morsel_rows=rows)

        with monkeypatch.context() as patch:
            patch.setattr(capture, "Decoder", SmallMorsels)
            yield f"morsel {size}", *read(data, reassembly_bytes=room, chunk_bytes=1)
    yield "batch", *read(data, reassembly_bytes=room, batch_rows=r.randrange(1, 50))
    yield "packed", *read(r.choice(PACKERS)(data), reassembly_bytes=room)
    yield "shared", *shared(data, room)
    with ThreadPoolExecutor(3) as threads:
        for rows, summary in threads.map(lambda chunk: read(data, reassembly_bytes=room, chunk_bytes=chunk), (1, 2, 3)):
            yield "threads", rows, summary


@pytest.mark.parametrize("seed", some_seeds(12))
def test_how_a_capture_is_read_makes_no_difference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    r = Random(seed)
    data, room = drawn(r), r.choice((64 << 20, 200_000, 60_000))
    whole, summary = read(data, reassembly_bytes=room, chunk_bytes=1)
    for way, rows, other in ways(r, data, room, monkeypatch):
        assert (unlike := difference(whole, rows)) is None, (way, unlike)
        assert facts(other) == facts(summary), way
