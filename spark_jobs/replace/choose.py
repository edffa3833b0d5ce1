"""Chooses the captures to replace: named by the user, committed to every table by the ledger, and not up to date.

A capture is up to date when this decoder and this profile have read it, and each table has as many of its rows as its row in
`captures` says. So rows that a table has lost come back, and duplicate rows become one.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pcaplake.common import VERSION
from pcaplake.common.errors import Fatal
from pcaplake.ingest.captures.source import Sources
from pcaplake.lake.commit.swap_records import find_half_swapped
from pcaplake.lake.identity import local_file_uri
from pcaplake.lake.ledger import COMMITTED
from pcaplake.lake.records import Capture
from pcaplake.lake.store.store import Store
from pcaplake.parser.capture.reader import DECODED
from pcaplake.spark_jobs.backfill.driver import Driver
from pcaplake.spark_jobs.backfill.executor import Work
from pcaplake.spark_jobs.common.job import NO_LAKE, Invocation
from pcaplake.spark_jobs.common.lake_tables import read_table, union_frames
from pcaplake.spark_jobs.common.sql import text_literal
from pcaplake.worker.config.routes import Route, Routes
from pcaplake.worker.config.service_settings import FleetSettings
from pcaplake.worker.config.settings import WrongSetting

from .executor import CaptureToReplace

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row, SparkSession

_ID = re.compile(r"[0-9a-f]{32}")
_ASKED = 1000  # captures in one question to the ledger
_COUNTED = 10_000  # captures whose rows are counted in one pass over the tables
_NAMED = 3
_OPENED = 16  # objects opened at the same time
_ANNOUNCED = DECODED  # the tables whose rows are counted in `captures.rows`

NOTHING_TO_REPLACE = "nothing to replace: name captures by URI or id, or use --list or --where"


@dataclass(slots=True, kw_only=True)
class CaptureSelection:
    """`wanted`: to decode again. `done`: up to date. `waiting`: not committed to every table. `unknown`: match no capture.

    `losing`: earlier profiles of `wanted` captures that would now be read without a profile -> number of captures.
    """

    wanted: list[CaptureToReplace] = field(default_factory=list)
    done: int = 0
    waiting: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    losing: Counter[str] = field(default_factory=Counter)


def choose_captures(
    spark: SparkSession,
    lake: str,
    work: Work,
    driver: Driver,
    names_or_ids: Sequence[str],
    *,
    where: str | None = None,
    force: bool = False,
) -> CaptureSelection:
    """Choose captures `given` by URI, path or id, and those that match `where`. Raises WrongSetting if neither is given.

    `force`: also captures that are up to date. A capture whose row the table `captures` has lost is found by the URI of its
    object, if the ledger has it.
    """
    names = {one if "://" in one or _ID.fullmatch(one) else local_file_uri(Path(one)) for one in names_or_ids}
    conditions = [f"({where})"] if where else []
    if names:
        texts = ", ".join(text_literal(one) for one in sorted(names))
        conditions.append(f"uri IN ({texts}) OR capture_id IN ({texts})")
    if not conditions:
        raise WrongSetting(NOTHING_TO_REPLACE)
    captures_table = read_table(spark, lake, "captures")
    capture_rows = (
        captures_table.where(" OR ".join(conditions))
        .select("capture_id", "uri", "etag", "object_size", "decoder_version", "profile", *_times(captures_table))
        .orderBy("uri", "capture_id")
        .collect()
    )
    found_names = {name for row in capture_rows for name in (row.uri, row.capture_id)}
    (inside,) = work.routes.lake_uris
    nameless = _find_by_object(driver, work, sorted(name for name in names - found_names if "://" in name))
    chosen = CaptureSelection(unknown=sorted(names - found_names - {one.uri for one in nameless}))
    # a capture with two rows is decoded once
    rows: dict[str, Row | None] = {row.capture_id: row for row in capture_rows}
    captures = [
        Capture(
            capture_id=row.capture_id,
            uri=row.uri,
            etag=row.etag,
            size=row.object_size,
            modified=row.modified,
            sequencer=row.sequencer,
        )
        for row in rows.values()
        if row is not None
    ]
    rows |= {one.capture_id: None for one in nameless}
    states = _capture_states(driver, inside, list(rows))
    candidates: list[tuple[Capture, Route]] = []
    same = set[str]()
    for capture in (*captures, *nameless):
        row, route = rows[capture.capture_id], next(iter(work.routes.find_routes(capture.uri)), None)
        if route is None or (row is None and capture.capture_id not in states):
            chosen.unknown.append(capture.uri)
        elif states.get(capture.capture_id) != COMMITTED:
            chosen.waiting.append(capture.uri)
        else:
            candidates.append((capture, route))
            if row is not None and row.decoder_version == VERSION and route.profile.is_recorded_as(row.profile):
                same.add(capture.capture_id)
    half = driver.run_coroutine(find_half_swapped(driver.lakes[inside].store, driver.lakes[inside].generation))
    done = set() if force else same - half.keys()
    done -= _find_incomplete(spark, lake, done)
    chosen.done = len(done)
    for capture, route in candidates:
        if capture.capture_id not in done:
            chosen.wanted.append(CaptureToReplace(capture=capture, route=route.name))
            row = rows[capture.capture_id]
            if row is not None and route.profile.loses_names_of(row.profile):
                chosen.losing[row.profile] += 1
    return chosen


def _times(captures: DataFrame) -> list[Column]:
    """What `captures` says of the time of a content, which stays; null in a table that only older versions have written."""
    from pyspark.sql import functions as f

    known = captures.columns
    return [
        f.unix_millis("modified_at").alias("modified") if "modified_at" in known else f.lit(None).alias("modified"),
        f.col("sequencer") if "sequencer" in known else f.lit(None).alias("sequencer"),
    ]


def _find_incomplete(spark: SparkSession, lake: str, capture_ids: Collection[str]) -> set[str]:
    """The captures with more or fewer rows in a table than their row in `captures` says."""
    from pyspark.sql import functions as f

    incomplete, ids = set[str](), sorted(capture_ids)
    for start in range(0, len(ids), _COUNTED):
        asked = f.expr(f"capture_id IN ({', '.join(map(text_literal, ids[start : start + _COUNTED]))})")
        captures = read_table(spark, lake, "captures").where(asked)
        announced = captures.select("capture_id", f.explode("rows").alias("table", "rows"))
        counts = [
            announced.where(f.col("table").isin(*_ANNOUNCED)),
            *(
                read_table(spark, lake, name)
                .where(asked)
                .select("capture_id", f.lit(name).alias("table"), f.lit(-1).cast("bigint").alias("rows"))
                for name in _ANNOUNCED
            ),
        ]
        wrong = union_frames(counts).groupBy("capture_id", "table").agg(f.sum("rows").alias("rows")).where("rows <> 0")
        twice = captures.groupBy("capture_id").count().where("count > 1")
        quarantined = captures.where("outcome = 'quarantined'").join(
            read_table(spark, lake, "quarantine"), "capture_id", "left_anti"
        )
        for frame in (wrong, twice, quarantined):
            incomplete.update(row.capture_id for row in frame.select("capture_id").collect())
    return incomplete


def _find_by_object(driver: Driver, work: Work, uris: Sequence[str]) -> list[Capture]:
    """The captures that these URIs hold now; objects that cannot be opened are skipped."""
    sources, room = Sources(work.storage_options), asyncio.Semaphore(_OPENED)

    def identify_capture(uri: str, loop: asyncio.AbstractEventLoop) -> Capture | None:
        try:
            with sources.open_blocking(uri, loop) as file:
                return file.identify_capture()
        except (OSError, Fatal):
            return None

    async def identify_with_limit(uri: str) -> Capture | None:
        async with room:
            return await asyncio.to_thread(identify_capture, uri, asyncio.get_running_loop())

    async def identify_all() -> list[Capture | None]:
        return await asyncio.gather(*(identify_with_limit(uri) for uri in uris))

    return [capture for capture in driver.run_coroutine(identify_all()) if capture is not None]


def require_profiles(chosen: CaptureSelection) -> None:
    """Raises WrongSetting if captures were read with a profile and would now be read without one."""
    if chosen.losing:
        named = ", ".join(sorted(chosen.losing)[:_NAMED])
        raise WrongSetting(
            f"{chosen.losing.total():,} of these captures were read with a profile ({named}), and none is given now: their "
            "bus names and vehicle ids would be lost. Give --profile or the workers' routes, or accept the loss with "
            "--without-profile"
        )


def load_settings(invocation: Invocation, profile: Path | None) -> tuple[FleetSettings, str]:
    """The settings, and the lake whose captures are replaced: `--lake`, `lake` of the settings, or that of their routes.

    Raises WrongSetting if no lake is named, if the routes lead to several, or for a profile beside routes.
    """
    settings = FleetSettings.load(invocation.config)
    if settings.routes is None:
        settings = invocation.load_settings(profile=profile)
        if settings.lake is None:
            raise WrongSetting(NO_LAKE)
        return settings, settings.lake
    if profile is not None:
        raise WrongSetting(
            f"--profile: the routes in {settings.routes} name the profile of each capture; change it there"
        )
    lakes = settings.load_routes().lake_uris
    if invocation.lake is None and len(lakes) > 1:
        raise WrongSetting(f"the routes lead to {len(lakes)} lakes: name one of {', '.join(lakes)} with --lake")
    return settings, invocation.lake or lakes[0]


def routes_to_lake(work: Work, store: Store) -> Routes:
    """The routes that lead to this lake, which say how its captures are decoded."""
    lake_routes = [
        route
        for route in work.routes.routes
        if Store.open(route.lake, work.storage_options(route.lake)).uri == store.uri
    ]
    if not lake_routes:
        raise WrongSetting(
            f"no route of the settings leads to {store.uri}, so the profile of its captures is unknown: add the route"
        )
    return Routes(tuple(lake_routes))


def _capture_states(driver: Driver, lake: str, capture_ids: Sequence[str]) -> dict[str, str]:
    """capture_id -> its state in the ledger; COMMITTED when its batch is in every table."""

    async def fetch_states() -> dict[str, str]:
        states: dict[str, str] = {}
        for start in range(0, len(capture_ids), _ASKED):
            states |= await driver.lakes[lake].capture_states(capture_ids[start : start + _ASKED])
        return states

    return driver.run_coroutine(fetch_states())
