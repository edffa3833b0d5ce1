"""Step 4 of the committer: the files of a stage that a table may reference; missing ones are rebuilt from captures."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from pcaplake.lake.delta.actions import AddFile
from pcaplake.lake.delta.errors import TableBlocked
from pcaplake.lake.lake_parts import LakeParts
from pcaplake.lake.records import Stage
from pcaplake.lake.staging.stage_files import StageFiles

from . import losses
from .capture_source import FilesMissing, ReadDifferently, Source
from .progress import Progress

log = logging.getLogger(__name__)


class CommittableFiles:
    """Finds the files of stages that can be committed. Raises FilesMissing when some are gone and cannot be rebuilt."""

    def __init__(self, parts: LakeParts, files: StageFiles, source: Source, progress: Progress) -> None:
        self._store, self._log = parts.store, parts.log_store
        self._files, self._source, self._progress = files, source, progress
        self._rebuilt_differently: dict[tuple[str, str], str] = {}  # stage and table -> why rebuilt rows differ

    async def find_committable_files(self, stage: Stage, table: str, now: int, *, opens: bool) -> Sequence[AddFile]:
        """The files of a stage for a table. When they may be gone, they are looked for and, if missing, rebuilt.

        Rebuilt files must have as many rows. Of old stages, copies of the files are committed.
        """
        adds = stage.adds.get(table, ())
        # rule: files that may be gone are checked before they are committed
        if not adds or not (opens or await self._may_lack_files(stage, table, now)):
            return adds
        missing = await self._files.find_missing([f"{table}/{add.path}" for add in adds])
        if not missing:
            if not self._files.needs_copy(stage, now):
                return adds
            if (reason := await self._log.read_block_reason(table)) is not None:  # each attempt would make new copies
                raise TableBlocked(reason)
            return await self._files.copy_files(table, adds, now)
        gone = f"{table}: files_missing: {', '.join(missing)} of stage {stage.stage_id} are gone"
        # Decoding a capture again can take minutes and leaves files behind, and with this program the result stays the same.
        if (otherwise := self._rebuilt_differently.get((stage.stage_id, table))) is not None:
            rebuilt, problem = None, f"{gone}, and {otherwise}"  # each attempt would leave orphan files
        else:
            rebuilt, problem = await self._rebuild_stage_files(stage, table, gone)
        if rebuilt is not None:
            return rebuilt
        if await losses.is_loss_accepted(self._store, stage.stage_id, table):
            log.warning("%s; this loss was accepted", problem)
            return [add for add in adds if f"{table}/{add.path}" not in missing]
        raise FilesMissing(f"{problem}; `pcaplake doctor` says how many rows are lost and how to continue without them")

    async def _may_lack_files(self, stage: Stage, table: str, now: int) -> bool:
        """Whether the stage is old, or its table could have been dropped since it was written, and created or restored
        again.

        Dropping a table deletes the files that wait for it.
        """
        sees_since = max(
            now if self._progress.sees_since is None else self._progress.sees_since,
            self._progress.looked_at.get(table, 0),
        )
        if (
            self._files.needs_existence_check(stage, now)
            # rule: files written before the table was last seen may be gone
            or stage.written_at <= sees_since
        ):
            return True
        # A table that never had a batch may have been dropped together with the files that wait for it.
        return self._progress.done.get(table, -1) < 0 and await self._log.read_version(table) < 0

    async def _rebuild_stage_files(self, stage: Stage, table: str, gone: str) -> tuple[Sequence[AddFile] | None, str]:
        """Rebuild the files of a stage for a table: the new files, or None and the reason."""
        try:
            rebuilt = await self._source.rebuild_files(table, stage)
        except ReadDifferently as error:
            self._rebuilt_differently[stage.stage_id, table] = str(error)
            return None, f"{gone}, and {error}"
        except Exception as error:  # noqa: BLE001 -- an error of a capture blocks one table only
            return None, f"{gone}, and cannot be rebuilt: {str(error) or repr(error)}"
        if rebuilt is None:
            uris = ", ".join(capture.uri for capture in stage.captures)
            return None, f"{gone}, and so are its captures: put back the files, or {uris}"
        had, has = _count_rows(stage.adds[table]), _count_rows(rebuilt)
        # rule: files are rebuilt with as many rows as they had
        if had is None or had == has:
            return rebuilt, ""
        otherwise = (
            f"its captures now have {has} instead of {had} rows in this table: another profile or decoder version "
            f"wrote the files ({stage.decoder_version}). Restart with that profile and version"
        )
        self._rebuilt_differently[stage.stage_id, table] = otherwise
        return None, f"{gone}, and {otherwise}"


def _count_rows(adds: Sequence[AddFile]) -> int | None:
    """Rows of all files; None when one has no row count."""
    counts = [add.num_records for add in adds]
    return None if None in counts else sum(count or 0 for count in counts)
