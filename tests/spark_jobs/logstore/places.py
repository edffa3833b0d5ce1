"""A table that Spark and the workers write in turns, under a URI of a test's own."""

from __future__ import annotations

from pathlib import Path

from tests.spark_jobs.tables import Shared


class Place:
    """What `Spark` needs to know of a `Shared` table."""

    def __init__(self, table: Shared, folder: Path) -> None:
        self.uri, self.folder = table.lake, folder
        self.settings = {
            **table.site.aws.environment,
            "PCAPLAKE_LEDGER_TABLE": table.site.ledger,
            "PCAPLAKE_LOCK_TABLE": table.site.locks,
            "PCAPLAKE_STORAGE_OPTION": '{"allow_http": "true"}',
        }

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in self.folder.glob("*.log"))
