"""The job `signals`: the run of `pcaplake signals`, whose files executors read and write.

docs/adr/0043-signals-follow-the-rows.md says what a run does.
"""

from .job import run

__all__ = ["run"]
