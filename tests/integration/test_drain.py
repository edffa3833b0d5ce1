"""Thousands of notifications that wait, and one large capture among them: drained with bounded memory, none left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow.compute as pc
import pytest

from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.worker.service.notification import build_s3_event
from tests.parser import captures
from tests.worker.fleets import can_capture

from . import processes
from .conftest import Aws
from .file_server import Content, FileServer, Repeated, Whole
from .stages import PATIENCE, Stage, check_logs, staged

FRAMES = 20
ETAG = "0123456789abcdef0123456789abcdef"
MIB = 1 << 20
INFLIGHT = 48 * MIB
FILE = 8 * MIB
THREADS = 2
OF_A_THREAD = 128 * MIB  # what it decodes into, a window that is filled and one that is staged
OF_THE_PROCESS = 192 * MIB  # clients, and what its allocators keep: 110 MB after a large capture, whatever comes next
ALLOWED = INFLIGHT + THREADS * OF_A_THREAD + OF_THE_PROCESS
KEPT = 100 * MIB  # when the queue is empty again
WAITING = 4_000
LARGE = "large.pcap"


def udp_record(size: int) -> bytes:
    """A pcap record of one Ethernet frame with so many bytes of UDP payload."""
    udp = struct.pack(">HHHH", 1, 2, size + 8, 0) + bytes(size)
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0, b"\x0a\0\0\1", b"\x0a\0\0\2")
    return captures.pcap_record(bytes(12) + b"\x08\x00" + ip + udp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """So many small captures, and a large one of about so many bytes."""

    count: int
    large: int

    @property
    def packets(self) -> int:
        """Of the large one."""
        return self.large // len(udp_record(1400))

    def content(self, key: str) -> Content:
        if key == LARGE:
            return Repeated(captures.pcap_header(), udp_record(1400), self.packets)
        return Whole(can_capture(FRAMES, int(key.removesuffix(".pcap"))))

    @property
    def keys(self) -> list[str]:
        """The large one is announced when a quarter of the others are."""
        keys = [f"{number}.pcap" for number in range(self.count)]
        return [*keys[: self.count // 4], LARGE, *keys[self.count // 4 :]]

    def announce(self, stage: Stage) -> None:
        """A message for each, in batches of ten; no more than WAITING wait, as a local queue takes long for many."""
        refs = [
            ObjectRef(uri=f"s3://{stage.raw}/{key}", size=self.content(key).size, explicit=True, etag=ETAG)
            for key in self.keys
        ]
        client = stage.aws.client("sqs")

        def send(some: Sequence[ObjectRef]) -> None:
            entries = [{"Id": str(number), "MessageBody": build_s3_event(ref)} for number, ref in enumerate(some)]
            answer = client.send_message_batch(QueueUrl=stage.queue_url, Entries=entries)
            assert not answer.get("Failed")

        with ThreadPoolExecutor(4) as pool:
            for start in range(0, len(refs), WAITING // 2):
                while stage.left() > WAITING // 2:
                    time.sleep(0.5)
                portion = refs[start : start + WAITING // 2]
                list(pool.map(send, [portion[at : at + 10] for at in range(0, len(portion), 10)]))


@pytest.mark.slow
async def test_a_full_queue_is_drained_in_bounded_memory(aws: Aws, tmp_path: Path, torture: bool) -> None:
    """However many messages wait, and however large a capture is: what a worker holds is what its settings allow."""
    load = Load(count=100_000, large=2 << 30) if torture else Load(count=2_000, large=512 * MIB)
    assert load.large > ALLOWED, "it would fit as a whole"

    with staged(aws, tmp_path, visibility=600, announces=False) as stage:
        async with FileServer(load.content, etag=ETAG) as server:
            worker = processes.start(
                stage,
                "worker",
                bodies=server.url,
                apart=True,
                threads=THREADS,
                max_inflight=400,
                max_inflight_bytes=INFLIGHT,
                target_file_size=FILE,
                max_batch_age=2,
                drain_timeout=PATIENCE,
            )
            async with asyncio.timeout(PATIENCE):
                while not processes.began(stage, "worker"):
                    await asyncio.sleep(0.1)
            before = processes.memory(worker.pid)
            announced = asyncio.create_task(asyncio.to_thread(load.announce, stage))
            async with asyncio.timeout(None if torture else 3 * PATIENCE):
                while not announced.done() or await asyncio.to_thread(stage.left):
                    assert worker.is_alive(), stage.logs()
                    await asyncio.sleep(0.5)
                await announced
            peak = processes.memory(worker.pid).peak
            kept = await idle_memory(worker.pid)
            os.kill(worker.pid, signal.SIGTERM)
            assert await processes.ended(worker, stage) == 0
        check(stage, load)
        assert peak - before.peak < ALLOWED, f"{(peak - before.peak) / MIB:.0f} MB"
        assert kept - before.own < KEPT, f"{(kept - before.own) / MIB:.0f} MB"


async def idle_memory(pid: int) -> int:
    """The least that a process has to itself while it has nothing to do, within a quarter of a minute, in bytes."""
    found = []
    for _ in range(15):
        await asyncio.sleep(1)
        found.append(processes.memory(pid).own)
    return min(found)


def check(stage: Stage, load: Load) -> None:
    """Every capture once, with all its rows, in files of many; as `deltalake` reads the tables."""
    assert stage.captures() == Counter(f"s3://{stage.raw}/{key}" for key in load.keys)
    frames = stage.read("can_frames")
    assert frames.num_rows == load.count * FRAMES
    counts = frames.group_by(["capture_id", "packet_no"]).aggregate([([], "count_all")])["count_all"]
    assert pc.max(counts).as_py() == 1
    packets = Counter(
        {one["values"]: one["counts"] for one in stage.read("packets")["capture_id"].value_counts().to_pylist()}
    )
    assert Counter(packets.values()) == {FRAMES: load.count, load.packets: 1}
    assert len(list(stage.objects("can_frames/date="))) < load.count / 20
    check_logs(stage)
