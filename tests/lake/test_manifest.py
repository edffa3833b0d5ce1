"""Manifests and stages as text: what was written before can be read, and is written the same way still."""

from __future__ import annotations

import json
from dataclasses import replace

from pcaplake.lake.records import Manifest, Stage
from tests.lake.ledger.ledger_suite import manifest, stage

BEFORE_VERSIONS = (
    b'{"format":1,"batch":7,"generation":0,"opens":false,"tables":["packets"],"schemas":{"packets":{"type":"struct",'
    b'"fields":[]}},"stages":[{"stage_id":"s1","generation":0,"decoder_version":"1","captures":[{"capture_id":"a","uri":'
    b'"file:///a.pcap","etag":"etag-a","size":10,"rows":3,"outcome":"ok"}],"schemas":{},"adds":{"packets":[{"path":'
    b'"date=2026-01-02/s1-0.zstd.parquet","size":7,"partition_values":{"date":"2026-01-02"},"modification_time":5,'
    b'"stats":"{\\"numRecords\\":3}","data_change":true}]},"written_at":5}],"returned":[{"stage_id":"s2","generation":0,"decoder_version":'
    b'"1","captures":[{"capture_id":"b","uri":"file:///b.pcap","etag":"etag-b","size":10,"rows":3,"outcome":"ok"}],'
    b'"schemas":{},"adds":{},"written_at":5}]}'
)
"""Byte for byte as it was written when captures had no `version_id`."""


def without_times(given: Stage) -> Stage:
    """As a version that recorded no times of objects wrote it."""
    return replace(given, captures=tuple(replace(one, modified=None, sequencer=None) for one in given.captures))


def test_text_from_before_versions_is_read_and_written_as_it_was() -> None:
    read = Manifest.from_json(BEFORE_VERSIONS)
    given = without_times(stage("s2", "b"))
    assert read == replace(
        manifest(7, without_times(stage("s1", "a")), returned=(replace(given, adds={}, schemas={}),)),
        schemas=stage("s1").schemas,
    )
    assert read.to_json() == BEFORE_VERSIONS


def test_versions_come_back() -> None:
    whole = without_times(stage("s1", "a", "b"))
    kept = replace(whole, captures=(replace(whole.captures[0], version_id="v1"), whole.captures[1]))
    assert Stage.from_json(kept.to_json()) == kept
    entry = replace(manifest(7, kept), schemas=kept.schemas)
    assert Manifest.from_json(entry.to_json()) == entry
    assert [list(one)[-1] for one in json.loads(kept.to_json())["captures"]] == ["version_id", "outcome"]


def test_what_somebody_newer_knows_of_a_capture_is_passed_over() -> None:
    raw = json.loads(stage("s1", "a").to_json())
    raw["captures"][0]["colour"] = "green"
    assert Stage.from_json(json.dumps(raw).encode()) == stage("s1", "a")


def test_profiles_come_back() -> None:
    """One for all captures, or one for each; an older stage does not know them."""
    whole = stage("s1", "a", "b")
    for profiles, expected in (((), [None, None]), (("x@1",), ["x@1", "x@1"]), (("x@1", "y@2"), ["x@1", "y@2"])):
        read = Stage.from_json(replace(whole, profiles=profiles).to_json())
        assert read == replace(whole, profiles=profiles)
        assert [read.profile_of(number) for number in (0, 1)] == expected
