"""How many requests a small capture takes. Counts do not depend on the machine, but for what is asked by time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.fleet_service import ServiceBench, measure_until_drained, tiny_captures
from bench.fleet_site import BenchSite, CountingProxies, start_bench_site
from tools.local.install import CannotInstall

CAPTURES = 600
BY_TIME = {
    "DynamoDB Query",  # the committer looks for stages
    "DynamoDB GetItem",  # leases
    "DynamoDB PutItem",
    "SQS GetQueueAttributes",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BenchSite]:
    try:
        with start_bench_site("ministack", tmp_path_factory.mktemp("site")) as started:
            yield started
    except CannotInstall as error:
        pytest.skip(str(error))


@pytest.mark.slow
async def test_requests_of_small_captures(site: BenchSite, tmp_path: Path) -> None:
    counts, stages = await count_requests(site, tmp_path)
    told = f"{dict(counts)}, {stages} stages"
    assert counts["S3 GetObject of captures"] == CAPTURES, told  # the notification has size and eTag
    assert counts["SQS ReceiveMessage"] + counts["SQS DeleteMessageBatch"] <= 0.3 * CAPTURES, told
    assert stages <= CAPTURES / 30, told
    # the files of the first stages of a new leader are looked for; else the store's time is read every ten seconds
    assert counts["S3 HeadObject"] <= 4 * stages + 20, told
    work = sum(count for name, count in counts.items() if name not in BY_TIME)
    # with those of the start; a slow machine makes more stages, each of which takes about 22 with its commit
    assert work <= 1.55 * CAPTURES + 30 * stages, told


async def count_requests(site: BenchSite, folder: Path) -> tuple[Counter[str], int]:
    """Requests by service and operation until all rows are in the tables, and the number of stages."""
    async with (
        CountingProxies(site.environment) as counting,
        ServiceBench(site, tiny_captures(folder), environment=counting.environment) as bench,
    ):
        counting.take_request_counts()
        before = await bench.count_capture_requests()
        run = await measure_until_drained(bench, CAPTURES)
        operations = counting.take_request_counts()[0]
        # `send_notifications` reads the eTag of one capture
        operations["S3 GetObject of captures"] = await bench.count_capture_requests() - before - 1
        return operations, run["stages"]
