"""Metrics, logs, health and traces: what a process tells about itself is true, whole, and leaves nothing behind."""

from __future__ import annotations

import ast
import asyncio
import functools
import gc
import io
import json
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.parser import text_string_to_metric_families

from pcaplake.common import log_context
from pcaplake.common.errors import Fatal
from pcaplake.common.traces import exported_traces, span
from pcaplake.parser.engine.decoder import TOO_MANY_DATES
from pcaplake.parser.engine.kernels.encoding import FAULTS
from pcaplake.parser.engine.learned_keys import TOO_MANY_PORTS
from pcaplake.parser.engine.message_objects import TOO_MUCH_REPEATED
from pcaplake.parser.engine.messages import TOO_MANY_ROWS
from pcaplake.parser.engine.reassembly.assembler import BAD_CHECKSUM, GAP, TOO_LONG
from pcaplake.worker.config.environment import read_traces_endpoint
from pcaplake.worker.telemetry import logs
from pcaplake.worker.telemetry.loop import INTERVAL, LoopDelay
from pcaplake.worker.telemetry.metrics import METRICS
from pcaplake.worker.telemetry.prometheus import PrometheusMeter
from pcaplake.worker.telemetry.server import MOST_CONNECTIONS, Server
from tools import ROOMS, metrics_page

ROOT = Path(__file__).parents[3]
CALLS = {"count": "counter", "observe": "histogram", "set": "gauge"}
ITS_OWN = re.compile(r"process_(cpu|start_time|virtual_memory|resident_memory|open_fds|max_fds)")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def meter(registry: CollectorRegistry) -> PrometheusMeter:
    return PrometheusMeter(registry, strict=True)


def exposed(registry: CollectorRegistry) -> dict[str, Family]:
    return {family.name: family for family in text_string_to_metric_families(generate_latest(registry).decode())}


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(name, labels)


# -- metrics ----------------------------------------------------------------------------------------------------------
def test_every_metric_is_exposed_with_its_help_and_type(registry: CollectorRegistry, meter: PrometheusMeter) -> None:
    families = exposed(registry)
    for metric in METRICS.values():
        family = families.pop(metric.name.removesuffix("_total"))
        assert (family.type, family.documentation) == (metric.kind, metric.help)
    assert all(ITS_OWN.match(name) for name in families), "nothing is exposed that the table does not declare"
    assert all(family.documentation and family.type in ("counter", "gauge") for family in families.values())


@pytest.mark.parametrize("name", METRICS)
def test_names_are_spelled_as_the_field_does(name: str) -> None:
    metric = METRICS[name]
    assert re.fullmatch(r"pcaplake(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    unit = next((unit for unit in ("seconds", "bytes") if unit in name.split("_")), None)
    assert unit is None or metric.name.removesuffix("_total").endswith(f"_{unit}"), "the unit is last"
    words = metric.name.removeprefix("pcaplake_").removesuffix("_total").split("_")
    assert sorted(words) == sorted(name.split("_")), "searching for a key's words finds the metric"
    assert (metric.kind == "histogram") == bool(metric.buckets)
    assert list(metric.buckets) == sorted(set(metric.buckets))


def test_no_two_metrics_share_a_name() -> None:
    assert len({metric.name for metric in METRICS.values()}) == len(METRICS)


def test_counters_gauges_and_histograms_hold_what_they_were_told(
    registry: CollectorRegistry, meter: PrometheusMeter
) -> None:
    meter.count("rows", 3, table="packets")
    meter.count("rows", 4, table="packets")
    meter.count("stages")
    meter.set("queue_messages", 5, state="visible")
    meter.set("queue_messages", 2, state="visible")
    for seconds in (0.004, 0.2, 400.0):
        meter.observe("step_seconds", seconds, step="fetch")
    assert value(registry, "pcaplake_rows_total", table="packets") == 7
    assert value(registry, "pcaplake_stages_total") == 1
    assert value(registry, "pcaplake_queue_messages", state="visible") == 2
    assert value(registry, "pcaplake_step_seconds_count", step="fetch") == 3
    assert value(registry, "pcaplake_step_seconds_bucket", step="fetch", le="0.25") == 2
    assert value(registry, "pcaplake_step_seconds_sum", step="fetch") == pytest.approx(400.204)


def test_extremes_follow_their_histogram(registry: CollectorRegistry, meter: PrometheusMeter) -> None:
    assert value(registry, "pcaplake_batch_largest_bytes") is None
    for size in (300, 100, 200):
        meter.observe("batch_bytes", size)
    assert value(registry, "pcaplake_batch_smallest_bytes") == 100
    assert value(registry, "pcaplake_batch_largest_bytes") == 300
    assert value(registry, "pcaplake_batch_bytes_sum") == 600
    assert value(registry, "pcaplake_stage_largest_bytes") is None


def test_a_gauge_nobody_has_measured_has_no_value(registry: CollectorRegistry, meter: PrometheusMeter) -> None:
    assert exposed(registry)["pcaplake_queue_oldest_message_age_seconds"].samples == []
    meter.set("queue_oldest_message_age_seconds", 0)
    assert value(registry, "pcaplake_queue_oldest_message_age_seconds") == 0


def test_counters_begin_at_0_where_their_labels_are_known(registry: CollectorRegistry, meter: PrometheusMeter) -> None:
    assert value(registry, "pcaplake_captures_total", outcome="staged") is None
    meter.count("captures", outcome="staged")
    meter.begin(table=["packets", "captures"])
    assert value(registry, "pcaplake_captures_total", outcome="staged") == 1
    assert value(registry, "pcaplake_captures_total", outcome="gone") == 0
    assert value(registry, "pcaplake_step_seconds_count", step="advance") == 0
    assert value(registry, "pcaplake_rows_total", table="packets") == 0
    assert value(registry, "pcaplake_checkpoints_total", table="captures", outcome="failed") == 0
    assert value(registry, "pcaplake_commit_failures_total", table="packets", reason="OutcomeUnknown") == 0
    families = exposed(registry)
    open_ended = {"pcaplake_requests", "pcaplake_request_failures", "pcaplake_operator_jobs"}
    for metric in METRICS.values():
        name = metric.name.removesuffix("_total")
        there = [one for one in families[name].samples if not one.name.endswith("_created")]
        assert bool(there) == (metric.kind != "gauge" and name not in open_ended), name
    meter.begin(["operator_jobs"], job=["vacuum"])
    assert value(registry, "pcaplake_operator_jobs_total", job="vacuum", outcome="failed") == 0


def test_what_is_begun_is_no_more_than_was_said(registry: CollectorRegistry, meter: PrometheusMeter) -> None:
    before = samples(registry)
    meter.begin(["operator_jobs"], job=["vacuum"])
    assert {one.labels.get("job") for one in samples(registry) if one not in before} == {"vacuum"}


def test_failures_begin_with_the_first_request(registry: CollectorRegistry, meter: PrometheusMeter) -> None:
    meter.count("requests", service="sqs", operation="ReceiveMessage")
    asked = {"service": "sqs", "operation": "ReceiveMessage"}
    assert value(registry, "pcaplake_request_failures_total", **asked) == 0
    meter.count("request_failures", **asked)
    meter.count("requests", **asked)
    assert value(registry, "pcaplake_request_failures_total", **asked) == 1
    assert value(registry, "pcaplake_requests_total", **asked) == 2


@pytest.mark.slow
def test_kinds_of_faults_are_the_parsers() -> None:
    of_files = {
        str(node.args[1].value)
        for path in (ROOT / "parser").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "record_file_fault"
        if isinstance(node.args[1], ast.Constant)
    }
    assert len(of_files) >= 5
    of_captures = {TOO_MANY_DATES, TOO_MUCH_REPEATED, TOO_MANY_PORTS, GAP, TOO_LONG, BAD_CHECKSUM, TOO_MANY_ROWS}
    assert set(METRICS["faults"].labels["kind"]) == {*FAULTS[1:], *of_files, *of_captures}


WRONG: list[tuple[str, Callable[[PrometheusMeter], None]]] = [
    ("undeclared counter", lambda meter: meter.count("nonsense")),
    ("undeclared histogram", lambda meter: meter.observe("nonsense", 1)),
    ("undeclared gauge", lambda meter: meter.set("nonsense", 1)),
    ("of another kind", lambda meter: meter.set("stages", 1)),
    ("a label that is missing", lambda meter: meter.count("rows", 1)),
    ("a label too many", lambda meter: meter.count("stages", 1, table="packets")),
    ("a gauge's label that is missing", lambda meter: meter.set("queue_messages", 1)),
    ("an extreme, which is not set", lambda meter: meter.set("batch_largest_bytes", 1)),
    ("a counter that falls", lambda meter: meter.count("stages", -1)),
]


@pytest.mark.parametrize("call", [call for _, call in WRONG], ids=[name for name, _ in WRONG])
def test_a_call_that_does_not_fit_raises_in_tests_and_is_told_once_in_production(
    call: Callable[[PrometheusMeter], None], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises((KeyError, ValueError)):
        call(PrometheusMeter(CollectorRegistry(), strict=True))
    registry = CollectorRegistry()
    lenient = PrometheusMeter(registry)
    before = samples(registry)
    call(lenient)
    call(lenient)
    assert len(caplog.records) == 1
    assert samples(registry) == before


def samples(registry: CollectorRegistry) -> list[Any]:
    return [sample for family in registry.collect() for sample in family.samples if "process" not in sample.name]


def written(value: ast.expr) -> set[str]:
    """Texts that an expression may be, where they stand there."""
    if isinstance(value, ast.IfExp):
        return written(value.body) | written(value.orelse)
    return {str(value.value)} if isinstance(value, ast.Constant) else set()


@functools.cache
def metered() -> list[tuple[str, str, str, dict[str, set[str]]]]:
    """Every call of a meter -> where, the call, the name, the labels with what is written of their values."""
    found = []
    for path in sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CALLS):
                continue
            receiver = node.func.value
            owner = receiver.attr if isinstance(receiver, ast.Attribute) else getattr(receiver, "id", "")
            if owner not in ("meter", "_meter"):
                continue
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            assert isinstance(node.args[0], ast.Constant), f"{where}: the name is to be found by searching for it"
            assert all(keyword.arg for keyword in node.keywords), f"{where}: labels are written out"
            labels = {
                str(keyword.arg): written(keyword.value)
                for keyword in node.keywords
                if keyword.arg not in ("by", "value")
            }
            found.append((where, node.func.attr, str(node.args[0].value), labels))
    return found


@pytest.mark.slow
def test_what_is_counted_is_declared() -> None:
    assert metered()
    for where, call, name, labels in metered():
        assert name in METRICS, f"{where}: {name} is not in the table"
        assert CALLS[call] == METRICS[name].kind, where
        assert labels.keys() == METRICS[name].labels.keys(), where
        for label, said in labels.items():
            allowed = METRICS[name].labels[label]
            assert isinstance(allowed, str) or said <= allowed.keys(), f"{where}: {label} has no such value"
        assert METRICS[name].of is None, f"{where}: an extreme follows its histogram"


@pytest.mark.slow
def test_what_is_declared_is_counted() -> None:
    used = {name for _, _, name, _ in metered()}
    unused = {name for name, metric in METRICS.items() if (metric.of or name) not in used}
    assert not unused


def test_the_page_is_true() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == metrics_page.render_markdown(), "make docs"
    assert page.count("\n| `pcaplake_") == len(METRICS)


# -- logs -------------------------------------------------------------------------------------------------------------
log = logging.getLogger("pcaplake.worker.somewhere")


def logged(format: Any, level: Any, say: Callable[[], None]) -> str:
    stream = io.StringIO()
    with logs.configured_logging(format, level, stream):
        say()
    return stream.getvalue()


@contextmanager
def bound_log_context(**ids: str) -> Iterator[None]:
    token = log_context._IDS.set({**log_context.log_context(), **ids})
    try:
        yield
    finally:
        log_context._IDS.reset(token)


def test_a_line_is_json_with_its_ids() -> None:
    def say() -> None:
        with bound_log_context(message_id="m1"):
            with bound_log_context(capture_id="c1"):
                log.info("read %d rows of %s", 3, "drive/ä b\n.pcap", extra={"lake": "s3://lake"})
            log.warning("more")
        log.warning("nobody's")

    first, second, third = map(json.loads, logged("json", "info", say).splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "read 3 rows of drive/ä b\n.pcap",
        "level": "info",
        "logger": "pcaplake.worker.somewhere",
        "message_id": "m1",
        "capture_id": "c1",
        "lake": "s3://lake",
    }
    assert second["message_id"] == "m1"
    assert "capture_id" not in second
    assert not {"message_id", "capture_id"} & third.keys()


def test_tasks_keep_their_ids_apart() -> None:
    def say() -> None:
        async def work(number: int, others: asyncio.Barrier) -> None:
            log_context.bind_log_context(message_id=f"m{number}")
            await others.wait()
            log.info("work %d", number)
            await asyncio.to_thread(log.info, "work %d", number)

        async def all_of_them() -> None:
            others = asyncio.Barrier(5)
            await asyncio.gather(*(work(number, others) for number in range(5)))

        asyncio.run(all_of_them())

    lines = [json.loads(line) for line in logged("json", "info", say).splitlines()]
    assert len(lines) == 10
    assert all(line["event"] == f"work {line['message_id'][1:]}" for line in lines)


def test_an_exception_stays_within_its_line() -> None:
    def say() -> None:
        try:
            raise ValueError("of\nno use")
        except ValueError:
            log.exception("it failed")

    (line,) = logged("json", "info", say).splitlines()
    assert "ValueError: of\nno use" in json.loads(line)["exception"]


@pytest.mark.parametrize("format", ["json", "text"])
def test_a_traceback_has_no_locals(format: str) -> None:
    """They may be settings, with their secrets, and are hundreds of lines."""

    def say() -> None:
        settings = {"secret_access_key": "hush" * 2}
        try:
            raise ValueError(f"{len(settings)} is wrong")
        except ValueError:
            log.exception("unexpected")

    said = logged(format, "info", say)
    assert "ValueError: 1 is wrong" in said
    assert "test_telemetry.py" in said
    assert "hushhush" not in said
    assert "secret_access_key'" not in said
    assert len(said.splitlines()) < 10


def test_text_is_for_people() -> None:
    def say() -> None:
        with bound_log_context(message_id="m1"):
            log.info("read %d rows", 3)

    (line,) = logged("text", "info", say).splitlines()
    assert "read 3 rows" in line
    assert "message_id=m1" in line
    assert "\x1b" not in line, "no colours in a file"


@pytest.mark.parametrize(("level", "said"), [("debug", 3), ("info", 2), ("warning", 1), ("error", 0)])
def test_levels(level: str, said: int) -> None:
    def say() -> None:
        for each in (log.debug, log.info, log.warning):
            each("x")
        logging.getLogger("botocore.auth").info("Authorization: AWS4-HMAC-SHA256")

    assert len(logged("json", level, say).splitlines()) == said


def test_logging_is_as_before() -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("botocore").level
    logged("json", "debug", lambda: None)
    assert (root.handlers[:], root.level, logging.getLogger("botocore").level) == before


# -- the server -------------------------------------------------------------------------------------------------------
@contextmanager
def nothing_left() -> Iterator[None]:
    """No thread and no open file more than before. Warnings of what was not closed are errors anyway."""

    def left() -> tuple[set[str], int]:
        return {thread.name for thread in threading.enumerate()}, len(list(Path("/proc/self/fd").iterdir()))

    gc.collect()  # what earlier tests left may be closed at any time
    threads, files = left()
    yield
    threads_now, files_now = left()
    assert threads_now <= threads
    assert files_now <= files


def served(work: Callable[[Server, Callable[[str], Awaitable[tuple[int, str]]]], Awaitable[None]]) -> None:
    async def run() -> None:
        registry = CollectorRegistry()
        PrometheusMeter(registry, strict=True).count("stages")
        async with Server(registry, ports=[0]) as server, aiohttp.ClientSession() as session:

            async def get(path: str) -> tuple[int, str]:
                url = aiohttp.client.URL.build(scheme="http", host=server.host, port=server.port, path=path)
                async with session.get(url) as answer:
                    return answer.status, await answer.text()

            await work(server, get)

    with nothing_left():
        asyncio.run(run())


def test_metrics_are_served_and_nothing_is_left() -> None:
    async def work(server: Server, get: Callable[[str], Awaitable[tuple[int, str]]]) -> None:
        assert server.port > 0
        status, text = await get("/metrics")
        assert status == 200
        families = {family.name: family for family in text_string_to_metric_families(text)}
        assert families["pcaplake_stages"].samples[0].value == 1

    served(work)


def test_the_port_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def work(server: Server, get: Callable[[str], Awaitable[tuple[int, str]]]) -> None:
        assert f"127.0.0.1:{server.port}" in caplog.text

    with caplog.at_level(logging.INFO):
        served(work)


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_is_as_good_as_its_checks(path: str) -> None:
    async def work(server: Server, get: Callable[[str], Awaitable[tuple[int, str]]]) -> None:
        reasons: dict[str, str | None] = {"committer": None}
        checks = server.health if path == "/healthz" else server.ready
        other = {"/healthz": "/readyz", "/readyz": "/healthz"}[path]
        assert await get(path) == (200, '{"ok": true, "checks": {}}')
        checks["committer"] = lambda: reasons["committer"]
        status, text = await get(path)
        assert (status, json.loads(text)) == (200, {"ok": True, "checks": {"committer": "ok"}})
        reasons["committer"] = "it has not moved for 90 s"
        status, text = await get(path)
        assert (status, json.loads(text)) == (503, {"ok": False, "checks": {"committer": "it has not moved for 90 s"}})
        assert (await get(other))[0] == 200

        def stopped() -> str | None:
            raise Fatal("no permission")

        checks["committer"] = stopped
        checks["loop"] = lambda: None
        status, text = await get(path)
        assert (status, json.loads(text)["checks"]) == (503, {"committer": "Fatal: no permission", "loop": "ok"})
        del checks["committer"]
        assert (await get(path))[0] == 200

    served(work)


def test_idle_connections_do_not_exhaust_the_files_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pcaplake.worker.telemetry.server.FIRST_REQUEST", 0.2)

    async def work(server: Server, get: Callable[[str], Awaitable[tuple[int, str]]]) -> None:
        streams = []
        for number in range(MOST_CONNECTIONS * 2):
            reader, writer = await asyncio.open_connection(server.host, server.port)
            streams.append((reader, writer))
            if number % 3 == 0:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: slow\r\n")  # the rest never comes
        assert (await get("/healthz"))[0] == 200
        closed = await asyncio.gather(*(reader.read() for reader, _ in streams), return_exceptions=True)
        assert all(answer == b"" or isinstance(answer, ConnectionError) for answer in closed)
        assert (await get("/metrics"))[0] == 200, "the connection that asked before was kept"
        for _, writer in streams:
            writer.close()

    served(work)


def test_clients_that_read_no_answer_do_not_exhaust_the_files_of_the_process(registry: CollectorRegistry) -> None:
    Gauge("long", "x" * 4_000_000, registry=registry)  # more than the buffers of a socket hold

    async def ask_without_reading(server: Server, clients: list[socket.socket]) -> None:
        client = socket.socket()
        clients.append(client)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (server.host, server.port))
        client.send(b"GET /metrics HTTP/1.1\r\nHost: deaf\r\n\r\n")

    async def main() -> None:
        clients: list[socket.socket] = []
        async with Server(registry, ports=[0]) as server:
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(MOST_CONNECTIONS + 20):
                await ask_without_reading(server, clients)
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.1)
            assert len(os.listdir("/proc/self/fd")) - before - len(clients) <= MOST_CONNECTIONS
        for client in clients:
            client.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_other_paths_and_methods_are_refused() -> None:
    async def work(server: Server, get: Callable[[str], Awaitable[tuple[int, str]]]) -> None:
        assert (await get("/"))[0] == (await get("/metrics/"))[0] == 404
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{server.host}:{server.port}/metrics") as answer,
        ):
            assert answer.status == 405

    served(work)


def test_no_label_is_what_a_message_or_a_capture_says() -> None:
    """A text describes a label whose values come from settings, from the lake's tables, or from the code."""
    bounded = {"table", "lake", "service", "operation", "state", "job"}
    described = {
        label for metric in METRICS.values() for label, values in metric.labels.items() if isinstance(values, str)
    }
    assert described == bounded
    for name, metric in METRICS.items():
        closed = [label for label, values in metric.labels.items() if not isinstance(values, str)]
        if closed and metric.kind == "counter":
            with pytest.raises(ValueError, match="not in the table"):
                PrometheusMeter(CollectorRegistry(), strict=True).count(
                    name, **dict.fromkeys(metric.labels, "anything")
                )


async def test_a_port_that_is_taken_is_said_at_once() -> None:
    async def run() -> None:
        async with Server(CollectorRegistry(), ports=[0]) as first:
            second = Server(CollectorRegistry(), ports=[first.port])
            with pytest.raises(Fatal, match=rf"127\.0\.0\.1:{first.port}.*http_port"):
                await second.start()
            await second.close()
            async with Server(CollectorRegistry(), ports=[first.port, 0]) as third:
                assert third.port not in (0, first.port)

    with nothing_left():
        await run()


# -- the event loop ---------------------------------------------------------------------------------------------------
class Clock:
    """Seconds that pass while somebody sleeps, and as many more as `late` says; it wakes nobody after the last."""

    def __init__(self, late: list[float]) -> None:
        self.now, self._late = 100.0, late

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        if not self._late:
            raise asyncio.CancelledError
        self.now += seconds + self._late.pop(0)


def delays(late: list[float], registry: CollectorRegistry) -> LoopDelay:
    clock = Clock(late)
    monitor = LoopDelay(PrometheusMeter(registry, strict=True), clock=clock, sleep=clock.sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(monitor.run())
    return monitor


def test_the_longest_delay_is_shown_for_half_a_minute(registry: CollectorRegistry) -> None:
    delays([0.0, 3.0, 0.25], registry)
    assert value(registry, "pcaplake_event_loop_delay_seconds") == pytest.approx(3.0)


def test_it_is_forgotten_after_that(registry: CollectorRegistry) -> None:
    delays([3.0, *[0.25] * int(30 / INTERVAL)], registry)
    assert value(registry, "pcaplake_event_loop_delay_seconds") == pytest.approx(0.25)


def test_a_loop_that_is_blocked_is_late_before_it_has_woken() -> None:
    clock = Clock([])
    monitor = LoopDelay(PrometheusMeter(CollectorRegistry(), strict=True), clock=clock, sleep=clock.sleep)
    assert monitor.seconds_late == 0
    clock.now += INTERVAL + 7
    assert monitor.seconds_late == pytest.approx(7)


# -- traces -----------------------------------------------------------------------------------------------------------
@contextmanager
def collector(status: int = 200) -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """An endpoint for traces, and what came there."""
    came: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/v1/traces":
                came.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Not to stderr."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{server.server_address[0]}:{server.server_port}", came
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.slow
async def test_spans_arrive_with_their_attributes_and_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    async def message(number: int) -> None:
        with span("message", message_id=f"m{number}"):
            await asyncio.sleep(0)
            with span("capture", size=number):
                await asyncio.sleep(0)

    async def both() -> None:
        await asyncio.gather(message(1), message(2))

    with nothing_left(), collector() as (base, came):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", base)
        with exported_traces(read_traces_endpoint()):
            await both()
            with pytest.raises(ValueError, match="of no use"), span("stage"):
                raise ValueError("of no use")
    (resource,) = [one for request in came for one in request.resource_spans]
    assert {one.key: one.value.string_value for one in resource.resource.attributes}["service.name"] == "pcaplake"
    spans = [one for scope in resource.scope_spans for one in scope.spans]
    messages = {one.span_id: one.attributes[0].value.string_value for one in spans if one.name == "message"}
    captures = {
        messages[one.parent_span_id]: one.attributes[0].value.int_value for one in spans if one.name == "capture"
    }
    assert captures == {"m1": 1, "m2": 2}
    (stage,) = [one for one in spans if one.name == "stage"]
    assert stage.status.code == stage.status.STATUS_CODE_ERROR
    assert not stage.parent_span_id


def test_without_an_endpoint_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with nothing_left(), exported_traces(read_traces_endpoint()):
        threads = threading.active_count()
        with span("message", message_id="m1") as nothing:
            assert nothing is None
        assert threading.active_count() == threads


def test_without_the_extra_there_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with exported_traces("nowhere"), span("message") as nothing:
        assert nothing is None
    assert "pcaplake[otel]" in caplog.text


@pytest.mark.slow
def test_a_collector_that_is_down_costs_spans_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    with nothing_left(), collector(status=503) as (base, came):
        with exported_traces(f"{base}/v1/traces", timeout=0.1), span("message"):
            pass
        with span("after the end") as nothing:
            assert nothing is None
    assert came
    assert caplog.records


@pytest.mark.parametrize(
    ("whole", "base", "endpoint"),
    [
        ("", "", None),
        ("", "http://otel.example:4318/", "http://otel.example:4318/v1/traces"),
        ("http://otel.example/t", "http://other.example", "http://otel.example/t"),
    ],
)
def test_where_traces_go(monkeypatch: pytest.MonkeyPatch, whole: str, base: str, endpoint: str | None) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", whole)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", base)
    assert read_traces_endpoint() == endpoint
