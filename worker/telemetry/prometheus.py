"""The meter that fills in the metrics for Prometheus."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from .metrics import METRICS, Metric

log = logging.getLogger(__name__)


class _Gauges(Collector):
    """Gauges that are exposed only once they are set, because 0 would be a wrong value before that."""

    def __init__(self, metrics: Mapping[str, Metric]) -> None:
        self._metrics = metrics
        self._values: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in metrics}
        self._lock = Lock()

    def set_gauge(self, name: str, labels: tuple[str, ...], value: float) -> None:
        with self._lock:
            self._values[name][labels] = value

    def keep_extreme(self, name: str, labels: tuple[str, ...], value: float) -> None:
        with self._lock:
            values = self._values[name]
            values[labels] = self._metrics[name].pick(values.get(labels, value), value)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, metric in self._metrics.items():
            family = GaugeMetricFamily(metric.name, metric.help, labels=list(metric.labels))
            with self._lock:
                values = list(self._values[name].items())
            for labels, value in values:
                if not math.isnan(value):
                    family.add_metric(labels, value)
            yield family


class PrometheusMeter:
    """A `Meter` that counts into a Prometheus registry; safe to call from any thread.

    A call that does not fit the table of metrics raises KeyError or ValueError when `strict`; otherwise it is logged once
    for each name and not counted.
    """

    def __init__(self, registry: CollectorRegistry, *, strict: bool = False) -> None:
        self._strict = strict
        self._reported: set[str] = set()
        disable_created_metrics()  # type: ignore[no-untyped-call]  # otherwise each counter has two series
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._extremes: dict[str, list[str]] = {}
        self._created_with = {
            metric.created_with: name for name, metric in METRICS.items() if metric.created_with is not None
        }
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
        """Create the series whose label values are known: those in the table, and those in `known`.

        `rate` and `increase` miss the first event of a series that does not start at 0.
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
            _require_known_values(name, labels)
            (metric.labels(**labels) if labels or METRICS[name].labels else metric).inc(by)
            if name in self._created_with:
                self._counters[self._created_with[name]].labels(**labels)
        except (KeyError, ValueError) as error:
            self._report_misuse("count", name, labels, error)

    def observe(self, name: str, value: float, **labels: str) -> None:
        try:
            metric = self._histograms[name]
            _require_known_values(name, labels)
            (metric.labels(**labels) if labels or METRICS[name].labels else metric).observe(value)
            for extreme in self._extremes.get(name, ()):
                self._gauges.keep_extreme(extreme, (), value)
        except (KeyError, ValueError) as error:
            self._report_misuse("observe", name, labels, error)

    def set(self, name: str, value: float, **labels: str) -> None:
        try:
            metric = METRICS[name]
            if metric.kind != "gauge" or metric.of is not None or labels.keys() != metric.labels.keys():
                raise ValueError(f"the metric {name} cannot be set like this")
            self._gauges.set_gauge(name, tuple(labels[label] for label in metric.labels), float(value))
        except (KeyError, ValueError) as error:
            self._report_misuse("set", name, labels, error)

    def _report_misuse(self, call: str, name: str, labels: Mapping[str, Any], error: Exception) -> None:
        if self._strict:
            raise error
        if name not in self._reported:
            self._reported.add(name)
            log.error("metrics: %s(%r, %s) does not fit worker/telemetry/metrics.py: %r", call, name, labels, error)


def _require_known_values(name: str, labels: Mapping[str, str]) -> None:
    for label, values in METRICS[name].labels.items():
        if isinstance(values, Mapping) and labels[label] not in values:
            raise ValueError(f"{label}={labels[label]!r} is not in the table of metrics")
