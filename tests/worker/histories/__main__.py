"""`python -m tests.worker.histories`: many histories, or the one whose steps are given. Prints each failure with its shortest steps."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

from tests.worker import warmed  # noqa: F401

from .histories import clean, failure, history, shortest


def _quiet() -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    logging.disable()


def _one(seed: int, folder: Path, given: dict[str, bool]) -> tuple[int, str]:
    clean(folder / f"h{seed}")
    text = failure(history(seed, **given), folder / f"h{seed}")
    clean(folder / f"h{seed}")
    return seed, text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", nargs="*", help="the steps of one history, each an argument")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--keep", action="store_true", help="do not shorten")
    parser.add_argument("--without", action="append", default=[], choices=("signals", "foreign", "reread"))
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="histories-"))
    given = dict.fromkeys(chosen.without, False)
    if chosen.steps:
        print(failure(chosen.steps, folder / "one") or "right", folder / "one")
        return 0
    begin, failed, done = time.monotonic(), list[int](), 0
    pool = ProcessPoolExecutor(chosen.processes, initializer=_quiet)
    seeds = range(chosen.first, chosen.first + chosen.count)
    for seed, text in pool.map(partial(_one, folder=folder, given=given), seeds):
        done += 1
        if text:
            failed.append(seed)
            print(f"seed {seed}: {text[:600]}", flush=True)
            if not chosen.keep:
                cause = _cause(text)
                steps = shortest(
                    history(seed, **given),
                    lambda steps: _cause(pool.submit(failure, steps, clean(folder / "short")).result()) == cause,
                )
                print("   shortest:", *(f'"{step}"' for step in steps), flush=True)
                print("   ", pool.submit(failure, steps, clean(folder / "short")).result()[:600], flush=True)
        if time.monotonic() - begin > chosen.minutes * 60:
            pool.shutdown(cancel_futures=True)
            break
    print(f"{done} histories, {len(failed)} failed: {failed}; {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


def _cause(text: str) -> str:
    """What stays the same when a history is made shorter."""
    words = text.partition(": ")[2] if text.startswith(("step", "the end", "before")) else text
    return words[:40] if text else ""


if __name__ == "__main__":
    sys.exit(main())
