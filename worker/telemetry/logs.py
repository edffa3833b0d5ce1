"""Formats log records as JSON lines or as text, with the ids of the message and the capture that they are about.

Only this module uses structlog (the extra `aws`); all others use the standard library's loggers.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TextIO

import structlog

from pcaplake.common.errors import PcaplakeError
from pcaplake.common.log_context import log_context, mark_logged
from pcaplake.common.plain_text import to_json, visible
from pcaplake.parser import ProfileError
from pcaplake.worker.config.settings import WrongSetting

log = logging.getLogger(__name__)
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_CHATTY = ("aiobotocore", "aiohttp", "asyncio", "botocore", "opentelemetry", "urllib3")
"""Loggers that log every request with its signature at levels below `warning`."""


@contextmanager
def configured_logging(
    format: Literal["json", "text"] = "json",
    level: Literal["debug", "info", "warning", "error"] = "info",
    stream: TextIO | None = None,
) -> Iterator[None]:
    """Log to `stream` (default: stderr) within the block; restores the previous configuration.

    An exception that leaves the block ends the program, so it is logged: a line in the same format as all others.
    """
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
    except Exception as error:
        expected = isinstance(error, PcaplakeError | WrongSetting | ProfileError)
        log.critical("ended by an error: %s", error if expected else repr(error), exc_info=not expected)
        mark_logged(error)
        raise
    finally:
        handler.flush()
        root.handlers[:] = handlers
        root.setLevel(old_level)
        for name, old in quiet.items():
            logging.getLogger(name).setLevel(old)


def _add_log_context(
    logger: structlog.typing.WrappedLogger, method: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return {**log_context(), **event_dict}


def _escape_log_values(
    logger: structlog.typing.WrappedLogger, method: str, event_dict: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape strings, because names of files and keys may contain control characters. The renderer shows others by `repr`."""
    return {
        name: visible(value, keep="\n" if name == "exception" else "") if isinstance(value, str) else value
        for name, value in event_dict.items()
    }


def _create_formatter(format: str, *, colors: bool) -> logging.Formatter:
    about: list[structlog.typing.Processor] = [
        _add_log_context,
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
        # the default shows the locals of every frame: hundreds of lines, which may contain secrets
        plain = structlog.dev.plain_traceback
        shown = [
            structlog.processors.format_exc_info,
            _escape_log_values,
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain),
        ]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=about, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *shown]
    )
