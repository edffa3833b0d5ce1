"""The fleet on this machine: services on loopback, three workers, captures uploaded while they run, one worker killed.

    make demo-fleet        # LOCAL_AWS_ENGINE=localstack for LocalStack and DynamoDB Local instead of MiniStack

Everything is real but the servers: S3 notifications, SQS, both DynamoDB tables, processes and the signal. At the end
every row that the captures hold must be in the tables once, or this ends with 1.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from deltalake import DeltaTable
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from parser import TABLES, open_capture
from parser.capture import DECODED
from tools.local.engines import LOOPBACK
from tools.local.install import install
from tools.local.stack import Stack, free_ports

FOLDER = Path("demo-fleet")
RAW, LAKE = "demo-raw", "s3://demo-lake/drives"
CAPTURES, SECONDS, WORKERS, PATIENCE = 120, 0.3, 3, 300.0
SHOWN = ("captures_total", "rows_total", "commits_total", "messages_total", "lag_seconds_count", "lag_seconds_sum")
console = Console(highlight=False)


def say(text: str) -> None:
    console.print(f"[bold]{text}[/bold]")


def pcaplake(*arguments: str, env: dict[str, str], out: Any = None) -> None:
    subprocess.run([sys.executable, "-m", "worker", *arguments], env=env, check=True, stdout=out)


def expected(paths: list[Path]) -> Counter[str]:
    """Rows by table as the decoder gives them for each capture alone."""
    found: Counter[str] = Counter()
    for path in paths:
        capture = open_capture(path, tables=DECODED, profile=FOLDER / "drive/profile.yaml")
        for table, batch in capture.batches():
            found[table] += batch.num_rows
    return found


def counted(env: dict[str, str]) -> tuple[Counter[str], int]:
    """Rows by table as the Delta log has them, and how many of them are there twice by their key."""
    found, twice = Counter[str](), 0
    for name in DECODED:
        table = DeltaTable(f"{LAKE}/{name}", storage_options=env).to_pyarrow_table(columns=list(TABLES[name].key))
        found[name] = table.num_rows
        twice += table.num_rows - table.group_by(list(TABLES[name].key)).aggregate([]).num_rows
    return found, twice


def metrics(port: int) -> Counter[str]:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found: Counter[str] = Counter()
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0].removeprefix("pcaplake_")
        if name in SHOWN:
            found[name] += float(line.rpartition(" ")[2])  # type: ignore[assignment]
    return found


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Fleet:
    """Worker processes, and what they listen on."""

    def __init__(self, config: Path, env: dict[str, str]) -> None:
        self.ports = free_ports(WORKERS)
        self.logs = [FOLDER / f"worker-{i + 1}.log" for i in range(WORKERS)]
        self.processes = []
        for log, port in zip(self.logs, self.ports, strict=True):
            with log.open("wb") as file:
                command = [sys.executable, "-m", "worker", "run", "--config", str(config)]
                given = {**env, "PCAPLAKE_HTTP_PORT": str(port)}
                self.processes.append(subprocess.Popen(command, env=given, stdout=file, stderr=file))

    def ready(self) -> None:
        """Until all of them work."""
        deadline = time.monotonic() + PATIENCE
        for port in self.ports:
            while not _answers(port):
                self.check()
                if time.monotonic() > deadline:
                    raise SystemExit(f"a worker is not ready after {PATIENCE:.0f} s; see {FOLDER}/worker-*.log")
                time.sleep(0.2)

    def kill(self, which: int) -> None:
        self.processes[which].send_signal(signal.SIGKILL)
        self.processes[which].wait()

    def stop(self) -> list[int]:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        return [process.wait(120) for process in self.processes]

    def check(self) -> None:
        for process, log in zip(self.processes, self.logs, strict=True):
            if process.poll() not in (None, -signal.SIGKILL):
                raise SystemExit(f"a worker ended with {process.returncode}; see {log}")


def settings(threads: int) -> Path:
    (FOLDER / "routes.yaml").write_text(
        f'routes:\n  - name: demo\n    bucket: {RAW}\n    key: "*.pcap"\n    lake: {LAKE}\n    profile: drive/profile.yaml\n'
    )
    path = FOLDER / "fleet.yaml"
    path.write_text(
        f"queue: demo-captures\nroutes: routes.yaml\nthreads: {threads}\npreset: low_latency\npoll_wait: 2\n"
        "lease_timeout: 2s\nlog_format: text\nledger_table: demo_ledger\nlock_table: demo_log\n"
        'storage_option: {allow_http: "true"}\n'
    )
    return path


def main() -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    engine = os.environ.get("LOCAL_AWS_ENGINE", "ministack")
    state = Path(".local-aws")
    install(engine, state)  # type: ignore[arg-type]
    port, dynamodb_port = free_ports(2)
    stack = Stack(engine, port=port, dynamodb_port=dynamodb_port, state=state, run=FOLDER / "services", tethered=True)  # type: ignore[arg-type]
    say(f"starting {engine} on loopback")
    stack.start()
    try:
        return demo({**os.environ, **stack.environment})
    finally:
        stack.stop()


def demo(env: dict[str, str]) -> int:
    s3 = boto3.client(
        "s3",
        endpoint_url=env["AWS_ENDPOINT_URL"],
        region_name=env["AWS_REGION"],
        aws_access_key_id=env["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=env["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}),
    )
    for bucket in (RAW, LAKE.split("/")[2]):
        s3.create_bucket(Bucket=bucket)
    say(f"making {CAPTURES} captures")
    pcaplake(
        "sample", str(FOLDER / "drive"), "--mix", "c", "--seconds", str(SECONDS), "--vehicles", str(CAPTURES), env=env
    )
    paths = sorted((FOLDER / "drive").glob("*/*.pcap"))
    wanted = expected(paths)
    config, policies = settings(threads=1), FOLDER / "policies.txt"
    say(f"pcaplake setup (what it made, and policies for AWS, are in {policies})")
    with policies.open("wb") as out:
        pcaplake("setup", "--config", str(config), "--visibility-timeout", "15s", env=env, out=out)
    say(f"{WORKERS} workers; uploading {len(paths)} captures; worker 1 is killed on the way")
    fleet = Fleet(config, env)
    try:
        fleet.ready()
        start = time.monotonic()
        follow(s3, fleet, paths, wanted, env)
        seconds = time.monotonic() - start
        told = sum((metrics(port) for port in fleet.ports[1:]), Counter[str]())
    finally:
        codes = fleet.stop()
    found, twice = counted(env)
    show(wanted, found, told)
    good = found == wanted and not twice and codes[1:] == [0] * (WORKERS - 1)
    console.print(
        f"{sum(found.values()):,} rows of {len(paths)} captures in {seconds:.0f} s, {twice} of them twice; "
        f"exit codes {codes}: {'[green]all there, each once[/green]' if good else '[red]not as it must be[/red]'}"
    )
    return 0 if good else 1


def follow(s3: Any, fleet: Fleet, paths: list[Path], wanted: Counter[str], env: dict[str, str]) -> None:
    """Upload while the workers read, kill one half-way, and wait for the last row."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    deadline = time.monotonic() + PATIENCE
    with Progress(*columns, console=console) as progress:
        uploads = progress.add_task("uploaded", total=len(paths))
        rows = progress.add_task("rows in the tables", total=sum(wanted.values()))
        for path in paths:
            s3.upload_file(str(path), RAW, f"drives/{path.parent.name}/{path.name}")
            progress.advance(uploads)
        fleet.kill(0)
        while True:
            fleet.check()
            found, _ = counted(env) if there(env) else (Counter[str](), 0)
            progress.update(rows, completed=sum(found.values()))
            if sum(found.values()) >= sum(wanted.values()):
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"rows are missing after {PATIENCE:.0f} s; see {FOLDER}/worker-*.log")
            time.sleep(1.0)


def there(env: dict[str, str]) -> bool:
    return all(DeltaTable.is_deltatable(f"{LAKE}/{name}", storage_options=env) for name in DECODED)


def show(wanted: Counter[str], found: Counter[str], told: Counter[str]) -> None:
    rows = Table("table", "rows in the captures", "rows in the lake", box=None)
    for name in DECODED:
        rows.add_row(name, f"{wanted[name]:,}", f"{found[name]:,}")
    console.print(rows)
    figures = Table("metric of the living workers", "sum", box=None)
    for name in SHOWN:
        figures.add_row(f"pcaplake_{name}", f"{told[name]:,.1f}")
    console.print(figures)


if __name__ == "__main__":
    sys.exit(main())
