"""Spans for OpenTelemetry, where the extra `otel` is installed and somebody collects them; else they cost nothing.

Knows the SDK and OTLP over HTTP. Must not know what is traced. Sampling, headers and resource are what the `OTEL_...`
variables say, which the SDK reads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from pcaplake.worker import VERSION

log = logging.getLogger(__name__)

_QUEUED = 2048  # spans; one request takes them all, so that the end waits for few
_tracer: Any = None  # of the process, as long as `exported_traces`


def span(name: str, **attributes: str | int | float | bool) -> AbstractContextManager[object]:
    """`with span("capture", uri=...)`: a span below the one around it in this task; an exception makes it a failure."""
    return nullcontext() if _tracer is None else _tracer.start_as_current_span(name, attributes=attributes)


@contextmanager
def exported_traces(endpoint: str | None, *, timeout: float = 5.0) -> Iterator[None]:
    """Within it, spans go to `endpoint`, the whole URL; None: nowhere. What is left is sent at the end, which blocks.

    `timeout`: seconds of one request with its repeats. Who cannot be reached costs spans and a line in the log.
    """
    global _tracer
    provider = None if endpoint is None else _create_provider(endpoint, timeout)
    if provider is None:
        yield
        return
    _tracer = provider.get_tracer("pcaplake", VERSION)
    try:
        yield
    finally:
        _tracer = None
        provider.shutdown()


def _create_provider(endpoint: str, timeout: float) -> Any:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        log.warning("no traces for %s: they need the extra `otel`: pip install 'pcaplake[otel]'", endpoint)
        return None
    resource = Resource.create({"service.version": VERSION})
    if str(resource.attributes.get("service.name", "unknown_service")).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "pcaplake"}))
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=timeout)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=_QUEUED, max_export_batch_size=_QUEUED))
    return provider
