"""Progress and log warnings on stderr, for programs without a progress bar, such as Spark jobs."""

from __future__ import annotations

import logging
import sys
from typing import Any

from .plain_text import visible


class OneLineFormatter(logging.Formatter):
    """Formats a log record as one line; only a traceback keeps its lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return visible(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return visible(super().formatException(ei), keep="\n")


def say(text: str) -> None:
    """Write one line."""
    print(visible(text), file=sys.stderr, flush=True)


def log_warnings(handler: logging.Handler | None = None) -> None:
    """Send warnings and errors of the log to stderr, or to `handler`, one line each."""
    handler = logging.StreamHandler() if handler is None else handler
    handler.setFormatter(OneLineFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
