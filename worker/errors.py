"""The errors that decide what happens next. Adapters translate into them, so that no other code names a library's errors.

Retryable   throttled, timed out, outcome unknown: keep the work and try again later
Fatal       wrong settings, no permission, another kind of lake: stop, say what to do, exit with an error
"""

from __future__ import annotations


class PcaplakeError(Exception):
    """The common ancestor of everything the worker raises on purpose."""


class Retryable(PcaplakeError):
    """It may work the next time."""


class OutcomeUnknown(Retryable):
    """The request may or may not have been carried out: look before doing it again."""


class Fatal(PcaplakeError):
    """Nothing will work until somebody changes something; the message says what."""


class NotAllowed(Fatal):
    """A right is missing. `what`: that which is not allowed; other requests may still be answered."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class WrongChoice(Fatal):
    """What was asked for does not fit the lake that is there: nothing was begun."""
