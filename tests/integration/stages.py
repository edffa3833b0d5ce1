"""Where a fleet plays: a bucket that announces captures to a queue, a lake, both tables, and what can be seen of them.

Knows `pcaplake run` as a process and the lake as its readers see it. `Books` reads the logs of the tables as it goes,
so that one stage serves many tests: each asks only for what is new.
"""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pcaplake.ingest.captures.reference import ObjectRef
from pcaplake.lake.records import manifest_path
from pcaplake.worker.service.notification import build_s3_event
from tests.parser import captures
from tests.worker.fleets import can_capture

from .conftest import Aws

FRAMES = 50
PATIENCE = 120.0  # seconds until something must have happened on the slowest machine
LAKE = "drives"


def fd_capture(frames: int, *, seed: int) -> bytes:
    """Frames of CAN FD, whose 64 bytes nothing makes smaller; a frame is 88 bytes in the capture."""
    data = np.random.default_rng(seed).integers(0, 256, (frames, 88), np.uint8)
    head = struct.pack("<IIII", captures.T0, 0, 72, 72) + struct.pack(">IBBxx", 0x123, 64, 4)
    data[:, : len(head)] = np.frombuffer(head, np.uint8)
    return captures.pcap_header(227) + data.tobytes()


@dataclass
class Stage:
    """Buckets `raw` and `lake`, the queue, the ledger's table and the lock table, each of a test's own."""

    aws: Aws
    folder: Path
    raw: str
    queue_url: str
    lake: str
    ledger: str
    locks: str
    ends: ExitStack = field(default_factory=ExitStack)  # what is over when the stage is left

    @property
    def queue(self) -> str:
        return self.queue_url.rpartition("/")[2]

    @property
    def uri(self) -> str:
        return f"s3://{self.lake}/{LAKE}"

    @property
    def settings(self) -> dict[str, str]:
        """What the variables of `pcaplake run` say here."""
        return {
            **self.aws.environment,
            "PCAPLAKE_QUEUE": self.queue,
            "PCAPLAKE_LAKE": self.uri,
            "PCAPLAKE_LEDGER_TABLE": self.ledger,
            "PCAPLAKE_LOCK_TABLE": self.locks,
            "PCAPLAKE_STORAGE_OPTION": '{"allow_http": "true"}',
            "PCAPLAKE_THREADS": "1",
            "PCAPLAKE_POLL_WAIT": "1",
            "PCAPLAKE_DRAIN_TIMEOUT": "20",
            "PCAPLAKE_FLUSH_INTERVAL": "1",
            "PCAPLAKE_MAX_BATCH_AGE": "0.3",
            "PCAPLAKE_LEASE_TIMEOUT": "1",
            "PCAPLAKE_HTTP_PORT": "0",
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """`pcaplake run`, killed when the stage is left. A variable that is empty is not there."""
        variables = {**os.environ, **self.settings, **environment}
        with (self.folder / f"worker-{time.monotonic_ns()}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pcaplake.worker", "run", *arguments],
                env={name: value for name, value in variables.items() if value},
                stdout=log,
                stderr=log,
            )
        self.ends.callback(process.wait)
        self.ends.callback(process.kill)
        return process

    def upload(self, numbers: Collection[int], frames: int = FRAMES) -> None:
        """Captures of so many frames, each with ids of its own."""
        for number in numbers:
            self.put(f"in/{number} ü+.pcap", can_capture(frames, number))

    def put(self, key: str, body: bytes) -> None:
        self.aws.client("s3").put_object(Bucket=self.raw, Key=key, Body=body)

    def uris(self, numbers: Collection[int]) -> set[str]:
        return {f"s3://{self.raw}/in/{number} ü+.pcap" for number in numbers}

    def announce(self, key: str) -> None:
        """One more notification of what lies there, as `reconcile` sends it."""
        client = self.aws.client("s3")
        head = client.head_object(Bucket=self.raw, Key=key)
        ref = ObjectRef(
            uri=f"s3://{self.raw}/{key}", size=head["ContentLength"], explicit=True, etag=head["ETag"].strip('"')
        )
        self.aws.client("sqs").send_message(QueueUrl=self.queue_url, MessageBody=build_s3_event(ref))

    def read(self, table: str) -> Any:
        """A table as `deltalake` reads it; None when there is none yet."""
        options = {"AWS_ALLOW_HTTP": "true", **self.aws.environment}
        uri = f"{self.uri}/{table}"
        if not DeltaTable.is_deltatable(uri, options):
            return None
        return DeltaTable(uri, storage_options=options).to_pyarrow_table()

    def captures(self) -> Counter[str]:
        table = self.read("captures")
        return Counter() if table is None else Counter(table["uri"].to_pylist())

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.folder.glob("*.log"))

    def left(self) -> int:
        """Messages in the queue, hidden ones too."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.aws.client("sqs").get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)
        return sum(int(value) for value in found["Attributes"].values())

    def visible(self) -> int:
        """Messages that would be delivered now."""
        names = ["ApproximateNumberOfMessages"]
        found = self.aws.client("sqs").get_queue_attributes(QueueUrl=self.queue_url, AttributeNames=names)
        return int(found["Attributes"][names[0]])

    def entries(self) -> list[dict[str, Any]]:
        """The items of the lock table."""
        return list(self._items(self.locks))

    def items(self, kind: str) -> list[dict[str, Any]]:
        """Items of the ledger whose key begins so: capture, stage, pending, held, head, lease."""
        return [item for item in self._items(self.ledger) if item["pk"]["S"].startswith(f"{kind}#")]

    def _items(self, table: str) -> Iterator[dict[str, Any]]:
        for page in self.aws.client("dynamodb").get_paginator("scan").paginate(TableName=table, ConsistentRead=True):
            yield from page["Items"]

    def objects(self, prefix: str = "", bucket: str | None = None) -> Iterator[str]:
        """Keys below the lake, or in another bucket."""
        where = {"Bucket": self.lake, "Prefix": f"{LAKE}/{prefix}"} if bucket is None else {"Bucket": bucket}
        for page in self.aws.client("s3").get_paginator("list_objects_v2").paginate(**where):
            for each in page.get("Contents", ()):
                yield each["Key"].removeprefix("" if bucket else f"{LAKE}/")

    def get(self, path: str) -> bytes:
        """What lies below the lake."""
        body: bytes = self.aws.client("s3").get_object(Bucket=self.lake, Key=f"{LAKE}/{path}")["Body"].read()
        return body


@contextmanager
def staged(aws: Aws, folder: Path, *, visibility: int = 10, announces: bool = True) -> Iterator[Stage]:
    """A new stage; `visibility` in seconds, `announces`: uploads are notified by S3 itself."""
    raw, url = aws.bucket("raw"), aws.queue("captures", VisibilityTimeout=str(visibility))
    if announces:
        to_queue = {"QueueArn": aws.queue_arn(url), "Events": ["s3:ObjectCreated:*"]}
        aws.client("s3").put_bucket_notification_configuration(
            Bucket=raw, NotificationConfiguration={"QueueConfigurations": [to_queue]}
        )
    made = Stage(
        aws=aws,
        folder=folder,
        raw=raw,
        queue_url=url,
        lake=aws.bucket("lake"),
        ledger=aws.table("ledger"),
        locks=aws.table("locks", hash_key="tablePath", range_key="fileName"),
    )
    with made.ends:
        yield made


def until(what: Callable[[], bool], stage: Stage) -> None:
    """Wait for it, and for `PATIENCE` at most."""
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < deadline, stage.logs()
        time.sleep(0.1)


class Books:
    """What the tables have, read from their logs and files, each version once; every frame is a row of two of them."""

    ROWS = ("packets", "can_frames")
    TABLES = ("captures", *ROWS)
    KEY = ("capture_id", "packet_no")

    def __init__(self, stage: Stage) -> None:
        self.captures: Counter[str] = Counter()
        self.overwritten = False  # may files be removed?
        self._stage = stage
        self._rows: dict[str, dict[str, pa.Table]] = {table: {} for table in self.ROWS}  # by file
        self._counts = {table: Counter[str]() for table in self.ROWS}  # by capture_id
        self._next = dict.fromkeys(self.TABLES, 0)
        self.files: set[str] = set()  # below the lake
        self._ids: dict[str, str] = {}

    def read_on(self) -> None:
        for table in self.TABLES:
            self._read_on(table)

    def _read_on(self, table: str) -> None:
        for name in self._new(table):
            for line in self._stage.get(f"{table}/_delta_log/{name}").splitlines():
                action = json.loads(line)
                if "remove" in action:
                    self._remove(table, action["remove"]["path"])
                if "add" in action:
                    self._add(table, action["add"]["path"])

    def _new(self, table: str) -> Iterator[str]:
        """N.json, from the first one not read up to a gap or the end."""
        prefix, start = f"{LAKE}/{table}/_delta_log/", self._next[table]
        answer = self._stage.aws.client("s3").list_objects_v2(
            Bucket=self._stage.lake, Prefix=prefix, StartAfter=f"{prefix}{start:020d}.j"
        )
        there = {each["Key"].removeprefix(prefix) for each in answer.get("Contents", ())}
        while (name := f"{self._next[table]:020d}.json") in there:
            self._next[table] += 1
            yield name

    def _add(self, table: str, path: str) -> None:
        assert f"{table}/{path}" not in self.files, f"{table}/{path} was added twice"
        self.files.add(f"{table}/{path}")
        found = pq.read_table(io.BytesIO(self._stage.get(f"{table}/{path}")))
        if table == "captures":
            uris = found["uri"].to_pylist()
            self.captures.update(uris)
            self._ids.update(zip(uris, found["capture_id"].to_pylist(), strict=True))
            return
        rows = found.select(self.KEY).set_column(0, "capture_id", found["capture_id"].cast(pa.string()))
        self._rows[table][path] = rows
        self._counts[table].update(_by_capture(rows))

    def _remove(self, table: str, path: str) -> None:
        """Only an overwrite takes files away, and no test wants one unsaid."""
        assert self.overwritten, f"{table}/{path} was removed"
        self.files.remove(f"{table}/{path}")
        if table == "captures":
            found = pq.read_table(io.BytesIO(self._stage.get(f"{table}/{path}")), columns=["uri"])
            self.captures -= Counter(found["uri"].to_pylist())
        else:
            self._counts[table] -= _by_capture(self._rows[table].pop(path))

    def has(self, expected: Mapping[str, int]) -> bool:
        """Are all rows of these captures there now? `expected`: frames by URI.

        Reads no further than to the first table that lacks some: who asks again and again asks for one table.
        """
        self._read_on("captures")
        if not expected.keys() <= self.captures.keys():
            return False
        for table, counts in self._counts.items():
            self._read_on(table)
            if not all(counts[self._ids[uri]] >= frames for uri, frames in expected.items()):
                return False
        return True

    def check_once(self) -> None:
        """No row is there twice."""
        self.read_on()
        assert not [uri for uri, count in self.captures.items() if count > 1]
        for table, parts in self._rows.items():
            if not parts:
                continue
            counts = pa.concat_tables(parts.values()).group_by(list(self.KEY)).aggregate([([], "count_all")])
            assert pc.max(counts["count_all"]).as_py() == 1, f"{table} has a row twice"

    def check(self, expected: Mapping[str, int]) -> None:
        """Every row of these captures is there once, and no other."""
        self.check_once()
        assert self.captures.keys() == expected.keys()
        for table, counts in self._counts.items():
            assert counts == {self._ids[uri]: frames for uri, frames in expected.items()}, table


def _by_capture(rows: pa.Table) -> Counter[str]:
    return Counter({each["values"]: each["counts"] for each in rows["capture_id"].value_counts().to_pylist()})


def check_logs(stage: Stage, *, expired: bool = False, cleaned: bool = False) -> None:
    """Versions are contiguous in every table, entries of the lock table are theirs, complete, one for each version.

    Every manifest is flagged: head is the last one, and nothing waits in the lake's generation. `expired`: entries may be
    gone. `cleaned`: the first versions may be.
    """
    versions: dict[str, list[int]] = {}
    batches = []
    for path in stage.objects():
        folder, _, name = path.rpartition("/")
        if folder.endswith("/_delta_log") and name.endswith(".json"):
            versions.setdefault(folder.removesuffix("/_delta_log"), []).append(int(name.removesuffix(".json")))
        if folder == "_pcaplake/batches":
            batches.append(path)
    assert versions
    for table, found in versions.items():
        assert cleaned or min(found) == 0, table
        assert sorted(found) == list(range(min(found), max(found) + 1)), table
    entries: dict[str, list[int]] = {}
    for entry in stage.entries():
        assert entry["complete"]["S"] == "true", entry
        assert entry["tablePath"]["S"].startswith(f"s3a://{stage.lake}/{LAKE}/")
        table = entry["tablePath"]["S"].removeprefix(f"s3a://{stage.lake}/{LAKE}/")
        entries.setdefault(table, []).append(int(entry["fileName"]["S"].removesuffix(".json")))
    for table, found in entries.items():
        assert len(set(found)) == len(found)
        assert set(found) <= set(range(max(versions[table]) + 1))
    if not expired:
        assert {table: len(found) for table, found in entries.items()} == {t: max(v) + 1 for t, v in versions.items()}
    head = int(stage.items("head")[0]["head"]["N"]) if batches else -1
    assert sorted(batches) == [manifest_path(batch) for batch in range(head + 1)]
    generation = json.loads(stage.get("_pcaplake/lake.json"))["generation"] if batches else 0
    for kind in ("pending", "held"):  # what nobody had composed when an overwrite began goes with the old rows
        waiting = [one for one in stage.items(kind) if int(one["pk"]["S"].split("#")[2]) >= generation]
        assert not waiting, waiting


def check_all(stage: Stage, expected: Mapping[str, int]) -> None:
    """The whole lake, read anew, and as `deltalake` reads it."""
    Books(stage).check(expected)
    check_logs(stage)
    assert stage.captures() == Counter(expected.keys())
    frames = stage.read("can_frames")
    assert frames.num_rows == sum(expected.values())
