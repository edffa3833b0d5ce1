"""Runs a fleet on this machine: services on loopback, three workers, captures uploaded while they run, one worker killed.

    make demo-fleet        # LOCAL_AWS_ENGINE=localstack for LocalStack and DynamoDB Local instead of MiniStack

Only the AWS servers are substitutes; S3 notifications, SQS requests, both DynamoDB tables, the processes and the signal are real.
The exit code is 1 unless every row of the captures is in the tables exactly once.
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

from bench.mixes import write_captures
from pcaplake.parser import TABLES, open_capture
from pcaplake.parser.capture.reader import DECODED
from tools.local.engines import LOOPBACK
from tools.local.install import install_engine
from tools.local.stack import EngineStack, find_free_ports

FOLDER = Path("demo-fleet")
RAW, LAKE = "demo-raw", "s3://demo-lake/drives"
CAPTURES, SECONDS, WORKERS, PATIENCE = 120, 0.3, 3, 300.0
SHOWN = ("captures_total", "rows_total", "commits_total", "messages_total", "lag_seconds_count", "lag_seconds_sum")
console = Console(highlight=False)


def print_progress(text: str) -> None:
    console.print(f"[bold]{text}[/bold]")


def run_pcaplake(*arguments: str, env: dict[str, str], out: Any = None) -> None:
    subprocess.run([sys.executable, "-m", "pcaplake.worker", *arguments], env=env, check=True, stdout=out)


def count_expected_rows(paths: list[Path]) -> Counter[str]:
    """Rows by table when the decoder reads each capture alone."""
    rows: Counter[str] = Counter()
    for path in paths:
        capture = open_capture(path, tables=DECODED, profile=FOLDER / "drive/profile.yaml")
        for table, batch in capture.batches():
            rows[table] += batch.num_rows
    return rows


def count_lake_rows(env: dict[str, str]) -> tuple[Counter[str], int]:
    """Rows by table in the lake, and the number of rows whose key occurs twice."""
    rows, twice = Counter[str](), 0
    for name in DECODED:
        table = DeltaTable(f"{LAKE}/{name}", storage_options=env).to_pyarrow_table(columns=list(TABLES[name].key))
        rows[name] = table.num_rows
        twice += table.num_rows - table.group_by(list(TABLES[name].key)).aggregate([]).num_rows
    return rows, twice


def scrape_metrics(port: int) -> Counter[str]:
    with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    samples: Counter[str] = Counter()
    for line in text.splitlines():
        name = line.partition("{")[0].partition(" ")[0].removeprefix("pcaplake_")
        if name in SHOWN:
            samples[name] += float(line.rpartition(" ")[2])  # type: ignore[assignment]
    return samples


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class WorkerFleet:
    """The worker processes and their ports."""

    def __init__(self, config: Path, env: dict[str, str]) -> None:
        self.ports = find_free_ports(WORKERS)
        self.logs = [FOLDER / f"worker-{i + 1}.log" for i in range(WORKERS)]
        self.processes = []
        for log, port in zip(self.logs, self.ports, strict=True):
            with log.open("wb") as file:
                command = [sys.executable, "-m", "pcaplake.worker", "run", "--config", str(config)]
                worker_environment = {**env, "PCAPLAKE_HTTP_PORT": str(port)}
                self.processes.append(subprocess.Popen(command, env=worker_environment, stdout=file, stderr=file))

    def wait_until_ready(self) -> None:
        """Wait until all workers are ready."""
        deadline = time.monotonic() + PATIENCE
        for port in self.ports:
            while not _is_ready(port):
                self.check_workers_alive()
                if time.monotonic() > deadline:
                    raise SystemExit(f"a worker is not ready after {PATIENCE:.0f} s; see {FOLDER}/worker-*.log")
                time.sleep(0.2)

    def kill_worker(self, which: int) -> None:
        self.processes[which].send_signal(signal.SIGKILL)
        self.processes[which].wait()

    def stop_workers(self) -> list[int]:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        return [process.wait(120) for process in self.processes]

    def check_workers_alive(self) -> None:
        for process, log in zip(self.processes, self.logs, strict=True):
            if process.poll() not in (None, -signal.SIGKILL):
                raise SystemExit(f"a worker ended with {process.returncode}; see {log}")


def write_settings_file(threads: int) -> Path:
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
    install_engine(engine, state)  # type: ignore[arg-type]
    port, dynamodb_port = find_free_ports(2)
    stack = EngineStack(
        engine, port=port, dynamodb_port=dynamodb_port, state=state, run=FOLDER / "services", tethered=True
    )  # type: ignore[arg-type]
    print_progress(f"starting {engine} on loopback")
    stack.start()
    try:
        return run_fleet_demo({**os.environ, **stack.client_environment})
    finally:
        stack.stop()


def run_fleet_demo(env: dict[str, str]) -> int:
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
    print_progress(f"generating {CAPTURES} captures")
    write_captures(FOLDER / "drive", "c", SECONDS, CAPTURES)
    paths = sorted((FOLDER / "drive").glob("*/*.pcap"))
    expected_rows = count_expected_rows(paths)
    config, policies = write_settings_file(threads=1), FOLDER / "policies.txt"
    print_progress(f"pcaplake setup (writes its report and the policies for AWS to {policies})")
    with policies.open("wb") as out:
        run_pcaplake("setup", "--config", str(config), "--visibility-timeout", "15s", env=env, out=out)
    print_progress(f"{WORKERS} workers; uploading {len(paths)} captures; worker 1 is killed on the way")
    fleet = WorkerFleet(config, env)
    try:
        fleet.wait_until_ready()
        start = time.monotonic()
        follow_until_last_row(s3, fleet, paths, expected_rows, env)
        seconds = time.monotonic() - start
        metric_totals = sum((scrape_metrics(port) for port in fleet.ports[1:]), Counter[str]())
    finally:
        codes = fleet.stop_workers()
    rows, twice = count_lake_rows(env)
    print_row_counts(expected_rows, rows, metric_totals)
    good = rows == expected_rows and not twice and codes[1:] == [0] * (WORKERS - 1)
    console.print(
        f"{sum(rows.values()):,} rows of {len(paths)} captures in {seconds:.0f} s, {twice} duplicates; "
        f"exit codes {codes}: {'[green]each row arrived once[/green]' if good else '[red]FAILED[/red]'}"
    )
    return 0 if good else 1


def follow_until_last_row(
    s3: Any, fleet: WorkerFleet, paths: list[Path], expected_rows: Counter[str], env: dict[str, str]
) -> None:
    """Upload while the workers read, kill one halfway, and wait for the last row."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    deadline = time.monotonic() + PATIENCE
    with Progress(*columns, console=console) as progress:
        uploads = progress.add_task("uploaded", total=len(paths))
        rows = progress.add_task("rows in the tables", total=sum(expected_rows.values()))
        for path in paths:
            s3.upload_file(str(path), RAW, f"drives/{path.parent.name}/{path.name}")
            progress.advance(uploads)
        fleet.kill_worker(0)
        while True:
            fleet.check_workers_alive()
            lake_rows, _ = count_lake_rows(env) if has_lake(env) else (Counter[str](), 0)
            progress.update(rows, completed=sum(lake_rows.values()))
            if sum(lake_rows.values()) >= sum(expected_rows.values()):
                return
            if time.monotonic() > deadline:
                raise SystemExit(f"rows are missing after {PATIENCE:.0f} s; see {FOLDER}/worker-*.log")
            time.sleep(1.0)


def has_lake(env: dict[str, str]) -> bool:
    return all(DeltaTable.is_deltatable(f"{LAKE}/{name}", storage_options=env) for name in DECODED)


def print_row_counts(expected_rows: Counter[str], lake_rows: Counter[str], metric_totals: Counter[str]) -> None:
    rows = Table("table", "rows in the captures", "rows in the lake", box=None)
    for name in DECODED:
        rows.add_row(name, f"{expected_rows[name]:,}", f"{lake_rows[name]:,}")
    console.print(rows)
    figures = Table("metric of the living workers", "sum", box=None)
    for name in SHOWN:
        figures.add_row(f"pcaplake_{name}", f"{metric_totals[name]:,.1f}")
    console.print(figures)


if __name__ == "__main__":
    sys.exit(main())
