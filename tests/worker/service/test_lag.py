"""The lag from upload to queryable row: measured when all rows are there, and asked for cheaply."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pcaplake.ingest.captures.reference import ObjectRef, capture_from_reference
from pcaplake.lake.records import Manifest, Stage
from pcaplake.worker.service.lag import MOST, Lag
from tests.worker.fleets import LAKE, Fleet


class Observed:
    def __init__(self) -> None:
        self.values: list[float] = []

    def observe(self, name: str, value: float, **labels: str) -> None:
        assert name == "lag_seconds"
        self.values.append(value)

    def count(self, name: str, by: float = 1, **labels: str) -> None: ...

    def set(self, name: str, value: float, **labels: str) -> None: ...


def uploaded(name: str, second: int) -> ObjectRef:
    at = datetime.fromtimestamp(second, UTC)
    return ObjectRef(uri=f"s3://raw/{name}", size=1, explicit=True, etag="e", event_time=at)


def stage(stage_id: str, *refs: ObjectRef) -> Stage:
    return Stage(
        stage_id=stage_id, generation=0, decoder_version="1", captures=tuple(map(capture_from_reference, refs)), schemas={},
        adds={},
        written_at=0,
    )  # fmt: skip


async def test_it_is_measured_when_all_rows_are_there_and_stages_are_not_read() -> None:
    fleet, seen = Fleet(), Observed()
    lake = await fleet.lake(commits=False)
    lag = Lag({LAKE: lake}, seen, now=lambda: 100.0)
    a, b, c = (uploaded(name, second) for name, second in (("a", 90), ("b", 95), ("c", 99)))
    one, other = stage("s1", a, b), stage("s2", c)
    for each in (one, other):
        await fleet.ledger.put_stage_if_absent(each)
    for ref, stage_id in ((a, "s1"), (b, "s1"), (c, "s2")):
        lag.follow_stage(lake, stage_id, ref)
    fleet.faults.seen.clear()
    await lag.measure_landed_stages(lake)
    batch = Manifest(batch=0, generation=0, opens=False, tables=(), stages=(one,))
    await fleet.ledger.mark_batch_stages(batch)
    await lag.measure_landed_stages(lake)
    assert seen.values == []
    await fleet.ledger.flag_batch_committed(batch)
    await lag.measure_landed_stages(lake)
    assert seen.values == [10.0, 5.0]
    await lag.measure_landed_stages(lake)
    assert seen.values == [10.0, 5.0]
    asked = [point for point in fleet.faults.seen if not point.startswith(("ledger.mark", "ledger.flag"))]
    assert asked == ["ledger.captures"] * 4


async def test_so_many_stages_are_followed_and_no_more() -> None:
    fleet, seen, asked = Fleet(), Observed(), list[int]()
    lake: Any = await fleet.lake(commits=False)
    lag = Lag({LAKE: lake}, seen, now=lambda: 0.0)
    for number in range(2 * MOST):
        lag.follow_stage(lake, f"s{number}", uploaded(str(number), 0))
    whole = lake.find_committed_captures

    async def counted(capture_ids: set[str]) -> set[str]:
        asked.append(len(capture_ids))
        return await whole(capture_ids)

    lake.find_committed_captures = counted
    await lag.measure_landed_stages(lake)
    assert asked == [MOST]
    assert len(seen.values) == MOST  # the ledger knows none of them: nothing is waited for
