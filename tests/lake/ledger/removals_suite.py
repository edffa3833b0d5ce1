"""What every ledger of a fleet must do while captures leave the lake: a class of tests for whoever has the fixture `opened`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest

from pcaplake.lake.ledger import CaptureLeaves, Ledger, seen_at
from pcaplake.lake.records import Capture, Stage, compute_capture_id
from pcaplake.lake.sightings import sighting_of
from tests.lake.ledger.ledger_suite import Open, manifest, run, stage


def content(etag: str, uri: str = "s3://raw/a.pcap") -> Capture:
    return Capture(capture_id=compute_capture_id(uri, etag), uri=uri, etag=etag, size=1, modified=1_000, sequencer="0A")


A, B = content("a"), content("b")


def stage_of(stage_id: str, *captures: Capture) -> Stage:
    return replace(stage(stage_id), captures=captures)


def sighting(of: Capture, at: int) -> Capture:
    return sighting_of(replace(of, modified=at, sequencer="0B"))


async def commit(ledger: Ledger, batch: int, *stages: Stage) -> None:
    for one in stages:
        assert await ledger.put_stage_if_absent(one) == {}
    committed = manifest(batch, *stages)
    await ledger.mark_batch_stages(committed)
    await ledger.flag_batch_committed(committed)
    assert await ledger.advance_head(batch)


async def items(ledger: Ledger) -> dict[str, Any]:
    found = await ledger.get_capture_items(0, [A.capture_id, B.capture_id])
    return {item.capture.etag: item for item in found.values()}


class RemovalsSuite:
    """`opened` opens one ledger with `Removals`, the same each time."""

    def test_a_content_leaves_and_comes_back(self, opened: Open) -> None:
        async def story(given: Ledger) -> None:
            ledger = cast(Any, given)
            await commit(ledger, 0, stage_of("s1", A, B))
            before = await items(ledger)
            removal = await ledger.begin_removal(0, [before["a"]], 0)
            assert removal is not None
            assert (removal.captures, removal.until) == ({A.capture_id: "s1"}, 0)
            assert await ledger.read_removal() == removal
            assert {etag: item.leaving for etag, item in (await items(ledger)).items()} == {"a": True, "b": False}
            assert await ledger.begin_removal(0, [before["b"]], 0) is None, "one at a time"
            assert await ledger.put_stage_if_absent(stage_of("s2", A)) == {A.capture_id: "s1"}
            with pytest.raises(CaptureLeaves):
                await ledger.put_stage_if_absent(stage_of("seen", sighting(A, 9_000)))
            await ledger.flag_batch_committed(manifest(0, stage_of("s1", A, B)))  # by a leader that is late
            assert (await items(ledger))["a"].leaving
            await ledger.forget_captures(0, removal.captures, last_swap=1)
            await ledger.end_removal("another")
            assert await ledger.read_removal() == removal
            await ledger.end_removal(removal.removal_id)
            assert await ledger.read_removal() is None
            assert (await items(ledger)).keys() == {"b"}
            with pytest.raises(CaptureLeaves):
                await ledger.put_stage_if_absent(stage_of("seen", sighting(A, 9_000)))
            assert await ledger.put_stage_if_absent(stage_of("s3", A)) == {}
            await ledger.forget_captures(0, removal.captures, last_swap=1)
            await ledger.forget_captures(0, removal.captures, last_swap=2)
            assert (await items(ledger))["a"].stage_id == "s3", "it came back, and is not forgotten again"
            assert await ledger.read_last_swap() == 2

        run(opened, story)

    def test_a_content_that_was_seen_again_does_not_leave(self, opened: Open) -> None:
        async def story(given: Ledger) -> None:
            ledger = cast(Any, given)
            await commit(ledger, 0, stage_of("s1", A, B))
            before = await items(ledger)
            seen = stage_of("s2", sighting(A, 9_000), sighting(A, 4_000))
            assert await ledger.put_stage_if_absent(seen) == {}
            assert await ledger.put_stage_if_absent(seen) == {}, "the answer was lost"
            assert await ledger.put_stage_if_absent(stage_of("s3", sighting(A, 5_000))) == {}
            now = (await items(ledger))["a"]
            assert (now.seen, now.stage_id, now.batch, now.capture) == (seen_at(9_000, "0B"), "s1", 0, A)
            removal = await ledger.begin_removal(0, [before["a"], before["b"]], 0)
            assert removal is not None
            assert removal.captures == {B.capture_id: "s1"}
            await ledger.end_removal(removal.removal_id)
            assert await ledger.begin_removal(0, [before["a"]], 0) is None
            assert await ledger.read_removal() is None
            assert await ledger.begin_removal(0, [now], 0) is not None

        run(opened, story)

    def test_only_what_is_committed_leaves(self, opened: Open) -> None:
        async def story(given: Ledger) -> None:
            ledger = cast(Any, given)
            assert await ledger.put_stage_if_absent(stage_of("s1", A)) == {}
            assert await ledger.begin_removal(0, [replace((await items(ledger))["a"], state="COMMITTED")], 0) is None

        run(opened, story)

    def test_a_removal_is_restored(self, opened: Open) -> None:
        async def story(given: Ledger) -> None:
            ledger = cast(Any, given)
            await commit(ledger, 0, stage_of("s1", A, B))
            removal = await ledger.begin_removal(0, [(await items(ledger))["a"]], 0)
            await ledger.end_removal(removal.removal_id)
            await ledger.restore_removal(replace(removal, captures={B.capture_id: "s1", A.capture_id: "other"}))
            assert (await items(ledger))["b"].leaving
            assert (await ledger.read_removal()).removal_id == removal.removal_id

        run(opened, story)

    def test_how_far_older_contents_were_removed(self, opened: Open) -> None:
        async def story(given: Ledger) -> None:
            ledger = cast(Any, given)
            await commit(ledger, 0, stage_of("s1", A))
            assert await ledger.read_followed() is None
            await ledger.write_followed(3)
            await ledger.write_followed(2)
            assert await ledger.read_followed() == 3

        run(opened, story)
