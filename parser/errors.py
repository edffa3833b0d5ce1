"""The errors of the parser, as a tree.

    ParserError                 the common base class, never raised itself
    |-- CaptureError            the bytes are not a capture, or not one that can be opened: quarantine it
    |-- ProfileError            the profile is wrong: `line` is where, the message says what to write instead
    |-- CannotCompile           a protocol is declared in a way that the engine cannot run: change the declaration
    `-- KernelsNotBuilt         the compiled kernels are missing or are not those of this source: build them

Damage *inside* a capture raises nothing: it becomes a row of the table `faults`.
"""

from __future__ import annotations


class ParserError(Exception):
    """The base class of all errors of the parser."""


class CaptureError(ParserError):
    """The bytes are not a capture. `reason` is a code such as "unknown_format", `detail` a sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"not a capture ({reason}): {detail}")
        self.reason, self.detail = reason, detail


class ProfileError(ParserError, ValueError):
    """The profile cannot be used. `line` is the line of the YAML file, from 1, or None."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line


class CannotCompile(ParserError, TypeError):
    """The engine cannot run a declaration. Raised at import, never while decoding."""


class KernelsNotBuilt(ParserError, RuntimeError):
    """The compiled kernels are missing, or were compiled from other sources than those that are here."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why}: in a checkout run `make setup`, else install pcaplake from a wheel for this platform again"
        )
