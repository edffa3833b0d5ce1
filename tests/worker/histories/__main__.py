"""Many histories, or the one whose steps are given: `python -m tests.worker.histories "write a 1" "ingest --profile p0"`."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.worker import warmed  # noqa: F401

from .histories import clean, failure, history, shortest

_SHOWN = 1_500  # characters of a failure


def _quiet() -> None:
    logging.disable()


def _run(steps: Sequence[str], folder: Path) -> str:
    why = failure(steps, clean(folder))
    clean(folder)
    return why


def _one(seed: int, folder: Path, given: dict[str, bool]) -> tuple[int, str]:
    return seed, _run(history(seed, **given), folder / f"{seed}")


def _cause(text: str) -> str:
    """What stays the same when a history is made shorter: not at which step it fails."""
    return text.partition(": ")[2][:40]


def _fails_like(why: str, run: Callable[[Sequence[str]], str]) -> Callable[[Sequence[str]], bool]:
    return lambda steps: _cause(run(steps)) == _cause(why)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", help="the steps of one history, each an argument")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--shorten", action="store_true", help="find the shortest steps that still fail in this way")
    parser.add_argument("--without", action="append", default=[], choices=("signals", "foreign", "reread"))
    chosen = parser.parse_args()
    folder, given = Path(tempfile.mkdtemp(prefix="histories-")), dict.fromkeys(chosen.without, False)
    logging.disable()
    if chosen.steps:
        why = failure(chosen.steps, folder / "one")
        print(why or "right", folder / "one")
        return 1 if why else 0
    begin, failed, done = time.monotonic(), list[int](), 0
    with ProcessPoolExecutor(chosen.processes, initializer=_quiet) as pool:
        seeds = range(chosen.first, chosen.first + chosen.count)
        for seed, why in pool.map(partial(_one, folder=folder, given=given), seeds):
            done += 1
            if why:
                failed.append(seed)
                steps = history(seed, **given)
                if chosen.shorten:
                    steps = shortest(steps, _fails_like(why, partial(_run, folder=folder / "shorter")))
                    why = _run(steps, folder / "shorter")
                print(f"seed {seed}: {why[:_SHOWN]}\n  ", *(f'"{step}"' for step in steps), flush=True)
            if done % 10 == 0:
                print(f"{done} histories, {len(failed)} failed; {time.monotonic() - begin:.0f} s", flush=True)
    print(f"{done} histories, {len(failed)} failed: {failed}; {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
