"""The quality report: each thing that is wrong is found, what is right is not, and a page shows whatever is in a lake."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from pcaplake.common.errors import Fatal
from pcaplake.lake.delta.log_store import LogStore
from pcaplake.lake.records import SIGHTINGS
from pcaplake.lake.store.store import Store
from pcaplake.parser.schemas import TABLES
from pcaplake.spark_jobs.__main__ import build_command_line
from pcaplake.spark_jobs.common import job
from pcaplake.spark_jobs.quality.findings import QualityOptions
from pcaplake.spark_jobs.quality.job import TABLE, run, save_to_parquet, save_to_table
from pcaplake.spark_jobs.quality.page import render_page
from pcaplake.spark_jobs.quality.plots import SERIES, plot_horizontal_bars, plot_stacked_columns
from pcaplake.spark_jobs.quality.report import ALARMING, SECTIONS, TOTAL, QualityFinding, QualityReport
from pcaplake.worker.cli import ingest
from pcaplake.worker.config.settings import Settings
from pcaplake.worker.sample import write_sample_captures
from tests.spark_jobs.conftest import Site
from tests.spark_jobs.drives import DAY, Drive, fill, fill_fleet, staged
from tests.spark_jobs.quality.pages import NOW, made

NEXT = DAY + datetime.timedelta(days=1)
HOURS = datetime.timedelta(hours=1)
HEALTHY = [Drive(number=1), Drive(number=2, vehicle="v2", day=NEXT), Drive(number=3, vehicle=None, day=None)]
SICK = [
    Drive(number=10, missing=frozenset({1, 5, 6, 7, 20})),
    Drive(number=11, packets=30, missing=frozenset(range(2, 30, 2))),
    Drive(number=12, missing=frozenset(range(1, 21))),  # nothing came out of it
    Drive(number=13, day=NEXT, faults={"short_header": 3, "overrun": 1}),
    Drive(number=14, late=30 * HOURS),
    Drive(number=15, late=-2 * HOURS),
    Drive(number=16, quarantined=True),
]


def find(spark: Any, lake: str, **options: Any) -> QualityReport:
    return run(spark, lake, QualityOptions(**options), now=NOW)


def of(report: QualityReport, section: str) -> list[tuple[str, int, str | None]]:
    return [(row.kind, row.count, row.detail) for row in report.of(section)]


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What is wrong in it: SICK, and one drive whose rows are twice in two tables."""
    folder = str(tmp_path_factory.mktemp("sick") / "lake")
    fill(folder, [*HEALTHY, *SICK])

    async def again() -> None:
        """What no process of ours does: the files of a capture a second time."""
        from pcaplake.lake.lake import Lake

        opened = await Lake.open(folder)
        try:
            stage = staged(opened, [Drive(number=2, vehicle="v2", day=NEXT)])[0]
        finally:
            await opened.close()
        log = LogStore(Store.open(folder))
        for table in ("captures", "can_frames"):
            await log.commit(table, stage.adds[table])

    asyncio.run(again())
    return folder


@pytest.fixture(scope="module")
def report(spark: Any, sick: str) -> QualityReport:
    return find(spark, sick)


class TestWhatIsWrong:
    def test_gaps(self, report: QualityReport) -> None:
        assert of(report, "gaps") == [
            ("packets missing", 20, "s3://raw/v1/12.pcap: 1-20"),
            ("packets missing", 14, "s3://raw/v1/11.pcap: 2, 4, 6, 8, 10, ..."),
            ("packets missing", 5, "s3://raw/v1/10.pcap: 1, 5-7, 20"),
            ("packets", 39, None),
        ]
        assert report.total_count("gaps") == 3

    def test_without_rows(self, report: QualityReport) -> None:
        assert of(report, "without_rows") == [("capture", 0, "s3://raw/v1/12.pcap: 1,000 bytes, 20 packets")]

    def test_announced(self, report: QualityReport) -> None:
        found = {(row.table, row.detail) for row in report.of("announced")}
        assert found == {
            ("can_frames", "s3://raw/v1/10.pcap: 20 announced, 15 found"),
            ("packets", "s3://raw/v1/10.pcap: 20 announced, 15 found"),
            ("can_frames", "s3://raw/v1/11.pcap: 30 announced, 16 found"),
            ("packets", "s3://raw/v1/11.pcap: 30 announced, 16 found"),
            ("can_frames", "s3://raw/v2/2.pcap: 20 announced, 40 found"),
        }
        assert report.total_count("announced") == 5

    def test_duplicates(self, report: QualityReport) -> None:
        assert [(row.table, row.count) for row in report.of("duplicates")] == [("captures", 1), ("can_frames", 20)]
        assert report.total_count("duplicates") == 21

    def test_faults(self, report: QualityReport) -> None:
        assert of(report, "faults") == [("can: short_header", 3, "in 1 capture"), ("can: overrun", 1, "in 1 capture")]

    def test_late(self, report: QualityReport) -> None:
        counts = {kind: count for kind, count, detail in of(report, "late") if detail is None}
        assert {kind: count for kind, count in counts.items() if count} == {
            "before the last packet": 1,
            "within an hour": 7,
            "within a week": 1,
        }
        assert [detail for _, _, detail in of(report, "late") if detail] == ["s3://raw/v1/14.pcap: 30.0 hours"]

    def test_quarantined(self, report: QualityReport) -> None:
        assert of(report, "quarantined") == [
            ("NotACapture", 1, None),
            ("NotACapture", 1, "s3://raw/v1/16.pcap: its first bytes <b>are</b> 'no' magic"),
        ]

    def test_it_is_not_well(self, report: QualityReport) -> None:
        assert not report.healthy
        assert [name for name in ALARMING if report.total_count(name)] == list(ALARMING)


@pytest.mark.slow
def test_the_days_that_were_asked_for(spark: Any, sick: str) -> None:
    """Another day's drives are not looked at, nor are theirs missed."""
    report = find(spark, sick, since=NEXT, until=NEXT)
    assert [(row.date, row.vehicle_id) for row in report.of("days")] == [(NEXT, "v1"), (NEXT, "v2")]
    assert report.total_count("gaps") == 0
    assert report.total_count("duplicates") == 21
    first = find(spark, sick, until=DAY, most=1)
    assert (first.total_count("gaps"), len(first.of("gaps"))) == (3, 2), "one is named, all are counted"
    assert first.total_count("duplicates") == 0


def test_a_mistyped_lake_is_not_well(spark: Any, lake: str) -> None:
    with pytest.raises(Fatal, match="is not a lake: it has no tables; name a lake that workers have written"):
        find(spark, lake, since=DAY)


def test_a_lake_without_captures_is_empty(spark: Any, lake: str) -> None:
    fill(lake, [])
    report = find(spark, lake, since=DAY)
    assert report.healthy
    assert report.total_count("tables") == 0
    assert "None." in render_page(report)


def test_days_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="before the first"):
        QualityOptions(since=NEXT, until=DAY)
    with pytest.raises(ValueError, match="most"):
        QualityOptions(most=-1)


@pytest.mark.slow
def test_what_the_decoder_makes_of_broken_captures_is_well(spark: Any, lake: str, tmp_path: Path) -> None:
    """A sample drive with cut, broken and foreign files: faults and quarantine, and yet nothing missing or twice."""
    write_sample_captures(tmp_path / "drive", "drive", 1.0, 2, 1)
    given = Settings.load(lake=lake, profile=tmp_path / "drive" / "profile.yaml", threads=1)
    assert ingest.run_ingest(given, [str(tmp_path / "drive")], json=True) in (0, ingest.QUARANTINED)
    report = find(spark, lake)
    assert report.total_count("faults") > 0
    assert [row for row in report.rows if row.section in ALARMING and row.count] == []
    for name in (name for name in TABLES if name != SIGHTINGS):
        rows = DeltaTable(f"{lake}/{name}").to_pyarrow_dataset().count_rows()
        assert rows == next(row.count for row in report.of("tables") if row.table == name)


def test_findings_as_tables(spark: Any, sick: str, report: QualityReport, tmp_path: Path) -> None:
    lake = shutil.copytree(sick, tmp_path / "copy")
    save_to_table(spark, report, str(lake))
    save_to_table(spark, report, str(lake))
    table = DeltaTable(lake / TABLE)
    assert table.protocol().min_writer_version <= 2
    rows = table.to_pyarrow_table().to_pylist()
    assert len(rows) == 2 * len(report.rows)
    assert {row["made_at"] for row in rows} == {NOW}
    gaps = [row["detail"] for row in rows if row["section"] == "gaps" and row["kind"] == "packets missing"]
    assert sorted(set(gaps)) == sorted(row.detail or "" for row in report.of("gaps") if row.capture_id)
    save_to_parquet(spark, report, str(tmp_path / "parquet"))
    assert spark.read.parquet(str(tmp_path / "parquet")).count() == len(report.rows)


@pytest.mark.slow
def test_a_lake_that_is_well_looked_at_by_the_command(
    spark: Any, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PCAPLAKE_LEDGER_TABLE", site.ledger)
    monkeypatch.setenv("PCAPLAKE_LOCK_TABLE", site.locks)
    monkeypatch.setenv("PCAPLAKE_STORAGE_OPTION", json.dumps({"allow_http": "true"}))
    lake = site.lake()
    fill_fleet(lake, site.settings(), HEALTHY)
    file = tmp_path / "quality.html"
    app = build_command_line(["quality"])
    assert job.run(app, ["quality", "--lake", lake, "--html", str(file)]) == 0
    out, err = capsys.readouterr()
    said = json.loads(out)
    assert (said["healthy"], said["since"], said["lake"]) == (True, None, lake)
    totals = {row["section"]: row["count"] for row in said["rows"] if row["kind"] == TOTAL}
    assert totals == dict.fromkeys(SECTIONS, 0) | {"tables": 123, "days": 120}
    assert [(row["date"], row["vehicle_id"], row["count"]) for row in said["rows"] if row["section"] == "days"] == [
        (None, None, 40),
        (str(DAY), "v1", 40),
        (str(NEXT), "v2", 40),
        (None, None, 120),
    ]
    assert [row["count"] for row in said["rows"] if row["kind"] == "within an hour"] == [3]
    assert "quality: 1/9 Rows by table" in err
    assert "no rows are missing or duplicate" in err
    assert f"<h1>Quality of {lake}</h1>" in file.read_text(encoding="utf-8")
    assert job.run(app, ["quality", "--lake", lake, "--since", "yesterday"]) == job.USAGE
    assert "'--since': 'yesterday' is not a day" in capsys.readouterr().err
    assert job.run(app, ["quality", "--lake", lake, "--html", str(tmp_path / "no" / "x.html")]) == job.USAGE


# -- the page, without Spark ------------------------------------------------------------------------------------------

TEXT = st.text(max_size=60) | st.sampled_from(
    ["<script>alert(1)</script>", "$x^2$", '"><img src=x>', "url(#a)", "{{ 7*7 }}"]
)
ROWS = st.builds(
    QualityFinding,
    section=st.sampled_from([*SECTIONS]),
    kind=TEXT | st.just(TOTAL),
    count=st.integers(0, 1 << 62),
    table=st.none() | st.sampled_from([*TABLES]),
    date=st.none() | st.dates(),
    vehicle_id=st.none() | TEXT,
    capture_id=st.none() | TEXT,
    detail=st.none() | TEXT,
)


@settings(max_examples=25)
@given(st.lists(ROWS, max_size=30), TEXT)
def test_whatever_is_in_a_lake_the_page_holds_it_as_text(rows: list[QualityFinding], lake: str) -> None:
    """No element comes from data, none is fetched, no id is there twice."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        html = render_page(made(rows, lake))
    assert elements(html) <= KNOWN
    ids = re.findall(r'\sid="([^"]*)"', html)
    assert len(ids) == len(set(ids))
    assert not re.search(
        r"""(?:src|href)=["'](?!#|data:,)""", re.sub(r"<(td|h1|title|text)\b.*?</\1>", "", html, flags=re.S)
    )


KNOWN = {
    *(
        "html",
        "head",
        "meta",
        "link",
        "title",
        "style",
        "body",
        "header",
        "h1",
        "h2",
        "p",
        "main",
        "ul",
        "li",
        "a",
        "strong",
    ),
    *("span", "section", "figure", "figcaption", "div", "table", "thead", "tbody", "tr", "th", "td"),
    *("svg", "defs", "g", "path", "use", "text", "tspan", "rect", "clipPath".lower()),
}


def elements(html: str) -> set[str]:
    from html.parser import HTMLParser

    found: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            found.add(tag)

    Reader().feed(html)
    return found


def test_plots_take_their_colours_from_the_page() -> None:
    drawn = [
        plot_horizontal_bars({"a": 1, "b": 2_000}, "bars", name="one"),
        plot_stacked_columns(["2026-09-21"], {f"v{no}": [no] for no in range(SERIES)}, "columns", name="two"),
    ]
    for svg in drawn:
        assert svg.startswith('<svg role="img" aria-label="')
        assert not re.search(r"#[0-9a-f]{6}\b", svg), "a colour that is dark in the dark"
        assert "http" not in svg
    assert {f"var(--s{number})" in drawn[1] for number in range(1, SERIES + 1)} == {True}
    assert "2,000" in drawn[0]


def test_many_days_and_vehicles_are_put_together() -> None:
    days = [DAY + datetime.timedelta(days=no) for no in range(90)]
    rows = [
        QualityFinding(section="days", kind="rows", date=day, vehicle_id=f"v{no}", count=no + 1)
        for day in days
        for no in range(12)
    ]
    html = render_page(made([*rows, QualityFinding(section="days", kind=TOTAL, count=1)]))
    assert "the last 60 days" in html
    assert "others" in html
    assert f"{90 * 12 - 200:,} more are in the report's JSON" in html
    assert str(days[-1]) in html


@pytest.fixture(autouse=True)
def _no_pyplot() -> Iterator[None]:
    """Figures are no global state that grows with every report."""
    yield
    import sys

    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
