"""What a process tells about itself: logs, metrics, health, traces. Needs the extra `aws`; `otel` for traces."""
