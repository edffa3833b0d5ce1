"""What is logged, as one JSON object a line or as text for people, each with the ids of what it is about.

Knows structlog (the extra `aws`); all other modules use the standard library's loggers. Must not know what they say.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TextIO

import structlog

from pcaplake.worker.plain_text import to_json, visible

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_CHATTY = ("aiobotocore", "aiohttp", "asyncio", "botocore", "opentelemetry", "urllib3")
"""Below `warning` they tell of every request, with its signature."""


def bind_log_context(**ids: str) -> None:
    """Add these to every line that this task and the tasks it starts log from now on.

    A thread of an executor has a context of its own; `asyncio.to_thread` takes the task's along.
    """
    structlog.contextvars.bind_contextvars(**ids)


@contextmanager
def configured_logging(
    format: Literal["json", "text"] = "json",
    level: Literal["debug", "info", "warning", "error"] = "info",
    stream: TextIO | None = None,
) -> Iterator[None]:
    """Everything that is logged goes to `stream` (stderr by default); as before at the end."""
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_create_formatter(format, colors=stream.isatty()))
    root = logging.getLogger()
    handlers, old_level = root.handlers[:], root.level
    quiet = {name: logging.getLogger(name).level for name in _CHATTY}
    root.handlers[:] = [handler]
    root.setLevel(_LEVELS[level])
    for name in quiet:
        logging.getLogger(name).setLevel(max(logging.WARNING, _LEVELS[level]))
    try:
        yield
    finally:
        handler.flush()
        root.handlers[:] = handlers
        root.setLevel(old_level)
        for name, old in quiet.items():
            logging.getLogger(name).setLevel(old)


def _escape_log_values(
    logger: structlog.typing.WrappedLogger, method: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """What is logged names files and keys of strangers. The renderer shows values that are no texts as Python does."""
    return {
        name: visible(value, keep="\n" if name == "exception" else "") if isinstance(value, str) else value
        for name, value in event_dict.items()
    }


def _create_formatter(format: str, *, colors: bool) -> logging.Formatter:
    about: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
    ]
    if format == "json":
        about.append(structlog.processors.TimeStamper(fmt="iso", utc=True))
        shown: list[structlog.typing.Processor] = [
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(serializer=to_json, default=str, ensure_ascii=False),
        ]
    else:
        about.append(structlog.processors.TimeStamper(fmt="%H:%M:%S", utc=False))
        # the default shows the locals of every frame: hundreds of lines, in which settings and secrets stand
        plain = structlog.dev.plain_traceback
        shown = [
            structlog.processors.format_exc_info,
            _escape_log_values,
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain),
        ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=about, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *shown]
    )
