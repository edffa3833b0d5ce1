"""What can go wrong while reading a capture, drawn as a tree.

    ParserError                 never raised itself
    |-- CaptureError            these bytes are not a capture (or not one that can be opened): quarantine it
    |-- ProfileError            the profile is wrong: `line` says where, the message says what to write instead
    `-- CannotCompile           a protocol declaration says something that one term cannot hold: mend the declaration

What is wrong *inside* a capture raises nothing: it becomes a row of the table `faults`.
"""

from __future__ import annotations


class ParserError(Exception):
    """The common ancestor; raise one of its children."""


class CaptureError(ParserError):
    """These bytes are not a capture. `reason` is a short word for machines, the message is for people."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"not a capture ({reason}): {detail}")
        self.reason, self.detail = reason, detail


class ProfileError(ParserError, ValueError):
    """A profile that cannot be used; `line` is the line of the YAML file, from 1, or None."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


class CannotCompile(ParserError, TypeError):
    """A declaration that the engine cannot run; raised at import, never while decoding."""
