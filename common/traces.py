"""OpenTelemetry spans over OTLP/HTTP, if the extra `otel` is installed and an endpoint is set; otherwise they cost nothing.

The SDK reads sampling, headers and resource from the `OTEL_...` variables.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from pcaplake.common import VERSION

log = logging.getLogger(__name__)

_QUEUED = 2048  # spans; one request sends all of them, so that shutdown is short
_tracer: Any = None  # of the process, within `exported_traces`


def span(name: str, **attributes: str | int | float | bool) -> AbstractContextManager[object]:
    """A span: `with span("capture", uri=...)`. Its parent is the task's current span; an exception marks it as failed."""
    return nullcontext() if _tracer is None else _tracer.start_as_current_span(name, attributes=attributes)


@contextmanager
def exported_traces(endpoint: str | None, *, timeout: float = 5.0) -> Iterator[None]:
    """Send spans to `endpoint` (a complete URL) within the block; None: do nothing. The end blocks to send the rest.

    `timeout`: seconds of one request with its retries. If the endpoint cannot be reached, spans are lost and this is logged.
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
