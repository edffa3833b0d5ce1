"""The port through which the committer has captures read again, and the error for files that cannot be rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pcaplake.common.errors import Retryable
from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.records import Capture, Stage


class Source(Protocol):
    """Reads captures again for the committer."""

    async def replay_captures(self, captures: Sequence[Capture]) -> None:
        """Decode and stage these captures again, or announce them to a queue. Durable on return, else raises Retryable."""

    async def find_unreadable(self, captures: Sequence[Capture]) -> Sequence[Capture]:
        """The captures whose content cannot be read again. Raises Retryable or Fatal when that is unknown."""

    async def rebuild_files(self, table: str, stage: Stage) -> Sequence[AddFile] | None:
        """New files with all rows of the captures of a stage in one table; None when a capture is gone or has changed.

        Raises ReadDifferently if they would have other rows than the stage. Any other exception means that a capture cannot
        be read now. Both block only this table.
        """


class NullSource:
    """A source that cannot read captures again. Whoever uses the lake must ingest returned captures again."""

    async def replay_captures(self, captures: Sequence[Capture]) -> None:
        pass

    async def find_unreadable(self, captures: Sequence[Capture]) -> Sequence[Capture]:
        return captures

    async def rebuild_files(self, table: str, stage: Stage) -> Sequence[AddFile] | None:
        return None


class ReadDifferently(Retryable):
    """Captures whose files were lost would be read otherwise than before."""


class FilesMissing(Retryable):
    """Files of a batch were deleted and cannot be rebuilt."""
