"""The errors of the worker. Adapters translate the errors of libraries into these, and the class decides what happens next.

Retryable   throttled, timed out, outcome unknown: keep the work and try again later
Fatal       wrong settings, no permission, another kind of lake: stop, say what to do, exit with an error
"""

from __future__ import annotations


class WrongUsage(ValueError):
    """What the command line or the settings say cannot be used; the exit code is 2. The message says what to write."""


class PcaplakeError(Exception):
    """The base class of all errors of the worker."""


class Retryable(PcaplakeError):
    """The same request may succeed later."""


class OutcomeUnknown(Retryable):
    """The request may or may not have been carried out: read the state before you repeat it."""


class Fatal(PcaplakeError):
    """Retrying cannot help: someone must first change something. The message says what."""


class NotAllowed(Fatal):
    """A permission is missing. `what`: the operation that is not allowed; others may be."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class BucketMissing(Fatal):
    """The store has no such bucket or container, so nothing in it can be read or written."""


class WrongChoice(Fatal):
    """An option does not fit the existing lake. Nothing was changed."""
