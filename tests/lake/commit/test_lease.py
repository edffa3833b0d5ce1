"""The lease: when it is taken, and how rarely a thousand followers ask for it."""

from __future__ import annotations

import heapq
import itertools
import logging
import random
from collections import Counter

import pytest

from pcaplake.lake.commit.lease import LONGEST_LOOK, Leadership
from tests.worker.adapters.memory_ledger import MemoryLedger

TIMEOUT = 10.0
HOUR = 3600.0


class Fleet:
    """Followers in simulated time. The leader beats until `dies_at`; `looks`: follower -> when it looked."""

    def __init__(self, followers: int, *, closely: bool = False, dies_at: float = float("inf")) -> None:
        self.now, self.dies_at = 0.0, dies_at
        self.ledger = MemoryLedger()
        self.leader = Leadership(self.ledger, timeout=TIMEOUT, clock=lambda: self.now)
        self.followers = [
            Leadership(self.ledger, timeout=TIMEOUT, closely=closely, clock=lambda: self.now) for _ in range(followers)
        ]
        random.seed(followers)
        for follower in self.followers:  # a process each
            follower.phase = random.uniform(0, HOUR)
        self.looks: dict[int, list[float]] = {number: [] for number in range(followers)}

    async def run(self, until: float) -> int | None:
        """The follower that took over, or None."""
        assert await self.leader.try_to_lead(nothing)
        due: list[tuple[float, int]] = [(0.0, number) for number in range(-1, len(self.followers))]
        heapq.heapify(due)
        while due[0][0] < until:
            self.now, number = heapq.heappop(due)
            if number < 0:
                if self.now < self.dies_at:
                    await self.leader._send_heartbeat()
                heapq.heappush(due, (self.now + self.leader.beat_interval, number))
                continue
            self.looks[number].append(self.now)
            if await self.followers[number].try_to_lead(nothing):
                return number
            seconds = self.followers[number].seconds_to_next_look(rows_wait=False)
            heapq.heappush(due, (self.now + seconds, number))
        return None


async def nothing() -> None: ...


@pytest.mark.slow
async def test_an_idle_follower_looks_ever_more_rarely_and_a_thousand_not_at_once() -> None:
    fleet = Fleet(1000)
    assert await fleet.run(HOUR) is None, "the leader beats all the time"
    assert max(map(len, fleet.looks.values())) <= HOUR / (LONGEST_LOOK * TIMEOUT) + 5
    settled = [look for looks in fleet.looks.values() for look in looks if look > 100]
    busiest = Counter(int(look) for look in settled).most_common(1)[0][1]
    assert busiest < 3 * len(settled) / (HOUR - 100), "they do not all look in the same second"


async def test_who_does_nothing_but_commit_looks_often() -> None:
    fleet = Fleet(2, closely=True)
    await fleet.run(HOUR)
    gaps = [after - before for looks in fleet.looks.values() for before, after in itertools.pairwise(looks)]
    assert max(gaps) <= TIMEOUT / 4


@pytest.mark.parametrize(("followers", "within"), [(1, 2 * LONGEST_LOOK + 1.5), (1000, LONGEST_LOOK + 1.5)])
async def test_a_leader_that_dies_is_replaced(followers: int, within: float) -> None:
    """`within`: timeouts. A lone idle follower sees the last beat at its next look, and no other one at the look after."""
    dies_at = 1000.0
    fleet = Fleet(followers, dies_at=dies_at)
    assert await fleet.run(HOUR) is not None
    assert TIMEOUT / 2 < fleet.now - dies_at <= within * TIMEOUT


async def test_rows_that_wait_bring_the_next_look_forward() -> None:
    fleet = Fleet(1)
    await fleet.run(1000.0)
    (follower,) = fleet.followers
    fleet.now = 1000.0
    assert follower.seconds_to_next_look(rows_wait=True) <= TIMEOUT / 4


def test_all_lakes_of_a_process_look_at_the_same_moments() -> None:
    now = [0.0]
    ledger = MemoryLedger()
    lakes = [Leadership(ledger, timeout=TIMEOUT, clock=lambda: now[0]) for _ in range(5)]
    looks: list[set[float]] = []
    for number, lake in enumerate(lakes):  # opened one after the other
        now[0] = float(number)
        looks.append(set())
        while now[0] < HOUR:
            now[0] += lake.seconds_to_next_look(rows_wait=False)
            looks[-1].add(round(now[0], 6))
    settled = [{look for look in each if look > 100} for each in looks]
    assert len(set.union(*settled)) == len(settled[0]) > 80


async def test_the_lease_is_taken_when_the_beat_stops_and_not_before() -> None:
    ledger, now, taken = MemoryLedger(), [0.0], []

    async def on_taken() -> None:
        taken.append(now[0])

    one, two = (Leadership(ledger, timeout=2.0, clock=lambda: now[0]) for _ in range(2))
    assert await one.try_to_lead(on_taken)
    assert not await two.try_to_lead(on_taken)
    now[0] = 1.9
    await one._send_heartbeat()
    now[0] = 3.0
    assert not await two.try_to_lead(on_taken)  # first look at this beat
    now[0] = 4.9
    assert not await two.try_to_lead(on_taken)
    now[0] = 5.0
    assert await two.try_to_lead(on_taken)
    await one._send_heartbeat()
    assert (one.is_leading, two.is_leading) == (False, True)
    await two.release_lease()
    assert await one.try_to_lead(on_taken)
    assert taken == [0.0, 5.0, 5.0]


async def test_who_leads_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    now, ledger = 0.0, MemoryLedger()
    first, second = (
        Leadership(ledger, lake="memory:///x", owner=owner, timeout=TIMEOUT, clock=lambda: now) for owner in "ab"
    )
    assert await first.try_to_lead(nothing)
    assert not await second.try_to_lead(nothing)
    now = TIMEOUT
    assert await second.try_to_lead(nothing)
    await first._send_heartbeat()
    await second.release_lease()
    assert [(record.msg, record.lake, record.owner) for record in caplog.records] == [  # type: ignore[attr-defined]
        ("leadership won", "memory:///x", "a"),
        ("leadership won", "memory:///x", "b"),
        ("leadership lost", "memory:///x", "a"),
        ("leadership released", "memory:///x", "b"),
    ]
    assert caplog.records[1].previous == "a"  # type: ignore[attr-defined]
    assert caplog.records[2].leader == "b"  # type: ignore[attr-defined]
