"""Logs, metrics, health checks and traces of a process. Needs the extra `aws`; `otel` for traces."""
