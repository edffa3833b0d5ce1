"""Every request in the life of a message goes wrong in every way, and processes die at every step: rows are there once.

One lake and one service for all requests: after each fault the capture must come into the tables, after each request
the whole lake is looked at. What a single adapter makes of a fault is tested beside it; here the service has to live
with it. `--torture` adds faults that the clients mend by themselves, refusals of everything, and each step alone.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator, Mapping, Sequence

import pytest

from pcaplake.common.errors import Fatal
from pcaplake.lake.store import object_store as lake_store
from pcaplake.worker.service.service import POLLS
from tests.integration.faults import DONE, FAULTS, MOMENTS, PAST_THE_CLIENT, REQUESTS, UNDONE, Request, inject, s3
from tests.worker.moments import choose_moments

from . import processes
from .conftest import Aws
from .proxied import Ground, Proxied, standing
from .stages import FRAMES, PATIENCE, fd_capture

CAPTURES = 8  # at most, until everything has gone wrong as often as it should


FORBIDDEN = {
    "s3": {"status": 403, "code": "AccessDenied"},
    "sqs": {"status": 403, "code": "AccessDenied"},
    "dynamodb": {"status": 400, "code": "AccessDeniedException"},
}


@pytest.fixture(scope="module")
def ground(aws: Aws, torture: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    if aws.engine != "ministack" and not torture:
        pytest.skip("here the races are enough: make torture has all of it")
    with standing(aws, tmp_path_factory.mktemp("matrix")) as made, pytest.MonkeyPatch.context() as patch:
        patch.setattr(lake_store, "_CLOCK_SECONDS", 0.0)  # each file asks for its time, else seldom one does
        yield made


async def polled(town: Proxied) -> None:
    """Every poll that is under way now began after the last rule was made."""
    polls = [seen for seen in town.sqs.log if seen.operation == "ReceiveMessage" and seen.action is None]
    await town.until(lambda: all(seen.status is not None for seen in polls))


async def survive(ground: Ground, request: Request, faults: Mapping[str, int]) -> None:
    """Captures come into the tables although these things go wrong, one after the other, each so many times."""
    town, running = ground.town, await ground.service()
    rules = [inject(town, request, FAULTS[fault], times) for fault, times in faults.items()]
    if request.operation == "ReceiveMessage":
        await polled(town)
    left = CAPTURES
    while any(rule.hits != rule.times for rule in rules):
        assert left, f"{left} of {[(rule.action, rule.hits) for rule in rules]}"
        left -= 1
        await town.upload()
        await town.committed(running)
        await town.idle(running)
    town.clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_goes_wrong(ground: Ground, name: str) -> None:
    """First nothing happens, several times in several ways, then all but the answer: past what clients mend."""
    request = REQUESTS[name]

    async def main() -> None:
        if request.operation == "ReceiveMessage":
            await survive(ground, request, dict.fromkeys(UNDONE, PAST_THE_CLIENT))
            for fault in (*DONE, "cut"):  # each with a message in it
                await survive(ground, request, {fault: POLLS})
        else:
            cut = {"cut": PAST_THE_CLIENT} if request.body else {}
            await survive(ground, request, dict.fromkeys((*UNDONE, *DONE), PAST_THE_CLIENT) | cut)
        await ground.town.settled(await ground.service())

    ground.run(main)


@pytest.mark.slow
@pytest.mark.torture  # test_a_request_goes_wrong has all of them in a row
@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name in REQUESTS for fault in FAULTS if fault != "cut" or REQUESTS[name].body]
)
def test_a_request_goes_wrong_in_one_way(ground: Ground, name: str, fault: str) -> None:
    request = REQUESTS[name]

    async def main() -> None:
        for times in (1, PAST_THE_CLIENT):
            await survive(ground, request, {fault: times})
        await ground.town.settled(await ground.service())

    ground.run(main)


BIG = 90_000  # frames of 64 bytes that nothing makes smaller
MULTIPART = {
    "begin": s3("CreateMultipartUpload", "*.parquet", body=True),
    "part": s3("UploadPart", "*.parquet"),
    "end": s3("CompleteMultipartUpload", "*.parquet", body=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MULTIPART)
def test_a_file_of_several_parts(ground: Ground, name: str, torture: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    request = MULTIPART[name]
    monkeypatch.setattr(lake_store, "_PART_BYTES", 5 << 20)  # S3 takes no smaller ones

    async def main() -> None:
        town, running = ground.town, await ground.service()
        for number, fault in enumerate(FAULTS if torture else ("request lost", "answer lost")):
            rule = inject(town, request, FAULTS[fault], PAST_THE_CLIENT)
            await town.put(f"{name} {number}.pcap", fd_capture(BIG, seed=number), BIG)
            await town.committed(running)
            assert rule.hits, fault
            town.clear()
        await town.settled(running)

    ground.run(main)


ALWAYS = [("3.5 stage", "request lost"), ("3.5 stage", "answer lost")]
ALWAYS += [("4.3a manifest", "answer lost"), ("5.3 version", "answer lost")]
OUTAGES = ("3.5 stage", "4.3a manifest", "4.3b mark", "5.1 temp object", "5.2 entry", "5.3 version", "4.6 advance")


async def given_up(ground: Ground, outages: Sequence[tuple[str, str]], caplog: pytest.LogCaptureFixture) -> None:
    """One service, in which these requests fail one after the other, each for longer than a commit is tried."""
    await ground.stop()
    town = ground.town
    async with town.run(commit_timeout=0.5) as running:
        for name, fault in outages:
            caplog.clear()
            inject(town, REQUESTS[name], FAULTS[fault], None)
            await town.upload()
            through = asyncio.create_task(town.committed(running))  # what is done may be found without an answer
            await town.until(lambda through=through: "again" in caplog.text or through.done(), running)
            town.clear()
            await through
        await town.settled(running)


@pytest.mark.slow
def test_requests_fail_until_the_service_gives_them_up(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    """The capture is read again, or the committer begins anew."""
    ground.run(lambda: given_up(ground, ALWAYS, caplog))


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.parametrize("fault", ["request lost", "answer lost"])
@pytest.mark.parametrize("name", OUTAGES)
def test_a_request_fails_until_the_service_gives_it_up(
    ground: Ground, name: str, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    ground.run(lambda: given_up(ground, [(name, fault)], caplog))


AT_ONCE = ("3.2 lake.json", "3.4 file", "3.5 stage", "3.6 delete", "4.3a manifest", "5.2 entry")
OF_ONE_CAPTURE = "3.3 capture"


async def refused(ground: Ground, names: Sequence[str]) -> None:
    """A service for each request, and then one that may do everything."""
    await ground.stop()
    town = ground.town
    for name in names:
        request = REQUESTS[name]
        async with town.run() as running:
            how = {"action": "error", **FORBIDDEN[request.service]}
            rule = inject(town, request, how, None)
            await town.upload()
            if name == OF_ONE_CAPTURE:
                await town.until(lambda: running.service.tally["failed"] > 0, running)
            else:
                await asyncio.wait([running.task], timeout=PATIENCE)
                assert isinstance(running.task.exception(), Fatal), name
            assert rule.hits, name
        town.clear()
    await town.settled(await ground.service())


@pytest.mark.slow
def test_requests_are_refused_one_after_the_other(ground: Ground) -> None:
    """The service ends, with what only people can mend; one that may finds everything, and goes on."""
    ground.run(lambda: refused(ground, (*AT_ONCE, OF_ONE_CAPTURE)))


@pytest.mark.slow
@pytest.mark.torture
@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_refused(ground: Ground, name: str) -> None:
    ground.run(lambda: refused(ground, [name]))


async def killed(ground: Ground, where: str) -> None:
    """A process finds what those before it left, takes a capture, and dies there."""
    town = ground.town
    await town.upload(2, FRAMES)
    process = processes.start(town.stage, "killed", kill=where, max_records=1, lease_timeout=0.5)
    await asyncio.to_thread(process.join, PATIENCE)
    assert process.exitcode == -signal.SIGKILL, town.stage.logs()
    await asyncio.to_thread(town.books.check_once)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2))
def test_processes_die_one_after_the_other(ground: Ground, first: int) -> None:
    """Each at another step, the next one soon after it began: what is left over adds up."""

    async def main() -> None:
        await ground.stop()
        for where in choose_moments(MOMENTS)[first::2]:
            await killed(ground, where)
        await ground.town.settled(await ground.service())

    ground.run(main)


@pytest.mark.slow
@pytest.mark.torture  # test_processes_die_one_after_the_other meets the same steps
@pytest.mark.parametrize("where", MOMENTS)
def test_a_process_dies(ground: Ground, where: str) -> None:
    async def main() -> None:
        await ground.stop()
        await killed(ground, where)
        await ground.town.settled(await ground.service())

    ground.run(main)
