"""Which captures are replaced: those that were named, are in every table by the ledger, and are not done yet.

Knows the table `captures`, routes and the ledger. Must not know how captures are read, nor how rows are swapped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from parser import Profile
from worker import VERSION
from worker.lake.identity import local_uri
from worker.lake.ledger import COMMITTED
from worker.lake.manifest import Capture
from worker.lake.store import Store
from worker.routes import Routes
from worker.settings import WrongSetting

from .backfill_driver import Driver
from .backfill_work import Work
from .places import read_table
from .replace_work import Wanted
from .signals.history import literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ID = re.compile(r"[0-9a-f]{32}")
_ASKED = 1000  # captures in one question to the ledger
_NONE = str(Profile.default())  # in the column `profile`: no profile was given
_NAMED = 3


@dataclass(slots=True, kw_only=True)
class Chosen:
    """`wanted`: to be read again. `done`: as wanted already. `waiting`: not in all tables yet. `unknown`: names of nothing.

    `losing`: profiles of `wanted` captures that are to be read without one now, and how many there are of each.
    """

    wanted: list[Wanted] = field(default_factory=list)
    done: int = 0
    waiting: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    losing: Counter[str] = field(default_factory=Counter)


def choose(
    spark: SparkSession,
    lake: str,
    work: Work,
    driver: Driver,
    given: Sequence[str],
    *,
    where: str | None = None,
    force: bool = False,
    begun: Collection[str] = (),
) -> Chosen:
    """Captures `given` by URI, path or id, and those that `where` holds for. WrongSetting when none are asked for.

    `force`: also those that are done. `begun`: captures that a run which was killed may have replaced in some tables,
    whatever the table `captures` says.
    """
    names = {one if "://" in one or _ID.fullmatch(one) else local_uri(Path(one)) for one in given}
    conditions = [f"({where})"] if where else []
    if names:
        texts = ", ".join(literal(one) for one in sorted(names))
        conditions.append(f"uri IN ({texts}) OR capture_id IN ({texts})")
    if not conditions:
        raise WrongSetting("nothing to replace: name captures by URI or id, or give --where")
    found = (
        read_table(spark, lake, "captures")
        .where(" OR ".join(conditions))
        .select("capture_id", "uri", "etag", "object_size", "decoder_version", "profile")
        .orderBy("uri", "capture_id")
        .collect()
    )
    said = {name for row in found for name in (row.uri, row.capture_id)}
    chosen = Chosen(unknown=sorted(names - said))
    (inside,) = work.routes.lakes
    committed = _committed(driver, inside, [row.capture_id for row in found])
    for row in found:
        route = next(iter(work.routes.of(row.uri)), None)
        if route is None:
            chosen.unknown.append(row.uri)
        elif row.capture_id not in committed:
            chosen.waiting.append(row.uri)
        elif not (force or row.capture_id in begun) and (row.decoder_version, row.profile) == (
            VERSION,
            str(route.profile),
        ):
            chosen.done += 1
        else:
            capture = Capture(capture_id=row.capture_id, uri=row.uri, etag=row.etag, size=row.object_size)
            chosen.wanted.append(Wanted(capture=capture, route=route.name))
            if str(route.profile) == _NONE and row.profile not in (None, _NONE):
                chosen.losing[row.profile] += 1
    return chosen


def keeping_profiles(chosen: Chosen) -> None:
    """WrongSetting where captures were read with a profile and would now be without one."""
    if chosen.losing:
        named = ", ".join(sorted(chosen.losing)[:_NAMED])
        raise WrongSetting(
            f"{chosen.losing.total():,} of these captures were read with a profile ({named}) and none is given now: their "
            "bus names and vehicle ids would be lost. Give --profile or the routes of the workers, or say "
            "--without-profile if that is what you want"
        )


def routes_to(work: Work, store: Store) -> Routes:
    """Those that lead to this lake, which say how its captures are read."""
    found = [one for one in work.routes.routes if Store.open(one.lake, work.storage(one.lake)).uri == store.uri]
    if not found:
        raise WrongSetting(f"no route of the settings leads to {store.uri}: nobody knows how its captures are read")
    return Routes(tuple(found))


def _committed(driver: Driver, lake: str, capture_ids: Sequence[str]) -> set[str]:
    """Those that the ledger has flagged, which happens when their batch is in every table."""

    async def ask() -> set[str]:
        found: set[str] = set()
        for start in range(0, len(capture_ids), _ASKED):
            states = await driver.lakes[lake].seen(capture_ids[start : start + _ASKED])
            found |= {one for one, state in states.items() if state == COMMITTED}
        return found

    return driver.call(ask())
