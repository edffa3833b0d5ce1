"""Captures that share batches have the same rows as captures that do not."""

from __future__ import annotations

import io
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from pcaplake.parser import TABLES, Profile, ReadOptions, open_capture
from pcaplake.parser.engine.open_batches import OpenBatches
from tests.parser import captures, frames
from tests.parser.captures import Section
from tests.parser.compare import PROFILE

OTHER = Profile.parse("ports: {udp: {30501: someip}}\nbuses: {tecmp: {7: another}}")
Batches = list[tuple[str, pa.RecordBatch]]


def frames_of(r: Random, link_type: int, count: int) -> list[bytes]:
    made = (frames.MAKERS[link_type](r) for _ in range(count))
    return [frames.spoil(r, frame) if r.random() < 0.3 else frame for frame in made]


def rows_of(batches: Batches) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for table, batch in batches:
        batch.validate(full=True)
        kinds = [f for f in TABLES[table].schema if f.name in batch.schema.names]
        plain = pa.RecordBatch.from_arrays([batch.column(f.name).cast(f.type) for f in kinds], schema=pa.schema(kinds))
        found.setdefault(table, []).extend(plain.to_pylist(maps_as_pydicts="strict"))
    return found


def read_one(data: bytes, number: int, batches: OpenBatches | None, r: Random) -> Batches:
    """Capture, vehicle, profile and size of batches depend on the number and `r` only."""
    options = ReadOptions(
        capture_id=f"capture {number}",
        vehicle_id=r.choice((None, "v1", "v2")),
        batch_rows=r.choice((8192, 8192, 131_072)),
        number_interfaces=r.random() < 0.1,
        batches=batches,
    )
    profile, raw = r.choice((PROFILE,) * 5 + (OTHER,)), r.random() < 0.1
    opened = open_capture(io.BytesIO(data), profile=profile, raw=raw, options=options)
    found = list(opened.batches())
    assert opened.summary is not None
    return found


def some_captures(r: Random) -> list[bytes]:
    """Interfaces of one capture have the names of the last, or other ones; some captures have no rows."""
    made = []
    for _ in range(25):
        link_type = r.choice(tuple(frames.MAKERS))
        if r.random() < 0.5:
            made.append(captures.pcap(frames_of(r, link_type, r.choice((0, 1, 30))), link_type))
            continue
        blocks: list[bytes] = []
        for _ in range(r.choice((1, 1, 2))):  # the interfaces of a second section come late
            s = Section(r.choice("<>"))
            names = [r.choice(("can0", "can0", "can1", None)) for _ in range(r.randrange(1, 4))]
            blocks += [s.header(), *(s.interface(link_type, name=name) for name in names)]
            some = frames_of(r, link_type, 20)
            blocks += [s.enhanced(frame, 10**15, interface=r.randrange(len(names))) for frame in some]
        made.append(b"".join(blocks))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_shared_batches_have_the_same_rows(seed: int) -> None:
    made, shared = some_captures(Random(seed)), OpenBatches()
    apart: Batches = []
    together: Batches = []
    for number, data in enumerate(made):
        apart += read_one(data, number, None, Random(number))
        together += read_one(data, number, shared, Random(number))
    together += shared.finish()
    assert list(shared.finish()) == []
    assert rows_of(together) == rows_of(apart)
    assert len(rows_of(apart)) >= 4
    assert len(together) <= len(apart)


def test_small_captures_with_the_same_interfaces_share_one_batch() -> None:
    shared, r = OpenBatches(), Random(1)
    for number in range(20):
        s = Section()
        blocks = [s.header(), s.interface(1, name="eth0"), s.interface(1, name=f"eth{min(number, 1)}")]
        blocks += [s.enhanced(frame, 10**15, interface=0) for frame in frames_of(r, 1, 5)]
        options = ReadOptions(capture_id=f"capture {number}", batches=shared)
        opened = open_capture(io.BytesIO(b"".join(blocks)), "packets", options=options)
        # only the second capture has an interface of another name than the capture before
        assert [batch.num_rows for _, batch in opened.batches()] == ([5] if number == 1 else [])
    ((table, batch),) = shared.finish()
    assert (table, batch.num_rows) == ("packets", 95)
    names = batch.column("capture_id").cast(pa.string()).to_pylist()
    assert names == [f"capture {number}" for number in range(1, 20) for _ in range(5)]


def test_a_time_range_needs_batches_of_its_own() -> None:
    with pytest.raises(ValueError, match="without a time range"):
        open_capture(io.BytesIO(captures.pcap([])), start_ns=1, options=ReadOptions(batches=OpenBatches()))
