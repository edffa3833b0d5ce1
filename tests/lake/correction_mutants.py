"""Rules of statistics and of their correction, each left out: a test of test_corrections.py must find each of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pcaplake.lake.corrections import FileCorrector
from pcaplake.lake.parquet import statistics
from tests.mutants import DROP, Mutant

MUTANTS: Final[Mapping[str, Mutant]] = {
    "a file that was removed returns": Mutant(
        FileCorrector._correct_some, "a corrected file is still live, or its rows would return", DROP
    ),
    "a corrected file has new rows": Mutant(FileCorrector._correct_file, "a correction changes no row", DROP),
    "a file has two spellings": Mutant(
        FileCorrector._correct_file,
        "a file whose path another writer spells in its own way is swapped for a copy",
        DROP,
    ),
    "a bound is missing": Mutant(
        statistics._format_statistics, "each column with values has both bounds, or none has any", DROP
    ),
}
