"""Every metric there is, in one table, and the meter that fills them in for Prometheus.

Knows names, units and what each figure tells an operator; docs/metrics.md is made from the table. Must not know who
counts: the parts see the port in worker/meter.py, and name a metric by its key here.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

log = logging.getLogger(__name__)

Kind = Literal["counter", "gauge", "histogram"]
_STEPS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_LAGS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0, 3600.0, 21_600.0)
_AGES = (0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0)
_SIZES = tuple(float(1 << bits) for bits in range(16, 35, 2))
_FILES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)


Label = str | Mapping[str, str]
"""What its values are, in words; or all of them, each with a note or with none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """`name` as it is exposed, `labels` with the values they take. `of`: the histogram of which this is an extreme.

    `beside`: another counter with these labels; where that one has a series, this one has it too, from 0 on.
    """

    name: str
    kind: Kind
    help: str
    labels: Mapping[str, Label] = field(default_factory=dict)
    buckets: tuple[float, ...] = ()
    of: str | None = None
    pick: Callable[[float, float], float] = max
    beside: str | None = None


def _counter(name: str, help: str, *, beside: str | None = None, **labels: Label) -> Metric:
    return Metric(name=name, kind="counter", help=help, labels=labels, beside=beside)


def _gauge(name: str, help: str, **labels: Label) -> Metric:
    return Metric(name=name, kind="gauge", help=help, labels=labels)


def _histogram(name: str, buckets: tuple[float, ...], help: str, **labels: Label) -> Metric:
    return Metric(name=name, kind="histogram", help=help, labels=labels, buckets=buckets)


def _extreme(name: str, of: str, pick: Callable[[float, float], float], help: str) -> Metric:
    return Metric(name=name, kind="gauge", help=help, of=of, pick=pick)


_TABLE = "table of the lake"
_LAKE = "URI of the lake"
_FAULTS = (  # as in the column `reason` of `faults`; a test compares them with the parser's
    *("short_header", "bad_length", "overrun", "bad_value", "too_deep", "bad_time"),
    *("truncated", "unreadable", "broken_compression", "too_many_interfaces", "too_many_dates"),
)

METRICS: Mapping[str, Metric] = {
    # messages
    "messages": _counter(
        "pcaplake_messages_total",
        "Messages of the queue, by what became of them.",
        outcome={
            "deleted": "",
            "undeleted": "it may come again, and is known then",
            "released": "they come again",
            "bad": "cannot be read",
            "lost": "hidden no longer",
        },
    ),
    "notifications_ignored": _counter(
        "pcaplake_notifications_ignored_total",
        "Notifications that announce no capture of ours; other events than these are counted by their names.",
        kind={"s3:TestEvent": "", "folder marker": "", "no route": ""},
    ),
    "heartbeats": _counter(
        "pcaplake_heartbeats_total",
        "Messages whose visibility timeout was to be extended.",
        outcome={"done": "", "lost": "the receipt is worth nothing any more", "failed": "tried again"},
    ),
    "messages_in_flight": _gauge(
        "pcaplake_messages_in_flight", "Messages that were received and neither deleted nor given back."
    ),
    "queue_messages": _gauge(
        "pcaplake_queue_messages", "Messages in the queue, about.", state="visible, in_flight, delayed"
    ),
    "queue_oldest_age_seconds": _gauge(
        "pcaplake_queue_oldest_age_seconds",
        "Age of the oldest message that this process received in the last 5 s; if it received none: 0 where none is "
        "visible, else as before.",
    ),
    # captures
    "captures": _counter(
        "pcaplake_captures_total",
        "Captures that need nothing more, by what became of them.",
        outcome={
            "staged": "",
            "quarantined": "no capture",
            "known": "staged before",
            "gone": "deleted or replaced",
        },
    ),
    "bytes_read": _counter("pcaplake_read_bytes_total", "Bytes of captures that were read and staged."),
    "rows": _counter("pcaplake_rows_total", "Records written: rows that were staged.", table=_TABLE),
    "faults": _counter(
        "pcaplake_faults_total",
        "Records failed: packets and regions that are damaged.",
        kind=dict.fromkeys(_FAULTS, ""),
    ),
    "quarantined": _counter("pcaplake_quarantined_total", "Captures that were staged as rows of `quarantine`."),
    "bytes_in_flight": _gauge("pcaplake_in_flight_bytes", "Memory that is reserved for captures now."),
    "fetch_retries": _counter("pcaplake_fetch_retries_total", "Ranges of captures that were asked for once more."),
    "lag_seconds": _histogram(
        "pcaplake_lag_seconds", _LAGS, "From the upload of a capture (event time) to its rows being queryable."
    ),
    "step_seconds": _histogram(
        "pcaplake_step_seconds",
        _STEPS,
        "Duration of one step.",
        step={
            "fetch": "",
            "decode": "",
            "stage": "",
            "recover": "from here on of the committer",
            **dict.fromkeys(("compose", "manifest", "mark", "commit", "flag", "advance"), ""),
        },
    ),
    # stages
    "stages": _counter("pcaplake_stages_total", "Merge windows that were flushed into a stage."),
    "files_created": _counter("pcaplake_files_created_total", "Parquet files of stages.", table=_TABLE),
    "bytes_written": _counter("pcaplake_written_bytes_total", "Bytes of Parquet files of stages.", table=_TABLE),
    "stage_bytes": _histogram("pcaplake_stage_bytes", _SIZES, "Bytes of Parquet in one stage."),
    "stage_smallest_bytes": _extreme(
        "pcaplake_stage_smallest_bytes", "stage_bytes", min, "Bytes of the smallest stage since the start."
    ),
    "stage_largest_bytes": _extreme(
        "pcaplake_stage_largest_bytes", "stage_bytes", max, "Bytes of the largest stage since the start."
    ),
    # batches and commits
    "leading": _gauge("pcaplake_leading", "1 where this process leads the committing, else 0.", lake=_LAKE),
    "pending_oldest_age_seconds": _gauge(
        "pcaplake_pending_oldest_age_seconds",
        "Since when the oldest pending stage waits for a batch, as the leader has seen it; 0 where none does.",
        lake=_LAKE,
    ),
    "batches_open": _gauge("pcaplake_batches_open", "Batches that are not in all their tables yet.", lake=_LAKE),
    "tables_blocked": _gauge(
        "pcaplake_tables_blocked",
        "Tables that cannot be written until somebody frees them; the log says how.",
        lake=_LAKE,
    ),
    "stages_held": _gauge(
        "pcaplake_stages_held", "Stages that no table can take as they are; they wait for a person.", lake=_LAKE
    ),
    "captures_returned": _counter(
        "pcaplake_captures_returned_total", "Captures that are read again because their stage was too old."
    ),
    "committer_failures": _counter(
        "pcaplake_committer_failures_total", "Turns of a committer that failed and were tried again."
    ),
    "batch_bytes": _histogram("pcaplake_batch_bytes", _SIZES, "Bytes of Parquet in one batch."),
    "batch_smallest_bytes": _extreme(
        "pcaplake_batch_smallest_bytes", "batch_bytes", min, "Bytes of the smallest batch since the start."
    ),
    "batch_largest_bytes": _extreme(
        "pcaplake_batch_largest_bytes", "batch_bytes", max, "Bytes of the largest batch since the start."
    ),
    "stage_age_seconds": _histogram(
        "pcaplake_stage_age_seconds", _AGES, "Age of a stage when it comes into a batch, by the store's clock."
    ),
    "commits": _counter(
        "pcaplake_commits_total",
        "Commits to tables.",
        table=_TABLE,
        outcome={"made": "", "already": "it was in the table before it was asked for"},
    ),
    "commit_files": _histogram("pcaplake_commit_files", _FILES, "Files in one commit that was made."),
    "commit_failures": _counter(
        "pcaplake_commit_failures_total",
        "Commits that were given up.",
        table=_TABLE,
        reason={
            **dict.fromkeys(("TableBlocked", "SchemaConflict", "FilesMissing"), ""),
            "SetBack": "its log was, or a checkpoint dropped our `txn`",
            "OutcomeUnknown": "",
            "Hidden": "by a checkpoint",
            "Retryable": "out of time",
            "Fatal": "",
        },
    ),
    "log_retries": _counter(
        "pcaplake_log_retries_total",
        "Requests on a table's log, reads and commits, that were tried again.",
        table=_TABLE,
    ),
    "commit_conflicts": _counter(
        "pcaplake_commit_conflicts_total",
        "Versions that somebody else made first; the next one was tried.",
        table=_TABLE,
    ),
    "commit_unknown_resolved": _counter(
        "pcaplake_commit_unknown_resolved_total",
        "Commits whose outcome was unknown for a while and was found out from the log.",
        table=_TABLE,
    ),
    "log_repairs": _counter(
        "pcaplake_log_repairs_total",
        "Versions of others that were finished because they had been left half done.",
        table=_TABLE,
    ),
    "checkpoints": _counter(
        "pcaplake_checkpoints_total",
        "Checkpoints with clean-up of the log.",
        table=_TABLE,
        outcome={"made": "", "failed": ""},
    ),
    # services
    "requests": _counter(
        "pcaplake_requests_total",
        "Requests as pcaplake makes them; what a client repeats by itself counts once.",
        service="dynamodb, sqs, objects (captures and the lake)",
        operation="as the service names it; of objects get, head, list, put, delete, upload",
    ),
    "request_failures": _counter(
        "pcaplake_request_failures_total",
        "Requests that got no answer, or one that is worth another try.",
        beside="requests",
        service="as above",
        operation="as above",
    ),
    "ledger_retries": _counter(
        "pcaplake_ledger_retries_total",
        "Requests of the ledger that were made again: it was busy or did not answer, or others were at its items.",
    ),
    # Kubernetes
    "deletion_cost_updates": _counter(
        "pcaplake_deletion_cost_updates_total",
        "Times that the pod's deletion cost was to be written (setting `deletion_cost`).",
        outcome={"done": "", "failed": "tried again later"},
    ),
    "operator_leading": _gauge("pcaplake_operator_leading", "1 where this `pcaplake operator` leads, else 0."),
    "operator_jobs": _counter(
        "pcaplake_operator_jobs_total",
        "Jobs of `pcaplake operator`.",
        job="as the plan names it",
        outcome={
            **dict.fromkeys(("launched", "succeeded", "failed"), ""),
            "overlap": "due while the last one ran",
            "refused": "the template is not valid",
        },
    ),
    # this process
    "event_loop_delay_seconds": _gauge(
        "pcaplake_event_loop_delay_seconds", "Longest delay of the event loop in the last half minute."
    ),
}


class _Gauges(Collector):
    """Gauges that are not there before they are set: a 0 that nobody measured would be a lie."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = metrics
        self._values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in metrics}
        self._lock = Lock()

    def set(self, name: str, labels: tuple[str, ...], value: float) -> None:
        with self._lock:
            self._values[name][labels] = value

    def pick(self, name: str, labels: tuple[str, ...], value: float) -> None:
        with self._lock:
            values = self._values[name]
            values[labels] = self._metrics[name].pick(values.get(labels, value), value)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, metric in self._metrics.items():
            family = GaugeMetricFamily(metric.name, metric.help, labels=list(metric.labels))
            with self._lock:
                values = list(self._values[name].items())
            for labels, value in values:
                family.add_metric(labels, value)
            yield family


class PrometheusMeter:
    """The `Meter` over one registry, of any thread. `strict` raises KeyError or ValueError for a call that does not fit

    the table; otherwise it is logged, once for each name, and nothing is counted.
    """

    def __init__(self, registry: CollectorRegistry, *, strict: bool = False) -> None:
        self._strict = strict
        self._told: set[str] = set()
        disable_created_metrics()  # type: ignore[no-untyped-call]  # else each counter is two series
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._extremes: dict[str, list[str]] = {}
        self._beside = {metric.beside: name for name, metric in METRICS.items() if metric.beside is not None}
        for name, metric in METRICS.items():
            if metric.kind == "counter":
                self._counters[name] = Counter(metric.name, metric.help, list(metric.labels), registry=registry)
            elif metric.kind == "histogram":
                self._histograms[name] = Histogram(
                    metric.name, metric.help, list(metric.labels), registry=registry, buckets=metric.buckets
                )
            elif metric.of is not None:
                self._extremes.setdefault(metric.of, []).append(name)
        self._gauges = _Gauges({name: metric for name, metric in METRICS.items() if metric.kind == "gauge"})
        registry.register(self._gauges)
        ProcessCollector(registry=registry)

    def begin(self, names: Iterable[str] = METRICS, **known: Iterable[str]) -> None:
        """Have the series of counters and histograms whose labels are known: without a 0 before it, nobody sees the

        first event. Known are the values in the table, and those of the labels in `known`.
        """
        for name in names:
            metric = self._counters.get(name) or self._histograms.get(name)
            labels = METRICS[name].labels
            if metric is None or not labels:
                continue
            values = [label if isinstance(label, Mapping) else known.get(key, ()) for key, label in labels.items()]
            for series in itertools.product(*values):
                metric.labels(*series)

    def count(self, name: str, by: float = 1, **labels: str) -> None:
        try:
            metric = self._counters[name]
            (metric.labels(**labels) if labels or METRICS[name].labels else metric).inc(by)
            if name in self._beside:
                self._counters[self._beside[name]].labels(**labels)
        except (KeyError, ValueError) as error:
            self._wrong("count", name, labels, error)

    def observe(self, name: str, value: float, **labels: str) -> None:
        try:
            metric = self._histograms[name]
            (metric.labels(**labels) if labels or METRICS[name].labels else metric).observe(value)
            for extreme in self._extremes.get(name, ()):
                self._gauges.pick(extreme, (), value)
        except (KeyError, ValueError) as error:
            self._wrong("observe", name, labels, error)

    def set(self, name: str, value: float, **labels: str) -> None:
        try:
            metric = METRICS[name]
            if metric.kind != "gauge" or metric.of is not None or labels.keys() != metric.labels.keys():
                raise ValueError(f"the metric {name} cannot be set like this")
            self._gauges.set(name, tuple(labels[label] for label in metric.labels), float(value))
        except (KeyError, ValueError) as error:
            self._wrong("set", name, labels, error)

    def _wrong(self, call: str, name: str, labels: Mapping[str, Any], error: Exception) -> None:
        if self._strict:
            raise error
        if name not in self._told:
            self._told.add(name)
            log.error("metrics: %s(%r, %s) does not fit worker/telemetry/metrics.py: %r", call, name, labels, error)


def markdown() -> str:
    """docs/metrics.md."""
    lines = [
        "# Metrics",
        "",
        "Made by `python -m worker.telemetry.metrics` from the table in that module; a test keeps it true. `pcaplake run`",
        "exposes them on `/metrics` (setting `http_port`), beside the usual `process_...` of the process itself.",
        "",
        "A gauge is not there until it has been measured. A counter begins at 0 for every value of its labels that is known",
        "at the start: those below, and the tables. Of a histogram there are `_bucket`, `_sum` and `_count`.",
        "",
        "| metric | type | what it tells | labels |",
        "|---|---|---|---|",
    ]
    for metric in METRICS.values():
        labels = "<br>".join(f"`{label}`: {_in_words(values)}" for label, values in metric.labels.items())
        lines.append(f"| `{metric.name}` | {metric.kind} | {metric.help} | {labels} |")
    return "\n".join(lines) + "\n"


def _in_words(label: Label) -> str:
    if isinstance(label, str):
        return label
    return ", ".join(f"{value} ({note})" if note else value for value, note in label.items())


if __name__ == "__main__":
    print(markdown(), end="")
